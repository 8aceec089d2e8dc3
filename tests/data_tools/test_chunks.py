"""Counting in chunks is counting: for every kind of split that is cut, on any text."""

from __future__ import annotations

import functools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data_tools.chunks import ChunkCounter, can_cut
from eft import tokenizers

QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|")
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|\p{N}{1,3}"
         r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")  # fmt: skip


@functools.cache
def tokenizer(kind: str):
    """A small BPE of each kind, trained on program text."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    if ":" in kind:
        return tokenizers.load(kind)
    raw = Tokenizer(models.BPE())
    pattern = {"qwen": QWEN, "llama3": LLAMA3, "gpt4o": GPT4O}[kind]
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    raw.normalizer = normalizers.NFC() if kind == "qwen" else None
    raw.decoder = decoders.ByteLevel()
    corpus = [tokenizers.CORPUS, tokenizers.CORPUS.replace("    ", "\t"), "):\n\n\n    return x\n}\n;\n\n" * 50]
    trainer = trainers.BpeTrainer(vocab_size=900, show_progress=False, special_tokens=tokenizers.SPECIAL,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())  # fmt: skip
    raw.train_from_iterator(corpus, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|endoftext|>")


KINDS = ["qwen", "llama3", "gpt4o", "random:qwen3", "embedded:smollm2-135m"]
CODE = st.lists(st.sampled_from([
    "def f(x):", "return", "x", "):", ";", "}", "\n", "\n\n", "\n    ", "\t", " ", "  ", "é",
    "e\u0301", "\u0301", "'s", "_", "a_", "_\n", "1", "12\n", "<|im_end|>", "<|im_end|>\n",
    "\r\n", "\u2028", "\x0b", "#", "/", "π", "２", "½\n", "ǅ", "’",
]), max_size=40).map("".join)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_the_kinds_are_cut(kind):
    assert can_cut(tokenizer(kind))


@pytest.mark.parametrize("kind", KINDS)
@given(CODE | st.text(max_size=80))
@example("x\ny")
@example("x:\ny\n\nz\n  w")
@settings(max_examples=250, deadline=None)
def test_chunks_count_the_same(kind, text):
    counter = ChunkCounter(tokenizer(kind))
    assert (
        counter.count([text, text])
        == [len(tokenizer(kind).backend_tokenizer.encode(text, add_special_tokens=False))] * 2
    )
    assert counter.exact


def test_programs_of_this_project():
    from pathlib import Path

    texts = [f.read_text() for f in sorted(Path(__file__).parent.glob("*.py"))]
    for kind in KINDS:
        counter = ChunkCounter(tokenizer(kind))
        assert counter.count(texts) == tokenizers.count(tokenizer(kind), texts) == counter.count(texts)


def test_a_tokenizer_that_joins_over_line_ends_is_counted_whole():
    from tokenizers import Tokenizer, models, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE(unk_token="?"))
    raw.train_from_iterator(
        ["a\nb" * 50], trainers.BpeTrainer(vocab_size=20, special_tokens=["?"], show_progress=False)
    )
    joins = PreTrainedTokenizerFast(tokenizer_object=raw)
    assert not can_cut(joins) and ChunkCounter(joins).count(["a\nb" * 3]) == tokenizers.count(joins, ["a\nb" * 3])


def test_a_failed_check_ends_the_count(monkeypatch):
    from tables import labelled

    from data_tools import chunks, counts
    from eft.errors import EftError

    monkeypatch.setattr(chunks, "_CUT", __import__("re").compile("(?<=i)(?=m)"))  # unsafe on purpose
    with pytest.raises(EftError, match="differ when texts are counted in parts"):
        counts.TokenCounter("random:qwen3").lengths([labelled(1)])
    monkeypatch.setenv("EFT_COUNT_WHOLE", "1")
    assert counts.TokenCounter("random:qwen3").lengths([labelled(1)])[0][0] > 50
