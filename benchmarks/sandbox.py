"""What the sandbox costs: an evaluation in it against the bare process of the same program, and two at a time.

    python benchmarks/sandbox.py [--level bubblewrap|rlimits] [--runs 60] [--json FILE]

Bare: a new process that runs the same program (with the task's driver around it) on the same arguments and prints the
result; for C++ the binary itself; for a contained task the evaluator called by a script. Runs alternate, so that a busy
machine slows both alike. `in flight`: one and two threads evaluate a program that computes; the cores that its
processes kept busy, bare and in the sandbox in turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from eft.tasks import contained, cpp, jail, sandbox, scoring
from eft.tasks.evaluate import _evaluator
from eft.tasks.sandbox import Limits
from eft.tasks.task import find_task

EXAMPLE = Path(__file__).parent.parent / "tests" / "tasks" / "function_minimization"
BARE = """
import json, sys
call = json.load(open(sys.argv[1]))
program = {}
exec(compile(call["code"], "program.py", "exec"), program)
function, driver = program[call["entry"]], {}
if call["driver"] is None:
    value = function(*call["args"])
else:
    exec(call["driver"], driver)
    if call["apart"]:
        class Many:
            def __call__(self, *args): return function(*args)
            def many(self, calls): return [function(*args) for args in calls]
        value = driver["drive"](Many(), *call["args"])
    else:
        value = driver["drive"](function, *call["args"])
json.dump(value, sys.stdout)
"""
CPP = "#include <iostream>\nint main() { long s = 0, x; while (std::cin >> x) s += x; std::cout << s; }\n"
BUSY = "def run(n):\n    s = 0\n    for i in range(n):\n        s += i * i\n    return s\n"


def pairs(bare: Callable[[], object], boxed: Callable[[], object], runs: int) -> dict[str, float]:
    """Medians and the 90th percentile of the difference, in ms. The first round warms up and is not counted."""
    first, second = [], []
    for i in range(runs + 1):
        both = ((bare, first), (boxed, second))
        for call, seconds in both if i % 2 else both[::-1]:
            started = time.perf_counter()
            call()
            if i:
                seconds.append(1000 * (time.perf_counter() - started))
    added = sorted(b - a for a, b in zip(first, second, strict=True))
    return {"bare_ms": statistics.median(first), "sandbox_ms": statistics.median(second),
            "added_ms": statistics.median(added), "added_p90_ms": added[int(0.9 * len(added))]}  # fmt: skip


def python_task(name: str, folder: Path) -> tuple[Callable[[], object], Callable[[], object]]:
    """(bare, in the sandbox) of a task's seed. What its evaluator hands to scoring.evaluate is taken from it."""
    task, kept = find_task(name), {}
    original, scoring.evaluate = scoring.evaluate, lambda path, **options: kept.update(options)
    try:
        _evaluator(task.evaluator)("unused")
    finally:
        scoring.evaluate = original
    call = {"code": task.seed(), "entry": kept.get("entry", "run"), "driver": kept.get("driver"),
            "args": list(kept.get("args", ())), "apart": kept.get("apart", False)}  # fmt: skip
    file = folder / f"{task.folder.name}.json"
    file.write_text(json.dumps(call))
    command = [jail.interpreter(), "-S", "-s", "-B", "-c", BARE, str(file)]

    def bare() -> object:
        return json.loads(subprocess.run(command, capture_output=True, check=True, env=jail.environment()).stdout)

    def boxed() -> object:
        found = sandbox.call(call["code"], call["entry"], *call["args"], driver=call["driver"], apart=call["apart"],
                             limits=kept.get("limits", Limits()))  # fmt: skip
        assert found.error == "", found
        return found.value

    assert json.dumps(bare()) == json.dumps(boxed())
    return bare, boxed


def compiled(folder: Path) -> tuple[Callable[[], object], Callable[[], object]]:
    binary = cpp.compile_program(CPP.encode()).binary
    file, text = folder / "program", " ".join(map(str, range(1000)))
    file.write_bytes(binary)
    file.chmod(0o700)

    def bare() -> object:
        return subprocess.run([file], input=text, capture_output=True, text=True, check=True).stdout

    assert bare() == sandbox.call_binary(binary, text).value
    return bare, lambda: sandbox.call_binary(binary, text)


def foreign(level: str) -> tuple[Callable[[], object], Callable[[], object]]:
    task = find_task(EXAMPLE)
    script = "import os, sys, json; sys.path.insert(0, sys.argv[1]); import evaluator; "
    script += "print(json.dumps(evaluator.evaluate(sys.argv[2]).metrics), flush=True); os._exit(0)"  # as contained.py
    command = [sys.executable, "-s", "-B", "-c", script, str(task.folder), str(task.initial_program)]

    def boxed() -> object:
        found = contained.run(task.evaluator, task.seed(), suffix=".py", timeout_s=60, level=level)
        assert found.error == "", found
        return found

    return lambda: subprocess.run(command, capture_output=True, check=True, env=jail.environment()), boxed


def in_flight(count: int, seconds: float = 3.0) -> tuple[float, float]:
    """Cores that candidates kept busy with `count` threads that evaluate a computation: (bare, in the sandbox)."""
    script = BUSY + "import time\nrun(1_500_000)\nprint(time.process_time())"
    command = [jail.interpreter(), "-S", "-s", "-B", "-c", script]

    def bare() -> float:
        return float(subprocess.run(command, capture_output=True, check=True, env=jail.environment()).stdout)

    def boxed() -> float:
        return sandbox.call(BUSY, "run", 1_500_000, limits=Limits(cpu_s=5)).seconds

    def busy(call: Callable[[], float]) -> float:
        used: list[float] = []
        started = time.monotonic()

        def work() -> None:
            while time.monotonic() < started + seconds:
                used.append(call())

        threads = [threading.Thread(target=work) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(used) / (time.monotonic() - started)

    rounds = [(busy(bare), busy(boxed)) for _ in range(3)]
    return statistics.median(r[0] for r in rounds), statistics.median(r[1] for r in rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", default="auto")
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    level = sandbox.choose(arguments.level)
    rows = {}
    with tempfile.TemporaryDirectory(prefix="eft-benchmark-") as name:
        folder = Path(name)
        for task in ("mathematics/circle_packing", "heuristics/knapsack", "simulators/inventory",
                     "systems/cache_eviction", "routing/tsp_insertion"):  # fmt: skip
            rows[task] = pairs(*python_task(task, folder), arguments.runs)
        rows["a C++ program, one input"] = pairs(*compiled(folder), arguments.runs)
        rows["OpenEvolve's function_minimization (contained)"] = pairs(*foreign(level), max(10, arguments.runs // 4))
    print(f"sandbox: {sandbox.describe()}; medians of {arguments.runs} runs\n")
    print("| program | bare process, ms | in the sandbox, ms | added, ms (median) | added, ms (90 %) |")
    print("|---|---|---|---|---|")
    for row, found in rows.items():
        values = (found["bare_ms"], found["sandbox_ms"], found["added_ms"], found["added_p90_ms"])
        print(f"| {row} | " + " | ".join(f"{v:.1f}" for v in values) + " |")
    flights = {count: in_flight(count) for count in (1, 2)}
    print("\n| in flight | cores kept busy by bare processes | by candidates in the sandbox |\n|---|---|---|")
    for count, (bare, boxed) in flights.items():
        print(f"| {count} | {bare:.2f} | {boxed:.2f} |")
    if arguments.json:
        result = {"level": level, "runs": arguments.runs, "rows": rows, "in_flight": flights}
        arguments.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
