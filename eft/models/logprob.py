"""How likely a model finds given answers: log-likelihoods of completions of one prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def completions(
    model: Any, tokenizer: Any, messages: list[dict[str, str]], answers: Sequence[str], *, max_tokens: int | None = None
) -> list[float]:
    """Mean log-probability per token (nats) of each answer and its end token, after `messages` in the chat template.

    Answers are padded on the right, which a causal model cannot see. At `max_tokens` of prompt and answer together the
    prompt loses its beginning. Raises ValueError for no answers.
    """
    import torch

    from eft.tokenizers import prompt_text

    encode = tokenizer.backend_tokenizer.encode
    prompt = encode(prompt_text(tokenizer, messages), add_special_tokens=False).ids
    tails = [encode(a, add_special_tokens=False).ids + [tokenizer.eos_token_id] for a in answers]
    if max_tokens is not None:
        prompt = prompt[-max(1, max_tokens - max(map(len, tails))) :]
    longest = max(map(len, tails))
    ids = torch.full((len(tails), longest), tokenizer.pad_token_id, dtype=torch.long)
    mask = torch.zeros((len(tails), len(prompt) + longest), dtype=torch.long)
    for row, tail in enumerate(tails):
        ids[row, : len(tail)] = torch.tensor(tail)
        mask[row, : len(prompt) + len(tail)] = 1
    ids, mask = ids.to(model.device), mask.to(model.device)
    with torch.inference_mode():
        logits = (_shared if _plain(model) else _whole)(model, torch.tensor([prompt], device=model.device), ids, mask)
        each = torch.gather(torch.log_softmax(logits.float(), dim=-1), 2, ids[..., None])[..., 0].cpu()
    return [float(each[row, : len(tail)].mean()) for row, tail in enumerate(tails)]


def _plain(model: Any) -> bool:
    """Does every layer attend to everything? Then a prompt's keys and values can be computed once for all answers."""
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
    return set(kinds) <= {"full_attention"}


def _shared(model: Any, prompt: Any, ids: Any, mask: Any) -> Any:
    """Logits before each answer's tokens, (answers, tokens, vocabulary): the prompt once, then the answers on top."""
    import torch
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    first = model(input_ids=prompt, cache=cache, use_cache=True, logits_to_keep=1).logits
    cache.batch_repeat_interleave(len(ids))
    rest = model(input_ids=ids, attention_mask=mask, cache=cache, use_cache=True).logits
    return torch.cat([first.expand(len(ids), -1, -1), rest[:, :-1]], dim=1)


def _whole(model: Any, prompt: Any, ids: Any, mask: Any) -> Any:
    """The same in one pass over prompt and answers, for models that keep more than keys and values."""
    import torch

    whole = torch.cat([prompt.expand(len(ids), -1), ids], dim=1)
    # the logits before the answers' tokens, and no others: a vocabulary of 250,000 makes whole ones large
    keep = ids.shape[1] + 1
    return model(input_ids=whole, attention_mask=mask, logits_to_keep=keep, use_cache=False).logits[:, :-1]
