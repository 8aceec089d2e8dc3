"""The ast mutator: every edit parses, says something, stays where it may, and is exactly what its reply says."""

from __future__ import annotations

import ast
import difflib
import random

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from eft import edits
from eft.errors import EftError, UsageError
from eft.mutators import ast_edits, ast_history
from eft.mutators.ast import AstMutator
from eft.mutators.ast_history import Past
from eft.tasks.evaluate import evaluate
from eft.tasks.task import find_task, shipped

SEEDS = [t.seed() for t in map(find_task, shipped()) if t.language == "python"]
ODD = [
    "x = 1\n",
    "é = 0.5; ü = é + 1  # naïve ☃\ndef f(a, b=-2.5):\n\treturn (a+b)*é if a>b and not b else -a\n",
    "# EVOLVE-BLOCK-START\nA = -3\n# EVOLVE-BLOCK-END\nB = 7\n",
    """class C:
    k = 3
    def m(self, n):
        for i in range(10):
            n += i * 2
            n -= 1
        return n
""",
    """def f(x):
    '''doc 1 + 2'''
    s = f'{x + 1} 3 < 4'
    while x < 10 or s == 'a':
        x = x ** 2 - 1e-3
    return [x, s][0]
""",
    "def f():\n    y = (1 +\n         2)\n    if True: y = 3\n    return y\n",
]
CODES = SEEDS + ODD

numbers = st.one_of(st.integers(-50, 50), st.floats(-1e6, 1e6, allow_nan=False).map(lambda v: round(v, 4)))
names = st.sampled_from(["a", "b", "rate", "Δ"])
atoms = st.one_of(numbers.map(repr), names)
operators = st.sampled_from(["+", "-", "*", "/", "<", ">=", "and", "or"])
expressions = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.tuples(inner, operators, inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        inner.map(lambda e: f"abs({e})"),
        inner.map(lambda e: f"-{e}"),
    ),
    max_leaves=6,
)
statements = st.one_of(
    st.tuples(names, expressions).map(lambda t: f"    {t[0]} = {t[1]}"),
    st.tuples(names, expressions).map(lambda t: f"    {t[0]} += {t[1]}  # {t[0]}"),
    st.tuples(expressions, names, expressions).map(lambda t: f"    if {t[0]}:\n        {t[1]} = {t[2]}"),
)
programs = st.lists(statements, min_size=1, max_size=6).map(
    lambda body: "import math\nK = 0.5\n\n\ndef f(a, b, rate, Δ):\n" + "\n".join(body) + "\n    return a\n"
)


def check(parent: str, change: ast_edits.Change) -> None:
    child = change.child
    ast.parse(child)
    assert child != parent and edits.changes_syntax(parent, child)
    before, after = parent.split("\n"), child.split("\n")
    touched = [o for o in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes() if o[0] != "equal"]
    if change.kind in ("number", "operator", "compare", "boolean", "name", "wrap"):
        assert len(before) == len(after) and sum(a != b for a, b in zip(before, after, strict=True)) == 1
    elif change.kind == "term":
        assert len(after) == len(before) + 1 and len(touched) == 1
    if "EVOLVE-BLOCK-START" in parent:
        for text in (before, after):
            assert "# EVOLVE-BLOCK-START" in text and "# EVOLVE-BLOCK-END" in text
        start, end = before.index("# EVOLVE-BLOCK-START"), before.index("# EVOLVE-BLOCK-END")
        assert before[: start + 1] == after[: start + 1] and before[end:] == after[len(after) - len(before) + end :]
    reply = edits.render_diff(parent, child)
    edit = edits.apply(parent, reply, kind="diff")
    assert edit and edit.child == child


@pytest.mark.parametrize("code", CODES)
def test_edits_of_known_programs(code):
    rng, kinds = random.Random(code), set()
    for _, change in zip(range(120), ast_edits.stream(code, rng), strict=False):
        check(code, change)
        kinds.add(change.kind)
    assert "number" in kinds
    if code in SEEDS:
        assert kinds >= {"number", "name"} and len(kinds) >= 3


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs, st.integers(0, 2**32))
def test_edits_of_made_up_programs(code, seed):
    for _, change in zip(range(4), ast_edits.stream(code, random.Random(seed)), strict=False):
        check(code, change)
    assert list(zip(range(3), ast_edits.stream(code, random.Random(seed)), strict=False)) == list(
        zip(range(3), ast_edits.stream(code, random.Random(seed)), strict=False)
    )


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60), st.integers(0, 99))
@example("\r0", 0)
def test_any_text_is_survived(code, seed):
    change = ast_edits.propose(code, random.Random(seed), tries=20)
    assert change is None or edits.changes_syntax(code, change.child)


def test_many_generations_stay_programs():
    """Edits of edits: forty in a row still parse and are still one-step changes."""
    for code in SEEDS[:4]:
        rng = random.Random(3)
        for _ in range(40):
            change = ast_edits.propose(code, rng)
            check(code, change)
            code = change.child


def test_kinds_restrict():
    rng = random.Random(0)
    for _, change in zip(range(60), ast_edits.stream(SEEDS[0], rng, ast_edits.KINDS["numbers"]), strict=False):
        assert change.kind == "number"
    assert ast_edits.propose("pass\n", rng) is None
    assert ast_edits.propose("int main() { return 0; }\n", rng) is None


WRITTEN = [(0.46, 0.02, "0.46"), (0.3030, 0.003, "0.303"), (120.4, 20.0, "120.0"), (-0.5, -1.0, "-0.5"),
           (1e-6, 1e-6, "0.000001"), (3.0, 0.5, "3.0")]  # fmt: skip


@pytest.mark.parametrize("value, step, text", WRITTEN)
def test_numbers_are_written_short(value, step, text):
    assert ast_edits.format_number(value, step) == text


# ---- history -----------------------------------------------------------------------------------------------------

CODE = "# EVOLVE-BLOCK-START\nSTEP = 0.2\nGAIN = 3\n\ndef run():\n    x = STEP * 2.0\n    return x\n# EVOLVE-BLOCK-END"


def prompt(
    *history: str, code: str = CODE, ask: str = "<<<<<<< SEARCH\na line\n=======\nthe new line\n>>>>>>> REPLACE"
) -> list[dict]:
    best = "\n".join(history)
    user = f"Score: 0.5000\n{best}\n\n# Current Program\n```python\n{code}\n```\n\n# Task\nRaise the score:\n{ask}"
    return [{"role": "system", "content": "You improve programs."}, {"role": "user", "content": user}]


KEPT = "## Best edits\n- Change 1: 'STEP = 0.1' to 'STEP = 0.2' | improved"
REJECTED = "## Best edits\n- Change 1: 'GAIN = 3' to 'GAIN = 4' | worse"


def test_history_is_read():
    user = prompt(
        KEPT,
        "- Change 1: 'x = STEP * 2' to 'x = STEP' | same",
        "- Change 1: 'a = 1' to 'a = 2'\nChange 2: 'b = 1' to 'b = 2' | improved",
        "## Other edits",
        "- 0.4321 | Change 1: 'STEP = 0.2' to 'STEP = 0.05', low",
        "- 0.9000 | Change 1: 'GAIN = 1' to 'GAIN = 3', high",
        "- start | same",
    )
    assert ast_history.read(user[1]["content"]) == [
        Past("STEP = 0.1", "STEP = 0.2", "improved"),
        Past("x = STEP * 2", "x = STEP", "same"),
        Past("STEP = 0.2", "STEP = 0.05", "worse"),
        Past("GAIN = 1", "GAIN = 3", ""),
    ]
    stock = """### Attempt 2
- Changes: Change 1: 'STEP = 0.1' to 'STEP = 0.2'
- Metrics: combined_score: 0.5
- Outcome: Improvement in all metrics

### Attempt 1
- Changes: Change 1: 'a = 1' to 'a = 2'
- Outcome: Mixed results
"""
    assert ast_history.read(stock) == [Past("STEP = 0.1", "STEP = 0.2", "improved"), Past("a = 1", "a = 2", "")]


def test_history_is_followed():
    allowed = ast_edits.Source(CODE, ast.parse(CODE)).allowed

    def lines(*past):
        return [(name, next(b for a, b in zip(CODE.split("\n"), child.split("\n"), strict=True) if a != b))
                for name, child in ast_history.follow(CODE, allowed, list(past))]  # fmt: skip

    def texts(*past):
        return [line for _, line in lines(*past)]

    kept = Past("STEP = 0.1", "STEP = 0.2", "improved")
    assert lines(kept) == [("cont", "STEP = 0.3"), ("cont", "STEP = 0.4"), ("cont", "STEP = 0.25")]
    assert texts(Past("STEP = 0.2", "STEP = 0.3", "worse")) == ["STEP = 0.1", "STEP = 0.15", "STEP = 0.225"]
    # The program is the one that the edit made worse: beyond the start, not just back to it.
    assert texts(Past("STEP = 0.1", "STEP = 0.2", "worse")) == ["STEP = 0.0", "STEP = 0.05", "STEP = 0.125"]
    # Nothing that was tried before, nothing that the program does not have, nothing of unknown worth.
    assert texts(kept, Past("STEP = 0.2", "STEP = 0.3", "same")) == ["STEP = 0.4", "STEP = 0.25"]
    assert not lines(
        Past("STEP = 0.1", "STEP = 0.2", ""), Past("GONE = 1", "GONE = 2", "improved"), Past("a", "b", "worse")
    )
    assert lines(Past("x = STEP * 1.0", "x = STEP * 2.0", "improved"))[0] == ("cont", "    x = STEP * 3.0")
    outside = CODE.replace("# EVOLVE-BLOCK-START\n", "").replace("STEP = 0.2\n", "STEP = 0.2\n# EVOLVE-BLOCK-START\n")
    assert ast_history.follow(outside, ast_edits.Source(outside, ast.parse(outside)).allowed, [kept]) == []


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.text(max_size=50), st.sampled_from([KEPT, REJECTED, "### Attempt 3\n- Changes: Change 1: 'a' to 'b'"])
        )
    )
)
def test_any_history_is_survived(parts):
    user = prompt(*parts)[1]["content"]
    past = ast_history.read(user)
    ast_history.follow(CODE, [True] * 8, past)


# ---- the mutator -------------------------------------------------------------------------------------------------


def child_of(reply, parent=CODE, kind="diff"):
    edit = edits.apply(parent, reply.content, kind=kind)
    assert edit, reply.content
    return edit.child


def test_plain_replies_are_edits_and_pure():
    mutator = AstMutator(1)
    replies = [mutator.propose(prompt(), call) for call in range(30)]
    assert len({child_of(r) for r in replies}) > 15
    again = AstMutator(1)
    assert [again.propose(prompt(), call) for call in (29, 3)] == [replies[29], replies[3]]
    assert AstMutator(2).propose(prompt(), 0) != replies[0] and not replies[0].proposals


def test_the_form_follows_the_prompt_or_the_option():
    rewrite = prompt(ask="Reply with the whole new program:\n```python\n```")
    assert edits.changes_syntax(CODE, child_of(AstMutator(1).propose(rewrite, 0), kind="rewrite"))
    assert AstMutator(1, form="rewrite").propose(prompt(), 0).content.startswith("```python\n")
    assert "<<<<<<< SEARCH" in AstMutator(1, form="diff").propose(rewrite, 0).content


def test_the_hand_rule_goes_on_or_turns_round():
    rule = AstMutator(1, guided=1.0)
    assert "STEP = 0.3" in child_of(rule.propose(prompt(KEPT), 0))
    assert "\nGAIN = 2\n" in child_of(rule.propose(prompt(REJECTED), 0))
    assert "STEP = 0.3" in child_of(rule.propose(prompt(KEPT, REJECTED), 0))
    assert child_of(rule.propose(prompt(), 0)) != CODE


def test_lookahead_evaluates_distinct_edits_and_answers_with_the_best():
    task = find_task("engineering/beam")
    code = task.seed().strip()
    reply = AstMutator(5, lookahead=8, task=task).propose(prompt(code=code), 0)
    assert len(reply.proposals) == 8 and len({p["child_code"] for p in reply.proposals}) == 8
    for p in reply.proposals:
        assert p["parent_code"] == code and edits.apply(code, p["response"], kind="diff").child == p["child_code"]
        assert p["parent_metrics"]["combined_score"] == evaluate(task, code).score
        assert p["child_metrics"] == evaluate(task, p["child_code"]).metrics
    (chosen,) = [p for p in reply.proposals if p["chosen"]]
    assert chosen["response"] == reply.content
    assert chosen["child_metrics"]["combined_score"] == max(
        p["child_metrics"]["combined_score"] for p in reply.proposals
    )
    assert AstMutator(5, lookahead=8, task=task).propose(prompt(code=code), 0) == reply


def test_lookahead_uses_half_of_its_edits_for_the_history():
    task = find_task("engineering/beam")
    code = task.seed().strip().replace("WIDTH = 0.4", "WIDTH = 0.35")
    kept = "## Best edits\n- Change 1: 'WIDTH = 0.4' to 'WIDTH = 0.35' | improved"
    reply = AstMutator(5, lookahead=6, task=task).propose(prompt(kept, code=code), 0)
    followed = {"WIDTH = 0.3", "WIDTH = 0.25", "WIDTH = 0.325"}
    assert all(any(f"\n{line}\n" in p["child_code"] for line in followed) for p in reply.proposals[:3])
    assert len(reply.proposals) == 6


def test_few_possible_edits_end_the_search_for_more():
    task = find_task("engineering/beam")
    reply = AstMutator(1, lookahead=8, task=task).propose(prompt(code="def run():\n    return a < b"), 0)
    assert 1 <= len(reply.proposals) <= 8


@pytest.mark.parametrize(
    "code, message", [("int main() { return 0; }", "does not parse"), ("pass", "nothing to change")]
)
def test_programs_that_cannot_be_edited(code, message):
    with pytest.raises(EftError, match=message):
        AstMutator(1).propose(prompt(code=code), 0)


def test_wrong_options_and_prompts_are_named():
    with pytest.raises(EftError, match="shows no program"):
        AstMutator(1).propose([{"role": "user", "content": "hello"}], 0)
    with pytest.raises(UsageError, match="did you mean 'numbers'"):
        AstMutator(1, kinds="number")
    with pytest.raises(UsageError, match="needs a task"):
        AstMutator(1, lookahead=4)
    with pytest.raises(UsageError, match="no form 'dif'"):
        AstMutator(1, form="dif")
    with pytest.raises(UsageError, match="must not be negative"):
        AstMutator(1, lookahead=-1)
