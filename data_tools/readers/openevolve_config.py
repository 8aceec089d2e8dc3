"""What a run's own config says about how replies became programs, where a config was left with the logs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_tools.readers.files import Unreadable, mapping, read_bytes, text
from data_tools.readers.search import GENERIC
from eft import edits

NAME = "config.yaml"
_LONGEST = 1 << 20  # bytes
# What OpenEvolve writes into its config by default; edits.py has a faster, equal way to find these blocks.
STANDARD_PATTERN = rf"{edits.SEARCH}\n(.*?){edits.DIVIDER}\n(.*?){edits.REPLACE}"


@dataclass(frozen=True)
class RunConfig:
    """The settings that matter here; the defaults are OpenEvolve's. `pattern`: only one that differs from them."""

    pattern: str | None = None
    language: str = ""
    enforce: bool = False  # enforce_evolve_blocks
    described: bool = False  # prompt.programs_as_changes_description
    system: str = ""  # prompt.system_message


def read(configs: list[Path], roots: list[Path]) -> RunConfig:
    """From the first of `configs` that is one, else from the config beside a folder that OpenEvolve named itself."""
    beside = [root.parent / NAME for root in roots if root.name in GENERIC]
    for path in [*configs, *(p for p in beside if p.is_file())]:
        found = _load(path)
        if not found:
            continue
        prompt = mapping(found.get("prompt"))
        return RunConfig(
            pattern=_pattern(found.get("diff_pattern")), language=text(found.get("language")).lower(),
            enforce=found.get("enforce_evolve_blocks") is True,
            described=prompt.get("programs_as_changes_description") is True, system=text(prompt.get("system_message")),
        )  # fmt: skip
    return RunConfig()


def _load(path: Path) -> dict[str, Any]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return mapping(yaml.load(read_bytes(path, _LONGEST).decode("utf-8", "replace"), loader))  # noqa: S506  safe ones
    except (Unreadable, yaml.YAMLError, RecursionError, ValueError, TypeError, OverflowError, MemoryError):
        return {}


def _pattern(value: Any) -> str | None:
    """A diff pattern that works and is not the standard one."""
    if not isinstance(value, str) or value == STANDARD_PATTERN:
        return None
    try:
        return value if re.compile(value).groups >= 2 else None
    except (re.error, RecursionError, OverflowError):
        return None
