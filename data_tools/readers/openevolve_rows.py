"""OpenEvolve: from programs to transitions. Who is a child, who its parent was, does the reply make the child?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from data_tools import rebuild
from data_tools.readers.files import TOO_DEEP, integer, text
from data_tools.readers.openevolve_config import RunConfig
from data_tools.readers.openevolve_programs import LargeArtifacts
from data_tools.readers.search import Options, Search
from data_tools.readers.spool import Piece, Pieces
from data_tools.scores import judge
from eft import edits, prompts
from eft.records import Transition, code_hash, to_json, transition_id

MODES = {
    "diff": "diff",
    "diff_user": "diff",
    "full_rewrite": "rewrite",
    "rewrite": "rewrite",
    "full_rewrite_user": "rewrite",
}
COUNTED = ("programs", "seeds", "copies", "children", "with_prompt", "with_response", "prompts_rebuilt",
           "parent_missing", "parent_recovered", "child_recovered", "replay_match", "replay_mismatch", "replay_unknown",
           "large_artifacts", "odd_language")  # fmt: skip


@dataclass
class Maker:
    """Makes the rows of one search. `rows` streams them by iteration; `counts` is whole once they are through."""

    pieces: Pieces
    search: Search
    options: Options
    config: RunConfig
    artifacts: LargeArtifacts
    measured: dict[str, dict] = field(default_factory=dict)  # code hash -> metrics that the logs may lack
    counts: Counter[str] = field(default_factory=Counter)

    def rows(self) -> Iterator[Transition]:
        """The transitions. One that cannot be put together is named among the search's problems."""
        self.counts["programs"] = len(self.pieces)
        history, build = self._history() if self.options.rebuild else (None, None)
        for light in sorted(self.pieces.light(), key=lambda p: (p.iteration or 0, p.id)):
            if light.parent_id is None:
                self.counts["seeds"] += 1
                continue
            piece, parent = self.pieces.get(light.id), self.pieces.get(light.parent_id)
            if is_copy(piece, parent):
                self.counts["copies"] += 1
                continue
            try:
                row = self._row(piece, parent)
                if history is not None and not row.prompt_user and row.parent_code:
                    row = self._with_prompt(row, history, build)
            except RecursionError:
                self.search.problems.add(f"program {text(piece.id)[:80]}", TOO_DEEP)
                continue
            self.counts["children"] += 1
            self.counts["with_prompt"] += bool(row.prompt_user and row.prompt_source == "logged")
            yield row
        self.counts["large_artifacts"] = self.artifacts.found

    def counted(self) -> dict[str, int]:
        return {name: self.counts[name] for name in COUNTED}

    # ------------------------------------------------------------------------------------------------------- one row

    def _row(self, piece: Piece, parent: Piece | None) -> Transition:
        search, counts = self.search, self.counts
        ours, user = search.about, piece.user or ""
        labelled = piece.language or (parent.language if parent else None) or self.config.language or "python"
        shown = prompts.current_program(user)
        own = parent.code if parent else None
        found = replay(
            candidates=[c for c in dict.fromkeys((piece.parent_code, own, shown)) if c is not None],
            responses=piece.responses or [], child=piece.code, kinds=_kinds(piece, user),
            dialects=dialects(search.release), language=labelled, enforce=self.config.enforce,
            described=self.config.described, pattern=self.options.diff_pattern or self.config.pattern,
        )  # fmt: skip
        language = spoken(labelled, found.parent or found.child)
        counts["odd_language"] += language != labelled
        counts["with_response"] += bool(piece.responses)
        counts["parent_missing"] += piece.parent_code is None and own is None
        counts["parent_recovered"] += piece.parent_code is None and own is None and shown is not None
        counts["child_recovered"] += piece.code is None and bool(found.child)
        counts[f"replay_{found.state}"] += 1
        metrics = piece.parent_metrics if piece.parent_metrics is not None else (parent.metrics if parent else None)
        usage = piece.usage or {}
        logged = bool(user or piece.system)
        return Transition(
            id=transition_id(search.name, piece.parent_id or "", piece.id), run=search.name, scaffold=search.scaffold,
            scaffold_release=search.release, task=text(ours.get("task")) or self.options.task or search.name,
            domain=text(ours.get("domain")) or self.options.domain,
            suite_role=text(ours.get("role")) or self.options.role,
            iteration=piece.iteration or 0, island=-1 if piece.island is None else piece.island,
            generation=piece.generation or 0, parent_id=piece.parent_id or "", child_id=piece.id, language=language,
            parent_code=found.parent, child_code=found.child,
            parent_metrics=self._metrics(metrics, found.parent),
            child_metrics=self._metrics(piece.metrics, found.child),
            parent_artifacts=text(to_json(self.artifacts.of(parent))),
            child_artifacts=text(to_json(self.artifacts.of(piece))), prompt_system=piece.system or "", prompt_user=user,
            prompt_format=self._format(piece) if logged else "",
            response=found.response, reasoning=prompts.inline_reasoning(found.response), edit_kind=found.kind,
            replay=found.state, model=piece.model or text(usage.get("model")) or text(ours.get("model")),
            prompt_tokens=integer(usage.get("prompt_tokens"), -1),
            response_tokens=integer(usage.get("completion_tokens"), -1), sources=to_json(piece.sources),
            prompt_source="logged" if logged else "", origin_id=self.origin(piece.parent_id or ""),
        )  # fmt: skip

    def _metrics(self, logged: dict[str, Any] | None, code: str) -> str:
        """As logged, with what the evaluator said besides; "" where nothing was logged."""
        if logged is None:
            return ""
        more = self.measured.get(code_hash(code)) if self.measured else None
        return text(to_json({**more, **logged} if more else logged))

    def _format(self, piece: Piece) -> str:
        system, user = piece.system or "", piece.user or ""
        return text(self.search.about.get("prompt_format")) or prompts.detect_format(
            system, user, piece.key, self.search.release
        )

    def origin(self, name: str) -> str:
        """The program that `name` is a copy of (a migrant may be the copy of a migrant), or `name` itself."""
        passed = {name}
        while (piece := self.pieces.peek(name)) is not None and piece.parent_id and piece.parent_id not in passed:
            if piece.replied and not piece.migrant:
                break  # a model made it
            if not is_copy(self.pieces.get(name), self.pieces.get(piece.parent_id)):
                break
            name = piece.parent_id
            passed.add(name)
        return name.partition("_migrant_")[0] or name  # how migrants were called before 0.2.17

    # ------------------------------------------------------------------------------------------- prompts not logged

    def _history(self) -> tuple[rebuild.History | None, Any]:
        """The history of the rows that have no prompt; (None, None) where there are none such."""
        wanted = [p.id for p in self.pieces.light() if p.parent_id is not None and not p.asked]
        if not wanted:
            return None, None
        build = rebuild.sampler(self.config.system or self._instruction())
        if build is None:
            self.search.notes.append("prompts were not logged, and OpenEvolve is not installed to rebuild them")
            return None, None
        return rebuild.History((self._known(p.id) for p in list(self.pieces.light())), wanted), build

    def _known(self, name: str) -> rebuild.Known:
        piece = self.pieces.get(name)
        try:
            score = judge(piece.metrics or {}).score
        except (RecursionError, OverflowError):
            score = None
        return rebuild.known(name, piece.parent_id, piece.code or "", score, island=piece.island, made=piece.made,
                             logged=piece.logged, seconds=piece.seconds)  # fmt: skip

    def _instruction(self) -> str:
        """The system message that the search logged most often with other children."""
        logged = Counter(s for p in self.pieces.light() if (s := self.pieces.get(p.id).system))
        return logged.most_common(1)[0][0] if logged else ""

    def _with_prompt(self, row: Transition, history: rebuild.History, build: Any) -> Transition:
        earlier = [self._shown(name) for name in history.best(row.child_id)]
        piece, parent = self.pieces.get(row.child_id), self.pieces.get(row.parent_id)
        metrics = piece.parent_metrics or (parent.metrics if parent else None) or {}
        whole = "rewrite" if piece.changes == "Full rewrite" else "diff"  # as OpenEvolve sums up a whole program
        kind = row.edit_kind or MODES.get(piece.mode or "", whole)
        try:
            system, user = build(
                code=row.parent_code, metrics=_numbers(metrics), artifacts=self.artifacts.of(parent), history=earlier,
                language=row.language, diff=kind == "diff", seed=row.id,
            )  # fmt: skip
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, IndexError) as e:
            self.search.problems.add(f"program {text(row.child_id)[:80]}",
                                     f"its prompt cannot be rebuilt: {type(e).__name__}: {e}")  # fmt: skip
            return row
        self.counts["prompts_rebuilt"] += 1
        return row.replace(prompt_system=text(system), prompt_user=text(user), prompt_format=rebuild.FORMAT,
                           prompt_source="rebuilt")  # fmt: skip

    def _shown(self, name: str) -> dict[str, Any]:
        """A program as the prompt sampler reads one."""
        piece = self.pieces.get(name)
        return {"id": name, "code": piece.code or "", "metrics": _numbers(piece.metrics or {}),
                "metadata": {"changes": piece.changes or "Unknown changes",
                             "parent_metrics": _numbers(piece.parent_metrics or {})}}  # fmt: skip


def _numbers(metrics: dict[str, Any]) -> dict[str, Any]:
    """Metrics that a prompt can show: numbers within a float's range, and short texts."""
    return {text(k): v for k, v in metrics.items()
            if (isinstance(v, int | float) and abs(v) < 1e300) or (isinstance(v, str) and len(v) < 200)}  # fmt: skip


def is_copy(piece: Piece, parent: Piece | None) -> bool:
    """A migrant, or the copy of the best program that fills an empty island: same code, no model was asked for it."""
    if piece.migrant or "_migrant_" in piece.id:
        return True
    if piece.responses:
        return False
    if parent is not None and parent.code is not None and parent.code == piece.code:
        return True
    return piece.iteration == 0 and parent is None  # the oldest releases did not log iterations at all


# -------------------------------------------------------------------------------------------------------- language

# What a program of another language looks like, where its run's config (or OpenEvolve's guess) calls it Python.
_LANGUAGES = {
    "cpp": re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]|^(?:int|void|auto)\s+main\s*\(", re.MULTILINE),
    "rust": re.compile(r"^[ \t]*(?:pub\s+)?fn\s+\w+\s*(?:<[^>\n]*>)?\(|^[ \t]*use\s+std::", re.MULTILINE),
    "go": re.compile(r"^package\s+\w+\s*$", re.MULTILINE),
    "java": re.compile(r"^[ \t]*(?:public\s+)?(?:final\s+)?class\s+\w+[^:\n]*\{|^import\s+java\.", re.MULTILINE),
    "javascript": re.compile(r"^[ \t]*(?:const|let|var)\s+\w+\s*=|^[ \t]*function\s+\w+\s*\(", re.MULTILINE),
}
_NAMES = {"c++": "cpp", "cc": "cpp", "cxx": "cpp", "py": "python", "python3": "python", "js": "javascript"}


def _odd(code: str) -> bool:
    """Might this be another language than Python? Asked of every program, so: quickly."""
    return ("{" in code or ";" in code) and (
            "include" in code or "main" in code or "fn " in code or "use std" in code or "package " in code
            or "class " in code or "java" in code or "const " in code or "let " in code or "var " in code
            or "function " in code)  # fmt: skip


def spoken(labelled: str, code: str) -> str:
    """The language that `code` is in. The label is believed unless it says Python (or nothing), which a config says by
    default, and the code is none but looks like another one."""
    name = _NAMES.get(labelled.lower(), labelled.lower())
    if name not in ("python", "text", "unknown", "") or (name == "python" and not _odd(code)):
        return name
    likely = next((language for language, mark in _LANGUAGES.items() if mark.search(code)), "")
    if likely and edits.parse_python(code) is None:
        return likely
    return name if name == "python" or likely or edits.parse_python(code) is None else "python"


# ---------------------------------------------------------------------------------------------------------- replay


@dataclass(frozen=True)
class Replayed:
    """The outcome of a replay: the parent, reply and kind that explain the child, or the best guesses."""

    state: str  # match, mismatch, unknown (no reply, no parent or no child to compare with)
    parent: str
    child: str
    response: str
    kind: str


def dialects(release: str) -> list[str]:
    """The dialects that a child may have been made in: the release's, or each different one where it is unknown."""
    return [edits.dialect_for(release)] if release else ["openevolve@0.4", "openevolve@0.4.0", "openevolve@0.3"]


def replay(
    *, candidates: list[str], responses: list[str], child: str | None, kinds: list[str], dialects: list[str],
    language: str, pattern: str | None, enforce: bool = False, described: bool = False,
) -> Replayed:  # fmt: skip
    """Is the child what the scaffold makes of a reply? Tried: every reply, possible parent and kind of edit.

    Where the child's code was not kept (a trace without code), what the reply makes of the parent takes its place.
    """
    parent = candidates[0] if candidates else ""
    response = responses[-1] if responses else ""
    kind = kinds[0] if kinds and responses else ""
    made = None
    for reply in reversed(responses[-_REPLIES:]):
        for code in candidates:
            for form in kinds or ["diff", "rewrite"]:
                for dialect in dialects:
                    edit = edits.apply(code, reply, kind=form, dialect=dialect, language=language,
                                       diff_pattern=pattern, enforce=enforce, described=described)  # fmt: skip
                    if edit and child is None:
                        made = made or Replayed("unknown", code, edit.child, reply, form)
                    elif edit and edit.child == child:
                        return Replayed("match", code, child, reply, form)
    if made:
        return made
    state = "mismatch" if responses and candidates and child is not None else "unknown"
    return Replayed(state, parent, child or "", response, kind)


_REPLIES = 16  # of one program; OpenEvolve logs one


def _kinds(piece: Piece, user: str) -> list[str]:
    """Both kinds of edit, the one that was asked for first."""
    asked = MODES.get(piece.mode or "") or prompts.edit_kind(user) or MODES.get(piece.key or "") or ""
    return [asked, "rewrite" if asked == "diff" else "diff"] if asked else ["diff", "rewrite"]
