"""The attacks themselves, as source text; attacks.py says what they are for and judges them.

In acts: @EVALUATOR@, @SUITES@, @TASKS@, @HOMEFILES@ are paths of ours, @CANARY@ a secret of the client's environment
(process @CLIENT@), @PORT@ and @ABSTRACT@ where the client listens, @MARK@ goes into names of what is left. An act
returns something true when it got through.
"""

from __future__ import annotations

from dataclasses import dataclass

PREFACE = {
    "python": '''
import ctypes as _c, os, sys, time
def _eft_try(name, act):
    try:
        got = act()
    except BaseException:
        got = None
    if got:
        os.write(2, f"@BREACH@ {name}: {str(got)[:80]}\\n".encode())
def _call(number, *args):
    """A system call by number (x86-64 only): its result, or None where it failed."""
    if os.uname().machine != "x86_64":
        return None
    libc = _c.CDLL(None, use_errno=True)
    libc.syscall.restype = _c.c_long
    got = libc.syscall(_c.c_long(number), *[_c.c_long(a) if isinstance(a, int) else a for a in args])
    return None if got == -1 else got
''',
    "cpp": """
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <string>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
static void try_act(const char* name, bool (*act)()) { if (act()) fprintf(stderr, "@BREACH@ %s\\n", name); }
static int eft_acts = [] {
""",
}


@dataclass(frozen=True)
class Act:
    """`contained`: forbidden to contained tasks too. `hides`: only bubblewrap hides what it looks for."""

    name: str
    code: str
    contained: bool = False
    hides: bool = False


def _act(name: str, code: str, *words: str) -> Act:
    return Act(name, code, "contained" in words, "hides" in words)


ACTS = (
    # reading what it must not see
    _act("reads the evaluator", "return open('@EVALUATOR@').read()[:40]", "hides"),
    _act("lists the suites", "return os.listdir('@SUITES@')", "contained", "hides"),
    _act("looks for other tasks", "own = os.path.dirname('@EVALUATOR@')\n"
         "return [r for d in [*sys.path, '@TASKS@', '/eft'] for r, _, files in os.walk(d or '.') "
         "if 'initial_program.py' in files and r != own]", "contained", "hides"),
    _act("reads the home folder", "for f in @HOMEFILES@:\n    try: os.close(os.open(f, os.O_RDONLY))\n"
         "    except OSError: continue\n    return f", "contained", "hides"),
    _act("reads the environment", "return '@CANARY@' in str(dict(os.environ))", "contained"),
    _act("reads other processes' environment", "for p in os.listdir('/proc'):\n    try:\n"
         "        if p.isdigit() and b'@CANARY@' in open(f'/proc/{p}/environ', 'rb').read(): return p\n"
         "    except OSError: pass", "contained", "hides"),
    _act("sees other processes", "found = []\nfor p in filter(str.isdigit, os.listdir('/proc')):\n"
         "    line = open(f'/proc/{p}/cmdline', 'rb').read()\n"
         "    if line and b'/eft/' not in line: found.append(line)\nreturn found", "hides"),
    _act("reads passwords", "return open('/etc/shadow').read() or open('/etc/passwd').read()", "contained", "hides"),
    _act("reads its parent's memory", "return open(f'/proc/{os.getppid()}/mem', 'rb') and 'opened'"),
    _act("reads its parent's maps", "return open(f'/proc/{os.getppid()}/maps').read()"),
    _act("reads its parent's descriptors", "return os.readlink(f'/proc/{os.getppid()}/fd/0')"),
    _act("finds an inherited descriptor", "found = []\nfor fd in range(6, 256):\n    try: os.fstat(fd)\n"
         "    except OSError: continue\n    found.append(fd)\nreturn found"),
    _act("traces its parent", "return _call(101, 16, os.getppid(), 0, 0) == 0"),
    _act("is traced by its parent", "return _call(101, 0, 0, 0, 0) == 0"),
    _act("reads another process by system call", "b = _c.create_string_buffer(8)\n"
         "v = (_c.c_void_p * 2)(_c.addressof(b), 8)\nr = (_c.c_void_p * 2)(_c.addressof(b), 8)\n"
         "return _call(310, os.getppid(), v, 1, r, 1, 0)"),
    _act("takes a descriptor of its parent", "return _call(438, _call(434, os.getppid(), 0) or 0, 0, 0) is not None"),
    _act("reads the kernel's log", "return _call(103, 10, None, 0)", "hides"),
    # writing
    _act("writes into its folder", "open('@MARK@-1', 'w').write('x')\nreturn True"),
    _act("writes into /tmp", "open('/tmp/@MARK@-2', 'w').write('x')\nreturn True"),
    _act("writes into shared memory", "open('/dev/shm/@MARK@-3', 'w').write('x')\nreturn True"),
    _act("writes into home", "open(os.path.expanduser('~root/@MARK@-4'), 'w').write('x')\nreturn True"),
    _act("writes beside its evaluator", "d = os.path.dirname('@EVALUATOR@')\n"
         "open(f'{d}/@MARK@-5', 'w').write('x')\nreturn True", "contained"),
    _act("changes its evaluator", "f = os.open('@EVALUATOR@', os.O_RDWR)\nreturn f", "contained"),
    _act("writes into the system", "open('/usr/lib/@MARK@-6', 'w').write('x')\nreturn True", "contained"),
    _act("writes at the root", "open('/@MARK@-13', 'w').write('x')\nreturn True", "contained"),
    _act("writes among the devices", "open('/dev/@MARK@-14', 'w').write('x')\nreturn True", "contained"),
    _act("creates without writing", "return os.open('/tmp/@MARK@-7', os.O_RDONLY | os.O_CREAT)"),
    _act("creates an unnamed file", "return os.open('/tmp', os.O_WRONLY | os.O_TMPFILE)"),
    _act("makes a folder", "os.mkdir('/tmp/@MARK@-8')\nreturn True"),
    _act("makes a link", "os.symlink('/etc/passwd', '/tmp/@MARK@-9')\nreturn True"),
    _act("makes a hard link", "os.link(sys.executable, '/tmp/@MARK@-10')\nreturn True"),
    _act("makes a pipe with a name", "os.mkfifo('/tmp/@MARK@-11')\nreturn True"),
    _act("renames", "os.rename('.', '/tmp/@MARK@-12')\nreturn True"),
    _act("changes permissions", "os.chmod('.', 0o777)\nreturn True"),
    _act("changes times", "os.utime('.')\nreturn True"),
    _act("makes a file in memory", "return os.memfd_create('@MARK@')"),
    _act("makes shared memory by System V", "return _call(29, 0, 4096, 0o1600)"),
    _act("writes a kernel setting", "return os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY)", "contained"),
    _act("writes to a device", "return os.open('/dev/mem', os.O_RDWR)", "contained"),
    _act("protects itself from the OOM killer", "return os.open('/proc/self/oom_score_adj', os.O_WRONLY)"),
    _act("locks a file", "import fcntl\nfcntl.flock(os.open(os.__file__, os.O_RDONLY), fcntl.LOCK_EX)\nreturn True"),
    # processes and signals
    _act("forks", "p = os.fork()\nif p == 0: os._exit(0)\nreturn p"),
    _act("forks by system call", "p = _call(57)\nif p == 0: os._exit(0)\nreturn p"),
    _act("clones", "p = _call(56, 17, 0, 0, 0, 0)\nif p == 0: os._exit(0)\nreturn p"),
    _act("clones the new way", "a = (_c.c_uint64 * 11)()\na[4] = 17\np = _call(435, a, 88)\n"
         "if p == 0: os._exit(0)\nreturn p"),
    _act("starts a program", "import subprocess\nreturn subprocess.run(['/bin/true']).returncode == 0"),
    _act("spawns", "return os.posix_spawn('/bin/true', ['true'], {})"),
    _act("uses multiprocessing", "import multiprocessing as m\np = m.get_context('fork').Process(target=print)\n"
         "p.start()\nreturn True"),
    _act("leaves a daemon", "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
         "        os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(600)', '@MARK@'])\n"
         "    os._exit(0)\nreturn None", "contained"),
    _act("kills the client", "os.kill(@CLIENT@, 0)\nreturn True", "contained", "hides"),
    _act("kills its parent", "os.kill(os.getppid(), 0)\nreturn True"),
    _act("queues a signal", "b = (_c.c_int * 32)(0, 0, -1)\nreturn _call(129, os.getppid(), 0, b) == 0"),
    _act("has the kernel signal its parent", "import fcntl\nr, w = os.pipe()\n"
         "fcntl.fcntl(r, 8, os.getppid())\nfcntl.fcntl(r, 10, 9)\nreturn True"),
    _act("outlives its handler", "return _call(157, 1, 0, 0, 0, 0) == 0"),
    _act("makes itself traceable", "return _call(157, 4, 1, 0, 0, 0) == 0"),
    _act("adopts orphans", "return _call(157, 36, 1, 0, 0, 0) == 0"),
    _act("leaves its session", "os.setsid()\nreturn True"),
    _act("leaves its group", "os.setpgid(0, 0)\nreturn True"),
    _act("raises its limits", "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (3600, 3600))\nreturn True"),
    _act("raises its priority", "os.setpriority(0, 0, -20)\nreturn True", "contained"),
    _act("takes another processor", "os.sched_setaffinity(0, {0})\nreturn True"),
    # the network
    _act("opens a socket", "import socket\nreturn socket.socket()"),
    _act("makes a pair of sockets", "import socket\nreturn socket.socketpair()"),
    _act("reaches a port of this machine", "import socket\n"
         "return socket.create_connection(('127.0.0.1', @PORT@), 2)", "contained", "hides"),
    _act("reaches an abstract socket", "import socket\ns = socket.socket(socket.AF_UNIX)\n"
         "s.connect('\\0@ABSTRACT@')\nreturn True", "contained", "hides"),
    _act("reaches the world", "import socket\n"
         "return socket.create_connection(('1.1.1.1', 53), 1)", "contained", "hides"),
    # the kernel
    _act("makes namespaces", "return _call(272, 0x10000000) == 0", "contained", "hides"),
    _act("mounts", "return _call(165, b'none', b'/tmp', b'tmpfs', 0, 0) == 0", "contained", "hides"),
    _act("changes its root", "os.chroot('/tmp')\nreturn True", "contained", "hides"),
    _act("changes its user", "os.setuid(0)\nos.setgid(0)\nos.setgroups([0])\nreturn True", "contained", "hides"),
    _act("loads a filter program", "return _call(321, 0, b'\\0' * 64, 64)", "contained", "hides"),
    _act("uses io_uring", "return _call(425, 4, b'\\0' * 120)"),
    _act("counts events", "return _call(298, b'\\0' * 112, 0, -1, -1, 0)"),
    _act("uses a key ring", "return _call(250, 0, -3, 0)"),
    _act("opens a message queue", "return _call(240, b'@MARK@', 0o102, 0o600, 0)"),
    _act("calls by the old numbers", "return _call(0x40000000 + 57)"),
    _act("calls what is newer than the list", "return _call(447, 0) is not None"),
    # what might be there for the next one, or for whoever asks
    _act("hooks the exit", "import atexit\natexit.register(lambda: os.write(2, b'@BREACH@ an exit hook ran'))"),
    _act("starts a thread that stays", "import threading\nthreading.Thread(target=time.sleep, args=(600,)).start()"),
    _act("handles signals", "import signal\nfor s in (2, 14, 15, 24): signal.signal(s, signal.SIG_IGN)"),
)  # fmt: skip

# Statements, the last line an expression: what the program's function returns.
VALUES = {
    "nothing": "None",
    "true": "True",
    "not a number": "float('nan')",
    "infinity": "float('inf')",
    "minus infinity": "float('-inf')",
    "a huge float": "1e308",
    "a huge integer": "10 ** 4000",
    "text": "'1.0'",
    "bytes": "b'1.0'",
    "complex": "1j",
    "a function": "lambda *args: 1e9",
    "a generator": "(x for x in [1, 2])",
    "an empty list": "[]",
    "a list of nothing": "[None] * 30",
    "lists of nan": "[[float('nan')] * 3] * 30",
    "lists of infinity": "[[float('inf')] * 2] * 26",
    "lists of booleans": "[True] * 30",
    "lists of huge integers": "[[10 ** 400] * 2] * 30",
    "deep lists": "a = []\nfor _ in range(5000): a = [a]\na",
    "a list that holds itself": "a = []\na.append(a)\na",
    "its own score": "{'combined_score': 1e9, 'score': 1e9, 'validity': 1.0, 'error': None}",
    "its own score in a list": "[{'combined_score': 1e9}, 1e9]",
    "a payload by itself": "os.write(3, b'V{\"combined_score\": 1e9}')\nos._exit(0)",
    "an answer in a driver's place": "os.write(3, b'\\0\\0\\0\\x06V[1e9]')\n1e9",
    "two payloads": "os.write(3, b'V[1e9]')\n1.0",
    "no payload": "os.close(3)\n1.0",
    "a number that shows another": "class F(float):\n"
    "    def __repr__(self): return '1e9'\n    def __float__(self): return 1e9\nF(1.0)",
    "an integer that shows another": "class I(int):\n    def __repr__(self): return '10**9'\nI(1)",
    "a list that changes when read": "class L(list):\n    n = 0\n    def __iter__(self):\n        L.n += 1\n"
    "        return iter([0.5] * 30 if L.n % 2 else [1e9] * 30)\nL([0.5] * 30)",
    "an object that loads code": "class R:\n    def __reduce__(self): return (os.system, ('true',))\nR()",
    "an object that compares as it likes": "class C(float):\n    def __lt__(self, o): return True\n"
    "    __gt__ = __le__ = __ge__ = __eq__ = __lt__\n    __hash__ = float.__hash__\nC(0.5)",
    "another way to write JSON": "import json\njson.dumps = lambda *a, **k: '{\"combined_score\": 1e9}'\n1.0",
    "JSON that is none": "import json\njson.dumps = lambda *a, **k: '[' * 100000\n1.0",
    "other built-ins": "import builtins\nbuiltins.sorted = builtins.min = builtins.max = lambda *a, **k: 1e9\n"
    "builtins.len = lambda x: 0\nbuiltins.isinstance = lambda *a: True\n0.5",
    "another math": "import math\nmath.isfinite = lambda x: True\nmath.pi = 1e9\nfloat('nan')",
    "other modules": "class M:\n    def __getattr__(self, n): return lambda *a, **k: 1e9\n"
    "for n in list(sys.modules): sys.modules[n] = M()\n1e9",
    "the driver's variables": "f = sys._getframe()\nwhile f:\n    for v in list(f.f_locals.values()):\n"
    "        if isinstance(v, list): v[:] = []\n    f = f.f_back\n1e9",
    "the driver's objects": "import gc\nfor o in gc.get_objects():\n"
    "    if isinstance(o, dict) and 'drive' in o: o['drive'] = lambda *a: 1e9\n"
    "    if type(o) is list and o and type(o[0]) in (tuple, list, float): o[:] = [1e9] * len(o)\n1e9",
    "a trace of the driver": "def t(frame, event, arg):\n    frame.f_locals.clear()\n    return t\n"
    "sys.settrace(t)\nsys._getframe(1).f_trace = t\n1e9",
    "an end in good order": "os._exit(0)",
    "an end with a code": "sys.exit(0)",
    "a crash": "import ctypes\nctypes.string_at(0)",
    "an abort": "os.abort()",
    "a stream that raises": "class S:\n    def __getattr__(self, n): raise KeyError(n)\n"
    "sys.stdout = sys.stderr = S()\n1.0",
    "an exception that raises": "class E(Exception):\n    def __str__(self): raise KeyError\nraise E\n1.0",
    "an exception that is none": "raise KeyboardInterrupt\n1.0",
}

# The values that a task's driver and scorer meet; the others meet the sandbox only, the same for all tasks.
SCORER = (
    "nothing", "true", "not a number", "infinity", "a huge float", "text", "an empty list", "a list of nothing",
    "lists of nan", "lists of infinity", "lists of booleans", "lists of huge integers", "its own score",
    "its own score in a list", "an answer in a driver's place", "a number that shows another",
    "a list that changes when read", "other built-ins", "the driver's variables", "the driver's objects",
)  # fmt: skip

# A contained score is a claim, and an evaluation takes seconds: of the values and ends, what could do harm.
CONTAINED = ("nothing", "not a number", "text", "an end in good order", "a crash", "an exception that raises", "spins",
             "sleeps", "allocates", "forks without end", "fills the disk", "fills shared memory",
             "prints without end")  # fmt: skip

# Statements at the end of the seed.
ENDS = {
    "spins": "while True: pass",
    "spins deaf to signals": "import signal\nfor s in (14, 24, 26, 27): signal.signal(s, signal.SIG_IGN)\n"
    "while True: pass",
    "spins inside a library": "import re\nre.match(r'(a+)+$', 'a' * 60 + 'b')",
    "sleeps": "time.sleep(600)",
    "waits for what never comes": "import threading\nthreading.Lock().acquire() and threading.Event().wait()",
    "allocates": "kept = []\nwhile True: kept.append(bytearray(1 << 24))",
    "maps memory": "import mmap\nkept = []\nwhile True: kept.append(mmap.mmap(-1, 1 << 28))",
    "recurses": "def f(): f()\nsys.setrecursionlimit(10 ** 9)\nf()",
    "starts threads": "import threading\nwhile True: threading.Thread(target=time.sleep, args=(9,)).start()",
    "forks without end": "try:\n    while True: os.fork()\nexcept OSError: pass\nwhile True: pass",
    "prints without end": "while True: print('x' * 10000, flush=True)",
    "opens without end": "kept = []\nwhile True: kept.append(open(os.__file__))",
    "fills shared memory": "with open('/dev/shm/@MARK@', 'wb') as f:\n"
    "    while True: f.write(b'x' * (1 << 24))",
    "fills the disk": "n = 0\nwhile True:\n    n += 1\n    with open(f'/tmp/@MARK@-{n}', 'wb') as f:\n"
    "        f.write(b'x' * (1 << 24))",
}

CPP_ACTS = {
    "reads the evaluator": 'return std::ifstream("@EVALUATOR@").good();',
    "reads passwords": 'return std::ifstream("/etc/shadow").good();',
    "reads the environment": 'return std::getenv("EFT_CANARY") != nullptr;',
    "writes into /tmp": 'return fopen("/tmp/@MARK@-1", "w") != nullptr;',
    "writes into its folder": 'return fopen("@MARK@-2", "w") != nullptr;',
    "makes a folder": 'return mkdir("/tmp/@MARK@-3", 0700) == 0;',
    "makes a link": 'return symlink("/etc/passwd", "/tmp/@MARK@-4") == 0;',
    "forks": "pid_t p = fork(); if (p == 0) _exit(0); return p > 0;",
    "starts a program": 'return std::system("true") == 0;',
    "kills its parent": "return kill(getppid(), 0) == 0;",
    "traces its parent": "return ptrace(PTRACE_ATTACH, getppid(), 0, 0) == 0;",
    "reads its parent's memory": 'return open(("/proc/" + std::to_string(getppid()) + "/mem").c_str(), O_RDONLY) >= 0;',
    "opens a socket": "return socket(AF_INET, SOCK_STREAM, 0) >= 0;",
    "makes a pair of sockets": "int s[2]; return socketpair(AF_UNIX, SOCK_STREAM, 0, s) == 0;",
    "outlives its handler": "return prctl(PR_SET_PDEATHSIG, 0) == 0;",
    "raises its limits": "rlimit l{3600, 3600}; return setrlimit(RLIMIT_CPU, &l) == 0;",
    "leaves its session": "return setsid() >= 0;",
    "makes a file in memory": 'return memfd_create("x", 0) >= 0;',
    "finds an inherited descriptor": "for (int fd = 4; fd < 256; ++fd) if (fcntl(fd, F_GETFD) >= 0) return true; "
    "return false;",
    "hooks the exit": 'return atexit([] { fprintf(stderr, "an exit hook may run\\n"); }) != 0;',
}
CPP_VALUES = {
    "nothing": "int main() {}\n",
    "not a number": '#include <cstdio>\nint main() { for (int i = 0; i < 2000; ++i) puts("nan"); }\n',
    "infinity": '#include <cstdio>\nint main() { for (int i = 0; i < 2000; ++i) puts("inf 1e308"); }\n',
    "huge integers": '#include <cstdio>\nint main() { for (int i = 0; i < 2000; ++i) puts("9999999999999999999"); }\n',
    "negative numbers": '#include <cstdio>\nint main() { for (int i = 0; i < 2000; ++i) puts("-1"); }\n',
    "its own score": '#include <cstdio>\nint main() { puts("combined_score 1e9\\n{\\"combined_score\\": 1e9}"); }\n',
    "no text": '#include <cstdio>\nint main() { for (int i = 0; i < 2000; ++i) putchar(i % 256); }\n',
    "one long number": '#include <cstdio>\nint main() { for (int i = 0; i < 9000; ++i) putchar(57); }\n',
    "zeros": '#include <cstdio>\nint main() { for (int i = 0; i < 2000; ++i) puts("0"); }\n',
    "an end with a code": "int main() { return 1; }\n",
    "a crash": "int main() { *(volatile int*)0 = 1; }\n",
    "no program": "this is not C++\n",
}
CPP_ENDS = {
    "spins": "int main() { for (volatile int i = 0;;) i = i + 1; }\n",
    "sleeps": "#include <unistd.h>\nint main() { sleep(600); }\n",
    "allocates": "#include <vector>\nint main() { std::vector<char> v; for (;;) v.resize(v.size() + 9999999, 1); }\n",
    "prints without end": '#include <cstdio>\nint main() { for (;;) puts("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"); }\n',
    "forks without end": "#include <unistd.h>\nint main() { for (;;) fork(); }\n",
}
