"""The inner side of the sandbox: a warm process that forks for every candidate. Run as a script, never imported.

It starts on a bare interpreter (standard library, no site-packages), imports what small programs use, and then answers
calls from its standard input, so that a candidate costs two forks (a few ms) instead of an interpreter start. For each
call a *handler* is forked, which alone sees the call; it forks the candidate with its own session, limits, filter and
pipes, collects the answer, ends everything that was left, and is gone: the worker itself never holds a program, an
instance or an answer, so a later candidate finds none of them in memory. The outer side (eft/tasks/pool.py) trusts
nothing from here but sizes, and reads results as JSON.

Three kinds of call. `python`: the candidate's function, or the task's driver around it, in one process. `apart`: the
driver has a process of its own and the candidate sees only what each call asks it (eft/tasks/apart.py). `binary`: a
compiled program, its input on stdin.

Frames, both ways: 4 bytes length (big endian) + bytes. Call: a JSON frame {kind, level, wall_s, cpu_s, memory_mb,
output_kb} and a body frame (JSON {code, entry, driver, args}; or 4 bytes size + binary + input). Answer: a JSON frame
{status, signal, exit, stderr, cpu_s} and a payload frame: b"V" + the value as JSON, b"E" + {error, line} as JSON, or
empty; the bare output of a binary. status: done, wall, output, died. The worker's first frame is its greeting {filter,
landlock}.
"""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import select
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import apart  # noqa: E402  (these lie beside this file, also where nothing else is visible)
import candidate  # noqa: E402
import landlock  # noqa: E402
import reap  # noqa: E402
import seccomp  # noqa: E402
from frames import read_frame, write_all, write_frame  # noqa: E402

del sys.path[0]

# What candidates import most: loaded once here, free in every fork.
for _name in ("bisect", "collections", "copy", "functools", "heapq", "itertools", "math", "operator", "statistics"):
    __import__(_name)

IDLE_S = 600.0  # a worker whose client is gone, though a fork of it still holds the pipe, ends by itself
STDERR_BYTES = 2000
MEGABYTE = 1 << 20
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/dev/urandom", "/dev/zero")
RULESET: int | None = None  # what candidates may read where no namespace hides the rest


# ---- in the children ---------------------------------------------------------------------------------------------


def limit(call: dict, cpu_s: int) -> None:
    """Kernel limits of a child. Hard limits, so that it cannot raise them where it lacks the privilege."""
    memory = int(call["memory_mb"]) * MEGABYTE
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))  # SIGXCPU, then SIGKILL
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MEGABYTE, MEGABYTE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))  # no effect on root; there the filter forbids processes


def become(call: dict, fds: list[int], filter_: object | None) -> None:
    """Make this fork a candidate: a session of its own, descriptors 0, 1, … = `fds` and no others, limits, filter."""
    os.setsid()
    reap.prctl(reap.PR_SET_PDEATHSIG, signal.SIGKILL)  # with the handler; the filter keeps it so
    if call["level"] == "rlimits":
        landlock.apply(RULESET)
    high = [os.dup2(fd, 64 + i, inheritable=False) for i, fd in enumerate(fds)]  # out of the way of each other
    for i, fd in enumerate(high):
        os.dup2(fd, i)
    os.closerange(len(fds), 256)  # the worker's own pipes among them: a candidate cannot speak for the worker
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if call["level"] != "none":
        limit(call, max(1, int(call["cpu_s"])))
        seccomp.apply(filter_)
    random.seed(0)


def python_child(call: dict, body: dict, fds: list[int], filter_: object | None) -> None:
    become(call, fds, filter_)
    payload = candidate.run(body)
    sys.stdout.flush()
    sys.stderr.flush()
    write_all(3, payload)


def binary_child(call: dict, body: bytes, errors: int, result: int, filter_: object | None) -> None:
    size = int.from_bytes(body[:4], "big")
    files = []
    for name, data in (("program", body[4 : 4 + size]), ("input", body[4 + size :])):
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
        write_all(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
        files.append(fd)
    become(call, [files[1], result, errors, files[0]], filter_)
    os.set_inheritable(3, False)
    os.execve(3, ["program"], {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"})


def fork(function, *args, _exit=os._exit) -> int:
    """A child that runs `function` and leaves only through os._exit, so no hook or buffer of the worker runs twice.

    `_exit` is bound here: a candidate that replaces os._exit would otherwise go on as if it were the handler.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        function(*args)
    except BaseException:
        _exit(70)
    _exit(0)


# ---- in the handler ----------------------------------------------------------------------------------------------


class Handler:
    """One call, from reading it to answering it. Lives in a fork of the worker."""

    def __init__(self, call: dict, calls: int, null: int, filters: dict) -> None:
        self.call, self.null = call, null
        self.filter = filters["binary" if call["kind"] == "binary" else "python"]
        self.result, result_w = os.pipe()
        self.errors, errors_w = os.pipe()
        self.other = 0  # the candidate, where the driver is the main child
        if call["kind"] == "apart":  # forked before the call is read: it never holds the instances
            ask, ask_w = os.pipe()
            reply, reply_w = os.pipe()
            self.other = fork(self._answer, [null, errors_w, errors_w, reply_w, ask])
            os.close(ask)
            os.close(reply_w)
        body = read_frame(calls)
        os.close(calls)
        if call["kind"] == "binary":
            self.main = fork(binary_child, call, body, errors_w, result_w, self.filter)
        elif call["kind"] == "apart":
            self.main = fork(self._drive, json.loads(body), [null, errors_w, errors_w, result_w, ask_w, reply])
            os.close(ask_w)
            os.close(reply)
        else:
            self.main = fork(python_child, call, json.loads(body), [null, errors_w, errors_w, result_w], self.filter)
        os.close(result_w)
        os.close(errors_w)

    def _answer(self, fds: list[int]) -> None:
        become(self.call, fds, self.filter)
        apart.answer(asks=4, replies=3)

    def _drive(self, body: dict, fds: list[int]) -> None:
        become({**self.call, "level": "none"}, fds, None)  # trusted, and held by the wall limit
        limit(self.call, max(1, int(self.call["wall_s"])) + 1)
        write_all(3, apart.drive(body, asks=4, replies=5, most=int(self.call["output_kb"]) * 1024))

    def collect(self) -> tuple[dict, bytes]:
        """What the candidate says within its limits. No process of it is left afterwards."""
        process = os.pidfd_open(self.main)
        most = int(self.call["output_kb"]) * 1024
        deadline = time.monotonic() + self.call["wall_s"]
        said, answer, status, open_fds = b"", [], "done", {self.result, self.errors, process}
        size = 0
        while process in open_fds and status == "done":
            left = deadline - time.monotonic()
            ready = select.select(list(open_fds), [], [], max(0.0, left))[0]
            if not ready and left <= 0:
                status = "wall"
            for fd in ready:
                if fd == process:
                    open_fds.discard(process)
                    continue
                part = os.read(fd, 65536)
                if not part:
                    open_fds.discard(fd)
                elif fd == self.errors:
                    said = (said + part)[-STDERR_BYTES:]
                else:
                    size += len(part)
                    answer.append(part)
            if size > most:
                status = "output"
        code, cpu_s = self._end()
        for fd in (self.result, self.errors):  # what was still in the pipes when the child ended
            os.set_blocking(fd, False)
            try:
                while status == "done" and (part := os.read(fd, 65536)):
                    if fd == self.errors:
                        said = (said + part)[-STDERR_BYTES:]
                        continue
                    answer.append(part)
                    size += len(part)
                    if size > most:
                        status = "output"
            except BlockingIOError:
                pass
        if status == "done" and code != 0:
            status = "died"
        head = {
            "status": status,
            "signal": os.WTERMSIG(code) if os.WIFSIGNALED(code) else 0,
            "exit": os.WEXITSTATUS(code) if os.WIFEXITED(code) else 0,
            "stderr": said.decode("utf-8", "replace"),
            "cpu_s": cpu_s,
        }
        return head, b"".join(answer) if status == "done" else b""

    def _end(self) -> tuple[int, float]:
        """Kill the children's groups and every orphan that they left (this process adopts them), and reap them all.

        Returns the wait status that counts (the candidate's, where it broke off a driver's run) and the CPU seconds.
        """
        code, cpu_s = reap.kill(self.main)
        if self.other:
            broke_off = os.WIFEXITED(code) and os.WEXITSTATUS(code) == apart.BROKEN_OFF
            if broke_off:  # let it end by itself: how it did is what is reported
                select.select([other := os.pidfd_open(self.other)], [], [], 0.5)
                os.close(other)
            other, more = reap.kill(self.other)
            cpu_s += more
            if broke_off:
                code = other
        reap.end_children()
        return code, cpu_s


def handle(call: dict, calls: int, answers: int, null: int, filters: dict) -> None:
    reap.subreaper()
    head, payload = Handler(call, calls, null, filters).collect()
    write_frame(answers, json.dumps(head).encode())
    write_frame(answers, payload)


# ---- in the worker -----------------------------------------------------------------------------------------------


def lock_up() -> None:
    """Give up what a worker never needs and a candidate must not have: privileges of root, and readable memory."""
    import ctypes

    libc = ctypes.CDLL(None)
    reap.prctl(reap.PR_SET_DUMPABLE, 0)  # no process of this user may look into this one or its forks
    if os.getuid() == 0:
        for capability in range(64):
            reap.prctl(reap.PR_CAPBSET_DROP, capability)
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
        libc.capset(header, (ctypes.c_uint32 * 6)())


def main() -> None:
    """Answer calls until the client closes the pipe."""
    calls, answers = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    filters = {"python": seccomp.prepare(), "binary": seccomp.prepare(binary=True)}
    reap.subreaper()
    probe = os.fork()  # does this kernel accept the filter?
    if probe == 0:
        os._exit(0 if seccomp.apply(filters["python"]) else 1)
    filtered = os.waitpid(probe, 0)[1] == 0
    if not filtered:
        filters = dict.fromkeys(filters)
    global RULESET
    RULESET = landlock.prepare(readable=[*SYSTEM, os.path.realpath(sys.base_prefix), os.getcwd()])
    write_frame(answers, json.dumps({"filter": filtered, "landlock": RULESET is not None}).encode())
    lock_up()
    gc.collect()
    gc.freeze()
    while (frame := read_frame(calls, IDLE_S)) is not None:
        handler = fork(handle, json.loads(frame), calls, answers, null, filters)
        code = os.waitpid(handler, 0)[1]
        if code != 0:  # it was killed, or the call was torn: what is left in the pipes is unknown
            reap.end_children()
            break


if __name__ == "__main__":
    main()
