"""Fixtures of the mutators' tests: a scripted endpoint, a tiny model, one real vLLM server for all that need one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted import ScriptedUpstream, post


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as scripted:
        yield scripted


@pytest.fixture
def records() -> Callable[[Path], list[dict[str, Any]]]:
    """The records of a journal file, read with plain json (a stranger's reader must be able to)."""

    def load(path: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    return load


@pytest.fixture
def ask() -> Callable[..., tuple[int, dict[str, Any], dict[str, str]]]:
    """Post one chat request to a base URL: ask(url, 'text', temperature=...) or ask(url, raw=b'...')."""

    def send(url: str, text: str = "hello", *, raw: bytes | None = None, timeout: float = 30, **params: Any):
        body = raw if raw is not None else {"model": "m", "messages": [{"role": "user", "content": text}], **params}
        return post(url + "/chat/completions", body, timeout)

    return send


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 of two small layers with a byte-level tokenizer and a ChatML template, as a model folder."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    folder = tmp_path_factory.mktemp("model") / "tiny"
    specials = ["<pad>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({t: i for i, t in enumerate([*specials, *alphabet])}, []))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    inner.add_special_tokens(specials)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<|im_end|>")
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    torch.manual_seed(0)
    config = Qwen3Config(vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                         num_attention_heads=2, num_key_value_heads=1, head_dim=32, max_position_embeddings=2048,
                         eos_token_id=2, pad_token_id=0)  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def serving_environment() -> None:
    """Skip, loudly, where there is no serving environment; fail where CI says that there must be one."""
    from eft.errors import EftError
    from eft.mutators import engine

    try:
        engine.build(engine.python())
    except EftError as e:
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(f"serving must be tested in CI: {e}")
        pytest.skip(f"SERVING WAS NOT TESTED: {e}")


@pytest.fixture(scope="session")
def vllm(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One real vLLM server of the tiny model, for all tests of the session."""
    serving_environment()
    from eft.mutators.server import serving

    log = tmp_path_factory.mktemp("serve") / "vllm.log"
    with serving(tiny_model, name="tiny", max_model_len=1024, dtype="float32", log=log, timeout=400) as server:
        yield server
