"""Stage configuration: one pydantic class per stage, filled from defaults < --config FILE < --set a.b=v < flags.

A stage module exports `Config` (a `StageConfig`) and `run(config) -> Path`. Unknown keys are errors that name the
nearest valid one. Relative paths in a config are relative to its `root` (default: the working directory), so that a
recipe can be moved as a whole with `--set root=elsewhere`.
"""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from eft.errors import UsageError, nearest


class Section(BaseModel):
    """A nested part of a stage's configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class StageConfig(Section):
    """Base of every stage's `Config`.

    `root`: what relative paths are relative to. `output`: the folder (or file) that the stage writes.
    Class variable `positional`: the field that the command line's positional arguments fill (a list field takes many).
    """

    positional: ClassVar[str | None] = None

    root: Path = Field(Path("."), description="what relative paths in the configuration are relative to")
    output: Path | None = Field(None, description="the folder (or file) to write")

    def path(self, value: Path | str) -> Path:
        """`value` as a path under `root`; absolute paths stay as they are."""
        return self.root / Path(value).expanduser()

    def out(self) -> Path:
        """The output path, under `root`. Raises UsageError where none was given."""
        if self.output is None:
            raise UsageError("no output was given", way_out="give -o OUT, or `output:` in the config file")
        return self.path(self.output)


C = TypeVar("C", bound=StageConfig)


def read_yaml(file: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises UsageError for a missing file, broken YAML or anything but a mapping."""
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError("the config file does not exist", where=file) from None
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError("the config file cannot be read", where=file, why=str(e)) from None
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        line = f"{file}, line {mark.line + 1}" if mark else file
        raise UsageError("the config file is not valid YAML", where=line, why=getattr(e, "problem", str(e))) from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise UsageError("the config file must hold a mapping", where=file, why=f"it holds a {type(data).__name__}")
    return data


def assign(data: dict[str, Any], dotted: str) -> None:
    """Apply one `--set a.b=value` to `data` in place; the value is read as YAML (so 3, true, null, [a, b] work)."""
    key, sep, raw = dotted.partition("=")
    if not sep or not key:
        raise UsageError(f"--set takes a.b=value, got '{dotted}'")
    try:
        value = yaml.safe_load(raw)
    except yaml.YAMLError:
        raise UsageError(f"the value of --set {key} is not valid YAML", why=raw) from None
    *parents, last = key.split(".")
    for name in parents:
        child = data.setdefault(name, {})
        if not isinstance(child, dict):
            raise UsageError(f"--set {key}: '{name}' is a value, not a section")
        data = child
    data[last] = value


def _section_keys(model: type[BaseModel], location: tuple) -> list[str]:
    """The valid keys of the section that `location` (a pydantic error location, its last part unknown) points into."""
    for part in location[:-1]:
        field = model.model_fields.get(part) if isinstance(part, str) else None
        if field is None:
            continue
        candidates = [field.annotation, *typing.get_args(field.annotation)]
        for c in list(candidates):
            candidates += typing.get_args(c)
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), model)
    return list(model.model_fields)


def make(model: type[C], data: dict[str, Any], source: object = None) -> C:
    """Validate `data` into `model`. Raises UsageError naming every bad key or value and the nearest valid key."""
    try:
        return model.model_validate(data)
    except ValidationError as e:
        lines = []
        for error in e.errors():
            key = ".".join(str(p) for p in error["loc"])
            if error["type"] == "extra_forbidden":
                lines.append(f"unknown key '{key}': {nearest(str(error['loc'][-1]), _section_keys(model, error['loc']))}")
            elif error["type"] == "missing":
                lines.append(f"'{key}' is required")
            else:
                lines.append(f"'{key}': {error['msg']} (got {str(error.get('input'))[:80]!r})")
        raise UsageError("the configuration is not valid", where=source, why="; ".join(lines)) from None


def load(
    model: type[C], file: Path | None = None, sets: tuple[str, ...] = (), flags: dict[str, Any] | None = None,
    section: str | None = None,
) -> C:  # fmt: skip
    """The stage config from defaults < `file` (its `section`, if given) < `sets` < `flags` (None values are ignored)."""
    data = read_yaml(file) if file else {}
    if section is not None and section in data and isinstance(data[section], dict):
        shared = {k: data[k] for k in ("root",) if k in data}
        data = {**shared, **data[section]}
    for item in sets:
        assign(data, item)
    data.update({k: v for k, v in (flags or {}).items() if v is not None})
    return make(model, data, source=file)


def dump(config: BaseModel) -> str:
    """The resolved config as YAML; reading it back gives an equal config."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
