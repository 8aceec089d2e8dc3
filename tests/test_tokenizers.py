"""Tokenizers by name: the same bits every time, a chat template always, one clear error otherwise."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eft import tokenizers
from eft.errors import EftError

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "x = 12.5\n```python\n```"}]


@pytest.fixture(scope="module")
def small():
    return tokenizers.load("random:qwen3")


def test_the_random_one_never_changes(small):
    # Tests of training pin losses that hang on these bits. A version of `tokenizers` that trains otherwise shows here.
    assert len(small) == 661 and tokenizers.identity(small) == "0b4e44dfbadc1363"
    assert tokenizers.identity(tokenizers.load("random:llama")) == tokenizers.identity(small)


@pytest.mark.integration
def test_nor_in_another_process(small):
    code = (
        "from eft import tokenizers as t; k = t.load('random:qwen3')\n"
        "print(t.identity(k), *k('def f(x): return 1')['input_ids'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ids = small("def f(x): return 1")["input_ids"]
    assert done.stdout.split() == [tokenizers.identity(small), *map(str, ids)]


@given(st.text(max_size=80))
@settings(max_examples=100, deadline=None)
def test_any_text_comes_back(small, text):
    text = text.encode("utf-8", "replace").decode("utf-8")
    assert small.decode(small(text)["input_ids"]) == text
    assert tokenizers.count(small, [text, ""]) == [len(small(text)["input_ids"]), 0]


def test_conversations(small):
    text = tokenizers.prompt_text(small, MESSAGES)
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n") and text.count("<|im_start|>") == 3
    ids = small(text, add_special_tokens=False)["input_ids"]
    assert ids.count(small.convert_tokens_to_ids("<|im_start|>")) == 3 and small.decode(ids) == text
    assert tokenizers.count(small, []) == []


def test_a_folder_of_our_own_making(small, tmp_path):
    small.save_pretrained(tmp_path)
    loaded = tokenizers.load(str(tmp_path))
    assert tokenizers.identity(loaded) == tokenizers.identity(small) and loaded.eos_token == "<|im_end|>"


def test_a_folder_without_a_chat_template(small, tmp_path):
    small.save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(EftError, match="no chat template"):
        tokenizers.load(str(tmp_path))


def test_what_is_not_there(tmp_path):
    for name in ("/no/such/folder", "./here", "a/b/c"):
        with pytest.raises(EftError, match="no such tokenizer folder"):
            tokenizers.load(name)
    with pytest.raises(EftError, match="cannot be loaded"):
        tokenizers.load(str(tmp_path))  # an empty folder


def test_the_embedded_one():
    try:
        file = tokenizers.embedded_gguf()
    except EftError as e:
        pytest.skip(f"the embedded model is not installed, its tokenizer was NOT tested ({e.way_out})")
    assert file.suffix == ".gguf"
    tokenizer = tokenizers.load("embedded:smollm2-135m")
    assert len(tokenizer) == 49152 and tokenizer.eos_token == "<|im_end|>"
    assert tokenizers.prompt_text(tokenizer, MESSAGES).startswith("<|im_start|>system\nBe brief.<|im_end|>")
