"""The sbatch file, run for real: two machines (of this one), a signal in the middle, back into the queue, to the end.

srun, scontrol and sbatch are stand-ins on PATH that do what Slurm does with them: srun starts a task per machine and hands
signals on, scontrol resolves host names and notes a requeue, sbatch reads the options and starts the script."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import training

from eft import resources
from eft.train.callbacks import read_journal

SBATCH = resources.path("accelerate_configs", "slurm.sbatch")

SRUN = """#!/bin/bash
while [[ ${1:-} == --* ]]; do shift; done
pids=()
for ((i = 0; i < SLURM_NNODES; i++)); do SLURM_NODEID=$i SLURM_PROCID=$i "$@" & pids+=($!); done
trap 'kill -USR1 "${pids[@]}" 2>/dev/null' USR1
worst=0
for pid in "${pids[@]}"; do
    while :; do code=0; wait "$pid" || code=$?; kill -0 "$pid" 2>/dev/null || break; done
    code=0; wait "$pid" || code=$?
    ((code > worst)) && worst=$code
done
exit $worst
"""
SCONTROL = """#!/bin/bash
case "$1 $2" in
"show hostnames") [ "$3" = "node[1-2]" ] && printf '127.0.0.1\\nnode2\\n' ;;
requeue*) echo "$2" >> "$STUB_REQUEUED" ;;
*) exit 1 ;;
esac
"""
LAUNCH = """compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
num_machines: 2
num_processes: 2
machine_rank: 0
mixed_precision: 'no'
rdzv_backend: static
same_network: true
use_cpu: false
deepspeed_config:
  deepspeed_multinode_launcher: standard
  zero_stage: 1
  offload_optimizer_device: none
  offload_param_device: none
  zero3_init_flag: false
"""


def free_port() -> int:
    """One from 20000 on that nobody listens on, below those that the kernel gives to connections."""
    start = os.getpid() % 12000
    for port in (20000 + (start + k) % 12000 for k in range(12000)):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("all ports are taken")


@pytest.fixture
def cluster(tmp_path: Path) -> dict[str, str]:
    """The environment of a Slurm job on two machines."""
    folder = tmp_path / "bin"
    folder.mkdir()
    eft = f'#!/bin/bash\nexec {sys.executable} -m eft.cli "$@"\n'
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("eft", eft)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(training.REPOSITORY), str(Path(__file__).parent)]),
        "SLURM_JOB_ID": str(free_port() - 20000),  # the ranks meet at 20000 + it
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_NNODES": "2",
        "EFT_SCRATCH": str(tmp_path / "scratch"),
        "STUB_REQUEUED": str(tmp_path / "requeued"),
    }


def submit(cluster: dict[str, str], *args: object) -> subprocess.Popen[str]:
    """Start the script as Slurm does, in a process group of its own."""
    return subprocess.Popen(
        ["bash", str(SBATCH), *map(str, args)],
        env=cluster,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def end(job: subprocess.Popen[str], seconds: float = 600) -> str:
    try:
        return job.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        raise AssertionError("the job hangs:\n" + job.communicate()[0][-4000:]) from None


@pytest.mark.multirank
@pytest.mark.integration
def test_a_job_on_two_machines_is_interrupted_requeued_and_finished(root: Path, cluster: dict[str, str]) -> None:
    launch = root / "cpu_two_machines.yaml"
    launch.write_text(LAUNCH)
    cluster["LAUNCH"] = str(launch)
    recipe = training.recipe(root, "sft", micro_batch=2, steps=400, save_every=1000, keep_finished=True)
    job = submit(cluster, "sft", recipe)
    journal = root / "sft" / "losses.jsonl"
    deadline = time.time() + 400
    while job.poll() is None and time.time() < deadline and not any("loss" in x for x in read_journal(root / "sft")):
        time.sleep(0.2)
    assert journal.exists(), end(job, 1)[-4000:]
    job.send_signal(signal.SIGUSR1)  # --signal=B:USR1: to the batch script alone
    text = end(job)
    assert job.returncode == 75 and "back into the queue" in text, text[-4000:]
    assert Path(cluster["STUB_REQUEUED"]).read_text().split() == [cluster["SLURM_JOB_ID"]]
    assert "world size 2, DeepSpeed ZeRO-1" in text and "2 ranks" in text
    saved = sorted((root / "sft").glob("checkpoint-*"))
    assert len(saved) == 1, "saved once, between the checkpoints that were due"
    assert not list(Path(cluster["EFT_SCRATCH"]).iterdir()), "the machine's disk is left as it was"

    done = int(saved[0].name.rpartition("-")[2])
    job = submit({**cluster, "SLURM_RESTART_COUNT": "1"}, "sft", recipe)
    deadline = time.time() + 400
    while job.poll() is None and time.time() < deadline and "continuing from" not in _log(root):
        time.sleep(0.2)
    job.send_signal(signal.SIGTERM)  # as a preemption does, to everybody
    text = end(job)
    assert f"checkpoint-{done}" in text and job.returncode == 75, text[-4000:]


def _log(root: Path) -> str:
    file = root / "sft" / "train.log"
    return file.read_text() if file.exists() else ""


def test_a_launch_for_several_machines_alone_is_refused(eft, root: Path) -> None:
    done = eft("sft", "--config", training.recipe(root, "sft"), "--launch", "multinode_zero3")
    assert done.returncode == 2 and "this launch is for several machines" in done.stderr, done.stderr
    assert "MASTER_ADDR" in done.stderr and "slurm.sbatch" in done.stderr


def test_the_script_says_how_it_is_used(cluster: dict[str, str]) -> None:
    job = submit(cluster, "train")
    assert "usage: sbatch slurm.sbatch sft|kto" in end(job, 120) and job.returncode == 2


def test_a_failed_job_is_not_queued_again(cluster: dict[str, str], tmp_path: Path) -> None:
    job = submit(cluster, "sft", tmp_path / "nothing.yaml")
    text = end(job, 300)
    assert "failed with exit code" in text and job.returncode not in (0, 75)
    assert not Path(cluster["STUB_REQUEUED"]).exists()
