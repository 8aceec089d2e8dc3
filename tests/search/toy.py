"""A toy task, and a mutator that answers it in every way that a model can get wrong."""

from __future__ import annotations

import json
from pathlib import Path

from eft.mutators.reply import Reply
from eft.prompts import current_program, edit_kind

PROGRAM = """# EVOLVE-BLOCK-START
STEP = 0.5
SHIFT = 2.0
POWER = 3.0


def run():
    total = STEP * 4
    total = total + SHIFT
    total = total - POWER
    return [total, STEP, SHIFT]
# EVOLVE-BLOCK-END
"""
EVALUATOR = """from eft.tasks import scoring


def score(value):
    a, b, c = scoring.numbers(value, 3, "result")
    error = (a - 7.3) ** 2 + (b - 1.7) ** 2 + (c - 0.4) ** 2
    return {"error_sq": error, "combined_score": 1 / (1 + error)}


def evaluate(program_path):
    return scoring.evaluate(program_path, score=score)
"""
CONFIG = """task:
  domain: toys
  raw_metric: error_sq
  direction: min
  isolation: isolated
  timeout_s: 5
"""


class Clumsy:
    """Answers call k with the k-th of `KINDS`: of every nine replies, two are good, one is good but old."""

    KINDS = ("good", "prose", "unmatched", "no_op", "crlf", "markers", "syntax", "again", "empty")
    STATUS = {
        "diff": ("ok", "no_edit", "unmatched", "no_op", "ok", "malformed", "invalid", "duplicate", "no_edit"),
        # Without a fence the whole reply is the program, which prose cannot be.
        "rewrite": ("ok", "invalid", "invalid", "no_op", "ok", "invalid", "invalid", "duplicate", "empty"),
    }

    def propose(self, messages: list[dict[str, str]], call: int) -> Reply:
        user = messages[-1]["content"]
        lines = current_program(user).split("\n")
        kind = self.KINDS[call % len(self.KINDS)]
        if not any(line.startswith("STEP") for line in lines) and kind != "no_op":
            lines = PROGRAM.split("\n")  # the parent is prose: an earlier rewrite without a fence
        old = next((line for line in lines if line.startswith("STEP")), "")
        # A whole number that no other call uses, except "again": the child of call 0 once more, or the seed.
        new = {"good": f"STEP = {call + 1}.0", "crlf": f"STEP = {call + 1}.0", "syntax": "STEP = = 1", "no_op": old,
               "again": "STEP = 1.0" if old != "STEP = 1.0" else "STEP = 0.5"}  # fmt: skip
        text = {"prose": "I would make the step larger.", "empty": ""}.get(kind)
        if text is None and edit_kind(user) == "diff":
            odd = {"markers": f"<<<<<<< SEARCH\n{old}\n=======\n", "unmatched": block("NO_SUCH = 1", "X = 9")}
            text = odd.get(kind)
            text = block(old, new[kind]) if text is None else text
        elif text is None:
            child = "\n".join(new.get(kind, line) if line == old else line for line in lines)
            text = {"markers": f"```python\n{child}", "unmatched": "def run(:"}.get(kind, f"```python\n{child}\n```")
        return Reply(text.replace("\n", "\r\n") if kind == "crlf" else text)


def block(old: str, new: str) -> str:
    return f"<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE"


def trail(folder: Path) -> list[tuple[int, str, float | None]]:
    """(iteration, prompt, score) of an OpenEvolve search, in order: what must come out the same again."""
    rows = []
    for name in ("evolution_trace.jsonl", "evolution_trace_failures.jsonl"):
        if (folder / name).exists():
            rows += [json.loads(line) for line in (folder / name).read_text().splitlines()]
    return [(r["iteration"], r["prompt"]["user"], (r.get("child_metrics") or {}).get("combined_score"))
            for r in sorted(rows, key=lambda r: r["iteration"])]  # fmt: skip
