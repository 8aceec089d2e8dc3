"""Edits: the same child as the scaffold makes, character for character; never an exception; linear time."""

from __future__ import annotations

import ast
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eft import edits
from eft.edits import Edit, Reason, Why, apply, render_diff, render_rewrite
from eft.errors import UsageError
from eft.records import code_hash

PARENT = "import math\n\nrate = 0.5\nstep = 2  \n\ndef f(x):\n    return rate * x\n"


def block(search: str, replace: str) -> str:
    return f"<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE"


# Replies made of the pieces that matter: markers, fences, lines of the parent, line ends, odd white space.
PIECES = st.sampled_from(
    ["<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE", "<<<<<<< SEARCH\n", "=======\n", ">>>>>>> REPLACE\n", " =======\n",
     "========\n", "```", "```python\n", "```py\n", "```python \r\n", "\n", "\r\n", " ", "rate = 0.5\n", "step = 2\n",
     "step = 2  \n", "rate = 0.7", "a", "\n\n", "\t", "\x0b", "\x85", "def f(x):\n    return rate * x\n", "#"]
)  # fmt: skip
REPLIES = st.lists(PIECES, max_size=24).map("".join) | st.text(max_size=60)
LINE = st.text(st.sampled_from("ab=# \t.\r"), max_size=6)
PROGRAM = st.lists(LINE, max_size=12).map("\n".join)


@pytest.fixture(scope="module")
def openevolve():
    return pytest.importorskip("openevolve.utils.code_utils")


def _scaffold(module, parent: str, reply: str, kind: str) -> str | None:
    """What the worker of OpenEvolve 0.4.1 makes of a reply, with the installed functions; None where it refuses."""
    if kind == "rewrite":
        code = module.parse_full_rewrite(reply, "python")
        return code if code and code != parent else None
    try:
        blocks = module.extract_diffs(reply)
    except ValueError:
        return None
    child, applied = module.apply_diff_blocks(parent, blocks)
    return child if applied and child != parent else None


@given(parent=st.just(PARENT) | PROGRAM, reply=REPLIES, kind=st.sampled_from(["diff", "rewrite"]))
@settings(max_examples=600, deadline=None)
def test_same_child_as_the_installed_openevolve(openevolve, parent, reply, kind):
    edit = apply(parent, reply, kind=kind)
    assert (edit.child if edit else None) == _scaffold(openevolve, parent, reply, kind)


@given(parent=PROGRAM, blocks=st.lists(st.tuples(PROGRAM, PROGRAM), min_size=1, max_size=4))
@settings(max_examples=400, deadline=None)
def test_blocks_of_the_parents_own_lines_apply_as_in_openevolve(openevolve, parent, blocks):
    lines = parent.split("\n")
    reply = "\n".join(block("\n".join(lines[: len(s) % len(lines) + 1]).rstrip(), r) for s, r in blocks)
    edit = apply(parent, reply, kind="diff")
    assert (edit.child if edit else None) == _scaffold(openevolve, parent, reply, "diff")


@given(parent=st.text(max_size=60), reply=REPLIES, kind=st.sampled_from(["diff", "rewrite"]),
       dialect=st.sampled_from(sorted(edits.DIALECTS)), language=st.sampled_from(["python", "c++", "("]))  # fmt: skip
@settings(max_examples=400, deadline=None)
def test_never_raises(parent, reply, kind, dialect, language):
    result = apply(parent, reply, kind=kind, dialect=dialect, language=language)
    assert isinstance(result, Edit) == bool(result)
    assert isinstance(result, Edit | Reason)


@pytest.mark.parametrize("dialect", sorted(edits.DIALECTS))
@pytest.mark.parametrize(
    "reply",
    ["<<<<<<< SEARCH\n" * 20_000, "<<<<<<< SEARCH\n=======\n" * 15_000, "```" * 100_000, "```python" * 40_000,
     "```python\n" * 40_000, " " * 300_000, "=======\n" * 40_000, "\t" * 200_000 + "=======",
     "```python" + " " * 200_000,
     block("a\n" * 20_000 + "b", "c"), "\n".join(block("a \n" * 50 + "b", "c") for _ in range(500))],
    ids=lambda reply: repr(reply[:24]),
)  # fmt: skip
def test_hostile_replies_take_linear_time(reply, dialect):
    parent = "a\n" * 20_000
    started = time.perf_counter()
    for kind in ("diff", "rewrite"):
        apply(parent, reply, kind=kind, dialect=dialect)
    assert time.perf_counter() - started < 30  # quadratic would be minutes; generous for a busy machine


@given(parent=PROGRAM, child=PROGRAM)
@settings(max_examples=400, deadline=None)
def test_render_diff_round_trips(parent, child):
    if code_hash(parent) == code_hash(child):
        return
    edit = apply(parent, render_diff(parent, child), kind="diff")
    assert edit and edit.applied == edit.blocks
    assert code_hash(edit.child) == code_hash(child)


@given(
    lines=st.lists(st.sampled_from(["x = 1", "y = 2", "", "    return x", "x = 1"]), min_size=1, max_size=20),
    data=st.data(),
)
@settings(max_examples=300, deadline=None)
def test_render_diff_is_exact_on_ordinary_programs(lines, data):
    at = data.draw(st.integers(0, len(lines)))
    cut = data.draw(st.integers(0, 3))
    new = data.draw(st.lists(st.sampled_from(["z = 3", "x = 1"]), max_size=2))
    parent = "\n".join(["import a", *lines, "end()", ""])
    child = "\n".join(["import a", *lines[:at], *new, *lines[at + cut :], "end()", ""])
    if parent == child:
        return
    for dialect in edits.DIALECTS:
        edit = apply(parent, render_diff(parent, child, dialect=dialect), kind="diff", dialect=dialect)
        assert edit and edit.child == child


def test_render_diff_is_minimal_and_finds_the_right_place():
    reply = render_diff("a = 1\nb = 1\nc = 1\n", "a = 1\nb = 2\nc = 1\n")
    assert reply == block("b = 1", "b = 2")
    parent = "x\nsame\ny\nsame\nz\n"
    reply = render_diff(parent, "x\nsame\ny\nother\nz\n")
    assert reply == block("y\nsame", "y\nother") or reply == block("same\nz", "other\nz")
    assert apply(parent, reply, kind="diff").child == "x\nsame\ny\nother\nz\n"


def test_render_diff_says_what_cannot_be_said():
    with pytest.raises(ValueError):
        render_diff("a\n", "a\n")
    with pytest.raises(ValueError):
        render_diff("a\n", "=======\n")
    with pytest.raises(ValueError):
        render_rewrite("s = '```'")


@given(code=st.text(min_size=1, max_size=80).filter(lambda t: "`" not in t and t.strip()))
def test_render_rewrite_round_trips(code):
    edit = apply("parent", render_rewrite(code), kind="rewrite")
    assert edit.child == code.strip() if code.strip() != "parent" else edit.why is Why.NO_OP


class TestDialects:
    def test_unmatched(self):
        reply = block("nothing like it", "x")
        assert apply(PARENT, reply, kind="diff", dialect="openevolve@0.3") == Edit("diff", PARENT, 1, 0)
        assert apply(PARENT, reply, kind="diff").why is Why.UNMATCHED

    def test_some_match(self):
        reply = block("nothing like it", "x") + "\n" + block("rate = 0.5", "rate = 0.7")
        for dialect in edits.DIALECTS:
            edit = apply(PARENT, reply, kind="diff", dialect=dialect)
            assert (edit.blocks, edit.applied) == (2, 1) and "rate = 0.7" in edit.child

    def test_no_op(self):
        reply = block("rate = 0.5", "rate = 0.5")
        assert apply(PARENT, reply, kind="diff", dialect="openevolve@0.1").child == PARENT
        assert apply(PARENT, reply, kind="diff").why is Why.NO_OP
        assert apply(PARENT.strip(), f"```python\n{PARENT}```", kind="rewrite").why is Why.NO_OP

    def test_spaces_at_line_ends(self):
        reply = block("step = 2", "step = 3")
        assert apply(PARENT, reply, kind="diff", dialect="openevolve@0.3").applied == 0
        assert "step = 3\n" in apply(PARENT, reply, kind="diff").child

    def test_stray_markers(self):
        reply = block("rate = 0.5", "rate = 0.7") + "\n=======\n"
        assert "rate = 0.7" in apply(PARENT, reply, kind="diff", dialect="openevolve@0.2").child
        assert apply(PARENT, reply, kind="diff", dialect="openevolve@0.4.0").why is Why.MARKERS
        assert apply(PARENT, reply, kind="diff").why is Why.MARKERS

    def test_a_banner_is_no_marker_for_the_newest(self):
        reply = block("rate = 0.5", "# =======\nrate = 0.7")
        assert "# =======\nrate = 0.7" in apply(PARENT, reply, kind="diff").child

    def test_crlf(self):
        reply = block("rate = 0.5", "rate = 0.7").replace("\n", "\r\n")
        assert apply(PARENT, reply, kind="diff", dialect="openevolve@0.1").why is Why.NO_BLOCK
        assert apply(PARENT, reply, kind="diff", dialect="openevolve@0.4.0").why is Why.MARKERS
        assert "rate = 0.7" in apply(PARENT, reply, kind="diff").child  # 0.4.1 accepts it

    def test_empty_search_matches_the_first_empty_line(self):
        assert apply("a\n\nb\n", block("", "x"), kind="diff").child == "a\nx\nb\n"

    def test_fences(self):
        reply = "Sure:\n```cpp\nint a;\n```\n"
        assert apply("", reply, kind="rewrite", dialect="openevolve@0.3").child == "cpp\nint a;"
        assert apply("", reply, kind="rewrite").child == "int a;"
        assert apply("", "no fence at all", kind="rewrite").child == "no fence at all"
        assert apply("", "```python\ncut off", kind="rewrite").child == "```python\ncut off"
        assert apply("", "``````", kind="rewrite").why is Why.EMPTY
        assert apply("", "```python\na\n```\n```python\nb\n```", kind="rewrite").child == "a"

    def test_custom_pattern(self):
        pattern = r"<old>(.*?)</old><new>(.*?)</new>"
        edit = apply("a\nb", "<old>a</old><new>c</new>", kind="diff", diff_pattern=pattern)
        assert edit.child == "c\nb"
        with pytest.raises(UsageError):
            apply("a", "b", kind="diff", diff_pattern="(")
        with pytest.raises(UsageError):
            apply("a", "b", kind="diff", diff_pattern="one (group)")

    def test_names(self):
        assert edits.dialect_for("0.4.0") == "openevolve@0.4.0"
        assert edits.dialect_for("0.4.1") == edits.dialect_for("") == edits.dialect_for("0.9.3") == "openevolve@0.4"
        assert edits.dialect_for("0.0.7") == edits.dialect_for("0.1.2") == "openevolve@0.1"
        assert edits.dialect_for("0.2.14") == "openevolve@0.2"
        with pytest.raises(UsageError, match="did you mean"):
            apply("a", "b", kind="diff", dialect="openevolve@0.5")


class TestSyntax:
    def test_comments_and_layout_do_not_count(self):
        assert not edits.changes_syntax("x = 1\n", "x = 1  # one\n\n")
        assert edits.changes_syntax("x = 1\n", "x = 2\n")

    def test_a_child_that_does_not_parse_changes_nothing(self):
        assert not edits.changes_syntax("x = 1", "x = ")
        assert edits.changes_syntax("x = ", "x = 1")
        assert not edits.changes_syntax("x = 1", "x = 1\0")
        assert not edits.changes_syntax("x = 1", "(" * 10_000)

    def test_other_languages_by_text(self):
        assert not edits.changes_syntax("int a;", "int  a;\n\n", "cpp")
        assert edits.changes_syntax("int a;", "int b;", "cpp")

    @given(st.text(max_size=100))
    def test_never_raises(self, code):
        edits.changes_syntax("x = 1", code)
        edits.changes_syntax(code, "x = 1", "rust")


# ------------------------------------------------------------------------------------------- settings of the run itself

_MARKED = st.lists(
    st.sampled_from(["# EVOLVE-BLOCK-START", "# EVOLVE-BLOCK-END", "// EVOLVE-BLOCK-START", "x = 1  # EVOLVE-BLOCK-END",
                     "a = 1", "b = 2", "", "EVOLVE-BLOCK-STARTED"]), max_size=9
).map("\n".join)  # fmt: skip
_BLOCKS = "p = 1\n# EVOLVE-BLOCK-START\na = 1\n# EVOLVE-BLOCK-END\nq = 2"


@given(parent=_MARKED | st.just(_BLOCKS), child=_MARKED | _MARKED.map(lambda t: _BLOCKS.replace("a = 1", t)))
@settings(max_examples=600, deadline=None)
def test_enforced_evolve_blocks_as_in_openevolve(openevolve, parent, child):
    reply = f"```python\n{child}\n```"
    made = openevolve.parse_full_rewrite(reply, "python")
    if not made or made == parent:
        return
    try:
        expected = openevolve.enforce_evolve_blocks(parent, made)
        expected = None if expected != made and expected == parent else expected
    except ValueError:
        expected = None
    edit = apply(parent, reply, kind="rewrite", enforce=True)
    assert (edit.child if edit else None) == expected
    assert edit or edit.why == Why.OUTSIDE


@given(parent=PROGRAM, described=PROGRAM, halves=st.lists(st.tuples(PROGRAM, PROGRAM), min_size=1, max_size=4))
@settings(max_examples=400, deadline=None)
def test_changes_description_mode_as_in_openevolve(openevolve, parent, described, halves):
    lines = (parent + "\n" + described).split("\n")
    reply = "\n".join(block(lines[len(s) % len(lines)].rstrip(), r) for s, r in halves)
    try:
        blocks = openevolve.extract_diffs(reply)
        ours, _, _ = openevolve.split_diffs_by_target(blocks, code_text=parent, changes_description_text=described)
    except ValueError:  # ambiguous, or markers in a half: no child
        return
    edit = apply(parent, reply, kind="diff", described=True)
    assert blocks == [] or edit.child == openevolve.apply_diff_blocks(parent, ours)[0]


def test_a_pattern_that_backtracks_without_end_is_given_up(monkeypatch):
    monkeypatch.setattr(edits, "PATTERN_S", 0.2)
    edit = apply("x = 1", "a" * 60 + "cY Z", kind="diff", diff_pattern=r"((?:a|a|ab)*)c(Z)")
    assert not edit and edit.why == Why.PATTERN


def test_a_tree_that_another_thread_got_in_the_way_of_is_made_again(monkeypatch):
    real, failures = ast.parse, ["AST constructor recursion depth mismatch (before=33, after=26)"] * 3

    def parse(code):
        if failures:
            raise SystemError(failures.pop())
        return real(code)

    monkeypatch.setattr("eft.syntax.ast.parse", parse)
    assert edits.parse_python("x = 1") is not None and not failures
