"""What a launch says that it is, and whether it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from eft import resources
from eft.errors import EftError, UsageError
from eft.train import asked as asks
from eft.train import launch
from eft.train.launch import Asked

SHIPPED = {
    "single_gpu": Asked("single_gpu", "none", 1),
    "ddp": Asked("ddp", "ddp", 8),
    "zero1": Asked("zero1", "deepspeed", 8, 1),
    "zero2": Asked("zero2", "deepspeed", 8, 2),
    "zero3": Asked("zero3", "deepspeed", 8, 3),
    "fsdp2": Asked("fsdp2", "fsdp", 8),
    "multinode_zero3": Asked("multinode_zero3", "deepspeed", 16, 3),
    "cpu": Asked("cpu", "none", 1, cpu=True),
    "ulysses": Asked("ulysses", "deepspeed", 8, 3, sequence=4),
    "cpu_zero1": Asked("cpu_zero1", "deepspeed", 2, 1, cpu=True),
    "cpu_ulysses": Asked("cpu_ulysses", "deepspeed", 2, 3, cpu=True, sequence=2),
    "cpu_ddp": Asked("cpu_ddp", "ddp", 2, cpu=True),
    "cpu_zero2": Asked("cpu_zero2", "deepspeed", 2, 2, cpu=True),
    "cpu_zero3": Asked("cpu_zero3", "deepspeed", 2, 3, cpu=True),
}


def test_shipped_configs_ask_for_what_their_names_say() -> None:
    assert set(resources.names("accelerate_configs")) == set(SHIPPED)
    for name, asked in SHIPPED.items():
        assert launch.read(resources.path("accelerate_configs", name)) == asked


def test_shipped_configs_are_ones_that_accelerate_reads() -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    for name, asked in SHIPPED.items():
        assert load_config_from_file(str(resources.path("accelerate_configs", name))).num_processes == asked.ranks


def launched_with(monkeypatch: pytest.MonkeyPatch, *line: str, **env: str) -> Asked:
    monkeypatch.setattr(psutil.Process, "parent", lambda self: SimpleNamespace(cmdline=lambda: list(line)))
    for name in ("WORLD_SIZE", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_DEEPSPEED_ZERO_STAGE", "ACCELERATE_USE_FSDP"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    return launch.launched()


@pytest.mark.parametrize(
    "start",
    [["python", "/bin/accelerate", "launch"], ["python", "-m", "accelerate.commands.launch"], ["accelerate-launch"]],
)
def test_the_launchers_command_line_is_understood(start: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    file = str(resources.path("accelerate_configs", "cpu_zero2"))
    module = ["-m", "eft.train.sft", "recipe.yaml"]
    assert launched_with(monkeypatch, *start, "--config_file", file, *module) == SHIPPED["cpu_zero2"]
    assert launched_with(monkeypatch, *start, f"--config_file={file}", "--num_processes", "4", *module).ranks == 4
    asked = launched_with(monkeypatch, *start, "--num_processes", "2", "--cpu", *module)
    assert (asked.kind, asked.ranks, asked.cpu) == ("ddp", 2, True)
    asked = launched_with(monkeypatch, *start, "--use_deepspeed", "--zero_stage=3", "--num_processes", "2", *module)
    assert (asked.kind, asked.ranks, asked.stage) == ("deepspeed", 2, 3)


def test_without_a_launcher_the_environment_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launched_with(monkeypatch, "bash") == Asked("environment", "none", 1)
    asked = launched_with(
        monkeypatch, "torchrun", WORLD_SIZE="4", ACCELERATE_USE_DEEPSPEED="true", ACCELERATE_DEEPSPEED_ZERO_STAGE="2"
    )
    assert (asked.kind, asked.ranks, asked.stage) == ("deepspeed", 4, 2)


def arguments(ranks: int, stage: int | None = None) -> SimpleNamespace:
    plugin = None if stage is None else SimpleNamespace(zero_stage=stage)
    return SimpleNamespace(distributed_state=SimpleNamespace(num_processes=ranks), deepspeed_plugin=plugin)


def accelerator(kind: str) -> SimpleNamespace:
    return SimpleNamespace(distributed_type=SimpleNamespace(value=kind))


@pytest.mark.parametrize(
    "asked, found, kind, words",
    [
        (Asked("x", "ddp", 2), arguments(1), None, "2 ranks were asked for, 1 is training together"),
        (Asked("x", "none", 1), arguments(1), "MULTI_GPU", "'none' was asked for, 'ddp' was set up"),
        (Asked("x", "deepspeed", 1, 2), arguments(1), None, "'deepspeed' was asked for, 'ddp' was set up"),
        (Asked("x", "deepspeed", 1, 2), arguments(1, 3), None, "ZeRO stage 2 was asked for, stage 3 was set up"),
        (Asked("x", "fsdp", 1), arguments(1), "MULTI_CPU", "'fsdp' was asked for, 'ddp' was set up"),
    ],
)
def test_another_launch_than_asked_for_is_refused(asked: Asked, found, kind: str | None, words: str) -> None:
    with pytest.raises(EftError) as e:
        launch.prove(asked, found, accelerator(kind) if kind else None)
    assert words in str(e.value)


def test_a_launch_that_is_what_it_says_passes() -> None:
    launch.prove(Asked("x"), arguments(1), accelerator("NO"))
    launch.prove(Asked("x", "deepspeed", 1, 3), arguments(1, 3), accelerator("DEEPSPEED"))


def test_two_trainings_cannot_share_a_folder_and_a_killed_one_lets_go(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from eft.train import launch\n"
        "lock = launch.hold(Path(sys.argv[1]))\n"
        "print('held', flush=True)\n"
        "time.sleep(60)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(EftError, match="another training writes into this folder"):
        launch.hold(tmp_path, patience=0.3)
    holder.kill()
    holder.wait()
    launch.hold(tmp_path, patience=5).close()


def test_fsdp_without_a_gpu_is_told_before_anything_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asks, "gpus", lambda: 0)
    config = SimpleNamespace(launch="fsdp2", ranks=1, accumulation=lambda ranks: 1)
    with pytest.raises(UsageError, match="FSDP runs on GPUs only"):
        asks.choose(config)
    assert asks.choose(config, anywhere=True)[1].kind == "fsdp"


def test_foreign_accelerate_configs_are_named(tmp_path: Path) -> None:
    file = tmp_path / "tpu.yaml"
    file.write_text("distributed_type: TPU\nnum_processes: 8\n")
    with pytest.raises(UsageError, match="not supported"):
        launch.read(file)


def test_dry_run_shows_the_config_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['eft', 'sft', 'nowhere', '--model', 'random:qwen3', '-o', 'out', '--dry-run']\n"
        "import eft.cli\n"
        "eft.cli.main()\n"
        "assert not {'torch', 'trl', 'transformers', 'datasets'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and "global_batch: 128" in done.stdout, done.stderr
    assert [f.name for f in (tmp_path / "out").iterdir()] == ["config.yaml"]


def test_numbers_of_the_environment_are_read_or_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, number in (("4,2", 4), ("3", 3), ("", 1), (None, 1)):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        if value is not None:
            monkeypatch.setenv("OMP_NUM_THREADS", value)
        assert launch.env_number("OMP_NUM_THREADS") == number
    for value in ("two", "0", "-1"):
        monkeypatch.setenv("WORLD_SIZE", value)
        with pytest.raises(UsageError, match="WORLD_SIZE is not a number") as e:
            launch.launched()
        assert value in str(e.value)


def test_a_folder_is_no_launch_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpu").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resources.path("accelerate_configs", "cpu").name == "cpu.yaml"
    assert resources.path("recipes", "smoke").is_dir()
