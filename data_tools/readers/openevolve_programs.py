"""OpenEvolve: from files to one record per program; field by field, the first place that knows wins."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from data_tools.readers.files import (
    Problems,
    Unreadable,
    integer,
    json_lines,
    mapping,
    read_object,
    text,
    traces_hdf5,
    traces_json,
)  # fmt: skip


@dataclass
class Piece:
    """What one file says about one program; None where it says nothing."""

    id: str
    source: str
    parent_id: str | None = None
    code: str | None = None
    metrics: dict | None = None
    parent_code: str | None = None
    parent_metrics: dict | None = None
    language: str | None = None
    iteration: int | None = None
    generation: int | None = None
    island: int | None = None
    system: str | None = None
    user: str | None = None
    key: str | None = None  # name of the prompt in the log: diff_user, full_rewrite_user, …
    responses: list[str] | None = None
    artifacts: dict | None = None
    mode: str | None = None  # evolution_mode: what form of edit was asked for (0.4.1)
    usage: dict | None = None
    model: str | None = None
    migrant: bool | None = None
    sources: list[str] = field(default_factory=list)

    def absorb(self, other: Piece) -> None:
        """Take over what `other`, a less trusted place, knows and this one does not."""
        for f in fields(Piece):
            if f.name not in ("id", "source", "sources") and getattr(self, f.name) is None:
                setattr(self, f.name, getattr(other, f.name))
        self.sources.append(other.source)

    @property
    def complete(self) -> bool:
        """Nothing that an older file could add."""
        return None not in (self.code, self.metrics, self.parent_metrics, self.responses, self.user)


def _from_trace(record: dict[str, Any], source: str) -> Piece | None:
    child = text(record.get("child_id"))
    if not child:
        return None
    prompt, extra = mapping(record.get("prompt")), mapping(record.get("metadata"))
    response = record.get("llm_response")
    return Piece(
        id=child, source=source, sources=[source], parent_id=text(record.get("parent_id")) or None,
        code=_code(record, "child_code"), metrics=_metrics(record, "child_metrics"),
        parent_code=_code(record, "parent_code"), parent_metrics=_metrics(record, "parent_metrics"),
        iteration=_number(record, "iteration"), generation=_number(record, "generation"),
        island=_number(record, "island_id"), system=text(prompt.get("system")) if prompt else None,
        user=text(prompt.get("user")) if prompt else None,
        responses=[text(response)] if isinstance(response, str) else _responses(prompt),
        artifacts=mapping(record.get("artifacts")) or None, mode=text(extra.get("evolution_mode")) or None,
        usage=mapping(extra.get("token_usage")) or mapping(prompt.get("token_usage")) or None,
        model=text(extra.get("llm_model")) or None,
    )  # fmt: skip


def _from_program(record: dict[str, Any], source: str, stem: str) -> Piece:
    extra, logged = mapping(record.get("metadata")), mapping(record.get("prompts"))
    key, prompt = _mutation_prompt(logged)
    return Piece(
        id=text(record.get("id")) or text(stem), source=source, sources=[source],
        parent_id=text(record.get("parent_id")) or None, code=_code(record, "code"),
        metrics=_metrics(record, "metrics"), parent_metrics=_metrics(extra, "parent_metrics"),
        language=text(record.get("language")) or None, iteration=_number(record, "iteration_found"),
        generation=_number(record, "generation"), island=_number(extra, "island"), key=key or None,
        system=text(prompt.get("system")) if prompt else None, user=text(prompt.get("user")) if prompt else None,
        responses=_responses(prompt), artifacts=_artifacts(record.get("artifacts_json")),
        mode=text(extra.get("evolution_mode")) or None,
        usage=mapping(extra.get("token_usage")) or mapping(prompt.get("token_usage")) or None,
        model=text(extra.get("llm_model")) or None, migrant=extra.get("migrant") is True or None,
    )  # fmt: skip


def _code(record: dict[str, Any], name: str) -> str | None:
    return text(record[name]) if isinstance(record.get(name), str) else None


def _metrics(record: dict[str, Any], name: str) -> dict | None:
    return record[name] if isinstance(record.get(name), dict) else None


def _number(record: dict[str, Any], name: str) -> int | None:
    value = integer(record.get(name), -1)
    return value if value >= 0 else None


def _responses(prompt: dict[str, Any]) -> list[str] | None:
    listed = prompt.get("responses")
    found = [text(r) for r in listed if isinstance(r, str)] if isinstance(listed, list) else []
    return found or None


def _artifacts(value: Any) -> dict | None:
    """`artifacts_json` is JSON text inside JSON; the records of some tools hold the object itself."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {"artifacts": text(value)} if value else None
    return mapping(value) or None


def _mutation_prompt(logged: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The prompt that asked for this program. An evaluator that asks a model logs its own beside it ("evaluation")."""
    known = [k for k in ("diff_user", "full_rewrite_user") if mapping(logged.get(k))]
    others = [k for k in sorted(map(str, logged)) if not k.startswith("evaluat") and mapping(logged.get(k))]
    for key in known + others:
        return text(key), mapping(logged[key])
    return "", {}


def gather(
    traces: list[Path], programs: list[Path], problems: Problems, base: list[Path]
) -> tuple[dict[str, Piece], set[str]]:
    """All programs by id, and the names of the fields seen on the way (which tell the release).

    `programs`: program files, the most trusted first. `base`: folders that paths in `sources` are relative to.
    """
    pieces: dict[str, Piece] = {}
    seen: set[str] = set()

    def take(piece: Piece) -> None:
        known = pieces.get(piece.id)
        if known is None:
            pieces[piece.id] = piece
        else:
            known.absorb(piece)

    for path in traces:
        read = {".json": traces_json, ".hdf5": traces_hdf5, ".h5": traces_hdf5}.get(path.suffix, json_lines)
        for number, record in enumerate(read(path, problems), 1):
            seen |= {f"metadata.{k}" for k in mapping(record.get("metadata"))}
            piece = _from_trace(record, _relative(path, base))
            if piece is None:
                problems.add(f"{path}, record {number}", "no child_id: not a trace record")
            else:
                take(piece)
    for path in programs:
        known = pieces.get(path.stem)
        if known is not None and known.complete and known.artifacts is not None:
            continue  # most programs stand in many checkpoints; one whole copy is enough
        try:
            record = read_object(path)
        except Unreadable as e:
            problems.add(path, e)
            continue
        if not isinstance(record.get("code"), str):
            problems.add(path, "no 'code' in it: not a program record")
            continue
        seen |= set(record) | {f"metadata.{k}" for k in mapping(record.get("metadata"))}
        take(_from_program(record, _relative(path, base), path.stem))
    return pieces, {text(s) for s in seen}


def _relative(path: Path, base: list[Path]) -> str:
    """The path within its root, which is what a reader of the table can still make sense of on another machine."""
    for root in base:
        if path.is_relative_to(root):
            return text(str(path.relative_to(root))) if path != root else text(path.name)
    return text(path.name)


def release_of(seen: set[str], metadata_keys: set[str]) -> str:
    """The release that wrote the logs, as far as fields tell: exact ("0.4.1"), at least ("0.2.26+"), or "" unknown."""
    if seen & {"metadata.evolution_mode", "metadata.llm_model"}:
        return "0.4.1"
    if "metadata.token_usage" in seen:
        return "0.4.0"
    for name, release in (("changes_description", "0.2.26+"), ("embedding", "0.2.18+")):
        if name in seen:
            return release
    return "0.1" if "feature_map" in metadata_keys else ""
