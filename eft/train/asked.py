"""What a launch says that it is: read from its accelerate config, and from the machines it is for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eft import config as configs
from eft import resources
from eft.errors import EftError, UsageError
from eft.train.config import TrainConfig


@dataclass(frozen=True)
class Asked:
    """What a launch says that it is. `kind`: none, ddp, deepspeed or fsdp; `ranks` in all; `stage`: of ZeRO, else
    None; `sequence`: how many ranks share a row (Ulysses)."""

    name: str
    kind: str = "none"
    ranks: int = 1
    stage: int | None = None
    cpu: bool = False
    sequence: int = 1

    @property
    def replicas(self) -> int:
        """How many rows are computed at once for each row of a micro batch: the ranks, or groups that share a row."""
        return self.ranks // self.sequence


KINDS = {"NO": "none", "MULTI_GPU": "ddp", "MULTI_CPU": "ddp", "DEEPSPEED": "deepspeed", "FSDP": "fsdp"}


def read(file: Path, ranks: int | None = None) -> Asked:
    """What the accelerate config `file` asks for. CPU twins are told by their name, cpu*.yaml: their content has to be
    that of a GPU launch, since Accelerate starts a single process for a config that says MULTI_CPU. Raises
    UsageError."""
    data = configs.read_yaml(file)
    kind = KINDS.get(str(data.get("distributed_type", "NO")).upper())
    if kind is None:
        raise UsageError(
            "this kind of launch is not supported",
            where=file,
            why=f"distributed_type: {data['distributed_type']}",
            way_out=f"use one of {', '.join(KINDS)}",
        )
    stage = None
    if kind == "deepspeed":
        section = data.get("deepspeed_config") or {}
        stage = section.get("zero_stage")
        if section.get("deepspeed_config_file"):
            inner = configs.read_yaml(Path(section["deepspeed_config_file"]))  # JSON is YAML
            stage = (inner.get("zero_optimization") or {}).get("stage")
    count = ranks or int(data.get("num_processes") or 1)
    cpu = file.stem.startswith("cpu") or data.get("use_cpu") is True
    sequence = int((data.get("parallelism_config") or {}).get("parallelism_config_sp_size") or 1)
    if kind == "fsdp" and cpu:
        raise _no_fsdp(file)
    if count % sequence:
        raise UsageError(f"{count} ranks cannot share rows in groups of {sequence}", where=file,
                         why="parallelism_config_sp_size must divide the ranks")  # fmt: skip
    return Asked(file.stem, kind, count, stage, cpu, sequence)


def _no_fsdp(file: Path) -> UsageError:
    return UsageError("FSDP runs on GPUs only", where=file, why="accelerate sets up plain DDP for it on CPUs",
                      way_out="use cpu_zero3, which shards as much")  # fmt: skip


@dataclass(frozen=True)
class Machines:
    """The machines of a launch: how many, which one this is, and where the first one listens."""

    count: int
    rank: int
    address: str
    port: int


def machines(file: Path) -> Machines | None:
    """The machines of the launch config `file`, told by the environment; None where it is for one machine.

    Slurm says how many there are and which one this is (SLURM_NNODES, SLURM_NODEID; else NODE_RANK), MASTER_ADDR and
    MASTER_PORT where they meet. Raises UsageError where something is missing.
    """
    configured = int(configs.read_yaml(file).get("num_machines") or 1)
    if configured == 1:
        return None
    env = os.environ
    rank, address = env.get("SLURM_NODEID") or env.get("NODE_RANK"), env.get("MASTER_ADDR")
    if rank is None or not address:
        missing = [n for n, v in (("MASTER_ADDR", address), ("SLURM_NODEID or NODE_RANK", rank)) if not v]
        raise UsageError(
            "this launch is for several machines",
            where=file,
            why=f"the environment has no {' and no '.join(missing)}",
            way_out="submit accelerate_configs/slurm.sbatch, or set them on every machine (docs/training.md)",
        )
    count = int(env.get("SLURM_NNODES") or configured)
    return Machines(count, int(rank), address, int(env.get("MASTER_PORT") or 29500))


def choose(config: TrainConfig, *, anywhere: bool = False) -> tuple[Path, Asked]:
    """The launch config of `config` and what it asks for. Raises UsageError where this machine cannot hold it
    (`anywhere`: no matter, it is not launched here)."""
    name = config.launch
    here = 0 if name.startswith("cpu") else gpus()
    if name == "auto":
        name = "single_gpu" if here else "cpu"
    file = resources.path("accelerate_configs", name)
    ranks = config.ranks
    together = None if anywhere else machines(file)
    data = configs.read_yaml(file)
    planned = int(data.get("num_machines") or 1)
    if together and ranks is None:
        ranks = int(data.get("num_processes") or 1) // planned * together.count
    asked = read(file, ranks)
    if asked.kind == "fsdp" and not here and not anywhere:
        raise _no_fsdp(file)
    room = here if here and not asked.cpu else os.cpu_count() or 1
    if asked.ranks > room * (together.count if together else planned) and not anywhere:
        raise UsageError(
            f"launch '{asked.name}' starts {asked.ranks} ranks",
            where=file,
            why=f"this machine has {here} GPUs"
            if here
            else f"this machine has no GPU that torch can use, and {room} CPU cores",
            way_out="give --ranks N, or another --launch",
        )
    config.accumulation(asked.replicas)
    return file, asked


def gpus() -> int:
    """How many GPUs torch can use. torch is imported only where it was built for any."""
    from importlib.util import find_spec

    spec = find_spec("torch")
    version = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    if version is None or not version.is_file():
        raise EftError("torch is not installed", way_out="install the training environment: make env")
    known: dict[str, Any] = {}
    exec(version.read_text(), known)  # torch/version.py only assigns constants; importing it would import all of torch
    if known.get("cuda") is None and known.get("hip") is None:
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
