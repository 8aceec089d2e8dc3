"""Driver and candidate in different processes: for tasks where the candidate must not see what comes next.

A driver in the candidate's own process holds the whole trace of requests, the demand of all days, the true signal; a
program that walks the stack finds them. Here the driver asks over a pipe, and the candidate knows no more than it was
asked. `drive` is the driver's side, `answer` the candidate's. In the driver, `function(*args)` is one question and
`function.many([args, …])` asks many at once, for little more than the price of one (about 40 µs). Arguments are plain
data (numbers, text, lists, tuples, dicts), answers JSON data. Questions go as marshal, which is ten times faster; the
candidate is not trusted, so its answers come as JSON.

Standard library only, and no import of this package (see candidate.py).
"""

from __future__ import annotations

import json
import marshal
import os
import sys

import candidate
from frames import read_exactly, read_frame, write_frame

BROKEN_OFF = 71  # exit status of a driver whose candidate went away
_NONSENSE = {"error": "the program's process answered something that is no answer", "line": 0}


class ProgramError(Exception):
    """The candidate's function raised; `said` is its {error, line}."""

    def __init__(self, said: dict) -> None:
        super().__init__(said.get("error"))
        self.said = said


class Function:
    """The candidate's function, as a driver sees it."""

    def __init__(self, asks: int, replies: int, most: int) -> None:
        self.asks, self.replies, self.most = asks, replies, most

    def __call__(self, *args: object) -> object:
        return self.many([args])[0]

    def many(self, calls: list) -> list:
        """The answers to several calls, in their order. Raises ProgramError where one of them raises."""
        values = self.exchange(list(calls))
        if not isinstance(values, list) or len(values) != len(calls):
            raise ProgramError(_NONSENSE)
        return values

    def exchange(self, message: object) -> object:
        try:
            write_frame(self.asks, marshal.dumps(message))
            head = read_exactly(self.replies, 4)
            if head is None:
                os._exit(BROKEN_OFF)
            if (size := int.from_bytes(head, "big")) > self.most:
                raise ProgramError({"error": f"an answer is larger than {self.most >> 10} KB", "line": 0})
            frame = read_exactly(self.replies, size)
        except OSError:
            frame = None
        if frame is None:
            os._exit(BROKEN_OFF)
        try:
            said = json.loads(frame[1:])
        except (ValueError, RecursionError):
            raise ProgramError(_NONSENSE) from None
        if frame[:1] == b"V":
            return said
        raise ProgramError(said if isinstance(said, dict) else {})


def drive(body: dict, asks: int, replies: int, most: int) -> bytes:
    """Run the driver with the candidate behind these descriptors. Returns the payload."""
    try:
        function = Function(asks, replies, most)
        function.exchange([body["code"], body["entry"]])
        value = candidate.load_driver(body["driver"])(function, *body["args"])
        return b"V" + json.dumps(value).encode()
    except ProgramError as error:
        said = {"error": str(error.said.get("error")), "line": error.said.get("line")}
        return b"E" + json.dumps({**said, "line": said["line"] if isinstance(said["line"], int) else 0}).encode()
    except BaseException as error:
        return candidate.failure(error)


def answer(asks: int, replies: int) -> None:
    """Load the program that comes first, then answer calls until the driver is done."""
    function = None
    while (frame := read_frame(asks)) is not None:
        try:
            message = marshal.loads(frame)
            if function is None:
                function = candidate.load(*message)
                said = b"Vnull"
            else:
                said = b"V" + json.dumps([function(*args) for args in message]).encode()
            sys.stdout.flush()  # it is killed at the end: what it printed must be out
        except BaseException as error:
            said = candidate.failure(error)
        write_frame(replies, said)
