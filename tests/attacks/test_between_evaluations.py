"""Attacks that need two evaluations, or the machine around them: what one candidate leaves for the next, what it finds
of others, and what happens when the sandbox's own processes are hit."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from eft.records import Validity
from eft.tasks import pool, sandbox
from eft.tasks.sandbox import Limits

QUICK = Limits(wall_s=0.8, cpu_s=1, memory_mb=512)  # for what need not end well
PATIENT = Limits(wall_s=30.0, cpu_s=10, memory_mb=512)
REPOSITORY = Path(__file__).parent.parent.parent
HONEST = "import json, math\ndef run(*args):\n    return [json.dumps([1.5]), math.sqrt(16), len(args), sorted([2, 1])]"


@pytest.fixture(params=["bubblewrap", "rlimits"])
def level(request):
    before = sandbox.level()
    if request.param == "bubblewrap" and sandbox.bubblewrap_fails():
        pytest.skip("bubblewrap does not work on this machine: NOT attacked")
    sandbox.close()
    yield sandbox.choose(request.param)
    sandbox.choose(before)


POISON = {
    "modules": "import json, math\njson.dumps = lambda *a: '666'\nmath.sqrt = lambda x: 666\nreturn 1",
    "sys.modules": "import sys\nfor n in list(sys.modules): sys.modules[n] = None\nreturn 1",
    "built-ins": "import builtins\nbuiltins.sorted = builtins.len = lambda *a: 666\nreturn 1",
    "frames of the worker": "import sys\nf = sys._getframe()\nwhile f:\n    f.f_globals.clear()\n    f = f.f_back",
    "the handler's own pipes": "import os\nfor fd in range(3, 300):\n    try: os.write(fd, b'\\0\\0\\0\\2{}' * 9)\n"
    "    except OSError: pass\nos._exit(0)",
    "a greeting": "import os\nfor fd in range(300):\n    try: os.write(fd, b'\\0\\0\\0\\x10{\"filter\": false}')\n"
    "    except OSError: pass\nreturn 1",
    "hooks": "import atexit, sys\natexit.register(print, 'left')\nsys.excepthook = print\nreturn 1",
    "import hooks": "import sys\nsys.meta_path.insert(0, None)\nsys.path_hooks.clear()\nsys.path[:] = []\nreturn 1",
    "os functions": "import os\nos.read = os.write = os.fork = os._exit = lambda *a: 0\nreturn 1",
    "signals": "import signal\nfor s in range(1, 32):\n    try: signal.signal(s, signal.SIG_IGN)\n"
    "    except (OSError, ValueError): pass\nreturn 1",
    "the garbage collector": "import gc\ngc.disable()\nfor o in gc.get_objects():\n    try: o.clear()\n"
    "    except BaseException: pass\nreturn 1",
    "a crash of the interpreter": "import ctypes\nctypes.memset(id(int), 0, 200)\nreturn int(3)",
}


@pytest.mark.parametrize("name", POISON)
def test_nothing_is_left_for_the_next_evaluation(level, name):
    honest = sandbox.call(HONEST, "run", 1, 2).value
    assert honest == ["[1.5]", 4.0, 2, [1, 2]]
    body = "".join(f"    {line}\n" for line in POISON[name].splitlines())
    sandbox.call(f"def run(*args):\n{body}", "run", limits=QUICK)
    assert sandbox.call(HONEST, "run", 1, 2).value == honest


SCAN = """
import re
def run(*args):
    found = 0
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps:
            m = re.match(r"([0-9a-f]+)-([0-9a-f]+) r", line)
            if m is None or "[v" in line:
                continue
            start, end = (int(x, 16) for x in m.groups())
            if end - start > 1 << 26:
                continue
            try:
                memory.seek(start)
                data = memory.read(end - start)
            except OSError:
                continue
            found += data.count(bytes(reversed(b"ecnatsni-neddih")))
    return found
"""


def test_a_candidate_finds_no_instance_of_an_earlier_one(level):
    """It reads its own memory, a copy of the worker's: calls pass through handlers only, which are gone."""
    secret = [f"hidden-instance {i}" for i in range(1000)]
    assert sandbox.call("def run(x):\n    return x", "run", secret).validity is Validity.VALID
    found = sandbox.call(SCAN, "run", limits=Limits(cpu_s=5, memory_mb=1024))
    if "Permission" in found.error:  # /proc/self is root's where the process gave up being looked into
        pytest.skip("a candidate cannot even read its own memory by /proc here")
    assert found.value < 5, found  # (the needle itself is in memory)
    assert sandbox.call(SCAN, "run", secret, limits=Limits(cpu_s=5, memory_mb=1024)).value >= 1000, "it can tell"


def test_siblings_cannot_be_read(level):
    """Two candidates at a time: neither can read the other's memory, or that of any process, or stop it."""
    results = {}
    sleeper = "import time\ndef run(x):\n    time.sleep(3)\n    return len(x)"
    thread = threading.Thread(target=lambda: results.update(a=sandbox.call(sleeper, "run", "secret" * 100)))
    thread.start()
    time.sleep(0.4)
    spy = (
        "import os\ndef run():\n    me, got = os.getpid(), []\n    for p in filter(str.isdigit, os.listdir('/proc')):\n"
        "        if int(p) == me: continue\n        try: open(f'/proc/{p}/mem', 'rb'); got.append((p, 'read'))\n"
        "        except OSError: pass\n        try: os.kill(int(p), 0); got.append((p, 'killed'))\n"
        "        except OSError: pass\n    return got"
    )
    found = sandbox.call(spy, "run", limits=PATIENT)
    thread.join()
    if "PermissionError" in found.error:  # not even the list of processes
        found = sandbox.call("def run():\n    return []", "run")
    seen = [x for x in found.value if level != "bubblewrap" or x[0] != "1"]  # bwrap itself: it knows only its arguments
    assert seen == [] and results["a"].value == 600, found


def test_a_driver_apart_cannot_be_read(level):
    """The driver holds what is to come; it runs beside the candidate, under the same user."""
    spy = (
        "import os\ndef f(x):\n    got = []\n    for p in {os.getppid(), *range(os.getpid() - 5, os.getpid() + 6)}:\n"
        "        if p == os.getpid(): continue\n        for what in ('mem', 'environ', 'maps', 'fd/3'):\n"
        "            try: os.close(os.open(f'/proc/{p}/{what}', os.O_RDONLY)); got.append((p, what))\n"
        "            except OSError: pass\n        try: os.kill(p, 0); got.append((p, 'kill'))\n"
        "        except OSError: pass\n    return got"
    )
    for _ in range(3):
        found = sandbox.call(spy, "f", 1, driver="def drive(f, x):\n    return f(x)", apart=True, limits=PATIENT)
        assert [x for x in found.value if level != "bubblewrap" or x[0] != 1] == [], found


def test_hits_on_the_sandboxs_processes(level):
    """Somebody kills the worker in the middle: a fresh one answers, nothing of the old one stays."""
    sandbox.call("def run():\n    return 1", "run")
    worker = pool._idle[-1]
    results = []
    program = "import time\ndef run():\n    time.sleep(2)\n    return 7"
    thread = threading.Thread(target=lambda: results.append(sandbox.call(program, "run", limits=Limits(wall_s=30))))
    thread.start()
    time.sleep(0.4)
    below = psutil.Process(worker.process.pid).children(recursive=True)
    os.killpg(worker.process.pid, signal.SIGKILL)
    thread.join()
    assert results[0].value == 7
    gone, alive = psutil.wait_procs(below, timeout=30)
    assert not alive


CLIENT = """
import sys, time
sys.path.insert(0, {repository!r})
from eft.tasks import sandbox
print("ready", flush=True)
sandbox.call("import time\\ndef run():\\n    time.sleep(4)", "run", limits=sandbox.Limits(wall_s=6))
"""


@pytest.mark.integration
def test_a_client_that_is_killed_leaves_nothing(level, tmp_path):
    """kill -9 of the searching process while a candidate runs: its sandbox ends by itself, files included."""
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    client = subprocess.Popen([sys.executable, "-c", CLIENT.format(repository=str(REPOSITORY))], env=env,
                              stdout=subprocess.PIPE)  # fmt: skip
    client.stdout.readline()
    until = time.monotonic() + 60
    while len(below := psutil.Process(client.pid).children(recursive=True)) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.3)
    assert below
    client.kill()
    client.wait()
    gone, alive = psutil.wait_procs(below, timeout=60)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    assert not alive
    left = [p.name for p in tmp_path.iterdir()]
    assert level != "bubblewrap" or not left, left


def test_many_at_once(level):
    """Eight threads of hostile and honest calls on one pool: every honest one gets its own answer."""
    answers: dict[int, object] = {}

    def work(k: int) -> None:
        for i in range(3):
            if k % 2:
                sandbox.call("import os\ndef run():\n    os._exit(1)", "run", limits=QUICK)
            answers[k * 10 + i] = sandbox.call("def run(x):\n    return x", "run", k * 10 + i).value

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 24 and all(k == v for k, v in answers.items())
