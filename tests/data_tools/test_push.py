"""A data set is pushed, pulled elsewhere and is the same; what goes wrong on the way is one message."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hub_server import Hub
from tables import output_of
from test_build_sets import many

pytestmark = pytest.mark.integration


@pytest.fixture
def clean_rows(tmp_path):
    return output_of("clean", tmp_path / "c", many({f"t{i}": (3, 3) for i in range(4)}))


def pushed(hub, folder, tmp_path, name="me/transitions", token=None, *more):
    command = [
        sys.executable,
        "-m",
        "eft.cli",
        "build",
        str(folder),
        "-o",
        str(tmp_path / "b"),
        "--push-to-hub",
        name,
        *more,
    ]
    return subprocess.run(command, env={**os.environ, **hub.environment(tmp_path / "home", token)}, capture_output=True,
                          text=True, timeout=600)  # fmt: skip


def test_there_and_back(clean_rows, tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "notes.txt").write_text("nothing for the hub")
    with Hub() as hub:
        done = pushed(hub, clean_rows, tmp_path, "me/transitions", None, "--private", "--license", "apache-2.0")
        assert done.returncode == 0, done.stderr
        assert "notes.txt" not in hub.repositories["datasets", "me/transitions"].files
        repository = hub.repositories["datasets", "me/transitions"]
        assert repository.private and b"license: apache-2.0" in repository.files["README.md"]
        assert {"sft/train.parquet", "kto/train.parquet", "kto/weights.json", "README.md"} <= set(repository.files)
        assert repository.files["sft/train.parquet"] == (tmp_path / "b" / "sft" / "train.parquet").read_bytes()
        code = ("import datasets; d = datasets.load_dataset('me/transitions', 'kto'); "
                "print(sorted(d), len(d['train']), sum(d['train']['label']))")  # fmt: skip
        loaded = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **hub.environment(tmp_path / "elsewhere")},
            capture_output=True, text=True, timeout=600)  # fmt: skip
        assert loaded.stdout.split("\n")[-2] == "['train', 'validation'] 18 9", loaded.stderr[-800:]


def test_wrong_token_and_a_name_that_is_taken(clean_rows, tmp_path):
    with Hub(taken=("others",)) as hub:
        done = pushed(hub, clean_rows, tmp_path, token="hf_wrong")
        assert done.returncode == 1 and "could not be pushed" in done.stderr and "Traceback" not in done.stderr
        assert "not valid here" in done.stderr
        done = pushed(hub, clean_rows, tmp_path, "others/transitions")
        assert done.returncode == 1 and "rights" in done.stderr and "Traceback" not in done.stderr
        done = pushed(hub, clean_rows, tmp_path, "not a name")
        assert done.returncode == 2 and "no name of a data set" in done.stderr
        assert not (tmp_path / "b").exists()  # all that was known before anything was built


@pytest.mark.slow  # the client tries again for half a minute
def test_cut_in_the_middle_and_sent_again(clean_rows, tmp_path):
    with Hub() as hub:
        hub.cut_after = 2
        done = pushed(hub, clean_rows, tmp_path)
        assert done.returncode == 1 and "could not be pushed" in done.stderr and "Traceback" not in done.stderr
        assert len(hub.repositories["datasets", "me/transitions"].commits) == 1  # nothing half
        hub.cut_after = None
        done = pushed(hub, clean_rows, tmp_path)  # the same command
        assert done.returncode == 0 and "up to date" in done.stderr, done.stderr
        assert len(hub.repositories["datasets", "me/transitions"].commits) == 2
        assert len(hub.puts) == len(set(hub.puts))  # what had arrived was not sent again
