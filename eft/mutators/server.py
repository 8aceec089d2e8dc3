"""Serve a model through vLLM, which lives in an environment of its own and is only ever reached over HTTP.

`with serving(folder) as server:` starts vLLM, waits until it answers, and takes every process of it down again at the
end, whatever the end is: success, an exception, Ctrl-C, or the death of this process (see `watch.py`). `eft serve
MODEL` is the same for the command line. Everything that can be known before the start (is there an environment, is this
a model folder, is the port free) is checked before the start, since a start takes half a minute.

The environment: $EFT_SERVE_PYTHON, else `.venv-serve` (`make serve-env`). It holds the CPU build of vLLM or the
official one for GPUs; the CPU build gets the settings that it needs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from eft.config import StageConfig
from eft.errors import EftError
from eft.mutators import engine, watch


@dataclass(frozen=True)
class Server:
    """A server that answers. `name`: the model name to ask for. `log`: vLLM's own output. `seconds`: its start took."""

    base_url: str
    name: str
    log: Path
    process: subprocess.Popen[bytes]
    seconds: float

    def check(self) -> None:
        """Raise EftError, with the end of the log, where the server has ended."""
        if self.process.poll() is not None:
            raise _died(self.process.returncode, self.log)


def _died(status: int, log: Path) -> EftError:
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return EftError(f"the vLLM server ended with exit status {status}", where=log, why=engine.last_error(text),
                    way_out=f"read the log; it ends with:\n{engine.tail(text)}")  # fmt: skip


def _free_port(host: str, port: int | None) -> int:
    """`port`, checked, or any free one. Raises EftError where it is taken or cannot be had."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port whose last server just ended is free
        try:
            s.bind((host, port or 0))
        except OSError as e:
            why = os.strerror(e.errno) if e.errno and e.errno > 0 else str(e)
            raise EftError(f"the server cannot listen on {host}:{port}", why=why,
                           way_out="give another --port; 0 takes any free one") from None  # fmt: skip
        return s.getsockname()[1]


@contextlib.contextmanager
def serving(
    model: Path | str, *, name: str | None = None, port: int | None = None, host: str = "127.0.0.1",
    max_model_len: int | None = None, dtype: str = "auto", max_num_seqs: int = 32, kv_cache_gib: int = 1,
    enable_lora: bool = False, max_lora_rank: int = 16, loras: dict[str, Path] | None = None, hub: bool = False,
    log: Path | None = None, timeout: float = 180.0, args: tuple[str, ...] = (),
) -> Iterator[Server]:  # fmt: skip
    """A vLLM server of `model` while the block lasts.

    model: a folder with weights, tokenizer and chat template; with `hub`, a hub id. name: what clients ask for, else
    the folder's name. port: None or 0 takes a free one. max_model_len: tokens of prompt and reply together. dtype:
    `float32` reproduces replies under load, `auto` takes the model's own. max_num_seqs: replies in flight at once.
    kv_cache_gib: memory for the KV cache, GiB (CPU build only). loras: adapters by name, loaded at the start. log: file
    for vLLM's output. timeout: seconds until it must answer. args: further options of `vllm serve`.

    Raises EftError: no serving environment, not a model folder, port in use, died (with the end of its log), not up in
    time. On the way out nothing of it is left running.
    """
    python = engine.python()
    build = engine.build(python)
    target = str(model) if hub else str(engine.check_model(Path(model)))
    name = name or (target if hub else Path(target).name)
    port = _free_port(host, port)
    scratch = Path(tempfile.mkdtemp(prefix="eft-serve-"))  # sockets and the like: removed by the watcher
    kept = log is not None
    if log is None:
        handle, path = tempfile.mkstemp(prefix="eft-serve-", suffix=".log")
        os.close(handle)
        log = Path(path)
    log.parent.mkdir(parents=True, exist_ok=True)
    command = engine.command(python, build, target, name=name, host=host, port=port, max_model_len=max_model_len,
                             dtype=dtype, max_num_seqs=max_num_seqs, enable_lora=enable_lora or bool(loras),
                             max_lora_rank=max_lora_rank, loras=loras or {}, args=args)  # fmt: skip
    environment = engine.environment(python, build, scratch, kv_cache_gib=kv_cache_gib, hub=hub)
    print(f"serve: starting {build} with {target}; log: {log}", file=sys.stderr, flush=True)
    # By file and with -P: the watcher needs nothing of ours, and ast.py beside it must not pass for Python's own.
    watcher = [sys.executable, "-P", watch.__file__, str(os.getpid()), str(scratch), *command]
    started = time.monotonic()
    with open(log, "wb") as out:
        # Its own session: a Ctrl-C in the terminal reaches us only, and we take it down in order.
        process = subprocess.Popen(watcher, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                   start_new_session=True, env=environment)  # fmt: skip
    try:
        reach = "127.0.0.1" if host in ("0.0.0.0", "::") else host
        base_url = f"http://[{reach}]:{port}/v1" if ":" in reach else f"http://{reach}:{port}/v1"
        while not engine.answers(base_url, name):
            if process.poll() is not None:
                kept = True
                raise _died(process.returncode, log)
            if time.monotonic() - started > timeout:
                kept = True
                text = log.read_text(encoding="utf-8", errors="replace")
                raise EftError(f"the vLLM server did not answer within {timeout:g} s", where=log,
                               why=f"its log ends with:\n{engine.tail(text, 5)}",
                               way_out="give it more time with --timeout")  # fmt: skip
            time.sleep(0.25)
        seconds = time.monotonic() - started
        print(f"serve: {name} answers at {base_url} after {seconds:.0f} s", file=sys.stderr, flush=True)
        yield Server(base_url, name, log, process, seconds)
    finally:
        stop(process)
        shutil.rmtree(scratch, ignore_errors=True)
        if not kept:
            log.unlink(missing_ok=True)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the watcher, and with it everything that it watches. Returns when nothing is left."""
    if process.poll() is None:
        process.terminate()
    process.wait()  # bounded: the watcher kills after its grace period


# -- eft serve -------------------------------------------------------------------------------------------------------


class Config(StageConfig):
    """`eft serve MODEL`: serve until Ctrl-C or SIGTERM. The base URL goes to standard output once it answers."""

    positional: ClassVar[str | None] = "model"

    model: str = Field(description="Model folder (from 'eft export'), or a hub id with --hub.")
    name: str | None = Field(None, description="Model name that clients ask for; else the folder's name.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes any free one.")
    host: str = Field("127.0.0.1", description="Address to listen on. No authentication: keep it on loopback.")
    max_model_len: int | None = Field(None, ge=1, description="Tokens of prompt and reply; else the model's own limit.")
    dtype: str = Field("auto", description="auto, bfloat16, float16 or float32 (reproducible under load).")
    max_num_seqs: int = Field(32, ge=1, description="Replies in flight at once.")
    kv_cache_gib: int = Field(1, ge=1, description="GiB of memory for the KV cache (CPU build only).")
    enable_lora: bool = Field(False, description="Accept LoRA adapters at run time.")
    max_lora_rank: int = Field(16, ge=1, description="Highest rank of a LoRA adapter.")
    loras: dict[str, Path] = Field(default_factory=dict, description="Adapters by name, loaded at the start.")
    hub: bool = Field(False, description="MODEL is a hub id, not a folder.")
    log: Path | None = Field(None, description="File for vLLM's output; else a temporary one.")
    timeout: float = Field(180.0, gt=0, description="Seconds until the server must answer.")
    args: list[str] = Field(default_factory=list, description="Further options of 'vllm serve'.")


def inputs(config: Config) -> list[Path]:
    """The model folder."""
    return [] if config.hub else [config.path(config.model)]


def run(config: Config) -> dict[str, Any]:
    """Serve until SIGINT or SIGTERM. Raises EftError as `serving` does, and where the server dies meanwhile."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    options = config.model_dump(exclude={"root", "output", "model", "log", "args", "loras"})
    options["loras"] = {name: config.path(path).resolve() for name, path in config.loras.items()}
    model = config.model if config.hub else config.path(config.model)
    log = config.path(config.log) if config.log else None
    # SIGINT as well: a shell starts background jobs with SIGINT ignored, and Python then raises nothing on Ctrl-C's signal.
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    seconds = None
    try:
        with serving(model, log=log, args=tuple(config.args), **options) as server:
            seconds = server.seconds
            print(server.base_url, flush=True)
            server.process.wait()
            server.check()
    except KeyboardInterrupt:
        if seconds is None:
            raise
        print("serve: stopped", file=sys.stderr)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return {"model": str(model), "start_seconds": round(seconds or 0.0, 1)}
