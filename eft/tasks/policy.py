"""Policies: programs `route(state) -> name` that choose among names, asked one state at a time in the sandbox.

The program runs in a process of its own and is sent one state after the other (apart.py): it never holds the table, what
came of earlier answers, or the states that are still to come. Three rules beyond the sandbox's, each with its reason
handed back:

- It imports only what computes (`MODULES`) and touches nothing that looks around: no open, no eval, no attributes that
  begin with an underscore or belong to frames. That turns a policy which peeks into a failed candidate instead of one
  that finds nothing; what holds it is the sandbox.
- It leaves the state as it is.
- It keeps nothing between states: it is asked twice, in two processes and two orders, and must answer alike.
"""

from __future__ import annotations

import ast
import random
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from eft.edits import parse_python
from eft.records import Validity, code_hash
from eft.tasks import sandbox

MODULES = frozenset({
    "__future__", "bisect", "collections", "dataclasses", "enum", "fractions", "functools", "heapq", "itertools", "math",
    "operator", "re", "statistics", "string", "typing", "unicodedata", "zlib",
})  # fmt: skip
_NAMES = frozenset({
    "__builtins__", "__import__", "__loader__", "__spec__", "breakpoint", "compile", "delattr", "eval", "exec",
    "getattr", "globals", "input", "locals", "memoryview", "open", "setattr", "vars",
})  # fmt: skip
REMEMBERS = "route() answers the same state differently in another order: it must keep nothing between states"
_FRAMES = ("f_", "gi_", "cr_", "ag_", "tb_", "co_")
# What modules that compute have lying about: other modules, and ways to an attribute by its name.
_LYING_ABOUT = frozenset({"attrgetter", "builtins", "inspect", "methodcaller", "os", "sys"})

DRIVER = """
def drive(ask, states):
    return [ask(state) for state in states]
"""

# Behind the program, so that its line numbers stay. A state comes fresh with every question: changing it harms nobody,
# but a policy that does is not the function of a state that it claims to be.
_BEHIND = """


def _asked(state, _route=globals().get("route"), _dumps=__import__("marshal").dumps):
    if not callable(_route):
        raise NameError("the program does not define route(state)")
    before = _dumps(state, 2)
    name = _route(state)
    if _dumps(state, 2) != before:
        raise ValueError("route() changed the state that it was given")
    return name
"""


@dataclass(frozen=True)
class Answers:
    """`names`: one per state where `validity` is VALID, else `error` says in one line why not."""

    names: list[str]
    validity: Validity
    error: str = ""
    stderr: str = ""
    seconds: float = 0.0  # CPU


def refusal(code: str) -> str | None:
    """Why this text is no policy, in one line; None where nothing speaks against running it."""
    tree = parse_python(code)
    if tree is None:
        return None  # the sandbox says what is wrong with its syntax, and where
    for node in ast.walk(tree):
        line = f" (line {getattr(node, 'lineno', 0)})"
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or "."]
            for name in names:
                if name.split(".")[0] not in MODULES:
                    allowed = ", ".join(sorted(MODULES - {"__future__"}))
                    return f"a policy sees only its state: it may not import {name}, only {allowed}{line}"
            for name in (a.name for a in node.names if isinstance(node, ast.ImportFrom)):
                if _hidden(name) or (name in sys.stdlib_module_names - MODULES and name != "abc"):
                    return f"a policy sees only its state: it may not import {name}{line}"
        elif isinstance(node, ast.Name) and node.id in _NAMES:
            return f"a policy sees only its state: it may not use {node.id}{line}"
        elif isinstance(node, ast.Attribute) and _hidden(node.attr):
            return f"a policy sees only its state: it may not look at .{node.attr}{line}"
        elif isinstance(node, ast.MatchClass) and (names := [a for a in node.kwd_attrs if _hidden(a)]):
            return f"a policy sees only its state: it may not look at .{names[0]}{line}"
        elif isinstance(node, ast.Global | ast.Nonlocal):
            return f"a policy keeps nothing between states: it may not use {type(node).__name__.lower()}{line}"
    return None


def _hidden(name: str) -> bool:
    """Does an attribute of this name look around?"""
    return name.startswith(("_", *_FRAMES)) or name in _LYING_ABOUT


def limits(questions: int) -> sandbox.Limits:
    """What a policy may use up for so many questions: about 100 times what a simple one needs."""
    return sandbox.Limits(cpu_s=2 + questions // 200, wall_s=30.0 + questions / 20, output_kb=256 + questions // 10)


def run(code: str, driver: str, *args: Any, bounds: sandbox.Limits) -> sandbox.Outcome:
    """The driver's value, with `ask(state)` as its function: a checked policy in a process of its own.

    Never raises for anything that the policy does; raises EftError where the sandbox cannot run.
    """
    if why := refusal(code):
        return sandbox.Outcome(None, Validity.ERROR, why, "", 0.0)
    # Only behind a whole program: one that ends within a statement would become one, unseen, with what stands behind it.
    behind = _BEHIND if parse_python(code) is not None else ""
    found = sandbox.call(code + behind, "_asked", *args, driver=driver, apart=True, limits=bounds)
    place = re.search(r" \(line (\d+)\)$", found.error)
    if place and int(place[1]) > len(code.split("\n")):  # said by what stands behind the program
        found = replace(found, error=found.error[: place.start()])
    return found


def ask(code: str, states: Sequence[dict[str, Any]], names: Sequence[str], *, again: int | None = None) -> Answers:
    """The policy's answer to every state, checked: each must be one of `names`.

    again: so many states, drawn by the program's text, are asked once more in another process and another order (None:
    all of them); different answers are an error.
    Raises EftError where the sandbox cannot run, nothing for what the policy does.
    """
    bounds = limits(len(states))
    first = run(code, DRIVER, list(states), bounds=bounds)
    if first.validity is not Validity.VALID:
        return Answers([], first.validity, first.error, first.stderr, first.seconds)
    if (why := foreign(first.value, len(states), names)) is not None:
        return Answers([], Validity.INCORRECT, why, first.stderr, first.seconds)
    seconds = first.seconds
    count = len(states) if again is None else min(again, len(states))
    if count and len(states) > 1:
        order = random.Random(code_hash(code)).sample(range(len(states)), count)
        second = run(code, DRIVER, [states[i] for i in order], bounds=bounds)
        seconds += second.seconds
        if second.validity is not Validity.VALID:
            return Answers([], second.validity, f"{second.error} (asked in another order)", second.stderr, seconds)
        if not isinstance(second.value, list) or second.value != [first.value[i] for i in order]:
            return Answers([], Validity.INCORRECT, REMEMBERS, second.stderr, seconds)
    return Answers(first.value, Validity.VALID, "", first.stderr, seconds)


def foreign(value: Any, count: int, names: Sequence[str]) -> str | None:
    """Why these are no answers; None where they are."""
    if not isinstance(value, list) or len(value) != count:
        return "there is not one answer for every state"
    known = set(names)
    for i, name in enumerate(value, 1):
        if not isinstance(name, str):
            return f"route() must return a name, not {type(name).__name__} (state {i})"
        if name not in known:
            return f"route() returned {name[:60]!r}, which is none of {', '.join(names)[:400]} (state {i})"
    return None
