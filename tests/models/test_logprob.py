"""Log-likelihoods of answers, and what tells one set of weights from the next."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from eft import tokenizers
from eft.models import identity, logprob
from eft.models.load import load_model, write_base

MESSAGES = [{"role": "user", "content": "def f(x):\n    return x + 1\n" * 8}]
ANSWERS = ["return x", "for i in range(10):\n    print(i)\n", "y"]


def test_a_shared_prompt_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = load_model("random:qwen3").eval(), tokenizers.load("random:qwen3")
    together = logprob.completions(model, tokenizer, MESSAGES, ANSWERS)
    alone = [logprob.completions(model, tokenizer, MESSAGES, [a])[0] for a in ANSWERS]
    assert together == pytest.approx(alone, abs=1e-4) and all(x < 0 for x in together)
    monkeypatch.setattr(logprob, "_plain", lambda model: False)
    assert logprob.completions(model, tokenizer, MESSAGES, ANSWERS) == pytest.approx(together, abs=1e-4)
    cut = logprob.completions(model, tokenizer, MESSAGES, ANSWERS, max_tokens=40)
    assert cut != pytest.approx(together, abs=1e-4), "a prompt that loses its beginning is another prompt"


def test_an_adapter_is_its_own_weights_and_can_be_trained_on(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    base = tmp_path / "base"
    load_model("random:qwen3").save_pretrained(base)
    tokenizers.load("random:qwen3").save_pretrained(base)
    config = LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    get_peft_model(load_model(str(base)), config).save_pretrained(tmp_path / "adapter")
    write_base(tmp_path / "adapter", str(base))
    merged = load_model(str(tmp_path / "adapter"))
    assert all(p.requires_grad for p in merged.parameters()), "a later round trains all of it"
    prints = {identity.fingerprint(str(tmp_path / n)) for n in ("base", "adapter")}
    assert len(prints) == 2
    shutil.copytree(base, tmp_path / "moved")
    assert identity.fingerprint(str(tmp_path / "moved")) in prints, "where it lies does not matter"
    assert identity.architecture(str(tmp_path / "adapter")) == identity.architecture(str(base))
    identity.check_comparable(str(base), str(tmp_path / "adapter"))


@pytest.mark.parametrize("batch_tokens", [64, 100_000])
@pytest.mark.parametrize("plain", [True, False])
def test_many_prompts_at_once_change_nothing(monkeypatch: pytest.MonkeyPatch, batch_tokens: int, plain: bool) -> None:
    model, tokenizer = load_model("random:qwen3").eval(), tokenizers.load("random:qwen3")
    conversations = [[{"role": "user", "content": MESSAGES[0]["content"][: 40 * k]}] for k in (5, 1, 3)]
    answers = [ANSWERS, ANSWERS[:1], ANSWERS[1:]]
    alone = [
        logprob.completions(model, tokenizer, m, a, max_tokens=120)
        for m, a in zip(conversations, answers, strict=True)
    ]
    rows = [logprob.encode(tokenizer, m, a, 120) for m, a in zip(conversations, answers, strict=True)]
    monkeypatch.setattr(logprob, "_plain", lambda model: plain)
    calls = []
    found = logprob.batched(
        model, rows, pad=tokenizer.pad_token_id, batch_tokens=batch_tokens, between=lambda: calls.append(1)
    )
    assert calls and [len(x) for x in found] == [3, 1, 2]
    assert sum(found, []) == pytest.approx(sum(alone, []), abs=1e-4)
    with pytest.raises(ValueError, match="no room"):
        logprob.encode(tokenizer, conversations[0], ANSWERS, 3)
