"""Classification of replies, without OpenEvolve: attempts in, candidates out."""

from __future__ import annotations

import json

import pytest
from toy import PROGRAM, block

from eft import resources
from eft.errors import EftError
from eft.search.evaluator import Scorer
from eft.search.tally import NO_ANSWER, Attempt, no_answer, read_journal, read_lines, tally


def prompt(code: str = PROGRAM) -> str:
    text = (resources.PACKAGE / "templates/eft_1/diff_user.txt").read_text()
    return text.format(fitness_score="0.1", evolution_history="", language="python", current_program=code)


def edited(old: str, new: str, iteration: int = 1) -> Attempt:
    return Attempt(iteration, prompt(), block(old, new), PROGRAM.replace(old, new))


def one(spec, attempt: Attempt, journal=()):
    search = spec(iterations=1)
    return tally(search, [attempt], list(journal), Scorer.of(search), "0.4.1", 1.0)


@pytest.mark.parametrize("attempt, status", [
    (edited("STEP = 0.5", "STEP = 0.75"), "ok"),
    (edited("STEP = 0.5", "STEP = 0.5  # half"), "no_op"),
    (edited("STEP = 0.5", "STEP = 0.50"), "no_op"),
    (edited("STEP = 0.5", "STEP = ("), "invalid"),
    (edited("    return [total, STEP, SHIFT]", "    while True: pass"), "invalid"),
    (Attempt(1, prompt(), PROGRAM, PROGRAM.strip()), "no_op"),
    (Attempt(1, prompt(), "no", error="No valid diffs found in response"), "no_edit"),
    (Attempt(1, prompt(), block("NOT = 1", "X = 1"), error="None of the 1"), "unmatched"),
    (Attempt(1, prompt(), block("STEP = 0.5", "STEP = 0.5"), error="Diff did not change"), "no_op"),
    (Attempt(1, prompt(), "<<<<<<< SEARCH\n", error="Unmatched"), "malformed"),
    (Attempt(1, prompt(), block("STEP = 0.5", "X = 1"), error="Generated code exceeds maximum length"), "too_long"),
    (Attempt(1, prompt(), block("STEP = 0.5", "X = 1"), error="the disk broke"), "lost"),
    (Attempt(1, prompt(), None, error=f"{NO_ANSWER}: Error code: 400 - too long"), "request_error"),
    (Attempt(1, "", None, error="Iteration timed out"), "lost"),
])  # fmt: skip
def test_what_becomes_of_a_reply(spec, attempt, status) -> None:
    result = one(spec, attempt)
    (candidate,) = result.candidates
    assert candidate.status == status
    assert result.valid_edits == (status == "ok")
    assert result.failures == ({} if status == "ok" else {status: 1})
    assert result.replies == 1 and len(result.best_curve) == 1


def test_scores_curves_and_duplicates(spec) -> None:
    search = spec(iterations=4)
    better, worse = ("STEP = 0.5", "STEP = 1.5"), ("SHIFT = 2.0", "SHIFT = 9.0")
    attempts = [edited(*worse, 1), edited(*better, 2), edited(*better, 3),
                Attempt(4, prompt(PROGRAM.replace(*better)), block("STEP = 1.5", "STEP = 0.5"), PROGRAM)]  # fmt: skip
    result = tally(search, attempts, [], Scorer.of(search), "0.4.1", 1.0)
    assert [c.status for c in result.candidates] == ["ok", "ok", "duplicate", "duplicate"]
    assert result.valid_edits == 4 and result.distinct_valid_edits == 2  # going back to the seed makes no new program
    assert result.best_curve[0] == result.seed_score == result.candidates[0].parent_score
    assert result.best_curve[1:] == (result.candidates[1].score,) * 3 == (result.best_score,) * 3
    assert result.raw_curve[1] == result.candidates[1].raw == result.best_raw < result.seed_raw
    assert result.best_code == PROGRAM.replace(*better)
    assert result.candidates[3].parent_score == result.best_score


def test_the_journal_adds_tokens_and_lost_replies(spec) -> None:
    search = spec(iterations=3)

    def line(index: int, content: str, tokens: int) -> dict:
        return {"kind": "reply", "status": "ok", "index": index, "content": content, "finish_reason": "stop",
                "seconds": 0.5, "messages": [{"role": "user", "content": prompt()}],
                "usage": {"prompt_tokens": 10, "completion_tokens": tokens}}  # fmt: skip

    replies = [block("STEP = 0.5", f"STEP = {k}.0") for k in (1, 2, 3)]
    attempts = [Attempt(k, prompt(), replies[k - 1], PROGRAM.replace("STEP = 0.5", f"STEP = {k}.0")) for k in (1, 3)]
    journal = [line(k, r, k + 1) for k, r in enumerate(replies)]
    result = tally(search, attempts, journal, Scorer.of(search), "0.4.1", 1.0)
    assert [c.status for c in result.candidates] == ["ok", "lost", "ok"]
    assert result.candidates[1].applied and result.candidates[1].code_hash
    assert (result.prompt_tokens, result.completion_tokens) == (30, 6)
    assert result.candidates[0].seconds == 0.5


def test_a_search_that_did_not_end_is_no_result(spec) -> None:
    search = spec(iterations=5)
    with pytest.raises(EftError, match="after 2 of 5"):
        tally(search, [edited("STEP = 0.5", "STEP = 1.0", 2)], [], Scorer.of(search), "0.4.1", 1.0)


def test_too_many_unanswered_requests_are_no_result(spec) -> None:
    search = spec(iterations=2)
    attempts = [edited("STEP = 0.5", "STEP = 1.0"), Attempt(2, prompt(), None, error=f"{NO_ANSWER}: Connection error.")]
    with pytest.raises(EftError, match="1 of 2 requests had no answer") as e:
        tally(search, attempts, [], Scorer.of(search), "0.4.1", 1.0)
    assert "Connection error" in e.value.why


def test_a_refused_prompt_is_an_answer() -> None:
    assert no_answer(f"{NO_ANSWER}: Connection error.")
    assert no_answer(f"{NO_ANSWER}: Error code: 502 - down")
    assert no_answer(f"{NO_ANSWER}: Error code: 404 - no such model")
    assert not no_answer(f"{NO_ANSWER}: Error code: 400 - longer than the model's context")
    assert not no_answer("No valid diffs found in response")


def test_a_torn_last_line_is_left_out_and_a_broken_one_named(tmp_path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text('{"a": 1}\n{"a": 2')
    assert list(read_lines(file)) == [{"a": 1}]
    assert list(read_lines(tmp_path / "absent.jsonl")) == []
    file.write_text('{"a": 1}\n{"a"\n{"a": 3}\n')
    with pytest.raises(EftError, match="line 2"):
        list(read_lines(file))


def test_a_journal_gives_its_replies(tmp_path) -> None:
    file = tmp_path / "j.jsonl"
    file.write_text("\n".join(json.dumps({"kind": k}) for k in ("proposal", "reply")) + "\n")
    assert read_journal(str(file)) == [{"kind": "reply"}]
    assert read_journal(None) == []


def test_what_the_scaffold_is_told(spec, toy) -> None:
    slim, full = Scorer.of(spec("a")), Scorer.of(spec("b", prompt_format="openevolve@0.4"))
    seed = slim.evaluate(PROGRAM)
    assert slim.told(seed) == {"combined_score": seed.score}
    assert full.told(seed) == {"combined_score": seed.score, "error_sq": seed.raw, "validity": 1.0}
    broken = slim.told(slim.evaluate("def run(: pass"))
    assert broken["validity"] == 0.0 and broken["error"].startswith("evaluator_error") and "timeout" not in broken
    endless = slim.told(slim.evaluate("def run():\n    while True: pass"))
    assert endless["timeout"] is True
