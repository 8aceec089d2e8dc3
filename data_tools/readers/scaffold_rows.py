"""From a scaffold's programs to transitions, for the readers of scaffolds that keep prompt and reply beside a program.

A reader says what its logs say of one program (`Made`) and of its parent; the row, with the replay of the reply on the
parent, is made here.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from data_tools.readers.files import integer, text
from data_tools.readers.openevolve_rows import spoken
from data_tools.readers.search import Options, Search
from eft import edits, prompts
from eft.records import COLUMNS, Transition, to_json, transition_id

COUNTED = ("programs", "seeds", "copies", "children", "with_prompt", "with_response", "parent_missing",
           "parent_recovered", "child_recovered", "replay_match", "replay_mismatch", "replay_unknown")  # fmt: skip
DEEPEST = 40  # levels of nesting that metrics and artifacts may have
MOST = 50_000  # values in one program's metrics or artifacts


@dataclass
class Made:
    """One program as the logs have it. None: they do not say."""

    id: str
    parent_id: str = ""
    code: str | None = None
    language: str = "python"
    metrics: dict[str, Any] | None = None
    artifacts: dict[str, Any] = field(default_factory=dict)
    parent_metrics: dict[str, Any] | None = None  # as they were when the child was made, where logged with the child
    iteration: int = 0
    generation: int = 0
    island: int = -1
    system: str = ""
    user: str = ""
    key: str = ""  # the name under which the prompt was logged
    replies: tuple[str, ...] = ()
    reasoning: str = ""
    model: str = ""
    prompt_tokens: int = -1
    response_tokens: int = -1
    kinds: tuple[str, ...] = ("diff", "rewrite")  # forms of edit that may have made it, the likeliest first
    inspirations: tuple[str, ...] = ()  # ids of the programs that were shown beside the parent
    source: str = ""


def row(
    child: Made, parent: Made | None, search: Search, options: Options, dialects: tuple[str, ...],
    counts: Counter[str], *, origin: str = "",
) -> Transition:  # fmt: skip
    """The transition to `child`, counted. `origin`: the program that the parent is a copy of, where it is one."""
    ours = search.about
    shown = prompts.current_program(child.user) if child.user else None
    own = parent.code if parent else None
    candidates = [c for c in dict.fromkeys((own, shown)) if c is not None]
    # ShinkaEvolve writes "python" beside C++ programs as well.
    language = spoken(child.language, child.code or next(iter(candidates), ""))
    counts["odd_language"] += language != child.language
    state, before, after, reply, kind = _replay(child, candidates, dialects, (language, child.language))
    metrics = child.parent_metrics if child.parent_metrics is not None else (parent.metrics if parent else None)
    logged = bool(child.user)
    counts["children"] += 1
    counts["with_prompt"] += logged
    counts["with_response"] += bool(child.replies)
    counts["parent_missing"] += own is None
    counts["parent_recovered"] += own is None and shown is not None
    counts["child_recovered"] += child.code is None and bool(after)
    counts[f"replay_{state}"] += 1
    values = dict(
        id=transition_id(search.name, child.parent_id, child.id), run=search.name, scaffold=search.scaffold,
        scaffold_release=search.release, task=text(ours.get("task")) or options.task or search.name,
        domain=text(ours.get("domain")) or options.domain, suite_role=text(ours.get("role")) or options.role,
        iteration=child.iteration, island=child.island, generation=child.generation, parent_id=child.parent_id,
        child_id=child.id, language=language, parent_code=before, child_code=after,
        parent_metrics="" if metrics is None else text(to_json(metrics)),
        child_metrics="" if child.metrics is None else text(to_json(child.metrics)),
        parent_artifacts=text(to_json(parent.artifacts if parent else {})),
        child_artifacts=text(to_json(child.artifacts)), prompt_system=child.system, prompt_user=child.user,
        prompt_format=prompts.detect_format(child.system, child.user, child.key, search.release) if logged else "",
        response=reply, reasoning=child.reasoning, edit_kind=kind, replay=state,
        model=child.model or text(ours.get("model")), prompt_tokens=child.prompt_tokens,
        response_tokens=child.response_tokens, sources=to_json([child.source]),
        prompt_source="logged" if logged else "", origin_id=origin or child.parent_id,
        inspirations=to_json(list(child.inspirations)),
    )  # fmt: skip
    return Transition(**{name: value for name, value in values.items() if name in COLUMNS})


def _replay(
    child: Made, candidates: list[str], dialects: Iterable[str], languages: tuple[str, ...]
) -> tuple[str, str, str, str, str]:
    """(state, parent, child, reply, kind of edit): does a reply make the child of the parent? As `replay` of the
    OpenEvolve reader, with other scaffolds' dialects."""
    for reply in reversed(child.replies):
        for parent in candidates:
            for kind in child.kinds:
                for dialect, language in itertools.product(dialects, dict.fromkeys(languages)):
                    edit = edits.apply(parent, reply, kind=kind, dialect=dialect, language=language)
                    if edit and (child.code is None or same(edit.child, child.code)):
                        state = "unknown" if child.code is None else "match"
                        return state, parent, edit.child if child.code is None else child.code, reply, kind
    state = "mismatch" if child.replies and candidates and child.code is not None else "unknown"
    return (state, candidates[0] if candidates else "", child.code or "", child.replies[-1] if child.replies else "",
            child.kinds[0] if child.kinds and child.replies else "")  # fmt: skip


def same(made: str, stored: str) -> bool:
    """Are these the same program? Files are written and read back on the way, which makes all line ends "\\n"."""
    return made == stored or made.replace("\r\n", "\n").replace("\r", "\n") == stored


def plain(value: Any, other: Callable[[Any], Any] = lambda v: None) -> Any:
    """`value` as JSON knows it, and not too much of it: what is nested too deeply, or comes after `MOST` values, is
    left out. Objects shared many times over (a pickle can hold 2^50 references to one list) end here. `other`: what to
    make of what JSON does not know."""
    left = MOST

    def reduced(v: Any, level: int) -> Any:
        nonlocal left
        left -= 1
        if left < 0 or level > DEEPEST:
            return None
        if v is None or isinstance(v, bool | float):
            return v
        if isinstance(v, int):
            return v if abs(v) < 1 << 1024 else None
        if isinstance(v, str):
            return text(v)
        if isinstance(v, dict):
            return {_key(k): reduced(x, level + 1) for k, x in _some(v.items(), left)}
        if isinstance(v, list | tuple):
            return [reduced(x, level + 1) for x in _some(v, left)]
        return other(v)

    return reduced(value, 0)


def _key(value: Any) -> str:
    if isinstance(value, str):
        return text(value)[:1000]
    return str(value) if isinstance(value, int | float) and abs(value) < 1e18 else type(value).__name__


def _some(values: Iterable[Any], most: int) -> Iterable[Any]:
    return (v for _, v in zip(range(max(most, 0)), values, strict=False))


def object_of(value: Any) -> dict[str, Any]:
    """`value` as a plain object, {} where it is none."""
    found = plain(value) if isinstance(value, dict) else {}
    return found if isinstance(found, dict) else {}


def ids(value: Any) -> tuple[str, ...]:
    """A list of program ids; whatever else is in it is left out."""
    return tuple(text(v) for v in value[:1000] if isinstance(v, str) and v) if isinstance(value, list | tuple) else ()


def count(value: Any) -> int:
    """A whole number that is not negative, else 0."""
    return max(integer(value, 0), 0)


def finish(search: Search, counts: Counter[str], iterations: int, failures: Counter[str] | None) -> None:
    """Fill in what the report shows. `failures`: reason -> iterations without a child; None: the logs do not tell."""
    search.failures = dict((failures or Counter()).most_common())
    search.counts = {
        "iterations": iterations,
        **({"failed_iterations": sum(failures.values())} if failures is not None else {}),
        **{name: counts[name] for name in COUNTED},
        **{name: n for name, n in sorted(counts.items()) if name not in COUNTED},
        "bad_files": len(search.problems),
        "lost": 0,
        "logs": 0,
    }
    if counts["replay_mismatch"]:
        search.notes.append(f"{counts['replay_mismatch']} children are not what their reply makes of their parent")
