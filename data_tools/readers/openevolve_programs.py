"""OpenEvolve: from files to one record per program; field by field, the first place that knows wins."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from data_tools.readers.files import Problems, Unreadable, integer, mapping, opened, read_object, real, text
from data_tools.readers.spool import Piece, Pieces
from data_tools.readers.traces import records

LONGEST_ARTIFACT = 256 << 10  # characters of one artifact that are kept; a prompt shows 20 KiB of it
ARTIFACTS = 64  # of one program


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
        artifacts=_shortened(mapping(record.get("artifacts"))) or None, mode=text(extra.get("evolution_mode")) or None,
        usage=mapping(extra.get("token_usage")) or mapping(prompt.get("token_usage")) or None,
        model=text(extra.get("llm_model")) or None, changes=text(extra.get("changes")) or None,
        logged=real(record.get("timestamp")), seconds=real(extra.get("iteration_time")),
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
        artifact_dir=text(record.get("artifact_dir")) or None, mode=text(extra.get("evolution_mode")) or None,
        usage=mapping(extra.get("token_usage")) or mapping(prompt.get("token_usage")) or None,
        model=text(extra.get("llm_model")) or None, changes=text(extra.get("changes")) or None,
        migrant=extra.get("migrant") is True or None, made=real(record.get("timestamp")),
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
            return _shortened({"artifacts": text(value)}) if value else None
    return _shortened(mapping(value)) or None


def _shortened(artifacts: dict[str, Any]) -> dict[str, Any]:
    """The artifacts, long texts cut: in a trace they stand in full, and a log can have any length."""
    return {k: cut(v, len(v)) if isinstance(v, str) and len(v) > LONGEST_ARTIFACT else v for k, v in artifacts.items()}


def cut(value: str, length: int) -> str:
    """The beginning of a text of `length` characters (or bytes), and how much is missing."""
    return f"{value[:LONGEST_ARTIFACT]}\n... (cut off here, {length} in all)"


def _mutation_prompt(logged: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The prompt that asked for this program. An evaluator that asks a model logs its own beside it ("evaluation")."""
    known = [k for k in ("diff_user", "full_rewrite_user") if mapping(logged.get(k))]
    others = [k for k in sorted(map(str, logged)) if not k.startswith("evaluat") and mapping(logged.get(k))]
    for key in known + others:
        return text(key), mapping(logged[key])
    return "", {}


def gather(
    traces: list[Path], programs: Iterable[tuple[Path, list[str]]], problems: Problems, base: list[Path], pieces: Pieces
) -> set[str]:
    """Fill `pieces` with all programs; returns the names of the fields seen on the way (which tell the release).

    `programs`: folders and the program files in them, the most trusted first. `base`: folders that paths in `sources`
    are relative to. Most programs stand in many checkpoints: one whole copy is enough, and copies of one size are one.
    """
    seen: set[str] = set()
    for path in traces:
        where = _relative(path, base)
        for number, record in enumerate(records(path, problems), 1):
            seen |= {f"metadata.{k}" for k in mapping(record.get("metadata"))}
            piece = _from_trace(record, where)
            if piece is None:
                problems.add(f"{path}, record {number}", "no child_id: not a trace record")
            else:
                pieces.take(piece, record=False)
    read: dict[str, set[int]] = {}  # sizes of the copies that were read
    done: set[str] = set()  # names of files whose programs are whole
    for folder, names in programs:
        where = _relative(folder, base)
        for name in [n for n in names if n not in done]:
            stem = name[:-5]
            known = pieces.peek(stem)
            if known is not None and known.whole:
                done.add(name)
                continue
            path = folder / name
            try:
                if stem in read:
                    size = path.stat().st_size
                    if size in read[stem]:
                        continue
                    read[stem].add(size)
                elif known is not None:  # no more than the trace's word so far
                    read[stem] = {path.stat().st_size}
                record = read_object(path)
            except (OSError, Unreadable) as e:
                problems.add(path, getattr(e, "strerror", None) or e)
                continue
            if not isinstance(record.get("code"), str):
                problems.add(path, "no 'code' in it: not a program record")
                continue
            seen.update(record)
            seen.update(f"metadata.{k}" for k in mapping(record.get("metadata")))
            piece = _from_program(record, f"{where}/{text(name)}", stem)
            if pieces.take(piece, record=True) and piece.id == stem:
                done.add(name)
    return {text(s) for s in seen}


def _relative(path: Path, base: list[Path]) -> str:
    """The path within its root, which is what a reader of the table can still make sense of on another machine."""
    for root in base:
        if path.is_relative_to(root):
            return text(str(path.relative_to(root))) if path != root else text(path.name)
    return text(path.name)


class LargeArtifacts:
    """Artifacts that were too large for the program's record: files in `artifacts/<program id>/`.

    `folders`: the folders called `artifacts` under and beside the roots. Only they are looked into, whatever path a
    record names, and only one level down.
    """

    def __init__(self, folders: list[Path], problems: Problems) -> None:
        self.folders, self.problems = [f.resolve() for f in folders if f.is_dir()], problems
        self.found = 0  # artifacts read

    def of(self, piece: Piece | None) -> dict[str, Any]:
        """All artifacts of a program: those in its record, and those in files."""
        if piece is None:
            return {}
        inline = piece.artifacts or {}
        name = (piece.artifact_dir or "").replace("\\", "/").rstrip("/").rpartition("/")[2]
        if not name or name != piece.id or name in (".", "..") or "\0" in name:
            return inline
        return {**self._read(name), **inline}

    def _read(self, name: str) -> dict[str, str]:
        for folder in self.folders:
            place = folder / name
            if place.is_symlink() or not place.is_dir():
                continue
            found = {}
            for file in sorted(place.iterdir())[:ARTIFACTS]:
                try:
                    if file.is_symlink():
                        raise Unreadable("a link: not followed")
                    size = file.stat().st_size
                    with opened(file) as f:
                        raw = f.read(LONGEST_ARTIFACT).decode("utf-8", "replace")
                    found[text(file.name)] = text(raw) if size <= LONGEST_ARTIFACT else cut(raw, size)
                except (OSError, Unreadable) as e:
                    self.problems.add(file, getattr(e, "strerror", None) or e)
            self.found += len(found)
            return found
        return {}


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
