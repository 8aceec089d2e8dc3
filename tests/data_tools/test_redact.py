"""Redact: what is secret goes, what is a program stays, twice is once."""

from __future__ import annotations

import json
import time
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from synthetic_runs import code
from tables import labelled, output_of

from data_tools import clean
from data_tools.redact import HOME, SECRET, redact, redact_table
from eft import manifest
from eft.records import read_transitions

SECRETS = {
    "hub_token": "hf_" + "aB3" * 12,
    "github_token": "ghp_" + "a1B2" * 10,
    "api_key": "sk-proj-" + "Zz09" * 8,
    "aws_key": "AKIA" + "ABCD1234EFGH5678"[:16],
    "bearer": "Bearer " + "abc.123-" * 5,
    "private_key": "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nabc=\n-----END RSA PRIVATE KEY-----",
    "assigned": 'API_KEY = "q9x8w7e6r5t4y3u2i1"',
}


@pytest.mark.parametrize("kind", SECRETS)
def test_each_kind(kind):
    counts = Counter()
    text = redact(f"before {SECRETS[kind]} after", counts)
    assert SECRET in text and text.startswith("before ") and text.endswith(" after") and counts == {kind: 1}
    assert SECRETS[kind].split("\n")[-1][-12:-1] not in text or kind == "private_key"


@pytest.mark.parametrize(
    "path", ["/home/ada/run/x.py", "/Users/ada.l/x", "C:\\Users\\ada\\x", "C:\\\\Users\\\\ada\\\\x"]
)
def test_home_folders(path):
    assert "ada" not in redact(f'File "{path}", line 3') and HOME in redact(path)


@pytest.mark.parametrize("text", ['key = "combined_score"', "tokens = tokenizer(text)", "sk-learn", "/home/user/x",
                                  "secret = 'x'", 'max_token: "1024"', "x = '/homework/ada'"])  # fmt: skip
def test_programs_stay(text):
    assert redact(text) == text


@given(st.text(alphabet=st.sampled_from("skhf_-ghpKIA:=\"' /homeUsrs\\Bearer0123abcXYZ\n."), max_size=200))
@example("/home//home/a/home/user")
@settings(max_examples=300, deadline=None)
def test_twice_is_once(text):
    once = redact(text)
    assert redact(once) == once


def test_rows_are_redacted_everywhere_and_edits_still_fit(tmp_path):
    secret = SECRETS["hub_token"]
    row = labelled(1, parent_code=f"KEY = '{secret}'\n" + code(0), child_code=f"KEY = '{secret}'\n" + code(1),
                   child_artifacts=json.dumps({"stderr": "/home/ada/x.py failed"}))  # fmt: skip
    source = output_of("label", tmp_path / "l", [row])
    out = clean.run(clean.Config(source=source, output=tmp_path / "c"))
    done = next(iter(read_transitions(out)))
    assert (
        secret not in done.parent_code + done.child_code
        and done.parent_code.replace("x = 0", "x = 1") == done.child_code
    )
    assert json.loads(done.child_artifacts) == {"stderr": "/home/user/x.py failed"}
    assert manifest.read(out)["counts"]["redacted"] == {"hub_token": 2, "home_folder": 1}
    out = clean.run(clean.Config(source=source, output=tmp_path / "c2", redact=False))
    assert next(iter(read_transitions(out))) == row


@pytest.mark.parametrize(
    "text", ['API_KEY = \\"abcd1234abcd1234abcd\\"', 'password: str = "abcd1234abcd1234abcd"', "/home/üser/x",
             "/home/user-two/x", "glpat-abcdefghij1234567890",
             "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3In0.dozjgNryP4J3j",
             "-----BEGIN PGP PRIVATE KEY BLOCK-----\nx\n-----END PGP PRIVATE KEY BLOCK-----"])  # fmt: skip
def test_further_forms(text):
    assert redact(text) != text and "1234" not in redact(text) and redact(redact(text)) == redact(text)


@pytest.mark.parametrize("text", ["sk-learn-some-long-name-of-a-class", "/home/user/x", "key = 'of the first sort'"])
def test_names_that_look_like_keys_stay(text):
    assert redact(text) == text


def test_what_is_a_secret_in_one_text_is_one_in_all_and_the_edit_still_fits():
    key = "-----BEGIN PRIVATE KEY-----\n" + "\n".join(c * 64 for c in "ABC") + "\n-----END PRIVATE KEY-----"
    program = f"TOKEN = 'abcd1234abcd1234abcd'\nK = '''{key}'''\n"
    row = labelled(parent_code=program, response="B" * 64, reasoning="none",
                   child_artifacts='{"stdout": "using abcd1234abcd1234abcd"}', child_metrics='{"e": "/home/alice/x"}',
                   sources='["/home/alice/run"]')  # fmt: skip
    counts: Counter = Counter()
    table = redact_table(pa.table({k: [v, ""] for k, v in vars(row).items() if isinstance(v, str)}), counts)
    seen = str(table.to_pylist())
    assert "abcd1234" not in seen and "BBBB" not in seen and "alice" not in seen
    assert table["reasoning"].to_pylist() == ["none", ""] and counts["repeated"] == 2


def test_hostile_texts_take_linear_time():
    started = time.monotonic()
    for text in ("sk-a-", "eyJ-", "Bearer a", "eyJaaaaaaaaaaaa.", "key = 'a"):
        redact(text * 20_000)
    assert time.monotonic() - started < 60
