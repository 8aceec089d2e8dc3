"""What harvesting costs: `eft harvest` on logs against merely parsing every JSON document in them.

    python benchmarks/harvest.py RUN… [--rounds 5]

Prints the median CPU seconds of both, their ratio and the rows a second. Parsing is the floor: no reader can be faster
than reading.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import tempfile
import time
from pathlib import Path

from data_tools import harvest
from eft import manifest


def parse(runs: list[Path]) -> None:
    """Parse all JSON and JSONL files below `runs`."""
    for file in (f for run in runs for f in sorted(run.rglob("*")) if f.suffix in (".json", ".jsonl")):
        for text in file.read_text(encoding="utf-8").splitlines() if file.suffix == ".jsonl" else [file.read_text(encoding="utf-8")]:
            json.loads(text)


def read(runs: list[Path], out: Path) -> int:
    """Harvest `runs`; returns the number of transitions."""
    with contextlib.redirect_stderr(io.StringIO()):
        harvest.run(harvest.Config(runs=[r.resolve() for r in runs], output=out))
    return manifest.read(out)["counts"]["transitions"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    floor, full, rows = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        read(options.runs, Path(folder) / "warm")  # imports and disk cache
        for number in range(options.rounds):
            started = time.process_time()
            parse(options.runs)
            floor.append(time.process_time() - started)
            started = time.process_time()
            rows = read(options.runs, Path(folder) / str(number))
            full.append(time.process_time() - started)
    a, b = statistics.median(floor), statistics.median(full)
    print(f"{rows} transitions: parsing {a:.3f} s, harvest {b:.3f} s of CPU, ratio {b / a:.1f}, {rows / b:.0f} rows a second")


if __name__ == "__main__":
    main()
