"""The way to the best program: every edit applied again, and whole or not given at all."""

from __future__ import annotations

import json

import pytest
from test_summary import result

from eft.evaluate import lineage, summary
from eft.records import code_hash
from eft.search.spec import Candidate, SearchSpec
from eft.tasks.task import find_task

TASK = find_task("control/pid")
START = TASK.seed()
PROGRAMS = [START, START + "\nA = 1\n", START + "\nA = 2\n", START + "\nA = 2\nB = 3\n"]


def rewrite(code: str) -> str:
    return f"Better so:\n```python\n{code}\n```"


def record(parent: str, reply: str, **change) -> dict:
    prompt = f"# Current Program\n```python\n{parent}\n```\n\n# Task\nImprove it."
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": prompt}]
    return {"kind": "reply", "status": "ok", "content": reply, "messages": messages, **change}


def candidate(index: int, parent: str, child: str, **change) -> Candidate:
    values = {"applied": True, "changes_syntax": True, "valid": True, "raw": 1.0 - index / 10}
    return Candidate(index, index + 1, "ok", parent_hash=code_hash(parent), code_hash=code_hash(child),
                     **{**values, **change})  # fmt: skip


EDITS = [(0, 1), (1, 2), (0, 1), (2, 3)]  # parent, child: the third is a duplicate of the first
FOUND = [candidate(i, PROGRAMS[a], PROGRAMS[b]) for i, (a, b) in enumerate(EDITS)]
JOURNAL = [record(PROGRAMS[a], rewrite(PROGRAMS[b])) for a, b in EDITS]


def steps(records=JOURNAL, candidates=tuple(FOUND), best=PROGRAMS[3], **change):
    return lineage.steps(result(candidates=candidates, best_code=best, edit="rewrite", **change), records, TASK)


def test_every_edit_of_the_way_and_no_other():
    found = steps()
    assert [s.proposal for s in found] == [1, 2, 4] and found[-1].raw == pytest.approx(0.7)
    assert "+A = 1" in found[0].diff and "-A = 1\n+A = 2" in found[1].diff and "+B = 3" in found[2].diff


def test_the_order_of_the_journal_and_other_records_do_not_matter():
    odd = [{**JOURNAL[0], "messages": m} for m in (None, [{"role": "user", "content": 3}])]
    noise = [{"kind": "proposal"}, {"kind": "reply", "status": "error"}, record(START, None), {}, *odd]
    assert steps(records=[*noise, *JOURNAL[::-1]]) == steps()


def test_another_scaffold_without_a_dialect_of_its_own():
    assert steps(scaffold="tournament", scaffold_release="1") == steps()


@pytest.mark.parametrize("missing", [0, 1, 3])
def test_a_way_with_a_hole_is_not_given(missing):
    records = [r for i, r in enumerate(JOURNAL) if i != missing and not (missing == 0 and i == 2)]
    assert steps(records=records) == ()
    left = tuple(c for c in FOUND if c.code_hash != FOUND[missing].code_hash)
    assert steps(candidates=left) == ()


def test_a_reply_that_makes_another_program_is_not_believed():
    assert steps(records=[record(START, rewrite(PROGRAMS[2])), *JOURNAL[1:2], JOURNAL[3]]) == ()


def test_a_circle_ends():
    round_ = (candidate(0, PROGRAMS[2], PROGRAMS[1]), candidate(1, PROGRAMS[1], PROGRAMS[2]))
    assert steps(candidates=round_, best=PROGRAMS[2]) == ()


def test_nothing_found_has_no_way():
    assert steps(best=START) == ()


def test_long_ways_and_long_edits_are_cut():
    codes = [START] + [START + f"\nX = {i}\n" for i in range(60)]
    links = list(zip(codes, codes[1:], strict=False))
    candidates = tuple(candidate(i, a, b) for i, (a, b) in enumerate(links))
    found = steps([record(a, rewrite(b)) for a, b in links], candidates, codes[-1])
    assert len(found) == lineage.LONGEST and found[-1].proposal == 60
    long = "\n".join(f"x{i} = {i}" for i in range(500))
    assert len(lineage.unified("", long, ("a", "b"), 10).splitlines()) == 11


def test_the_summary_keeps_hidden_values_and_the_way(tmp_path):
    journal = tmp_path / "s.jsonl"
    journal.write_text("\n".join(map(json.dumps, JOURNAL)) + "\n")
    r = result(candidates=tuple(FOUND), best_code=PROGRAMS[3], edit="rewrite", final_score=2.0, final_raw=0.4,
               seed_final_raw=0.8, sandbox="bubblewrap")  # fmt: skip
    s = summary.of(SearchSpec(str(TASK.folder), "", "out", mutator="m", journal=str(journal)), r, TASK)
    assert (s.final_score, s.final_raw, s.start_final_raw) == (2.0, 0.4, 0.8)
    assert (s.sandbox, s.scaffold, len(s.lineage)) == ("bubblewrap", "openevolve", 3)
