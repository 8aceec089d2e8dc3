"""The candidate's side of the sandbox: a warm process that forks one child per candidate. Run as a script, never
imported.

It starts on a bare interpreter (standard library, no site-packages), imports what small programs use, and then answers
calls from its standard input: each call runs in a fresh fork with its own session, limits, filter and pipes, so that a
candidate costs a fork (a few ms) instead of an interpreter start, and nothing that it does outlives it. The parent side
is eft/tasks/sandbox.py, which trusts nothing from here but sizes and reads results as JSON.

Frames, both ways: 4 bytes length (big endian) + bytes. Call: one frame of JSON {code, entry, driver, args, wall_s,
cpu_s, memory_mb, output_kb}. Answer: a JSON frame {status, signal, stderr, cpu_s} and a payload frame: b"V" + the
value as JSON, or b"E" + {error, line} as JSON, or empty. status: done, wall, output, died. The first frame that a
worker sends is its greeting {filter: bool}.
"""

from __future__ import annotations

import builtins
import gc
import json
import os
import random
import resource
import select
import signal
import struct
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import seccomp  # noqa: E402  (beside this file, also where only these two files are visible)

del sys.path[0]

# What candidates import most: loaded once here, free in every fork.
for _name in ("bisect", "collections", "copy", "functools", "heapq", "itertools", "math", "operator", "statistics"):
    __import__(_name)

IDLE_S = 600.0  # a worker whose client is gone, though a fork of it still holds the pipe, ends by itself
STDERR_BYTES = 2000
MEGABYTE = 1 << 20


def read_frame(fd: int, idle: float | None = None) -> bytes | None:
    """One frame, or None at the end of the stream (or after `idle` seconds without one)."""
    if idle is not None and not select.select([fd], [], [], idle)[0]:
        return None
    head = _read_exactly(fd, 4)
    return None if head is None else _read_exactly(fd, struct.unpack(">I", head)[0])


def _read_exactly(fd: int, size: int) -> bytes | None:
    parts = []
    while size:
        part = os.read(fd, min(size, MEGABYTE))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write_frame(fd: int, data: bytes) -> None:
    write_all(fd, struct.pack(">I", len(data)) + data)


# ---- in the child: one candidate ---------------------------------------------------------------------------------


def describe(error: BaseException) -> dict:
    """{error, line} of an exception, the line being the candidate's own (0 where it has none). Never raises."""
    try:
        text = str(error)[:400]
    except BaseException:
        text = "(its message cannot be shown)"
    line = 0
    if isinstance(error, SyntaxError):
        line = error.lineno if isinstance(error.lineno, int) else 0
        text = str(error.msg)[:400]
    else:
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == "program.py":
                line = trace.tb_lineno
            trace = trace.tb_next
    return {"error": f"{type(error).__name__}: {text}" if text else type(error).__name__, "line": line}


def candidate(call: dict) -> bytes:
    """Run the program, then its entry (or the task's driver around it). Returns the payload; never raises."""
    try:
        program = {"__name__": "program", "__builtins__": builtins}
        exec(compile(call["code"], "program.py", "exec"), program)
        if call["driver"] is not None:
            harness = {"__name__": "driver", "__builtins__": builtins}
            exec(compile(call["driver"], "driver.py", "exec"), harness)
            missing, run = call["entry"], harness["drive"]
        else:
            missing, run = call["entry"], None
        function = program.get(missing)
        if not callable(function):
            raise NameError(f"the program does not define {missing}()")
        value = function(*call["args"]) if run is None else run(function, *call["args"])
        return b"V" + json.dumps(value).encode()
    except BaseException as error:
        return b"E" + json.dumps(describe(error)).encode()


def limit(call: dict) -> None:
    """Kernel limits of the child. Hard limits, so that it cannot raise them where it lacks the privilege."""
    cpu = max(1, int(call["cpu_s"]))
    memory = int(call["memory_mb"]) * MEGABYTE
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))  # SIGXCPU, then SIGKILL
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MEGABYTE, MEGABYTE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))  # no effect on root; there the filter forbids processes


def child(call: dict, result: int, errors: int, null: int, prepared: object | None) -> None:
    """Becomes the candidate. Leaves only through os._exit, so no atexit hook or buffer of the worker runs twice."""
    try:
        os.setsid()
        os.dup2(null, 0)
        os.dup2(errors, 1)
        os.dup2(errors, 2)
        if result != 3:
            os.dup2(result, 3)
        os.closerange(4, 256)  # the worker's own pipes among them: a candidate cannot speak for the worker
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        limit(call)
        seccomp.apply(prepared)
        random.seed(0)
        payload = candidate(call)
        sys.stdout.flush()
        sys.stderr.flush()
        write_all(3, payload)
    except BaseException:
        os._exit(70)
    os._exit(0)


# ---- in the worker -----------------------------------------------------------------------------------------------


def run(call: dict, null: int, prepared: object | None) -> tuple[dict, bytes]:
    """Fork one candidate, collect what it says within its limits, and leave no process of it behind."""
    result, result_w = os.pipe()
    errors, errors_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(result)
        os.close(errors)
        child(call, result_w, errors_w, null, prepared)
    os.close(result_w)
    os.close(errors_w)
    process = os.pidfd_open(pid)
    chunks: dict[int, list[bytes]] = {result: [], errors: []}
    most = int(call["output_kb"]) * 1024
    deadline = time.monotonic() + call["wall_s"]
    status, size, open_fds = "done", 0, {result, errors, process}
    while process in open_fds:
        left = deadline - time.monotonic()
        ready = select.select(list(open_fds), [], [], max(0.0, left))[0]
        if not ready and left <= 0:
            status = "wall"
            break
        for fd in ready:
            if fd == process:
                open_fds.discard(process)
                continue
            part = os.read(fd, 65536)
            if not part:
                open_fds.discard(fd)
            elif fd == errors:
                chunks[errors] = [(b"".join(chunks[errors]) + part)[-STDERR_BYTES:]]
            else:
                size += len(part)
                chunks[result].append(part)
        if size > most:
            status = "output"
            break
    code, usage = end(pid)
    for fd in (result, errors):  # what was still in the pipes when the child ended
        os.set_blocking(fd, False)
        try:
            while status == "done" and (part := os.read(fd, 65536)):
                chunks[fd].append(part)
                size += len(part) if fd == result else 0
                if size > most:
                    status = "output"
        except BlockingIOError:
            pass
        os.close(fd)
    os.close(process)
    number = os.WTERMSIG(code) if os.WIFSIGNALED(code) else 0
    if status == "done" and code != 0:
        status = "died"
    head = {
        "status": status,
        "signal": number,
        "stderr": b"".join(chunks[errors])[-STDERR_BYTES:].decode("utf-8", "replace"),
        "cpu_s": usage.ru_utime + usage.ru_stime,
    }
    return head, b"".join(chunks[result]) if status == "done" else b""


def end(pid: int) -> tuple[int, resource.struct_rusage]:
    """Kill the candidate's group and every orphan that it left (the worker adopts them), and reap. (status, usage)."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)  # it died, or was killed, before its setsid: the process itself is still ours
    _, code, usage = os.wait4(pid, 0)
    for _ in range(1000):
        try:
            orphan, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if orphan == 0:
            for other in children():
                os.kill(other, signal.SIGKILL)
            time.sleep(0.001)
    for name in os.listdir("."):  # the working folder is the worker's own, empty between candidates
        try:
            os.unlink(name)
        except OSError:
            pass
    return code, usage


def children() -> list[int]:
    """Pids whose parent is this process."""
    found, me = [], os.getpid()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as f:
                    fields = f.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == me and fields[0] != b"Z":
                found.append(int(name))
    return found


def main() -> None:
    """Answer calls until the client closes the pipe."""
    calls, answers = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    prepared = seccomp.prepare()
    # Orphans of candidates come to this process instead of init: only so can it end them.
    try:
        import ctypes

        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    except OSError:
        pass
    probe = os.fork()  # does this kernel accept the filter?
    if probe == 0:
        os._exit(0 if seccomp.apply(prepared) else 1)
    filtered = os.waitpid(probe, 0)[1] == 0
    write_frame(answers, json.dumps({"filter": filtered}).encode())
    gc.collect()
    gc.freeze()
    while (frame := read_frame(calls, IDLE_S)) is not None:
        head, payload = run(json.loads(frame), null, prepared if filtered else None)
        frame = None  # a later candidate must not find an earlier one's instances in memory
        write_frame(answers, json.dumps(head).encode())
        write_frame(answers, payload)


if __name__ == "__main__":
    main()
