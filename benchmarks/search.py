"""What searches cost here, against plain `openevolve-run` on the same task, model and machine.

    python benchmarks/search.py scaffolds [candidates] [rounds]     an instant scripted model, a task of about 20 ms
    python benchmarks/search.py in_flight [searches] [proposals]    the embedded model on vLLM: at once, and one by one

`scaffolds` runs `openevolve-run` (stock settings; it records less and isolates nothing), `eft evaluate` with OpenEvolve
as the scaffold and `eft evaluate` with `tournament`, one after the other in every round, and prints whole wall times,
start of the programs included, as medians. The work of a candidate (about 20 ms of one core) is the same for all.
`in_flight` needs the serving environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = """# EVOLVE-BLOCK-START
STEP = 0.5
SHIFT = 2.0
ROUNDS = {rounds}


def run():
    total = 0.0
    for i in range(ROUNDS):
        total = total * 0.999 + STEP * (i % 7)
    return [total, STEP, SHIFT]
# EVOLVE-BLOCK-END
"""
# The same score twice: where the candidate runs is what differs.
ISOLATED = """from eft.tasks import scoring


def score(value):
    a, b, c = scoring.numbers(value, 3, "result")
    return {"error_sq": (b - 7.3) ** 2, "combined_score": 1 / (1 + (b - 7.3) ** 2)}


def evaluate(program_path):
    return scoring.evaluate(program_path, score=score)
"""
PLAIN = """import importlib.util


def evaluate(program_path):
    spec = importlib.util.spec_from_file_location("program", program_path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    a, b, c = module.run()
    return {"error_sq": (b - 7.3) ** 2, "combined_score": 1 / (1 + (b - 7.3) ** 2)}
"""
TASK = "task: {domain: toys, raw_metric: error_sq, direction: min, isolation: isolated, timeout_s: 10}\n"


def work() -> int:
    """How many rounds of the task's loop take 20 ms here (the machine as it is now)."""
    scope: dict = {}
    exec(PROGRAM.format(rounds=200_000), scope)
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        scope["run"]()
        seconds.append(time.perf_counter() - started)
    return round(200_000 * 0.020 / min(seconds))


# ------------------------------------------------------------------------------------------------- the scripted model


def serve() -> None:
    """An instant model: answers every request with another value of STEP, as a diff. Prints its port."""
    from aiohttp import web

    count = 0
    step = re.compile(r"^STEP = .*$", re.MULTILINE)

    async def answer(request: web.Request) -> web.Response:
        nonlocal count
        body = await request.json()
        user = body["messages"][-1]["content"]
        old = step.search(user, max(user.rfind("# Current Program"), 0)).group(0)
        choices = []
        for index in range(body.get("n") or 1):
            count += 1
            value = 0.5 + count * 0.618033988749895 % 14  # all over the range: improvements come all along the search
            text = f"<<<<<<< SEARCH\n{old}\n=======\nSTEP = {value!r}\n>>>>>>> REPLACE"
            message = {"role": "assistant", "content": text}
            choices.append({"index": index, "finish_reason": "stop", "message": message})
        usage = {"prompt_tokens": 300, "completion_tokens": 40 * len(choices), "total_tokens": 300 + 40 * len(choices)}
        return web.json_response({"id": "x", "object": "chat.completion", "created": 0, "model": "scripted",
                                  "choices": choices, "usage": usage})  # fmt: skip

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "scripted", "object": "model"}]})

    async def run() -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", answer)
        app.router.add_get("/v1/models", models)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.Event().wait()

    asyncio.run(run())


@contextmanager
def scripted() -> Iterator[str]:
    """The scripted model in a process of its own. Yields its base URL."""
    process = subprocess.Popen([sys.executable, __file__, "serve"], stdout=subprocess.PIPE, text=True)
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"
    finally:
        process.terminate()
        process.wait()


# ---------------------------------------------------------------------------------------------------------- scaffolds


def timed(command: list[str], log: Path) -> float:
    """Wall seconds of one command. Its output goes to `log`. Raises RuntimeError where it fails."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "OPENAI_API_KEY": "none"}
    started = time.perf_counter()
    with open(log, "wb") as out:
        code = subprocess.run(command, stdout=out, stderr=out, env=env, cwd=log.parent).returncode
    seconds = time.perf_counter() - started
    if code:
        raise RuntimeError(f"{' '.join(command)} failed: {log.read_text(errors='replace')[-1500:]}")
    return seconds


def plain(folder: Path, url: str, candidates: int, rounds: int) -> float:
    """`openevolve-run` as its users start it. Seconds."""
    folder.mkdir(parents=True)
    (folder / "initial_program.py").write_text(PROGRAM.format(rounds=rounds))
    (folder / "evaluator.py").write_text(PLAIN)
    settings = {"max_iterations": candidates, "diff_based_evolution": True, "language": "python", "random_seed": 0,
                "llm": {"api_base": url, "api_key": "none", "models": [{"name": "scripted", "weight": 1.0}]},
                "evaluator": {"cascade_evaluation": False}}  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    run = "import sys; from openevolve.cli import main; sys.exit(main())"
    seconds = timed([sys.executable, "-c", run, "initial_program.py", "evaluator.py", "--config", "config.yaml",
                     "--output", "out", "--iterations", str(candidates)], folder / "log")  # fmt: skip
    done = (folder / "log").read_text(errors="replace")
    assert f"Iteration {candidates}:" in done, done[-2000:]
    return seconds


def ours(folder: Path, url: str, candidates: int, rounds: int, scaffold: str) -> float:
    """`eft evaluate`: one search through the gateway, every candidate in the sandbox. Seconds."""
    task = folder / "task"
    task.mkdir(parents=True)
    (task / "initial_program.py").write_text(PROGRAM.format(rounds=rounds))
    (task / "evaluator.py").write_text(ISOLATED)
    (task / "config.yaml").write_text(TASK)
    config = {"root": str(folder), "tasks": ["task"], "iterations": candidates, "seeds": 1, "scaffold": scaffold,
              "mutators": {"scripted": {"model": "scripted", "base_url": url}}}  # fmt: skip
    (folder / "evaluate.yaml").write_text(yaml.safe_dump(config))
    seconds = timed([sys.executable, "-m", "eft.cli", "evaluate", "--config", "evaluate.yaml"], folder / "log")
    search = json.loads((folder / "evaluate" / "results.json").read_text())["searches"][0]
    assert search["status"] == "done" and search["proposals"] == candidates, search
    return seconds


def scaffolds(candidates: int, repeats: int) -> None:
    """Print the medians, and the ratios that are to be reached."""
    rounds = work()
    runs: dict[str, list[float]] = {"openevolve-run": []}
    runs |= {f"eft evaluate, {s}": [] for s in ("openevolve", "tournament")}
    only = os.environ.get("ONLY", "")
    with tempfile.TemporaryDirectory() as scratch, scripted() as url:
        for k in range(repeats):  # interleaved, so that a noisy minute hits all of them
            place = Path(scratch) / str(k)
            if only in ("", "plain"):
                runs["openevolve-run"].append(plain(place / "plain", url, candidates, rounds))
            for scaffold in ("openevolve", "tournament"):
                if only in ("", scaffold):
                    seconds = ours(place / scaffold, url, candidates, rounds, scaffold)
                    runs[f"eft evaluate, {scaffold}"].append(seconds)
    base = statistics.median(runs["openevolve-run"] or [float("nan")])
    print(f"{candidates} candidates, {rounds} rounds of work each, {os.cpu_count()} cores, median of {repeats}")
    for name, values in runs.items():
        if values:
            middle = statistics.median(values)
            each = " ".join(f"{v:.1f}" for v in values)
            print(f"| {name} | {middle:.1f} s | {candidates / middle:.1f}/s | {middle / base:.2f} x the time | {each} |")


# ---------------------------------------------------------------------------------------------------------- in flight


def in_flight(searches: int, proposals: int) -> None:
    """Print what `searches` searches take at once and one after the other, against one vLLM server."""
    from eft.mutators.server import serving

    model = Path(tempfile.gettempdir()) / "eft-benchmark-smollm2"
    if not (model / "config.json").exists():
        command = [sys.executable, "-m", "eft.models.materialise", "embedded:smollm2-135m", str(model)]
        subprocess.run(command, check=True, cwd=ROOT)
    with tempfile.TemporaryDirectory() as scratch, serving(
        model, name="smollm2", max_model_len=1024, dtype="bfloat16", max_num_seqs=16, timeout=400
    ) as server:
        seconds = {}
        for workers in (searches, 1):  # in this order: what the server has cached by then helps the searches one by one
            folder = Path(scratch) / str(workers)
            folder.mkdir()
            config = {"root": str(folder), "suite": "embedded", "iterations": proposals, "scaffold": "tournament",
                      "seeds": max(1, searches // 8), "prompt_format": "eft@1", "max_tokens": 32, "workers": workers,
                      "mutators": {"m": {"model": "smollm2", "base_url": server.base_url}}}  # fmt: skip
            (folder / "evaluate.yaml").write_text(yaml.safe_dump(config))
            command = [sys.executable, "-m", "eft.cli", "evaluate", "--config", "evaluate.yaml"]
            seconds[workers] = timed(command, folder / "log")
            results = json.loads((folder / "evaluate" / "results.json").read_text())["searches"]
            tokens = sum(s["completion_tokens"] for s in results)
            what = f"{len(results)} searches of {proposals} proposals, {workers} in flight"
            print(f"| {what} | {seconds[workers]:.1f} s | {tokens} tokens |", flush=True)
    print(f"{seconds[1] / seconds[searches]:.1f} times sooner")


if __name__ == "__main__":
    verb, *numbers = sys.argv[1:] or ["scaffolds"]
    if verb == "serve":
        serve()
    elif verb == "scaffolds":
        scaffolds(*(int(n) for n in [*numbers, *["300", "3"][len(numbers) :]]))
    elif verb == "in_flight":
        in_flight(*(int(n) for n in [*numbers, *["16", "2"][len(numbers) :]]))
