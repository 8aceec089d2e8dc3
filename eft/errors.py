"""One way to fail: a message that says what, where, why and the way out.

Everything that a user can cause raises `EftError`; the command line prints it without a traceback and exits with its
`exit_code` (1: the run could not be done, 2: the request itself was wrong). Any other exception is a bug of ours.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# Names come from other people's logs and folders: what would move a terminal's cursor is shown instead.
_SHOWN = {c: 0x2400 + c if c < 32 else 0xFFFD for c in (*range(9), *range(11, 32), *range(127, 160))}


class EftError(Exception):
    """A failure that the user can act on. `exit_code` is the process exit status."""

    exit_code = 1

    def __init__(self, what: str, *, where: object = None, why: str | None = None, way_out: str | None = None) -> None:
        self.what, self.where, self.why, self.way_out = what, where, why, way_out
        super().__init__(str(self))

    def __str__(self) -> str:
        lines = [self.what]
        for name, value in (("where", self.where), ("why", self.why), ("way out", self.way_out)):
            if value is not None:
                lines.append(f"  {name}: {value}")
        return "\n".join(lines).translate(_SHOWN)


class UsageError(EftError):
    """The request itself is wrong: an unknown key, a bad value, a missing argument (exit code 2)."""

    exit_code = 2


def nearest(name: str, valid: Iterable[str]) -> str:
    """'did you mean …' for an unknown name, or the list of valid ones when nothing is near."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"valid: {', '.join(names)}"
