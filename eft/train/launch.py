"""From one command to the ranks of a training, and the proof that they are what was asked for.

    eft sft --config recipes/M/sft.yaml --launch zero2
    accelerate launch --config_file accelerate_configs/zero2.yaml -m eft.train.sft recipes/M/sft.yaml

do the same. `start` is the first form: it starts the second as a process and turns whatever goes wrong into one
message. `as_rank` is what every launched process runs. `prove` compares what was asked (the launcher's own command line
and config file, and the environment that it made) with what Accelerate then set up. That matters, because Accelerate
accepts launches that train something else in silence: one process where two were asked for, two trainings of one rank
each into the same folder, plain DDP where the file says ZeRO.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eft import config as configs
from eft import manifest
from eft.errors import EftError, UsageError
from eft.train.asked import KINDS, Asked, choose, gpus, machines, read
from eft.train.config import TrainConfig

ERRORS = (
    "EFT_RANK_ERRORS"  # environment variable: the file in which a rank leaves its error for the process that started it
)
GRACE = 300  # seconds that a rank without a launcher has for its last step and checkpoint
AGAIN = "EFT_TRAIN_AGAIN"  # environment variable: when eft decided to train, whatever was finished by then
MODULES = {"sft": "eft.train.sft", "kto": "eft.train.kto"}


def start(verb: str, config: TrainConfig) -> Path:
    """Train: launch the ranks, show what they print, wait. Returns the output folder.

    Raises the rank's own EftError, or EftError naming the log where a rank died of something else.
    """
    began = time.time()
    config.check()
    env_number("OMP_NUM_THREADS")  # before anything is started
    file, asked = choose(config)
    out = config.out()
    several = machines(file)
    with manifest.clear_disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        if not several:  # their first machine may hold it by now
            hold(out).close()  # the recipe below is what a training that is starting there will read
    manifest.write_text(out / "config.yaml", configs.dump(config))
    part = f".{several.rank}" if several and several.rank else ""  # the machines share the folder
    log = out / f"train{part}.log"
    errors = out / f".error{part}.{os.getpid()}.json"  # two commands may have been given the same folder
    errors.unlink(missing_ok=True)
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(file)]
    if config.ranks is not None or several:
        command += ["--num_processes", str(asked.ranks)]
    if several:
        command += ["--num_machines", str(several.count), "--machine_rank", str(several.rank)]
        command += ["--main_process_ip", several.address, "--main_process_port", str(several.port)]
    elif asked.ranks > 1:
        command += ["--main_process_port", str(_free_port())]
    command += ["-m", MODULES[verb], str(out / "config.yaml")]
    env = {k: v for k, v in os.environ.items() if k != "ACCELERATE_USE_CPU"}  # the config decides, see prove()
    if asked.cpu or not gpus():
        env.setdefault("DS_ACCELERATOR", "cpu")  # DeepSpeed would guess, and warn that it did
    env |= environment(asked.ranks) | {ERRORS: str(errors), AGAIN: f"{began:.3f}", "EFT_TTY": str(int(sys.stderr.isatty()))}
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=_die_with_parent
    )
    forwarded: list[int] = []
    ended: list[int] = []
    before = _forward(process.pid, verb, forwarded, ended)
    try:
        with open(log, "ab") as sink:
            while chunk := os.read(process.stdout.fileno(), 65536):  # type: ignore[union-attr]
                sink.write(chunk)
                sink.flush()
                if not errors.exists() and not ended:  # what follows is the launcher's traceback about it
                    sys.stderr.buffer.write(chunk)
                    sys.stderr.buffer.flush()
        code = process.wait()
    except KeyboardInterrupt:
        with contextlib.suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
            process.wait(timeout=20)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if process.poll() is None:
            process.kill()
            process.wait()
    if errors.exists():
        told = json.loads(errors.read_text())
        errors.unlink(missing_ok=True)
        raise _Rank(told)
    if code and forwarded:
        raise Interrupted(f"'eft {verb}' was interrupted", where=log, why=f"signal {forwarded[0]}",
                          way_out="the same command continues from the last complete checkpoint")  # fmt: skip
    if code:
        killed = -code if code < 0 else None
        why = f"it was killed by signal {killed}" if killed else f"it ended with exit code {code}"
        if b"Signal 9" in log.read_bytes()[-20000:] or killed == signal.SIGKILL or code == 137:
            why += "; signal 9 is what a machine does that is out of memory: smaller micro_batch, or max_tokens"
        raise EftError(
            f"'eft {verb}' failed",
            where=log,
            why=why,
            way_out="the log says more; the same command continues from the last complete checkpoint",
        )
    return out


class Interrupted(EftError):
    """The training was told to end, and can be continued. The exit code is EX_TEMPFAIL: a batch system may requeue."""

    exit_code = 75


def _forward(launcher: int, verb: str, received: list[int], ended: list[int]) -> dict[int, Any]:
    """From now on, pass SIGTERM and SIGUSR1 on as a SIGTERM to the ranks. Returns the handlers before.

    To the ranks, not to their launcher: torch's would kill them half a minute later, wherever they are in saving. Before
    there are ranks, to the launcher, which is then noted in `ended`.
    """
    import psutil

    def handler(number: int, frame: Any) -> None:
        if not received:
            print(f"{verb}: signal {number}: the ranks save, then end", file=sys.stderr, flush=True)
        received.append(number)
        with contextlib.suppress(psutil.Error):
            main = psutil.Process(launcher)
            ranks = [child for child in main.children() if MODULES[verb] in _command(child)]
            if not ranks:  # nothing to save yet
                ended.append(number)
            for process in ranks or [main]:
                process.terminate()

    try:
        return {n: signal.signal(n, handler) for n in (signal.SIGTERM, signal.SIGUSR1)}
    except ValueError:  # not the main thread: whoever runs this there handles signals himself
        return {}


def _command(process: Any) -> list[str]:
    """The command line of a process, [] where it is gone."""
    import psutil

    try:
        return process.cmdline()
    except psutil.Error:
        return []


class _Rank(EftError):
    """An error that a rank raised, raised again in the process that started it."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.exit_code = told.pop("exit_code")
        super().__init__(told.pop("what"), **told)


def environment(ranks: int) -> dict[str, str]:
    """What a launch needs in its environment, and the user has not set.

    Threads: all cores shared out among the ranks (two ranks that want all cores each collapse). PATH: ninja, with which
    DeepSpeed builds its CPU communication. Telemetry of the libraries: off, a training has no business calling home.
    """
    threads = max(1, (os.cpu_count() or 1) // ranks)
    defaults = {
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "true",
        "ACCELERATE_LOG_LEVEL": "error",
        "PYTHONUNBUFFERED": "1",
    }
    env = {k: os.environ.get(k, v) for k, v in defaults.items()}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return env


def env_number(name: str) -> int:
    """The whole number in the environment variable `name`; 1 where it is not set or empty. OMP_NUM_THREADS may be a list,
    whose first number is meant (OpenMP 5.2, OMP_NUM_THREADS). Raises UsageError for anything else."""
    value = os.environ.get(name, "").split(",")[0].strip() or "1"
    if not value.isdecimal() or int(value) < 1:
        raise UsageError(f"{name} is not a number", where="the environment", why=repr(os.environ[name]), way_out=f"unset {name}")
    return int(value)


def as_rank(verb: str, model: type[TrainConfig], train: Callable[[Any, Asked], Any], argv: list[str]) -> None:
    """Be one launched rank: read the recipe, train, and on an EftError leave one message and its exit code."""
    _die_with_parent()
    try:
        files = [a for a in argv if "=" not in a and not a.startswith("-")]
        if len(files) != 1:
            raise UsageError(f"usage: accelerate launch … -m {MODULES[verb]} RECIPE.yaml [a.b=value …]")
        config = configs.load(model, Path(files[0]), tuple(a for a in argv if "=" in a), section=verb)
        config.check()
        asked = launched()
        foresee(asked)
        os.environ |= environment(asked.ranks)
        _quiet()
        train(config, asked)
    except EftError as e:
        target = os.environ.get(ERRORS)
        if target:
            told = {"what": e.what, "where": e.where, "why": e.why, "way_out": e.way_out, "exit_code": e.exit_code}
            manifest.write_json(Path(target), told)
        else:
            if os.environ.get("RANK", "0") != "0":
                time.sleep(5)  # what all ranks find is told by rank 0, whose end is the end of the others
            print(f"error: {e}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(e.exit_code)  # other ranks may be waiting in a collective: no clean-up that would wait for them


def launched() -> Asked:
    """What the launcher of this process was asked for: its command line over its config file. Empty-handed (no
    launcher, or one on another machine) what the environment says."""
    import psutil

    env = os.environ
    kind = "none"
    if env.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true":
        kind = "deepspeed"
    elif env.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        kind = "fsdp"
    elif env_number("WORLD_SIZE") > 1:
        kind = "ddp"
    stage = env.get("ACCELERATE_DEEPSPEED_ZERO_STAGE")
    told = Asked(
        "environment",
        kind,
        env_number("WORLD_SIZE"),
        int(stage) if kind == "deepspeed" and stage else None,
        sequence=env_number("PARALLELISM_CONFIG_SP_SIZE"),
    )
    try:
        line = psutil.Process().parent().cmdline()
    except (psutil.Error, AttributeError):
        return told
    place = next(
        (
            i
            for i, a in enumerate(line)
            if Path(a).name in ("accelerate", "accelerate-launch") or a == "accelerate.commands.launch"
        ),
        None,
    )
    if place is None:
        return told
    # the launcher's own options end where the training module is named
    own = line[place + 1 :]
    own = own[: next((i for i, a in enumerate(own) if a in ("-m", "--module") or a.endswith(".py")), len(own))]
    options = dict(zip(own, own[1:], strict=False))
    given = {k.lstrip("-").replace("-", "_"): v for k, v in options.items() if k.startswith("--")}
    given |= {k: v for k, _, v in (a.lstrip("-").partition("=") for a in own if a.startswith("--") and "=" in a)}
    asked = read(Path(given["config_file"])) if "config_file" in given else told
    ranks = int(given.get("num_processes", asked.ranks))
    if "--use_deepspeed" in own:
        kind, stage = "deepspeed", given.get("zero_stage", stage)
    elif "--multi_gpu" in own or (ranks > 1 and asked.kind == "none"):
        kind = "ddp"
    else:
        kind, stage = asked.kind, asked.stage
    name = asked.name if "config_file" in given else "command line"
    cpu = asked.cpu or "--cpu" in own
    return Asked(name, kind, ranks, int(stage) if stage is not None else None, cpu, asked.sequence)


def foresee(asked: Asked) -> None:
    """Raise EftError for a launch that the environment already shows to be another than asked for: in an instant,
    before every rank imports torch. What remains is up to `prove`."""
    started = env_number("WORLD_SIZE")
    differences = []
    if started != asked.ranks:
        differences.append(f"{asked.ranks} ranks were asked for, {started} {'was' if started == 1 else 'were'} started")
    if asked.kind == "deepspeed" and os.environ.get("ACCELERATE_USE_CPU", "false").lower() in ("true", "1"):
        differences.append("ACCELERATE_USE_CPU turns DeepSpeed off")
    if differences:
        raise _another_launch(asked, differences)


def prove(asked: Asked, args: Any, accelerator: Any = None) -> None:
    """Raise EftError unless the launch is the one that was asked for.

    Called twice: with `args` (TrainingArguments, which join the process group) before anything is loaded, and with the
    trainer's `accelerator`, which alone knows what kind of training was set up, before the first step.
    """
    import torch.distributed as dist

    group = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    ranks = min(args.distributed_state.num_processes, group)
    stage = args.deepspeed_plugin.zero_stage if args.deepspeed_plugin is not None else None
    kind = (
        KINDS.get(accelerator.distributed_type.value, accelerator.distributed_type.value) if accelerator else asked.kind
    )
    differences = []
    if ranks != asked.ranks:
        differences.append(
            f"{asked.ranks} ranks were asked for, {ranks} {'is' if ranks == 1 else 'are'} training together"
        )
    if (asked.kind == "deepspeed") != (stage is not None):
        kind = "ddp" if stage is None else "deepspeed"
    if kind != asked.kind:
        differences.append(f"'{asked.kind}' was asked for, '{kind}' was set up")
    if asked.stage is not None and stage is not None and stage != asked.stage:
        differences.append(f"ZeRO stage {asked.stage} was asked for, stage {stage} was set up")
    if differences:
        raise _another_launch(asked, differences)
    if asked.sequence > 1 and group > 1 and args.use_cpu:
        import deepspeed.comm

        if not deepspeed.comm.is_initialized():  # on GPUs accelerate does it
            deepspeed.comm.init_distributed(dist_backend="gloo")


def _another_launch(asked: Asked, differences: list[str]) -> EftError:
    return EftError(
        "the launch is not what it says",
        where=f"launch '{asked.name}'",
        why="; ".join(differences),
        way_out="launch with one of the files in accelerate_configs/ (cpu_ddp, cpu_zero2, … without GPUs), or with "
        "'eft sft|kto --launch NAME'; unset ACCELERATE_USE_CPU",
    )


def hold(out: Path, patience: float = 10.0) -> Any:
    """Hold the output folder for this process; keep what is returned alive. A killed holder lets go by itself.

    Raises EftError where another process still trains into the folder after `patience` seconds.
    """
    import fcntl

    lock = open(out / ".lock", "w")  # noqa: SIM115 (held until the process ends)
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except OSError:
            if time.monotonic() > deadline:
                raise EftError(
                    "another training writes into this folder",
                    where=out,
                    why="two trainings would overwrite each other",
                    way_out="wait for it, end it, or give another -o",
                ) from None
            time.sleep(0.2)


def _die_with_parent() -> None:
    """Ask Linux to end this process when its parent dies, so that a killed command leaves no rank behind that goes on
    writing.

    By SIGTERM where Accelerate's launcher was started by hand: a cluster's SIGTERM to all ends that one at once, and
    its rank saves the step before it follows. One that hangs instead is killed after GRACE seconds.
    """
    if sys.platform != "linux":
        return
    by_hand = ERRORS not in os.environ and "accelerate" in _parents_command()
    ctypes.CDLL(None).prctl(1, signal.SIGTERM if by_hand else signal.SIGKILL)  # PR_SET_PDEATHSIG
    if by_hand:
        parent = os.getppid()

        def follow() -> None:
            while os.getppid() == parent:
                time.sleep(2)
            time.sleep(GRACE)
            os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=follow, daemon=True).start()


def _parents_command() -> str:
    try:
        return Path(f"/proc/{os.getppid()}/cmdline").read_text()
    except OSError:
        return ""


def _quiet() -> None:
    """Silence what libraries print about themselves; warnings about the training stay."""
    import warnings

    warnings.filterwarnings("ignore", category=FutureWarning)
    from transformers.utils import logging

    logging.disable_progress_bar()


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
