"""Edits of other scaffolds: the child is, character for character, what the scaffold stores; or there is a reason."""

from __future__ import annotations

import json
import random
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eft import dialects, edits
from eft.edits import Why

PARENT = "import os\n# EVOLVE-BLOCK-START\ndef f():\n    return 1\n# EVOLVE-BLOCK-END\nprint(f())\n"


def block(search: str, replace: str) -> str:
    return f"<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE\n"


def shinka(reply: str, parent: str = PARENT, kind: str = "diff", dialect: str = "shinka@0"):
    return edits.apply(parent, reply, kind=kind, dialect=dialect)


class TestShinkaDiff:
    def test_inside_the_block_and_without_the_last_newline(self):
        made = shinka(block("    return 1", "    return 2"))
        assert made.child == PARENT.replace("return 1", "return 2").rstrip("\n")

    def test_part_of_a_line_and_indentation_are_found(self):
        assert "return 9" in shinka(block("1", "9")).child
        parent = PARENT.replace("def f():\n    ", "  def f():\n  ")
        made = shinka(block("def f():\nreturn 1", "def f():\nreturn 2"), parent)
        assert "  def f():\n  return 2" in made.child

    @pytest.mark.parametrize("reply, why", [
        ("I would rather not.", Why.NO_BLOCK), (block("return 7", "return 8"), Why.UNMATCHED),
        (block("import os", "import re"), Why.UNMATCHED),
        (block("    return 1", "    return 2") + block("no", "such"), Why.UNMATCHED),
    ])  # fmt: skip
    def test_refused(self, reply, why):
        assert shinka(reply).why == why

    def test_an_empty_search_appends_and_older_releases_glue(self):
        reply = "<<<<<<< SEARCH\n\n=======\nx = 1\n>>>>>>> REPLACE"
        assert "return 1\nx = 1\n# EVOLVE-BLOCK-END" in shinka(reply).child
        assert "return 1\nx = 1# EVOLVE-BLOCK-END" in shinka(reply, dialect="shinka@0.0").child

    def test_markers_in_a_reply_are_dropped(self):
        reply = block("# EVOLVE-BLOCK-START\ndef f():", "# EVOLVE-BLOCK-START\ndef g():")
        assert "# EVOLVE-BLOCK-START\ndef g():" in shinka(reply).child
        assert "def g()" in shinka(block("def f():", "def g():\n# EVOLVE-BLOCK-END")).child


class TestShinkaRewrite:
    def test_what_is_outside_the_block_stays(self):
        code = PARENT.replace("import os", "import re").replace("return 1", "return 2")
        assert shinka(f"```python\n{code}\n```", kind="rewrite").child == PARENT.replace("return 1", "return 2")

    def test_without_markers_the_block_is_what_lies_between_head_and_tail(self):
        whole = "import os\ndef f():\n    return 3\nprint(f())"
        for code in (whole, "def f():\n    return 3"):
            assert shinka(f"```py\n{code}\n```", kind="rewrite").child == PARENT.replace("return 1", "return 3")

    @pytest.mark.parametrize("reply", ["no fence", "```python\nx = 1", "```\nx\n```"])
    def test_refused(self, reply):
        assert shinka(reply, kind="rewrite").why == Why.EMPTY

    def test_a_parent_without_markers_cannot_be_edited(self):
        assert shinka("```python\nx\n```", "x = 1", "rewrite").why == Why.UNMATCHED


class TestCodeEvolve:
    def test_first_occurrence_in_the_block_it_is_in(self):
        blocks = [f"# EVOLVE-BLOCK-START\n{line}\n# EVOLVE-BLOCK-END" for line in ("a = 1", "c = 1")]
        parent = "\nb = 1\n".join(blocks)
        made = edits.apply(parent, block("c = 1", "c = 2") + block("a", "d"), kind="diff", dialect="codeevolve@0")
        assert made.child == parent.replace("c = 1", "c = 2").replace("a = 1", "d = 1")

    @pytest.mark.parametrize("reply, why", [
        ("none", Why.NO_BLOCK), (block("print", "x"), Why.UNMATCHED), ("<<<<<<< SEARCH\n=======", Why.NO_BLOCK)])
    def test_refused(self, reply, why):
        assert edits.apply(PARENT, reply, kind="diff", dialect="codeevolve@0").why == why

    def test_it_has_no_rewrites(self):
        assert edits.apply(PARENT, "```python\nx\n```", kind="rewrite", dialect="codeevolve@0").why == Why.NO_BLOCK


class TestSkyDiscover:
    def test_unmatched_blocks_are_skipped_and_nothing_changed_is_a_failure_of_diffs_only(self):
        apply = edits.apply
        made = apply(PARENT, block("no", "x") + block("print(f())", "pass"), kind="diff", dialect="skydiscover@0")
        assert made.child == PARENT.replace("print(f())", "pass") and made.applied == 1
        assert apply(PARENT, block("no", "x"), kind="diff", dialect="skydiscover@0").why == Why.UNMATCHED
        assert apply("x = 1", "```python\nx = 1\n```", kind="rewrite", dialect="skydiscover@0").child == "x = 1"


LINES = ["x = 1", "  y = 2", "", "# EVOLVE-BLOCK-START", "# EVOLVE-BLOCK-END", "=======", "<<<<<<< SEARCH", "```",
         "```python", ">>>>>>> REPLACE", "a\tb  ", "// EVOLVE-BLOCK-START", "\r", "\x0c", "<<<<<<<SEARCH"]  # fmt: skip
TEXTS = st.lists(st.sampled_from(LINES), max_size=14).map("\n".join) | st.text(max_size=40)
NAMES, KINDS = st.sampled_from(sorted(dialects.DIALECTS)), st.sampled_from(["diff", "rewrite"])


@settings(max_examples=300, deadline=None)
@given(parent=TEXTS, reply=TEXTS, dialect=NAMES, kind=KINDS)
def test_no_reply_raises(parent, reply, dialect, kind):
    made = edits.apply(parent, reply, kind=kind, dialect=dialect)
    assert isinstance(made.child if made else made.why, str)


@pytest.mark.parametrize("dialect", sorted(dialects.DIALECTS))
@pytest.mark.parametrize("part", ["<<<<<<< SEARCH\n", "\n \n=======\n", "# EVOLVE-BLOCK-START\n", " " * 50,
                                  "```python\n", "<<<<<<< SEARCH\nx\n=======\n", f"{dialects.END} {dialects.START} "])
def test_long_replies_come_to_an_end(dialect, part):
    """Backtracking over 200 kB would take hours."""
    for kind in ("diff", "rewrite"):
        edits.apply(PARENT, part * (200_000 // len(part)), kind=kind, dialect=dialect)


@pytest.mark.integration
def test_as_the_real_shinka_does_it(scaffold_python):
    """800 random edits, applied by the installed ShinkaEvolve and by us."""
    rng = random.Random(7)
    cases = [_case(rng) for _ in range(400)]
    code = ("import json, sys, logging\nlogging.disable(50)\nfrom shinka.edit.apply_diff import apply_diff_patch as d\n"
            "from shinka.edit.apply_full import apply_full_patch as f\nout = []\n"
            "for p, r, full in json.load(sys.stdin):\n"
            "    made = (f if full else d)(r, original_str=p, language='python', verbose=False)\n"
            "    out.append(made[0] if made[3] is None and made[1] > 0 else None)\n"
            "print(json.dumps(out))")  # fmt: skip
    both = [(p, r, False) for p, r, _ in cases] + [(p, f, True) for p, _, f in cases]
    done = subprocess.run([scaffold_python("shinka"), "-I", "-c", code], input=json.dumps(both), text=True,
                          capture_output=True, timeout=600)  # fmt: skip
    assert done.returncode == 0, done.stderr
    theirs = json.loads(done.stdout.splitlines()[-1])
    ours = [edits.apply(p, r, kind="rewrite" if full else "diff", dialect="shinka@0.0") for p, r, full in both]
    assert sum(t is not None for t in theirs) > 150
    assert [e.child if e else None for e in ours] == theirs


def _case(rng: random.Random) -> tuple[str, str, str]:
    """(parent, reply of blocks, reply with a whole program), right and wrong in many ways."""
    plain = ["x = 1", "  y = 2", "y = 2", "", "def f():", "    return x"]
    lines = rng.choices(plain, k=rng.randint(0, 2))
    for _ in range(rng.choice([1, 1, 1, 2])):
        lines += ["# EVOLVE-BLOCK-START", *rng.choices(plain, k=rng.randint(1, 4)), "# EVOLVE-BLOCK-END"]
    lines += rng.choices(plain, k=rng.randint(0, 2))
    parent = "\n".join(lines) + rng.choice(["", "\n"])
    reply = []
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(lines))
        search = rng.choice([lines[at : at + 2], [lines[at].strip()], rng.choices(plain, k=2), []])
        reply += ["<<<<<<< SEARCH", *search, "=======", *rng.choices(plain, k=rng.randint(0, 2)),
                  rng.choice([">>>>>>> REPLACE", "  >>>>>>> REPLACE"])]  # fmt: skip
    body = rng.choice([parent.replace("x = 1", "x = 7"), "\n".join(rng.choices(plain, k=3)),
                       "\n".join(line for line in lines if "EVOLVE" not in line)])  # fmt: skip
    return parent, "\n".join(reply), f"```{rng.choice(['python', 'py', ''])}\n{body}\n```"
