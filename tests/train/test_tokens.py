"""Token ids of models that reason, the cache that runs share, the row that is shown, and what is refused."""

from __future__ import annotations

import json
import multiprocessing
from importlib.resources import files
from pathlib import Path

import pytest
import training_rows

from eft import tokenizers
from eft.errors import EftError, UsageError
from eft.train import data, sft, tokens

# How Qwen3 writes: the thought stands before the answer that follows the last question, empty where there is none; an
# answer with </think> in it is taken apart; a prompt gets an empty thought only where thinking is off.
QWEN3 = (
    "{%- for m in messages %}{%- set said, thought = m.content, '' %}"
    "{%- if m.role == 'assistant' %}{%- if m.reasoning_content is string %}{%- set thought = m.reasoning_content %}"
    "{%- elif '</think>' in said %}{%- set thought = said.split('</think>')[0].replace('<think>', '') %}"
    "{%- set said = said.split('</think>')[-1].lstrip('\n') %}{%- endif %}{%- endif %}"
    "{{- '<|im_start|>' + m.role + '\n' }}{%- if m.role == 'assistant' and loop.last %}"
    "{{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' + said.lstrip('\n') }}{%- else %}{{- said }}{%- endif %}"
    "{{- '<|im_end|>\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}{%- endif %}"
)
THOUGHT = "The first value is too small.\nRaise it."


def thinker(name: str):
    """A tokenizer that reasons: Qwen3's and Qwen3.5's ways; `trl …`: the models' own templates, of which TRL has copies."""
    tokenizer = tokenizers.load("random:qwen3_5")
    if name == "qwen3":
        tokenizer.chat_template = QWEN3
    elif name.startswith("trl "):
        file = files("trl") / "chat_templates" / f"{name[4:]}.jinja"
        if not file.is_file():
            pytest.skip(f"this release of TRL has no {file.name}")
        tokenizer.chat_template = file.read_text()
    return tokenizer


def row(reasoning: str = THOUGHT, answer: str | None = None) -> dict:
    made = {**training_rows.row(0, True), "reasoning": reasoning}
    return made if answer is None else {**made, "completion": [{"role": "assistant", "content": answer}]}


NAMES = ["qwen3", "qwen3_5", "trl qwen3", "trl qwen3_5_think", "trl qwen3_5_nothink"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("thinking", ["off", "on", "kept"])
def test_what_is_asked_and_what_is_learned(name: str, thinking: str) -> None:
    tokenizer, made = thinker(name), row()
    ((prompt, completion),) = tokens.tokenize([made], tokenizer, {}, Path("t"), thinking)
    served = tokenizer.apply_chat_template(
        made["prompt"], tokenize=False, add_generation_prompt=True, enable_thinking=thinking != "off"
    )
    prompt, completion = tokenizer.decode(prompt), tokenizer.decode(completion)
    response = made["completion"][0]["content"] + "<|im_end|>"
    thought = "<think>\n" + THOUGHT + "\n</think>\n\n"
    assert prompt.startswith(served)
    assert (prompt + completion).endswith(("<think>\n\n</think>\n\n" if thinking == "off" else thought) + response)
    assert (prompt + completion).count("<think>") == (prompt + completion).count("</think>") == 1
    if thinking == "kept":
        assert prompt == served and THOUGHT in completion
    else:
        assert completion == response, "the loss is on the response only"
        assert (THOUGHT in prompt) == (thinking == "on")


@pytest.mark.parametrize("name", NAMES)
def test_rows_without_a_thought_and_thoughts_inside_replies(name: str) -> None:
    tokenizer, where = thinker(name), Path("t")
    assert tokens.tokenize([row("")], tokenizer, {}, where, "kept") == [None]
    ((prompt, _),) = tokens.tokenize([row("")], tokenizer, {}, where, "on")
    assert tokenizer.decode(prompt).rstrip("\n").endswith("</think>")
    answer = row()["completion"][0]["content"]
    inside = row("", f"<think>\n{THOUGHT}\n</think>\n\n{answer}")
    for thinking in ("off", "on", "kept"):
        assert tokens.tokenize([inside], tokenizer, {}, where, thinking) == tokens.tokenize([row()], tokenizer, {}, where, thinking)
    spaced = row(THOUGHT, f"\n\n{answer}")  # as a server that takes the thought out leaves it
    assert tokens.tokenize([spaced], tokenizer, {}, where, "kept") == tokens.tokenize([row()], tokenizer, {}, where, "kept")


def test_models_that_reason_want_to_be_told_and_others_cannot() -> None:
    with pytest.raises(EftError, match="thinking: off"):
        tokens.tokenize([row()], thinker("qwen3"), {}, Path("t"))
    with pytest.raises(EftError, match="no place for the thought"):
        tokens.tokenize([row()], tokenizers.load("random:qwen3"), {}, Path("t"), "kept")
    plain = tokenizers.load("random:qwen3")
    assert tokens.tokenize([row()], plain, {}, Path("t"), "off") == tokens.tokenize([row()], plain, {}, Path("t"))
    with pytest.raises(UsageError, match="contradict"):
        tokens.arguments({"enable_thinking": True}, "off")
    broken = thinker("qwen3")
    broken.chat_template = "{{ messages[7].content }}"
    with pytest.raises(EftError, match="cannot write this conversation") as e:
        tokens.tokenize([row()], broken, {}, Path("t"))
    assert "row0" in str(e.value)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("thinking", [False, True])
def test_the_saved_template_asks_what_was_learned(name: str, thinking: bool, tmp_path: Path) -> None:
    tokenizer, ask = thinker(name), row()["prompt"]

    def text(t, **given) -> str:
        return t.apply_chat_template(ask, tokenize=False, add_generation_prompt=True, **given)

    before = {v: text(tokenizer, enable_thinking=v) for v in (False, True)}
    tokens.settle_template(tokenizer, {"enable_thinking": thinking})
    once = tokenizer.chat_template
    tokens.settle_template(tokenizer, {"enable_thinking": thinking})
    assert tokenizer.chat_template == once
    assert tokenizers.identity(tokenizer, defaults=False) == tokenizers.identity(thinker(name)), "and no other model"
    tokenizer.save_pretrained(tmp_path)
    again = tokenizers.load(str(tmp_path))
    assert text(again) == before[thinking], "the default of a server that is told nothing"
    assert {v: text(again, enable_thinking=v) for v in (False, True)} == before, "others can still be asked for"


def config(root: Path, **changes) -> sft.Config:
    values = {"dataset": "build/sft", "model": "random:qwen3", "output": "out", "global_batch": 4, "max_tokens": 512}
    return sft.Config(root=root, **{**values, **changes})


def prepare(config: sft.Config, name: str = "random:qwen3") -> data.Prepared:
    return data.prepare(
        config, tokenizers.load(name), labelled=False, group=False, main=True, wait=lambda: None, ranks=1
    )


def test_runs_share_tokens_and_nothing_else_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = training_rows.sets(tmp_path)
    written = []
    write = tokens.write
    monkeypatch.setattr(tokens, "write", lambda file, *a, **k: (written.append(file.name), write(file, *a, **k))[1])
    first = prepare(config(root))
    assert written == ["train.parquet", "validation.parquet"]
    assert not (root / "out").exists()
    prepare(config(root, output="other", max_tokens=256, seed=3))
    assert len(written) == 2, "another budget and another order read the same ids"
    prepare(config(root, thinking="off"))
    assert len(written) == 4
    other = [{**training_rows.row(i, True), "id": f"new{i}"} for i in range(9)]
    training_rows.write(root / "build/sft", other, labelled=False)
    assert set(prepare(config(root)).train["id"][:]) <= {f"new{i}" for i in range(9)}
    assert written[4:] == ["train.parquet"], "the validation rows are the same"
    assert len(first.train["id"][:]) and len(list((root / "build/sft/.tokens").glob("train-*"))) == 3


def test_data_that_cannot_be_written_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = training_rows.sets(tmp_path)
    monkeypatch.setattr(tokens, "_writable", lambda folder: False)
    prepare(config(root))
    assert not (root / "build/sft/.tokens").exists() and len(list((root / "out/tokens").glob("train-*"))) == 1


def _once(root: str, queue) -> None:
    done = []
    write = tokens.write
    tokens.write = lambda *a, **k: (done.append(1), write(*a, **k))[1]
    found = prepare(config(Path(root)))
    queue.put((len(done), found.train["prompt_ids"][0]))


def test_two_processes_write_once(tmp_path: Path) -> None:
    root, spawn = training_rows.sets(tmp_path), multiprocessing.get_context("fork")
    queue = spawn.Queue()
    workers = [spawn.Process(target=_once, args=(str(root), queue)) for _ in range(2)]
    for w in workers:
        w.start()
    found = [queue.get(timeout=300) for _ in workers]
    for w in workers:
        w.join()
    assert sum(n for n, _ in found) == 2, "each of the two files once, whoever came first"
    assert found[0][1] == found[1][1]


def test_one_row_is_shown_with_what_is_learned(tmp_path: Path) -> None:
    root, said = training_rows.sets(tmp_path), []
    found, tokenizer = prepare(config(root)), tokenizers.load("random:qwen3")
    tokens.write_example(tmp_path, tokenizer, found, said.append)
    text = (tmp_path / "example.txt").read_text()
    row = found.train[0]
    prompt, _, completion = text.rpartition("⟪")
    assert f"row {row['id']}: {row['length']} tokens, {row['response']} of them with a loss" in text
    assert prompt.endswith("<|im_start|>assistant\n") and completion.endswith(">>>>>>> REPLACE<|im_end|>⟫\n")
    assert row["id"] in said[0] and "⟪'<<<<<<< SEARCH" in said[0]
    tokenizer.backend_tokenizer.decoder = None  # byte-level pieces, not text
    with pytest.raises(EftError, match="does not give a prompt's text back"):
        tokens.show(tokenizer, row)


@pytest.mark.parametrize("weight", [None, float("nan"), -1.0, 0.0, 1e300])
def test_broken_weights_are_named(weight: float | None, tmp_path: Path) -> None:
    rows = [{**training_rows.row(i, True), "weight": 1.0} for i in range(8)]
    rows[5]["weight"] = weight
    training_rows.write(tmp_path / "build/sft", rows, labelled=False)
    with pytest.raises(EftError, match="must be above 0") as e:
        prepare(config(tmp_path))
    assert "row5" in str(e.value) and f"it is {weight}" in str(e.value)
    assert prepare(config(tmp_path, weights=False)).counts["rows"] == 8, "they are not asked for"


def test_weights_and_labels_of_another_kind(tmp_path: Path) -> None:
    rows = [{**training_rows.row(i, True), "weight": "1"} for i in range(8)]
    training_rows.write(tmp_path / "build/sft", rows, labelled=False)
    with pytest.raises(EftError, match="must hold numbers"):
        prepare(config(tmp_path))
    training_rows.write(tmp_path / "build/sft", rows, labelled=True)
    with pytest.raises(EftError, match="KTO set"):
        prepare(config(tmp_path))


def test_kept_thoughts_are_counted(tmp_path: Path) -> None:
    rows = [{**training_rows.row(i, True), "reasoning": THOUGHT if i % 2 else ""} for i in range(8)]
    training_rows.write(tmp_path / "build/sft", rows, labelled=False)
    found = prepare(config(tmp_path, thinking="kept"), "random:qwen3_5")
    assert found.counts["rows"] == found.counts["dropped_without_reasoning"] == 4
    assert prepare(config(tmp_path, thinking="on"), "random:qwen3_5").counts["rows"] == 8
    training_rows.write(tmp_path / "build/sft", [{**r, "reasoning": ""} for r in rows], labelled=False)
    with pytest.raises(EftError, match="none of its 8 rows has a reasoning"):
        prepare(config(tmp_path, thinking="kept"), "random:qwen3_5")


def test_yaml_reads_off_and_on_as_truth_values(tmp_path: Path) -> None:
    from eft import config as configs

    file = tmp_path / "r.yaml"
    for word, meant in (("off", "off"), ("on", "on"), ("kept", "kept"), ("'off'", "off")):
        file.write_text(f"dataset: d\nmodel: m\nthinking: {word}\n")
        assert configs.load(sft.Config, file).thinking == meant
    assert json.loads(configs.load(sft.Config, file).model_dump_json())["thinking"] == "off"
