"""Preview: what it shows is what is there; hostile text stays text."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_runs import diff
from tables import labelled, output_of
from test_build_sets import many

from data_tools import build, clean, preview
from data_tools.preview import Config
from eft import tokenizers
from eft.errors import EftError, UsageError


@pytest.fixture
def folders(tmp_path):
    rows = many({"a": (6, 6), "b": (4, 4), "c": (2, 2)}) + [labelled(7, "no_change", task="a", run="a"),
            labelled(8, "breakage", task="a", run="a", child_artifacts='{"stderr": "Traceback"}')]  # fmt: skip
    source = output_of("label", tmp_path / "l", rows)
    cleaned = clean.run(clean.Config(source=source, output=tmp_path / "c", tokenizer="random:qwen3"))
    return cleaned, build.run(build.Config(source=cleaned, output=tmp_path / "b", validation=0.3))


def page(folder, out, **options):
    result = preview.run(Config(dataset=folder, output=out, **options))
    return out.read_text(), result


def test_a_build(folders, tmp_path, capsys):
    cleaned, built = folders
    shown, result = page(built, tmp_path / "p.html")
    assert result["rows"] == 24 and result["retention"] == pytest.approx(25 / 26)
    assert "96.2 %" in shown and "90.6 %" in shown and "breakage" in shown and "left out by build: no_change" in shown
    for title in ("Tokens of prompt and response", "Change of the score", "Labels by task", "Labels by domain"):
        assert title in shown
    assert "<script" not in shown and "http://" not in shown and "https://" not in shown and "src=" not in shown
    err = capsys.readouterr().err
    assert "24 rows; clean kept 96.2% of 26" in err and "the loss is on the green part" in err


def test_a_clean_table(folders, tmp_path):
    shown, result = page(folders[0], tmp_path / "p.html", samples=1)
    assert result["rows"] == 25 and result["samples"] == 3  # one of each label that is left
    assert "redacted" not in shown


def test_the_mask_is_what_the_trainer_learns(folders):
    tokenizer = tokenizers.load("random:qwen3")
    row = {"prompt": [{"role": "user", "content": "improve é this"}], "label": "improved", "delta": 1.0, "task": "t",
           "id": "i", "completion": [{"role": "assistant", "content": diff(0, 1) + " 🙂"}]}  # fmt: skip
    sample = preview._sample(row, tokenizer)
    asked = "".join(text for text, kind, _ in sample.spans if kind == "prompt")
    learned = "".join(text for text, kind, _ in sample.spans if kind == "learned")
    assert asked == tokenizers.prompt_text(tokenizer, row["prompt"])
    assert learned == row["completion"][0]["content"] + tokenizer.eos_token
    assert sample.response_tokens == len(tokenizer(row["completion"][0]["content"])["input_ids"]) + 1


@given(st.text(max_size=200))
@settings(max_examples=100, deadline=None)
def test_pieces_join_to_the_text(text):
    assert "".join(preview.pieces(tokenizers.load("random:qwen3"), text)) == text


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=60))
@settings(max_examples=100, deadline=None)
def test_every_value_is_in_one_bar(values):
    assert sum(bar.total for bar in preview.histogram(values, log=True)) == len(values)
    assert sum(bar.total for bar in preview.delta_bars(values)) == len(values)
    assert all(0 <= share <= 100 for bar in preview.delta_bars(values) for _, share, _ in bar.parts)


def test_long_prompts_are_shown_from_both_ends_and_that_is_said(folders):
    row = {"prompt": [{"role": "user", "content": "START " + "word " * 2000 + " END"}], "label": "improved",
           "delta": 1.0, "task": "t", "id": "i", "completion": [{"role": "assistant", "content": "x"}]}  # fmt: skip
    sample = preview._sample(row, tokenizers.load("random:qwen3"))
    text = "".join(t for t, _, _ in sample.spans)
    assert "START" in text and "END" in text and re.search(r"[\d,]+ tokens of the prompt are not shown", text)
    assert len(sample.spans) < 850 and sample.prompt_tokens > 2000


def test_hostile_text_stays_text(tmp_path):
    evil = "<script>alert(1)</script>\x1b[31m\"'&{{ 7*7 }}"
    rows = [r.replace(task=evil, domain=evil, model=evil, response=evil + diff(0, 1), prompt_user="# Task\n" + evil)
            for r in many({"a": (3, 3)})]  # fmt: skip
    cleaned = clean.run(clean.Config(source=output_of("label", tmp_path / "l", rows), output=tmp_path / "c"))
    shown, _ = page(cleaned, tmp_path / "p.html")
    assert "<script" not in shown and "\x1b" not in shown and "{{ 7*7 }}" in shown


def test_what_is_no_data_set(tmp_path):
    with pytest.raises(EftError, match="no data set to look at.*\n.*\n.*does not exist"):
        page(tmp_path / "none", tmp_path / "p.html")
    with pytest.raises(EftError, match="no data set to look at"):
        page(output_of("label", tmp_path / "l", [labelled()]), tmp_path / "p.html")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="the preview is a file"):
        page(tmp_path, tmp_path / "folder")


def test_a_build_whose_source_is_gone(folders, tmp_path):
    shutil.rmtree(folders[0])
    shown, result = page(folders[1], tmp_path / "p.html")
    assert "are gone" in shown and result["retention"] is None and result["rows"] == 24


def test_characters_that_a_terminal_or_the_direction_of_writing_obeys_are_shown():
    assert preview.visible("a\x1b[31m\x9b\x7f\u202e\n\tb") == "a␛[31m\\u009b␡\\u202e\n\tb"


def test_a_long_text_is_cut_into_tokens_in_linear_time():
    text = "x = [1, 2, 3]\n" * 20_000
    started = time.monotonic()
    found = preview.pieces(tokenizers.load("random:qwen3"), text)
    assert "".join(found) == text and len(found) > 50_000 and time.monotonic() - started < 60


def test_a_tokenizer_that_is_gone_costs_the_tokens_only(folders, tmp_path, monkeypatch):
    def gone(name):
        raise EftError("the tokenizer cannot be loaded", where=name)

    monkeypatch.setattr(tokenizers, "load", gone)
    shown, _ = page(folders[0], tmp_path / "p.html")
    assert "cannot be loaded here: random:qwen3" in shown and "samples are shown as text" in shown
    with pytest.raises(EftError, match="cannot be loaded"):
        page(folders[0], tmp_path / "p.html", tokenizer="random:qwen3")


def test_a_single_value_is_written_as_the_others_are():
    assert [bar.name for bar in preview.histogram([12_070, 12_070], log=True)] == ["12,070"]


@pytest.mark.integration
def test_in_a_browser(folders, tmp_path):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if not browser:
        pytest.skip("no browser is installed")
    text, _ = page(folders[1], tmp_path / "p.html")
    frames = "".join(
        f'<iframe style="width: {width}px; height: 900px" srcdoc="{html.escape(text)}"></iframe>'
        for width in (390, 1280)
    )
    probe = tmp_path / "probe.html"  # a window cannot be as narrow as a phone, a frame can
    probe.write_text(f"""<!doctype html><title></title>{frames}<script>onload = () => {{ document.title = "out " +
        [...document.querySelectorAll("iframe")].map(f => f.contentDocument.documentElement)
        .map(d => d.scrollWidth - d.clientWidth + ":" + (d.scrollHeight > 900)).join(" ") }}</script>""")
    done = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", f"file://{probe}"],
                          capture_output=True, text=True, timeout=300)  # fmt: skip
    assert "<title>out 0:true 0:true</title>" in done.stdout, done.stdout[:300]  # nothing sticks out to the side
