"""Shared fixtures: the command line as a user runs it, and the real runs where they are present, and one
real vLLM server of a tiny model for all tests that need one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

REPOSITORY = Path(__file__).resolve().parent.parent
REAL_RUNS = REPOSITORY.parent / "shared" / "data" / "openevolve_runs"

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing in the tests may depend on a hub
os.environ.setdefault("WANDB_MODE", "disabled")

# How long an example takes says how busy the machine is.
settings.register_profile("eft", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("eft")


def pytest_report_header() -> str:
    """Where bubblewrap is missing or forbidden, tests confine programs by limits alone, and say so in their first line."""
    from eft.tasks import sandbox

    why = "" if os.environ.get("EFT_SANDBOX") else sandbox.bubblewrap_fails()
    if why:
        os.environ["EFT_SANDBOX"] = "rlimits"
        return f"sandbox: rlimits only, the tests of bubblewrap are NOT run ({why})"
    return f"sandbox: {os.environ.get('EFT_SANDBOX', 'bubblewrap')}"


@pytest.fixture(scope="session")
def real_runs() -> Path:
    """The folder of recorded runs. They are not part of this repository: without them the test says so and is skipped."""
    if not REAL_RUNS.is_dir():
        pytest.skip(f"the recorded runs are not here ({REAL_RUNS}): tests on real logs were NOT run")
    return REAL_RUNS


@pytest.fixture(scope="session")
def scaffold_python() -> Callable[[str], Path]:
    """The Python of a scaffold's own environment. They are optional: without one the test says so and is skipped."""

    def find(name: str) -> Path:
        python = Path(os.environ.get("EFT_SCAFFOLD_VENVS", REPOSITORY / ".venv-scaffolds")) / name / "bin" / "python"
        if not python.is_file():
            pytest.skip(f"no environment of {name} here (make scaffold-env): tests with the real {name} were NOT run")
        return python

    return find


@pytest.fixture(scope="session")
def eft() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `eft ARGS…` as a process; returns the completed process with text output."""

    def run(*args: object, timeout: float = 900, env: dict[str, str] | None = None, cwd: Path | None = None):
        command = [sys.executable, "-m", "eft.cli", *map(str, args)]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=cwd,
                              env={**os.environ, "PYTHONPATH": str(REPOSITORY), **(env or {})})  # fmt: skip

    return run


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 of two small layers with a byte-level tokenizer and a ChatML template, as a model folder."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    folder = tmp_path_factory.mktemp("model") / "tiny"
    specials = ["<pad>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({t: i for i, t in enumerate([*specials, *alphabet])}, []))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    inner.add_special_tokens(specials)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<|im_end|>")
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    torch.manual_seed(0)
    config = Qwen3Config(vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                         num_attention_heads=2, num_key_value_heads=1, head_dim=32, max_position_embeddings=2048,
                         eos_token_id=2, pad_token_id=0)  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def serving_environment() -> None:
    """Skip, loudly, where there is no serving environment; fail where CI says that there must be one."""
    from eft.errors import EftError
    from eft.mutators import engine

    try:
        engine.build(engine.python())
    except EftError as e:
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(f"serving must be tested in CI: {e}")
        pytest.skip(f"SERVING WAS NOT TESTED: {e}")


@pytest.fixture(scope="session")
def serving_place() -> None:
    """For tests that start vLLM servers of their own."""
    serving_environment()


@pytest.fixture(scope="session")
def vllm(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One real vLLM server of the tiny model, as `eft export` writes it, for all tests of the session."""
    serving_environment()
    from eft.mutators.server import serving
    from eft.train import export

    folder = tmp_path_factory.mktemp("serve")
    served = export.run(export.Config(root=folder, checkpoint=str(tiny_model), output="tiny"))
    log = folder / "vllm.log"
    with serving(served, name="tiny", max_model_len=1024, dtype="float32", log=log, timeout=900) as server:
        yield server
