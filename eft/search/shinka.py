"""Search with ShinkaEvolve, in an environment of its own: a second scaffold, so that no result hangs on the first.

    python -m eft.search.shinka SPEC.json

The search's process writes ShinkaEvolve's settings and a small evaluation script, runs `shinka_driver.py` with the
interpreter of ShinkaEvolve's environment (`make scaffold-env`, or EFT_SHINKA_PYTHON), and tallies what came of it.
Questions go through the gateway; candidates are evaluated by `eft.tasks.evaluate` in this environment, as isolated as
under any other scaffold. Each generation is one reply: no second attempts, no resampling, no novelty rejection, no
models beside the mutator.

It leaves, beside what every search leaves: shinka/programs.sqlite and shinka/gen_N/, as any run of ShinkaEvolve does.

Limits: the prompt is ShinkaEvolve's own (`shinka@0`), whatever `prompt_format` says; `top_p` is not sent (it has no
such setting: force it at the gateway); started again, a search asks anew where ShinkaEvolve chose otherwise than
before, and the gateway answers the questions that came out the same.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from eft import resources
from eft.errors import EftError
from eft.manifest import write_json, write_text
from eft.records import Validity
from eft.search import process
from eft.search.evaluator import Scorer
from eft.search.openevolve import write_run
from eft.search.spec import RESULT, SearchResult, SearchSpec
from eft.search.tally import NO_ANSWER, Attempt, read_journal, tally

PYTHON = "EFT_SHINKA_PYTHON"
FORMAT = "shinka@0"
RESULTS, SETTINGS, EVALUATE, PROGRESS = "shinka", "shinka.json", "evaluate.py", "samples.jsonl"
PATCHES = {"diff": "diff", "rewrite": "full"}

# What ShinkaEvolve starts for every candidate, with this environment's Python: the outcome goes into two files.
EVALUATE_PY = '''"""Written by eft: hands a candidate to eft.tasks.evaluate (out of process, cached by code)."""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, {package!r})
from eft.search.shinka import evaluated  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("--program_path", type=Path)
parser.add_argument("--results_dir", type=Path)
given, _ = parser.parse_known_args()
given.results_dir.mkdir(parents=True, exist_ok=True)
for name, value in evaluated(Path(__file__).parent, given.program_path).items():
    (given.results_dir / name).write_text(json.dumps(value), encoding="utf-8")
'''


def run_search(spec: SearchSpec, timeout_s: float | None = None) -> SearchResult:
    """Run one search in a process of its own. Raises EftError (with the log's path) where it fails."""
    return process.wait(spec, process.start(spec), timeout_s)


def interpreter() -> Path:
    """The Python of ShinkaEvolve's environment. Raises EftError where there is none."""
    named = os.environ.get(PYTHON)
    root = Path(os.environ.get("EFT_SCAFFOLD_VENVS", resources.PACKAGE.parent / ".venv-scaffolds"))
    python = Path(named) if named else root / "shinka" / "bin" / "python"
    if not python.is_file():
        raise EftError("ShinkaEvolve's environment is not there", where=python,
                       way_out=f"make scaffold-env, or name its Python in {PYTHON}")  # fmt: skip
    return python


def release(python: Path) -> str:
    """ShinkaEvolve's version in that environment. Raises EftError where it is not installed."""
    ask = "import importlib.metadata as m; print(m.version('shinka-evolve'))"
    done = subprocess.run([str(python), "-I", "-c", ask], capture_output=True, text=True)
    if done.returncode != 0:
        raise EftError("ShinkaEvolve is not installed in its environment", where=python, way_out="make scaffold-env")
    return done.stdout.strip()


def dialect_of(version: str) -> str:
    """How that release applies edits (see eft/dialects.py)."""
    return "shinka@0.0" if re.match(r"0\.0\.[0-7]($|\D)", version) else FORMAT


# ------------------------------------------------------------------------------------------ inside the search's process


def body(spec: SearchSpec) -> None:
    """The search itself: ShinkaEvolve from start to end, then the tally of what came of it."""
    started = time.time()
    python = interpreter()
    version = release(python)
    scorer = Scorer.of(spec)
    write_run(dataclasses.replace(spec, prompt_format=FORMAT), scorer.task, version)
    shutil.rmtree(spec.folder / RESULTS, ignore_errors=True)  # an unfinished attempt: the gateway has its replies
    write_text(spec.folder / EVALUATE, EVALUATE_PY.format(package=str(resources.PACKAGE.parent)))
    seed = spec.folder / f"initial{scorer.task.initial_program.suffix}"
    write_text(seed, marked(scorer.task.seed(), scorer.task.language))
    write_json(spec.folder / SETTINGS, settings(spec, scorer.task, seed))
    _run(spec, python)
    journal = read_journal(spec.journal)
    attempts = with_prompts(read_attempts(spec.folder / RESULTS, spec.iterations), journal)
    result = tally(spec, attempts, journal, scorer, version, time.time() - started, dialect=dialect_of(version))
    dataclasses.replace(result, prompt_format=FORMAT).save(spec.folder / RESULT)


def marked(code: str, language: str) -> str:
    """The program with the EVOLVE markers that ShinkaEvolve insists on; around all of it where it has none."""
    if "EVOLVE-BLOCK-START" in code and "EVOLVE-BLOCK-END" in code:
        return code
    sign = "#" if language in ("python", "r", "yaml") else "//"
    return f"{sign} EVOLVE-BLOCK-START\n{code.rstrip()}\n{sign} EVOLVE-BLOCK-END\n"


def settings(spec: SearchSpec, task: Any, seed: Path) -> dict[str, Any]:
    """What the driver hands to ShinkaEvolve. One island, since each further one would hold a copy of the seed."""
    key = f"?api_key_env={spec.api_key_env}" if spec.api_key_env else ""
    results = spec.folder / RESULTS
    return {
        "seed": spec.seed,
        "evolution": {
            "task_sys_msg": task.system_message or None,
            "patch_types": [PATCHES[spec.edit]],
            "patch_type_probs": [1.0],
            "num_generations": spec.iterations + 1,  # the seed is generation 0
            "max_patch_resamples": 1,
            "max_patch_attempts": 1,
            "max_novelty_attempts": 1,
            "language": task.language,
            "llm_models": [f"local/{spec.model}@{spec.base_url}{key}"],
            "llm_dynamic_selection": None,
            "llm_kwargs": {"temperatures": [spec.temperature], "max_tokens": spec.max_tokens},
            "meta_rec_interval": None,
            "embedding_model": None,
            "init_program_path": str(seed),
            "results_dir": str(results),
            "use_text_feedback": True,
        },
        "job": {
            "eval_program_path": str(spec.folder / EVALUATE),
            "python_executable": sys.executable,
            # The task's own limit ends a candidate; this one is for an evaluation that hangs.
            "time": time.strftime("%H:%M:%S", time.gmtime(2 * task.timeout_s + 60)),
        },
        "database": {"db_path": str(results / "programs.sqlite"), "num_islands": 1},
    }


def _run(spec: SearchSpec, python: Path) -> None:
    """Run the driver to its end. Raises EftError with its last words where it fails."""
    driver = Path(__file__).with_name("shinka_driver.py")
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    env |= {"PYTHONHASHSEED": "0", "MPLBACKEND": "agg", "MPLCONFIGDIR": str(spec.folder / process.TEMPORARY)}
    log = spec.folder / "shinka.log"
    with open(log, "wb") as out:
        command = [str(python), "-s", "-P", str(driver), str(spec.folder / SETTINGS), str(os.getpid())]
        done = subprocess.run(command, env=env, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                              cwd=spec.folder)  # fmt: skip
    if done.returncode != 0:
        raise EftError("ShinkaEvolve failed", where=log, why=process.last_error(log))


def evaluated(folder: Path, program: Path) -> dict[str, Any]:
    """ShinkaEvolve's two result files for one candidate: metrics.json and correct.json."""
    scorer = Scorer.beside(folder / EVALUATE)
    evaluation = scorer.evaluate(program.read_text(encoding="utf-8"))
    told, valid = scorer.told(evaluation), evaluation.validity == Validity.VALID
    error, score = told.pop("error", None), told.pop("combined_score", 0.0)
    if "gen_0" not in program.parts:  # the seed is no candidate
        with open(folder / PROGRESS, "a", encoding="utf-8") as done:  # what a progress bar counts
            done.write(json.dumps({"valid": valid}) + "\n")
    words = "\n".join(f"{k}: {v}" for k, v in (evaluation.artifacts or {}).items())
    return {
        "metrics.json": {"combined_score": score if valid else 0.0, "public": told, "private": {},
                         "text_feedback": words[:4000]},
        "correct.json": {"correct": valid, "error": None if error is None else str(error)},
    }  # fmt: skip


def read_attempts(results: Path, generations: int) -> list[Attempt]:
    """What became of each generation: a program in the database, or a reply that no program could be made of."""
    found: dict[int, Attempt] = {}
    try:
        with sqlite3.connect(f"file:{results / 'programs.sqlite'}?mode=ro", uri=True) as db:
            rows = db.execute("SELECT generation, code, metadata FROM programs WHERE generation > 0").fetchall()
    except sqlite3.Error as e:
        raise EftError("ShinkaEvolve left no database", where=results, why=str(e)) from None
    for generation, code, metadata in rows:
        said = (json.loads(metadata or "{}").get("llm_result")) or {}
        usage = {"prompt_tokens": said.get("input_tokens") or 0, "completion_tokens": said.get("output_tokens") or 0}
        found[generation] = Attempt(generation, said.get("msg") or "", said.get("content"), code, usage=usage)
    for generation in range(1, generations + 1):
        if generation not in found and (attempt := _failed(results / f"gen_{generation}", generation)):
            found[generation] = attempt
    return [found[g] for g in sorted(found) if g <= generations]


def with_prompts(attempts: list[Attempt], journal: list[dict[str, Any]]) -> list[Attempt]:
    """ShinkaEvolve keeps no prompt of a reply that it refused; the gateway's journal does. Replies come in order."""
    waiting = deque(r for r in journal if r.get("status") == "ok")
    found = []
    for attempt in attempts:
        while waiting and attempt.response is not None:
            record = waiting.popleft()
            if (record.get("content") or "") == attempt.response:
                users = [m["content"] for m in record.get("messages") or [] if m.get("role") == "user"]
                attempt = attempt if attempt.prompt else dataclasses.replace(attempt, prompt=(users or [""])[-1])
                break
        found.append(attempt)
    return found


def _failed(folder: Path, generation: int) -> Attempt | None:
    """The one reply of a generation that gave no program."""
    attempt = next(iter(sorted(folder.glob("attempts/*/*/*"))), None)
    if attempt is None:
        return None
    try:
        said = json.loads((attempt / "metadata.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        said = {}
    why, reply = said.get("error_msg") or "no program", attempt / "llm_response.txt"
    if reply.exists():
        return Attempt(generation, "", reply.read_text(encoding="utf-8"), error=why)
    if "llm_cost" in said:  # there was a reply, an empty one
        return Attempt(generation, "", "", error=why)
    return Attempt(generation, "", None, error=f"{NO_ANSWER}: {why}")


if __name__ == "__main__":
    process.main(body)
