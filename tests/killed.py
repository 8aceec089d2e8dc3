"""A story told again and again, killed at its next write each time, until it comes to its end."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from eft.gate import evidence


def until_it_ends(story: Callable[[], Any], *writers: ModuleType) -> int:
    """Run `story` in a fork that dies before, in the middle of or after one of its first three appends, in turn; again,
    until one comes to its end. `writers`: modules whose `append` is killed. Returns the number of kills."""
    write, kills, point = evidence.append, 0, 0
    while True:
        child = os.fork()
        if child == 0:
            count = 0

            def killing(file: Path, lines, point: int = point) -> None:
                nonlocal count
                text = list(lines)
                if count == point // 3:
                    if point % 3 == 1:
                        with open(file, "a") as f:
                            f.write(text[0][: len(text[0]) // 2])
                    if point % 3 == 2:
                        write(file, text)
                    os._exit(9)
                count += 1
                write(file, text)

            for module in writers:
                module.append = killing
            story()
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            return kills
        kills, point = kills + 1, (point + 1) % 9
