"""The hub's round trip with the unmodified client: pushed, pulled elsewhere, loaded; refused, cut in the middle, continued."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import training
from hub_server import Hub

from eft import hub as hubs
from eft import manifest, tokenizers
from eft.errors import EftError, UsageError
from eft.models import load
from eft.train import export

pytestmark = pytest.mark.integration
PULL = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
name, revision, ids = sys.argv[1], sys.argv[2], [int(i) for i in sys.argv[3].split(",")]
tokenizer = AutoTokenizer.from_pretrained(name, revision=revision)
model = AutoModelForCausalLM.from_pretrained(name, revision=revision)
assert tokenizer.chat_template
torch.save(model(input_ids=torch.tensor([ids])).logits[0], sys.argv[4])
"""


@pytest.fixture
def near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A hub, and this process as its client: near(hub, token) makes it talk to it."""
    import huggingface_hub.constants as constants

    def use(hub: Hub, token: str | None = None) -> None:
        for name, value in hub.environment(tmp_path / "home", token).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home" / "hub"))

    return use


def exported(root: Path, checkpoint: str, **changes) -> Path:
    return export.run(export.Config(**{"root": root, "checkpoint": checkpoint, "output": "exported", **changes}))


def command(root: Path, hub: Hub, *more: str) -> subprocess.Popen[str]:
    """`eft export` of random weights in six files, pushed, as a user's process."""
    words = ["export", "random:qwen3", "-o", str(root / "exported"), "--shard", "100KB", "--push-to-hub", "me/tiny", *more]
    env = {**os.environ, "PYTHONPATH": str(training.REPOSITORY), **hub.environment(root / "home")}
    return subprocess.Popen([sys.executable, "-m", "eft.cli", *words], env=env, stderr=subprocess.PIPE, text=True)


def test_there_and_back(here, root: Path, tmp_path: Path) -> None:
    import torch

    here("sft", steps=2)
    with Hub() as hub:
        words = ["export", "sft/final", "--root", str(root), "-o", "exported", "--push-to-hub", "me/tiny", "--private", "--revision", "v1"]
        env = {**os.environ, "PYTHONPATH": str(training.REPOSITORY), **hub.environment(root / "home")}
        done = subprocess.run([sys.executable, "-m", "eft.cli", *words], env=env, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0 and f"{hub.url}/me/tiny/commit/" in done.stderr, done.stderr
        repository = hub.repositories["models", "me/tiny"]
        assert repository.private and not repository.files, "the main branch is as it was"
        files = repository.branches["v1"]
        assert {"model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja", "README.md"} <= set(files)
        assert "manifest.json" not in files and b"me/tiny" in files["README.md"] and str(root).encode() not in b"".join(files.values())
        ids = list(range(40))
        pulled = subprocess.run([sys.executable, "-c", PULL, "me/tiny", "v1", ",".join(map(str, ids)), str(tmp_path / "logits")],
                                env={**os.environ, **hub.environment(tmp_path / "elsewhere")}, capture_output=True, text=True, timeout=600)
        assert pulled.returncode == 0, pulled.stderr[-2000:]
    ours = load.load_model(str(root / "sft" / "final"))
    with torch.no_grad():
        expected = ours(input_ids=torch.tensor([ids])).logits[0]
    assert torch.load(tmp_path / "logits").equal(expected), "pulled elsewhere, the model answers as it did here"


@pytest.mark.slow  # the client tries again for half a minute
def test_a_hub_that_dies_in_the_middle_and_comes_back(root: Path) -> None:
    with Hub() as hub:
        hub.cut_after = 2
        first = command(root, hub)
        while len(hub.puts) < 2 and first.poll() is None:
            time.sleep(0.02)
    assert first.wait(timeout=600) == 1, "the hub is gone for good"
    told = first.stderr.read()
    assert "could not be pushed" in told and "run the same command again" in told and "Traceback" not in told, told
    made = (root / "exported" / "manifest.json").stat().st_mtime_ns
    assert len(hub.repositories["models", "me/tiny"].commits) == 1, "nothing half"
    arrived = list(hub.puts)
    with Hub(port=int(hub.url.rsplit(":", 1)[1])) as again:
        again.objects, again.repositories = hub.objects, hub.repositories
        second = command(root, again)  # the same command
        assert second.wait(timeout=600) == 0, second.stderr.read()
        files = again.repositories["models", "me/tiny"].files
        sent = [f for f in files if f.endswith(".safetensors")]
        assert len(sent) > 4 and not set(arrived) & set(again.puts), "what had arrived is not sent again"
        assert len(arrived) + len(again.puts) == len(sent)
        assert all(files[f] == (root / "exported" / f).read_bytes() for f in files)
        assert (root / "exported" / "manifest.json").stat().st_mtime_ns == made, "the export was not done again"
        third = command(root, again)
        assert third.wait(timeout=600) == 0 and len(again.repositories["models", "me/tiny"].commits) == 2, "pushed once"


def test_a_client_that_is_killed_in_the_middle(root: Path, near) -> None:
    with Hub() as hub:
        hub.hold_after = 3
        first = command(root, hub)
        while len(hub.puts) < 3 and first.poll() is None:
            time.sleep(0.02)
        first.send_signal(signal.SIGKILL)
        first.wait()
    arrived = set(hub.puts)
    assert len(arrived) == 3 and len(hub.repositories["models", "me/tiny"].commits) == 1, "nothing half"
    with Hub() as again:
        again.objects, again.repositories = hub.objects, hub.repositories
        near(again)
        out = exported(root, "random:qwen3", shard="100KB", push_to_hub="me/tiny")
        files = again.repositories["models", "me/tiny"].files
        assert again.puts and not arrived & set(again.puts), "what had arrived is not sent again"
        assert all(content == (out / name).read_bytes() for name, content in files.items())


def test_what_the_hub_refuses_is_one_message_before_the_model_is_loaded(root: Path, near, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "write", lambda *a: pytest.fail("the model was loaded"))
    with Hub(taken=("others",)) as hub:
        near(hub, "hf_wrong")
        with pytest.raises(EftError, match="could not be pushed") as e:
            exported(root, "random:qwen3", push_to_hub="me/tiny")
        assert "Invalid username or password" in str(e.value) and "not valid here" in str(e.value)
        near(hub)
        with pytest.raises(EftError, match="could not be pushed") as e:
            exported(root, "random:qwen3", push_to_hub="others/tiny")
        assert "rights" in str(e.value) and "a name of your own" in str(e.value)
        for name in ("not a name", "tiny", "a/b/c", "me/tiny--x"):
            with pytest.raises(UsageError, match="no name of a model"):
                exported(root, "random:qwen3", push_to_hub=name)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        with pytest.raises(UsageError, match="offline"):
            exported(root, "random:qwen3", push_to_hub="me/tiny")


def test_another_model_under_the_name_is_not_written_over(root: Path, near) -> None:
    from huggingface_hub import HfApi

    (root / "theirs").mkdir()
    (root / "theirs" / "model.safetensors").write_bytes(b"theirs")
    with Hub() as hub:
        near(hub)
        HfApi().create_repo("me/other")
        HfApi().upload_folder(repo_id="me/other", folder_path=root / "theirs")
        with pytest.raises(EftError, match="taken by another model") as e:
            exported(root, "random:qwen3", push_to_hub="me/other")
        assert "model.safetensors" in str(e.value)
        with pytest.raises(EftError, match="is public"):
            exported(root, "random:qwen3", push_to_hub="me/other", private=True)
        exported(root, "random:qwen3", push_to_hub="me/other", revision="eft")
        repository = hub.repositories["models", "me/other"]
        assert repository.files["model.safetensors"] == b"theirs"
        assert len(repository.branches["eft"]["model.safetensors"]) > 1000


def test_a_later_export_replaces_an_earlier_one(here, root: Path, near) -> None:
    with Hub() as hub:
        near(hub)
        out = exported(root, "random:qwen3", shard="100KB", push_to_hub="me/tiny")
        files = hub.repositories["models", "me/tiny"]
        assert len([f for f in files.files if f.endswith(".safetensors")]) > 4
        exported(root, "random:qwen3", push_to_hub="me/tiny")
        weights = [f for f in files.files if "safetensors" in f]
        assert weights == ["model.safetensors"], "no shard of the model before is left to be mixed in"
        puts = list(hub.puts)
        exported(root, "random:qwen3", push_to_hub="me/tiny", tags=["new"])
        assert hub.puts == puts and b"- new" in files.files["README.md"], "a new card sends no weights"
        here("sft", steps=1, lora={"rank": 4})
        exported(root, "sft/final", adapter="keep", base_model="somebody/base", push_to_hub="me/adapter")
        kept = hub.repositories["models", "me/adapter"].files
        assert {"adapter_model.safetensors", "adapter_config.json", "README.md"} <= set(kept) and "base.json" not in kept
        assert json.loads(kept["adapter_config.json"])["base_model_name_or_path"] == "somebody/base"
        assert hubs.pushed(out, "model") == "me/adapter"


def test_a_hub_that_cannot_be_reached_leaves_the_folder(root: Path, near) -> None:
    with Hub() as hub:
        near(hub)
    with pytest.raises(EftError, match="could not be pushed") as e:
        exported(root, "random:qwen3", push_to_hub="me/tiny")
    assert "run the same command again" in str(e.value)
    assert manifest.read(root / "exported") is not None
    assert tokenizers.load(str(root / "exported"))
