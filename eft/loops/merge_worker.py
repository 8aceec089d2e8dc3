"""The worker of a merge: a process that holds the base, the adapters and the tokenised rows, and scores recipes.

    python -m eft.loops.merge_worker WORK PARENT

It listens on a Unix socket (in a private folder, since paths of sockets are short), writes `worker.json` when it is
ready, and ends when the process PARENT does. One request a connection: a line of JSON, {recipe, rows}; the answer is a
line of JSON, and until it is there a space every other second, so that whoever asks knows that it is alive. Recipes are
scored one at a time; a finished score is on disk before it is told.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socketserver
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from eft import manifest
from eft.errors import EftError
from eft.loops.merge_recipe import RecipeError, parse
from eft.loops.merge_score import Results, Scorer, TooSlow, read_plan

STATE = "worker.json"
SOCKETS = "eft-merge-"  # what the private folders of sockets are called, and then at random
BEAT_S = 2.0
LONGEST = 1 << 20  # bytes of a request


class Worker:
    """Answers requests, one at a time."""

    def __init__(self, work: Path) -> None:
        self.plan = read_plan(work)
        self.scorer, self.results, self.lock = Scorer(self.plan, work), Results(work), threading.Lock()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """{result}, or {failed, why} with a reason that is not kept."""
        experts, options = self.plan["experts"], self.plan["options"]
        try:
            recipe = parse(request["recipe"], list(experts["places"]), layers=experts["layers"], full=experts["full"])
        except RecipeError as e:
            return {"result": {"error": str(e)}}
        split = request["rows"]
        with self.lock:
            if (known := self.results.get(recipe, split)) is not None:
                return {"result": known}
            try:
                result = self.scorer.score(recipe, split, time.monotonic() + options["timeout_s"])
            except TooSlow:
                return {"failed": "timeout", "why": f"it took longer than {options['timeout_s']:g} s"}
            except (MemoryError, RuntimeError) as e:
                if isinstance(e, MemoryError) or "memory" in str(e).lower():
                    return {"failed": "memory", "why": "there is not enough memory for this merge"}
                raise
            self.results.add(recipe, split, result)
            return {"result": result}


class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 128
    worker: Worker


class Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        line = self.rfile.readline(LONGEST)
        done: dict[str, Any] = {}
        finished = threading.Event()

        def work() -> None:
            try:
                done.update(self.server.worker.answer(json.loads(line)))
            except EftError as e:
                done.update({"broken": str(e)})
            except Exception as e:
                done.update({"broken": f"{type(e).__name__}: {e}"})
            finally:
                finished.set()

        threading.Thread(target=work, daemon=True).start()
        try:
            while not finished.wait(BEAT_S):
                self.wfile.write(b" ")
            self.wfile.write(json.dumps(done).encode() + b"\n")
        except OSError:
            pass  # whoever asked has gone; the score is kept


def serve(work: Path, parent: int) -> None:
    """Load, listen, and tell so in WORK/worker.json; until the parent is gone."""
    worker = Worker(work)
    # not in $TMPDIR, which is deep below a search's folder: the path of a socket has at most 107 bytes
    folder = Path(tempfile.mkdtemp(prefix=SOCKETS, dir="/tmp" if os.access("/tmp", os.W_OK) else None))
    try:
        with Server(str(folder / "s"), Handler) as server:
            server.worker = worker
            threading.Thread(target=server.serve_forever, args=(0.2,), daemon=True).start()
            manifest.write_json(work / STATE, {"pid": os.getpid(), "keeper": parent, "socket": str(folder / "s")})
            while os.getppid() == parent:
                time.sleep(0.25)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(worker.plan["scratch"], ignore_errors=True)


def main() -> None:
    work, parent = Path(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    plan = read_plan(work)
    shutil.rmtree(plan["scratch"], ignore_errors=True)  # what a killed predecessor left
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # before torch is imported
        os.environ[name] = str(plan["options"]["threads"])
    try:
        serve(work, parent)
    except EftError as e:
        sys.exit(f"error: {e}")
    except MemoryError:
        sys.exit("error: there is not enough memory for the models of this merge")


if __name__ == "__main__":
    main()
