"""Clean: every drop has one reason, every reason can be switched off, nothing is cut."""

from __future__ import annotations

import json
from collections import Counter

import pyarrow.parquet as pq
import pytest
from synthetic_runs import code
from tables import labelled, output_of

from data_tools import clean, harvest, label
from data_tools.clean import Config, reason_of
from data_tools.counts import messages, read_counts
from data_tools.facts import facts_of
from eft import manifest, tokenizers
from eft.errors import EftError
from eft.records import read_transitions


def run(rows, folder, **options):
    source = output_of("label", folder / "l", rows) if isinstance(rows, list) else rows
    out = clean.run(Config(source=source, output=folder / "c", **options))
    dropped = pq.read_table(out / clean.DROPPED).to_pylist()
    return list(read_transitions(out)), dropped, manifest.read(out)["counts"]


def test_the_real_runs(real_runs, tmp_path):
    expected = {
        "circle_packing_v0_1": ({"timeout": 2, "breakage": 9}, 77),
        "function_min_v0_4": ({"timeout": 3, "breakage": 9}, 56),
    }
    for name, (reasons, kept) in expected.items():
        source = harvest.run(harvest.Config(runs=[real_runs / name], output=tmp_path / name / "h"))
        source = label.run(label.Config(source=source, output=tmp_path / name / "l"))
        rows, dropped, counts = run(source, tmp_path / name, tokenizer="random:qwen3")
        assert counts["reasons"] == reasons and len(rows) == counts["kept"] == kept
        assert {r.label for r in rows} <= {"improved", "regressed", "repair"}
        counted = read_counts(tmp_path / name / "c")
        assert {r.id for r in rows} <= set(counted) and len(counted) == counts["rows"]  # whatever the options are
        tokenizer = tokenizers.load("random:qwen3")
        for row in rows[::20]:  # by transformers' own way, one at a time
            whole = tokenizer.apply_chat_template(
                messages(row), add_generation_prompt=True, tokenize=True, return_dict=True
            )
            assert counted[row.id][0] == len(whole["input_ids"])
            assert counted[row.id][1] == len(tokenizer(row.response, add_special_tokens=False)["input_ids"]) + 1


BROKEN = {"child_code": "x = (", "response": "", "replay": "unknown"}
ROWS = {
    "": labelled(),
    "heldout_role": labelled(suite_role="heldout"),
    "unlabelled": labelled(label=""),
    "timeout": labelled(label="breakage", child_validity="timeout"),
    "syntax_error": labelled(label="breakage", **BROKEN),
    "breakage": labelled(label="breakage"),
    "unrecoverable": labelled(label="unrecoverable"),
    "identical": labelled(child_code=code(0) + "\n\n", replay="unknown"),
    "replay_mismatch": labelled(replay="mismatch"),
    "system_error": labelled(
        label="breakage", child_artifacts=json.dumps({"stderr": "OSError: [Errno 28] No space left on device"})
    ),
}


@pytest.mark.parametrize("reason", ROWS)
def test_each_reason(reason):
    if reason != "heldout_role":  # decided before, by role
        assert reason_of(facts_of(ROWS[reason]), Config(), set()) == reason


@pytest.mark.parametrize("row,reason", [
    (labelled(label="repair"), ""),  # kept: an example of mending
    (labelled(label="repair", parent_artifacts='{"stderr": "BrokenProcessPool"}'), "system_error"),  # a bogus repair
    (labelled(parent_artifacts='{"stderr": "BrokenProcessPool"}'), ""),  # the parent was fine after all
    (labelled(child_code="print 'two'"), ""),  # valid, whatever our parser says
    (labelled(label="breakage", parent_code="int x;", child_code="int y;"), "breakage"),  # not Python after all
    (labelled(label="breakage", language="cpp", child_artifacts='{"stderr": "error: expected x"}'), "syntax_error"),
    (labelled(label="breakage", child_artifacts='{"stderr": "MemoryError"}'), "breakage"),  # the program's own fault
    (labelled(label="breakage", child_artifacts='{"advice": "No space left on device is printed"}'), "breakage"),
    (labelled(label="unrecoverable", child_validity="timeout"), "timeout"),
    (labelled(replay="unknown", response=""), ""),
])  # fmt: skip
def test_subtler_cases(row, reason):
    assert reason_of(facts_of(row), Config(), set()) == reason


def test_duplicates_are_edits_not_replies(tmp_path):
    rows = [labelled(1), labelled(1, child_id="again", response="other words"), labelled(1, task="u"), labelled(2),
            labelled(1, child_id="spaces", child_code=code(1) + "  \n")]  # fmt: skip
    kept, dropped, counts = run(rows, tmp_path)
    assert [(r.task, r.child_id) for r in kept] == [("t", "c1"), ("u", "c1"), ("t", "c2")]
    assert counts["reasons"] == {"duplicate": 2}


def test_every_rule_can_be_switched_off(tmp_path):
    rows = [row.replace(id=f"{i:024}", child_id=f"c{i}") for i, row in enumerate(ROWS.values())]
    off = {f"drop_{r}": False for r in ("system_errors", "syntax_errors", "timeouts", "breakage", "unrecoverable",
                                        "identical", "duplicates", "replay_mismatch")}  # fmt: skip
    kept, dropped, counts = run(rows, tmp_path, **off)
    assert counts["reasons"] == {"heldout_role": 1, "unlabelled": 1}  # these two cannot be
    assert len(kept) == len(rows) - 2


def test_each_row_comes_out_once_with_its_reason(tmp_path):
    rows = [row.replace(id=f"{i:024}", child_id=f"c{i}") for i, row in enumerate(ROWS.values())]
    kept, dropped, counts = run(rows, tmp_path)
    assert sorted([r.id for r in kept] + [r["id"] for r in dropped]) == [r.id for r in rows]
    assert Counter(r["reason"] for r in dropped) == Counter(counts["reasons"])
    assert counts["kept"] + counts["dropped"] == counts["rows"] == len(rows)


class TestLength:
    LONG = labelled(3, response="word " * 400)

    def test_by_tokens(self, tmp_path):
        rows = [labelled(1), self.LONG]
        kept, dropped, counts = run(rows, tmp_path, tokenizer="random:qwen3", max_response_tokens=300)
        assert [r.child_id for r in kept] == ["c1"] and counts["reasons"] == {"response_too_long": 1}
        kept, dropped, counts = run(rows, tmp_path, tokenizer="random:qwen3", max_tokens=700)
        assert (
            counts["reasons"] == {"too_long": 1} and dropped[0]["response"] == self.LONG.response
        )  # dropped, never cut

    def test_the_limit_itself_is_allowed(self, tmp_path):
        run([labelled(1)], tmp_path, tokenizer="random:qwen3")
        prompt, response = read_counts(tmp_path / "c")[labelled(1).id]
        for limits, kept in (
            ((response, prompt + response), 1),
            ((response - 1, None), 0),
            ((None, prompt + response - 1), 0),
        ):
            rows, _, _ = run(
                [labelled(1)], tmp_path, tokenizer="random:qwen3", max_response_tokens=limits[0], max_tokens=limits[1]
            )
            assert len(rows) == kept

    def test_without_a_tokenizer_short_rows_are_known_to_be_short_and_others_are_not_guessed(self, tmp_path):
        kept, _, counts = run([labelled(1)], tmp_path)
        assert len(kept) == 1 and counts["tokenizer"] == "" and read_counts(tmp_path / "c") == {}
        with pytest.raises(EftError, match="cannot be decided without a tokenizer"):
            run([self.LONG], tmp_path, max_response_tokens=300)
        assert not (tmp_path / "c" / manifest.NAME).exists()
        assert len(run([self.LONG], tmp_path, max_response_tokens=None, max_tokens=None)[0]) == 1

    def test_an_unknown_tokenizer(self, tmp_path):
        with pytest.raises(EftError, match="no such tokenizer folder"):
            run([labelled(1)], tmp_path, tokenizer="/no/such/folder")


def test_rows_without_labels_are_sent_back(tmp_path):
    source = output_of("harvest", tmp_path / "h", [labelled(label="")])
    with pytest.raises(EftError, match="not labelled"):
        run(source, tmp_path)


def test_nothing_to_clean(tmp_path):
    with pytest.raises(EftError, match="no rows to clean"):
        run([], tmp_path)
