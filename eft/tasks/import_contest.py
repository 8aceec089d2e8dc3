"""Heuristic contests whose scorers are programs: AtCoder's (`ahc`) and Frontier-CS's algorithmic problems.

Both become C++ tasks: the candidate is compiled and run in the sandbox once per input, and sees nothing but that
input. The family's own scorer then judges the outputs outside; it is run with a time limit, an empty environment and a
folder of its own. `evaluate` is what the imported evaluators call; what they need lies beside them in contest.json.

AtCoder's tools print `Score = N` (`vis IN OUT`, `score IN OUT`); Frontier-CS's checkers (testlib) print `Ratio: x` or,
for a full score, end with status 0.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from eft.errors import EftError, UsageError, nearest
from eft.tasks import sandbox, scoring

if TYPE_CHECKING:
    from eft.tasks.importers import Config, Draft

HELD_OUT = ("263", "301", "302", "303", "304", "305")  # of Frontier-CS, in the evolution fine-tuning paper
SCORER_SECONDS = 30.0
_AHC_SCORE = re.compile(r"^\s*Score\s*[=:]\s*(-?[\d,.]+)", re.IGNORECASE | re.MULTILINE)
_RATIO = re.compile(r"\bRatio:\s*(-?\d+(?:\.\d+)?(?:e-?\d+)?)")

EVALUATOR = '''"""{title}. Imported by `eft tasks import`: settings and inputs lie beside this file."""

from pathlib import Path

from eft.tasks import import_contest


def evaluate(program_path{parameter}):
    return import_contest.evaluate(program_path, Path(__file__).parent{argument})
'''

EMPTY = """// EVOLVE-BLOCK-START
#include <bits/stdc++.h>
using namespace std;

int main() {
    return 0;
}
// EVOLVE-BLOCK-END
"""


def evaluate(program_path: str | Path, folder: Path, hidden: bool = False) -> scoring.Scored:
    """Score a C++ program on the task's inputs: `mean_score`, the mean of what the family's scorer says."""
    settings = json.loads((folder / "contest.json").read_text(encoding="utf-8"))
    cases = settings["hidden" if hidden else "search"]
    limits = sandbox.Limits(
        wall_s=3 * settings["time_s"] + 2, cpu_s=math.ceil(settings["time_s"]), memory_mb=settings["memory_mb"],
        output_kb=settings["output_kb"],
    )  # fmt: skip
    texts = [(folder / case["input"]).read_text(encoding="utf-8") for case in cases]
    return scoring.evaluate_cpp(
        program_path, inputs=texts, score=partial(_score, folder, settings, cases), limits=limits
    )


def _score(folder: Path, settings: dict[str, Any], cases: list[dict[str, str]], outputs: list[str]) -> dict[str, float]:
    scores = [_judge(folder, settings, case, output) for case, output in zip(cases, outputs, strict=True)]
    mean = sum(scores) / len(scores)
    if settings["direction"] == "max":
        if mean <= 0:
            raise scoring.Invalid("the scorer gives no point for any input")
        return {"combined_score": mean, "mean_score": mean}
    return {"combined_score": settings["scale"] / (1 + max(mean, 0.0)), "mean_score": mean}


def _judge(folder: Path, settings: dict[str, Any], case: dict[str, str], output: str) -> float:
    """What the scorer says of one output. Raises scoring.Invalid where it refuses it."""
    with tempfile.TemporaryDirectory(prefix="eft-scorer-") as work:
        written = Path(work) / "out.txt"
        written.write_text(output, encoding="utf-8", errors="replace")
        command = [str(folder / settings["scorer"]), str(folder / case["input"]), str(written)]
        if settings["kind"] == "testlib":
            command.append(str(folder / case["answer"]))
        try:
            done = subprocess.run(command, cwd=work, env={"PATH": "/usr/bin:/bin"}, stdin=subprocess.DEVNULL,
                                  capture_output=True, timeout=SCORER_SECONDS)  # fmt: skip
        except subprocess.TimeoutExpired:
            raise scoring.Invalid(f"the scorer took more than {SCORER_SECONDS:g} s on {case['input']}") from None
        except OSError as e:
            raise EftError("the scorer of this task cannot be run", where=command[0], why=str(e)) from None
    said = (done.stdout + b"\n" + done.stderr).decode("utf-8", "replace")
    found = (_AHC_SCORE if settings["kind"] == "ahc" else _RATIO).findall(said)
    if found:
        return scoring.number(float(found[-1].replace(",", "")), "the scorer's answer", -1e15, 1e15)
    if settings["kind"] == "testlib" and done.returncode == 0:
        return 1.0
    if settings["kind"] == "testlib":
        return 0.0
    raise scoring.Invalid(f"the scorer refuses the output for {case['input']}: {said.strip()[:200]}")


# ---- AtCoder heuristic contests ----------------------------------------------------------------------------------


def ahc(source: Path, config: Config) -> list[Draft]:
    """The unpacked tools folder of one contest: in/*.txt, and a scorer built from it (or given with --scorer)."""
    texts = sorted((source / "in").glob("*.txt"))
    if not texts:
        raise UsageError("this is no tools folder of a contest", where=source, why="it has no in/*.txt")
    built = [source / "target" / "release" / name for name in ("score", "vis", "tester")][:2]
    scorer = config.path(config.scorer) if config.scorer else next((p for p in built if p.is_file()), None)
    if scorer is None or not os.access(scorer, os.X_OK):
        raise UsageError("the contest's scorer was not found", where=scorer or source / "target" / "release",
                         way_out="build it in the tools folder (cargo build --release), or give --scorer FILE; it is"
                                 " run as `SCORER IN OUT` and must print `Score = N`")  # fmt: skip
    name = config.name or source.resolve().name
    chosen, kept = texts[: config.cases], texts[config.cases : 2 * config.cases]
    direction = config.direction
    files: dict[str, Any] = {f"in/{p.name}": p for p in [*chosen, *kept]}
    settings = {"kind": "ahc", "direction": direction, "scale": 1e6, "time_s": config.time_limit, "memory_mb": 1024,
                "search": [{"input": f"in/{p.name}"} for p in chosen],
                "hidden": [{"input": f"in/{p.name}"} for p in kept]}  # fmt: skip
    return [_draft(f"ahc/{name}", f"contest {name}", files, settings, scorer, _seed(config), "ahc",
                   f"Write a C++17 program for AtCoder's heuristic contest {name}.")]  # fmt: skip


# ---- Frontier-CS -------------------------------------------------------------------------------------------------


def frontier_cs(source: Path, config: Config) -> list[Draft]:
    """Algorithmic problems named by --task, or the paper's six. Interactive ones are refused."""
    problems = source / "algorithmic" / "problems"
    if not problems.is_dir():
        raise UsageError("this is no checkout of Frontier-CS", where=source, why="it has no algorithmic/problems")
    known = sorted(p.parent.name for p in problems.glob("*/config.yaml"))
    wanted = config.task or [n for n in HELD_OUT if n in known]
    if not wanted:
        raise UsageError("none of the paper's problems is in this checkout", where=problems,
                         why=f"it looked for {', '.join(HELD_OUT)}",
                         way_out="take a newer checkout, or name problems: --task N")  # fmt: skip
    absent = [n for n in HELD_OUT if n not in known]
    if not config.task and absent:
        print(f"not in this checkout: {', '.join(absent)}")
    return [_problem(source, problems / n, known, config) for n in wanted]


def _problem(source: Path, folder: Path, known: list[str], config: Config) -> Draft:
    if folder.name not in known:
        raise UsageError(f"Frontier-CS has no problem '{folder.name}'", where=folder.parent,
                         way_out=nearest(folder.name, known))  # fmt: skip
    settings = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8")) or {}
    checker = folder / str(settings.get("checker") or "chk.cc")
    why = "" if checker.is_file() else f"its checker {checker.name} is not there"
    if settings.get("type") == "interactive":
        why = "it is interactive: the program talks to a judge while it runs"
    if why:
        raise EftError("this problem cannot be imported", where=folder, why=why)
    inputs = sorted((folder / "testdata").glob("*.in"), key=lambda p: (len(p.stem), p.stem))
    if not inputs:
        raise EftError("this problem has no test data", where=folder / "testdata")
    half = len(inputs) // 2 if len(inputs) >= 6 else len(inputs)  # few inputs: all serve the search, none is hidden
    files: dict[str, Any] = {}
    cases = []
    for p in inputs:
        answer = p.with_suffix(".ans")
        files[f"testdata/{p.name}"] = p
        files[f"testdata/{answer.name}"] = answer if answer.is_file() else ""
        cases.append({"input": f"testdata/{p.name}", "answer": f"testdata/{answer.name}"})
    wanted = {
        "kind": "testlib", "direction": "max", "scale": 1.0, "time_s": _seconds(settings.get("time")),
        "memory_mb": _megabytes(settings.get("memory")), "search": cases[:half], "hidden": cases[half:],
    }  # fmt: skip
    statement = folder / "statement.txt"
    text = statement.read_text(encoding="utf-8") if statement.is_file() else ""
    name = f"frontier_cs/p{folder.name}"
    scorer = _compiled(checker, source / "algorithmic" / "judge" / "include")
    return _draft(name, f"frontier-cs {folder.name}", files, wanted, scorer, _seed(config), "frontier_cs",
                  f"Write a C++17 program for this problem.\n\n{text}".strip())  # fmt: skip


def _compiled(checker: Path, include: Path) -> bytes:
    """The checker as an executable."""
    compiler = shutil.which("g++")
    if compiler is None:
        raise EftError("the checker needs a C++ compiler", where=checker, way_out="install g++")
    with tempfile.TemporaryDirectory(prefix="eft-checker-") as work:
        binary = Path(work) / "checker"
        done = subprocess.run(
            [compiler, "-O2", "-std=c++17", f"-I{include}", "-o", str(binary), str(checker)], capture_output=True
        )
        if done.returncode:
            raise EftError("the checker does not compile", where=checker,
                           why=done.stderr.decode("utf-8", "replace").strip()[-800:])  # fmt: skip
        return binary.read_bytes()


def _seconds(text: Any) -> float:
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s)?\s*", str(text or "2s"))
    return float(found[1]) / (1000 if found[2] == "ms" else 1) if found else 2.0


def _megabytes(text: Any) -> int:
    found = re.fullmatch(r"\s*(\d+)\s*(k|m|g)?b?\s*", str(text or "512m").lower())
    return max(64, int(int(found[1]) * {"k": 1 / 1024, "g": 1024}.get(found[2] or "m", 1))) if found else 512


def _seed(config: Config) -> str:
    """The initial program: --seed, or an empty one (which scores nothing, and says so)."""
    if config.seed is None:
        return EMPTY
    file = config.path(config.seed)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError("the initial program cannot be read", where=file, why=str(e)) from None
    if "EVOLVE-BLOCK-START" in text:
        return text
    return f"// EVOLVE-BLOCK-START\n{text.rstrip()}\n// EVOLVE-BLOCK-END\n"


def _draft(
    name: str, family: str, files: dict[str, Any], settings: dict[str, Any], scorer: Path | bytes, seed: str,
    domain: str, message: str,
) -> Draft:  # fmt: skip
    from eft.tasks.importers import Draft

    hidden = bool(settings["hidden"])
    settings = {"scorer": "scorer", "output_kb": 16384, **settings}
    files = {
        **files, "scorer": scorer, "contest.json": json.dumps(settings, indent=1) + "\n", "initial_program.cpp": seed,
        "evaluator.py": EVALUATOR.format(
            title=family.capitalize(), parameter=", hidden=False" if hidden else "",
            argument=", hidden" if hidden else "",
        ),
    }  # fmt: skip
    card = {
        "name": name, "domain": domain, "family": family, "raw_metric": "mean_score",
        "direction": settings["direction"], "isolation": "isolated",
        "timeout_s": math.ceil(len(settings["search"]) * (settings["time_s"] + 1) + 60),
    }  # fmt: skip
    return Draft(name=name, files=files, card=card, message=message, suffix=".cpp", executables=("scorer",))
