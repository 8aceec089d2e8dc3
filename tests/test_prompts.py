"""Prompts: what the log shows of the parent program and of the form that was asked for."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eft import prompts

DIFF_TASK = (
    "Suggest improvements\n<<<<<<< SEARCH\n# old\n=======\n# new\n>>>>>>> REPLACE\nDo not rewrite the entire program."
)
REWRITE_TASK = (
    "Rewrite the program.\nProvide the complete new program code.\n\n```python\n# Your rewritten program here\n```\n"
)


def prompt(code: str, task: str = DIFF_TASK, history: str = "", first: str = "- Fitness: 0.5") -> str:
    return (f"# Current Program Information\n{first}\n\n# Program Evolution History\n{history}\n\n"
            f"# Current Program\n```python\n{code}\n```\n\n# Task\n{task}")  # fmt: skip


@pytest.mark.parametrize("code", ["x = 1", "x = 1\n", "", "\n\n", "a\n```\nb", 's = """\n# Task\n"""',
                                  "# Current Program\nx = 1", "# Task\nx", "x = 1\r\ny = 2\r"])  # fmt: skip
def test_the_program_comes_back_exactly(code):
    assert prompts.current_program(prompt(code)) == code


def test_the_last_header_counts_and_fences_in_the_history_do_not():
    history = "## Last Execution Output\n```\n# Current Program\n```python\nold = 1\n```\n\n# Task\nnothing\n```"
    assert prompts.current_program(prompt("new = 2", history=history)) == "new = 2"


def test_none_where_there_is_none():
    assert prompts.current_program("") is None
    assert prompts.current_program("# Current Program Information\n```python\nx\n```") is None
    assert prompts.current_program("# Current Program\n```python\nnever closed") is None
    assert prompts.current_program("# Current Program\n```python\nx = 1\n```\nno task line") == "x = 1"


@given(st.text(st.sampled_from("#`\n\r abT"), max_size=80))
@settings(max_examples=300, deadline=None)
def test_nothing_raises_and_ordinary_code_round_trips(text):
    prompts.current_program(text), prompts.edit_kind(text), prompts.detect_format("", text)
    if "```" not in text and "# Task" not in text:
        assert prompts.current_program(prompt(text)) == text


def test_hostile_prompts_take_linear_time():
    for text in ("# Current Program\n" * 50_000, "# Current Program\n```\n" * 50_000, "\n```\n\n" * 100_000):
        prompts.current_program(text)
        prompts.edit_kind(text)


def test_edit_kind():
    assert prompts.edit_kind(prompt("x = 1")) == "diff"
    assert prompts.edit_kind(prompt("x = 1", REWRITE_TASK)) == "rewrite"
    # a marker in the program is not a request for a diff
    assert prompts.edit_kind(prompt("s = '<<<<<<< SEARCH'", REWRITE_TASK)) == "rewrite"
    assert prompts.edit_kind(prompt("x = 1", "Say something.")) == ""


def test_formats_by_wording():
    old = prompt("x = 1", first="- Current performance metrics: - score: 1.0")
    assert prompts.detect_format("s", old) == "openevolve@0.1"
    assert prompts.detect_format("s", prompt("x = 1")) == "openevolve@0.4"
    assert prompts.detect_format("s", prompt("x = 1"), release="0.2.27") == "openevolve@0.2"
    assert prompts.detect_format("s", "do better", "full_rewrite_user") == "custom"
    assert prompts.detect_format("s", "do better", "diff_user_message") == "skydiscover@0"
    assert prompts.detect_format("", "") == ""


@pytest.mark.parametrize("name,kind", [("diff_user.txt", "diff"), ("full_rewrite_user.txt", "rewrite")])
def test_our_own_format(name, kind):
    from importlib import resources

    template = (resources.files("eft") / "templates" / "eft_1" / name).read_text(encoding="utf-8")
    values = {"fitness_score": "0.1", "evolution_history": "", "language": "python", "current_program": "x = 1\n"}
    user = template.format(**values)
    assert prompts.detect_format("", user) == prompts.EFT_FORMAT
    assert prompts.current_program(user) == "x = 1\n"
    assert prompts.edit_kind(user) == kind


def test_every_prompt_of_the_real_runs_is_read(real_runs):
    """Two independent places hold the parent's code, the prompt and the parent's own record: they must agree."""
    for run, wording in (("circle_packing_v0_1", "openevolve@0.1"), ("function_min_v0_4", "openevolve@0.4")):
        programs = {}
        for file in sorted((real_runs / run).glob("checkpoints/*/programs/*.json")):
            record = json.loads(file.read_text())
            programs[record["id"]] = record
        compared = 0
        for record in programs.values():
            for key, logged in (record.get("prompts") or {}).items():
                assert prompts.detect_format(logged["system"], logged["user"], key) == wording
                assert prompts.edit_kind(logged["user"]) == ("diff" if key == "diff_user" else "rewrite")
                parent = programs.get(record["parent_id"])
                if parent is not None:
                    assert prompts.current_program(logged["user"]) == parent["code"]
                    compared += 1
        assert compared > 30
