"""What is exported, vLLM serves: its greedy text is that of transformers in float32."""

from __future__ import annotations

import subprocess
from pathlib import Path

import openai
import pytest

from eft import tokenizers
from eft.models import load, save
from eft.mutators import engine
from eft.mutators.server import serving
from eft.train import export

pytestmark = [pytest.mark.serve, pytest.mark.integration]
ASKED = ["x = 1", "def solve(values):\n    best = None\n    for value in values:\n", "é → ∑ 🙂", "return " * 40]
LENGTH = 48


def by_transformers(folder: Path | str) -> list[tuple[str, list[int]]]:
    """Greedy replies in float32: text and token ids."""
    model, tokenizer = load.load_model(str(folder), "float32"), tokenizers.load(str(folder))
    replies = []
    for text in ASKED:
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        out = model.eval().generate(**prompt, max_new_tokens=LENGTH, do_sample=False)
        ids = out[0, prompt["input_ids"].shape[1] :]
        replies.append((whole(tokenizer.decode(ids, skip_special_tokens=True)), ids.tolist()))
    return replies


def by_vllm(base_url: str, name: str) -> list[tuple[str, list[int]]]:
    replies = []
    with openai.OpenAI(base_url=base_url, api_key="none") as client:
        for text in ASKED:
            choice = client.chat.completions.create(
                model=name, messages=[{"role": "user", "content": text}], temperature=0, max_tokens=LENGTH,
                extra_body={"return_token_ids": True}).choices[0]  # fmt: skip
            replies.append((whole(choice.message.content or ""), choice.token_ids))
    return replies


def whole(text: str) -> str:
    """Without the bytes of a last character that the limit of tokens cut: vLLM holds them back."""
    return text.rstrip("\N{REPLACEMENT CHARACTER}")


def test_greedy_text_is_that_of_transformers(vllm, tiny_model: Path) -> None:
    expected = by_transformers(tiny_model)
    assert len({text for text, _ in expected}) == len(ASKED), "replies that tell models apart"
    assert by_vllm(vllm.base_url, vllm.name) == expected


@pytest.mark.slow
@pytest.mark.parametrize("sees", [False, True])
def test_qwen3_5_is_served(sees: bool, seeing: Path, tmp_path: Path, serving_place: None) -> None:
    """The hybrid architecture, as a language model and as the hub has it, with its vision part. vLLM's CPU build computes its
    linear attention in bfloat16 only, so what is compared is the log-probability of every token that vLLM chose: weights that an
    engine skips because it does not know their names would make it another one."""
    import torch
    import transformers

    seen = subprocess.run([engine.python(), "-c", "import torchvision.transforms.v2"], capture_output=True, text=True)
    if seen.returncode:
        pytest.skip(f"vLLM cannot import its Qwen3.5 here, IT WAS NOT SERVED: {seen.stderr.strip().splitlines()[-1]}")
    if not sees:
        config = transformers.AutoConfig.from_pretrained(seeing).get_text_config()
        torch.manual_seed(0)
        save.save_model(transformers.Qwen3_5ForCausalLM(config), tokenizers.load(str(seeing)), tmp_path / "text")
    checkpoint = str(seeing) if sees else "text"
    out = export.run(export.Config(root=tmp_path, checkpoint=checkpoint, output="qwen"))
    model, tokenizer = load.load_model(str(out), "float32").eval(), tokenizers.load(str(out))
    limits = ("--limit-mm-per-prompt", '{"image": 0, "video": 0}') if sees else ()
    log = tmp_path / "vllm.log"
    with serving(out, name="qwen", max_model_len=1024, dtype="bfloat16", log=log, timeout=900, args=limits) as server, \
            openai.OpenAI(base_url=server.base_url, api_key="none") as client:  # fmt: skip
        for text in ASKED:
            messages = [{"role": "user", "content": text}]
            choice = client.chat.completions.create(model="qwen", messages=messages, temperature=0, max_tokens=12, logprobs=True,
                                                    extra_body={"return_token_ids": True}).choices[0]  # fmt: skip
            ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([[*ids, *choice.token_ids]])).logits[0, len(ids) - 1 : -1]
            expected = logits.log_softmax(-1).gather(-1, torch.tensor(choice.token_ids)[:, None])[:, 0]
            told = torch.tensor([token.logprob for token in choice.logprobs.content])
            assert len(told) == len(expected) and (told - expected).abs().max() < 0.05, (told, expected)
            assert expected.min() > logits.log_softmax(-1).mean() + 0.2, "and they are tokens that this model prefers"
