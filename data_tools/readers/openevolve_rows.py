"""OpenEvolve: from programs to transitions. Who is a child, who its parent was, does the reply make the child?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from data_tools.readers.files import integer, text
from data_tools.readers.openevolve_programs import Piece
from data_tools.readers.search import Options, Search
from eft import edits, prompts
from eft.records import Transition, to_json, transition_id

MODES = {
    "diff": "diff",
    "diff_user": "diff",
    "full_rewrite": "rewrite",
    "rewrite": "rewrite",
    "full_rewrite_user": "rewrite",
}


def rows_of(
    pieces: dict[str, Piece], search: Search, options: Options, pattern: str | None
) -> tuple[list[Transition], dict[str, int]]:
    """The transitions among a search's programs, by iteration, and what was counted on the way."""
    counts: Counter[str] = Counter(programs=len(pieces))
    rows = []
    for piece in sorted(pieces.values(), key=lambda p: (p.iteration or 0, p.id)):
        parent = pieces.get(piece.parent_id or "")
        if piece.parent_id is None:
            counts["seeds"] += 1
        elif is_copy(piece, parent):
            counts["copies"] += 1
        else:
            rows.append(_row(piece, parent, search, options, pattern, counts))
    counts["children"] = len(rows)
    names = ("programs", "seeds", "copies", "children", "with_prompt", "with_response", "parent_missing",
             "parent_recovered", "child_recovered", "replay_match", "replay_mismatch", "replay_unknown")  # fmt: skip
    return rows, {name: counts[name] for name in names}


def is_copy(piece: Piece, parent: Piece | None) -> bool:
    """A migrant, or the copy of the best program that fills an empty island: same code, no model was asked for it."""
    if piece.migrant or "_migrant_" in piece.id:
        return True
    if piece.responses:
        return False
    if parent is not None and parent.code is not None and parent.code == piece.code:
        return True
    return not piece.iteration and parent is None


def _row(
    piece: Piece, parent: Piece | None, search: Search, options: Options, pattern: str | None, counts: Counter[str]
) -> Transition:  # fmt: skip
    ours, user = search.about, piece.user or ""
    language = piece.language or (parent.language if parent else None) or "python"
    shown = prompts.current_program(user)
    own = parent.code if parent else None
    found = replay(
        candidates=[c for c in dict.fromkeys((piece.parent_code, own, shown)) if c is not None],
        responses=piece.responses or [], child=piece.code, kinds=_kinds(piece, user),
        dialects=dialects(search.release), language=language, pattern=pattern,
    )  # fmt: skip
    counts["with_prompt"] += bool(user)
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
        scaffold_release=search.release, task=text(ours.get("task")) or options.task or search.name,
        domain=text(ours.get("domain")) or options.domain, suite_role=text(ours.get("role")) or options.role,
        iteration=piece.iteration or 0, island=-1 if piece.island is None else piece.island,
        generation=piece.generation or 0, parent_id=piece.parent_id or "", child_id=piece.id, language=language,
        parent_code=found.parent, child_code=found.child,
        parent_metrics="" if metrics is None else text(to_json(metrics)),
        child_metrics="" if piece.metrics is None else text(to_json(piece.metrics)),
        parent_artifacts=text(to_json((parent.artifacts if parent else None) or {})),
        child_artifacts=text(to_json(piece.artifacts or {})), prompt_system=piece.system or "", prompt_user=user,
        prompt_format=(text(ours.get("prompt_format")) or
                       prompts.detect_format(piece.system or "", user, piece.key, search.release)) if logged else "",
        response=found.response, reasoning="", edit_kind=found.kind, replay=found.state,
        model=piece.model or text(usage.get("model")) or text(ours.get("model")),
        prompt_tokens=integer(usage.get("prompt_tokens"), -1),
        response_tokens=integer(usage.get("completion_tokens"), -1), sources=to_json(piece.sources),
    )  # fmt: skip


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
    language: str, pattern: str | None,
) -> Replayed:  # fmt: skip
    """Is the child what the scaffold makes of a reply? Tried: every reply, possible parent and kind of edit.

    Where the child's code was not kept (a trace without code), what the reply makes of the parent takes its place.
    """
    parent = candidates[0] if candidates else ""
    response = responses[-1] if responses else ""
    kind = kinds[0] if kinds and responses else ""
    made = None
    for reply in reversed(responses):
        for code in candidates:
            for form in kinds or ["diff", "rewrite"]:
                for dialect in dialects:
                    edit = edits.apply(code, reply, kind=form, dialect=dialect, language=language, diff_pattern=pattern)
                    if edit and child is None:
                        made = made or Replayed("unknown", code, edit.child, reply, form)
                    elif edit and edit.child == child:
                        return Replayed("match", code, child, reply, form)
    if made:
        return made
    state = "mismatch" if responses and candidates and child is not None else "unknown"
    return Replayed(state, parent, child or "", response, kind)


def _kinds(piece: Piece, user: str) -> list[str]:
    """Both kinds of edit, the one that was asked for first."""
    asked = MODES.get(piece.mode or "") or prompts.edit_kind(user) or MODES.get(piece.key or "") or ""
    return [asked, "rewrite" if asked == "diff" else "diff"] if asked else ["diff", "rewrite"]
