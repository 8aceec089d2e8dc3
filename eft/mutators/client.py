"""Ask any OpenAI-compatible endpoint for chat completions: for code that is no scaffold and has no event loop."""

from __future__ import annotations

from typing import Any

from eft.errors import EftError


class Client:
    """An open line to one model. A context manager: making one costs more than asking it, so keep it for all requests.

    timeout: seconds for one attempt. retries: further attempts, made by the client (an endpoint that has retried by
    itself, like the gateway, is not asked again).
    """

    def __init__(
        self, base_url: str, model: str, *, timeout: float = 600.0, retries: int = 2, api_key: str | None = None
    ) -> None:
        import openai

        self.base_url, self.model, self.timeout = base_url, model, timeout
        self._client = openai.OpenAI(
            base_url=base_url, api_key=api_key or "none", timeout=timeout, max_retries=retries
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()

    def chat(self, messages: list[dict[str, str]], **params: Any) -> dict[str, Any]:
        """The reply as {content, reasoning, finish_reason, usage, choices}; the first four are the first choice's.

        params: temperature, top_p, max_tokens, seed, n and whatever else the endpoint knows. Raises EftError where no
        reply can be had.
        """
        import openai

        try:  # the library refuses what it does not know as an argument, so everything travels in the body
            answer = self._client.chat.completions.create(model=self.model, messages=messages, extra_body=params)
        except openai.APIStatusError as e:
            body = e.body if isinstance(e.body, dict) else {}
            raise EftError("the model endpoint answered with an error", where=self.base_url,
                           why=f"{e.status_code}: {body.get('message', e.message)}") from None  # fmt: skip
        except openai.APITimeoutError:
            raise EftError("the model endpoint gave no reply", where=self.base_url,
                           why=f"nothing within {self.timeout:g} s") from None  # fmt: skip
        except openai.APIConnectionError as e:
            raise EftError("the model endpoint cannot be reached", where=self.base_url, why=str(e.__cause__ or e),
                           way_out="start it, or give another base URL") from None  # fmt: skip
        except (openai.OpenAIError, ValueError) as e:
            raise _foreign(self.base_url, e) from None
        if isinstance(answer, str) or not getattr(answer, "choices", None):
            raise _foreign(self.base_url, answer)
        choices = []
        for choice in answer.choices:
            extra = choice.message.model_extra or {}
            choices.append({"content": choice.message.content or "", "finish_reason": choice.finish_reason,
                            "reasoning": extra.get("reasoning_content") or extra.get("reasoning")})  # fmt: skip
        usage = answer.usage and {k: getattr(answer.usage, k) for k in ("prompt_tokens", "completion_tokens")}
        return {**choices[0], "usage": usage, "choices": choices}


def chat(
    base_url: str, model: str, messages: list[dict[str, str]], *, timeout: float = 600.0, retries: int = 2,
    api_key: str | None = None, **params: Any,
) -> dict[str, Any]:  # fmt: skip
    """One request over a line of its own; see Client."""
    with Client(base_url, model, timeout=timeout, retries=retries, api_key=api_key) as client:
        return client.chat(messages, **params)


def _foreign(base_url: str, answer: object) -> EftError:
    what = "the model endpoint did not answer with a chat completion"
    return EftError(what, where=base_url, why=str(answer)[:200], way_out="check that the URL ends in /v1")
