"""C++ candidates: compiled once, run once per input, and as hostile as any other."""

from __future__ import annotations

from pathlib import Path

import pytest

from eft.errors import EftError
from eft.tasks import cpp, sandbox, scoring
from eft.tasks.sandbox import Limits

SUM = "#include <iostream>\nint main() { long s = 0, x; while (std::cin >> x) s += x; std::cout << s; std::cerr << 1; }"
QUICK = Limits(wall_s=5.0, cpu_s=1, memory_mb=256, output_kb=64)
pytestmark = pytest.mark.integration


@pytest.fixture(scope="module", params=["bubblewrap", "rlimits"])
def level(request):
    before = sandbox.level()
    if request.param == "bubblewrap" and sandbox.bubblewrap_fails():
        pytest.skip("bubblewrap does not work on this machine: the bubblewrap level was NOT tested")
    cpp._kept.clear()
    yield sandbox.choose(request.param)
    sandbox.choose(before)


@pytest.fixture
def run(tmp_path: Path):
    def evaluate(source: str | bytes, *inputs: str) -> scoring.Scored:
        file = tmp_path / "program.cpp"
        file.write_bytes(source if isinstance(source, bytes) else source.encode())
        return scoring.evaluate_cpp(file, inputs=list(inputs) or [""], score=score, limits=QUICK)

    def score(outputs: list[str]) -> dict[str, float]:
        return {"combined_score": sum(map(float, outputs))}

    return evaluate


def test_a_program_runs_once_per_input(level, run):
    found = run(SUM, "1 2", "3 4 5")
    assert found == {"combined_score": 15.0, "validity": 1.0} and found.artifacts == {"stderr": "1"}


def test_it_is_compiled_once(level, run, monkeypatch):
    run(SUM, "1")
    monkeypatch.setattr(cpp, "_compile", lambda source: pytest.fail("compiled again"))
    assert run(SUM, "7")["combined_score"] == 7.0


HOSTILE = {
    "int main() { return x; }": "not declared",
    "#error told you": "told you",
    b"\xff\xfe int main() {}": "stray",
    "": "it does not compile",
    "int main() { for (;;); }": "timeout: ",
    "#include <unistd.h>\nint main() { sleep(60); }": "timeout: ",
    "int main() { *(volatile int*)0 = 1; }": "SIGSEGV",
    "int main() { return 3; }": "exit status 3",
    "#include <cstdio>\nint main() { for (;;) puts(\"xxxxxxxxxxxxxxxxxxxx\"); }": "larger than 64 KB",
    "#include <unistd.h>\nint main() { if (fork() < 0) return 9; sleep(60); }": "exit status 9",
    "#include <unistd.h>\nint main() { execl(\"/bin/true\", \"true\", nullptr); return 9; }": "exit status 9",
    "#include <cstdio>\nint main() { return fopen(\"/tmp/eft-was-here\", \"w\") ? 0 : 9; }": "exit status 9",
    "#include <csignal>\n#include <unistd.h>\nint main() { return kill(getppid(), 9) ? 9 : 0; }": "exit status 9",
    "#include <sys/socket.h>\nint main() { return socket(AF_UNIX, SOCK_STREAM, 0) < 0 ? 9 : 0; }": "exit status 9",
    "#include <vector>\nint main() { std::vector<char> v(1u << 30, 1); return v[5] - 1; }": "(SIG",
}


@pytest.mark.parametrize("source", HOSTILE)
def test_hostile_programs(level, run, source):
    found = run(source)
    assert found["validity"] == 0.0 and HOSTILE[source] in found["error"], found
    assert not Path("/tmp/eft-was-here").exists()


def test_the_compilers_text_goes_to_the_artifacts(level, run):
    found = run("int main() {\n  return first + second;\n}")
    assert found["error"].startswith("evaluator_error: it does not compile: program.cpp:2:")
    assert "first" in found.artifacts["compiler"] and "second" in found.artifacts["compiler"]


def test_the_compiler_reads_nothing_of_ours(run):
    if sandbox.bubblewrap_fails():
        pytest.skip("bubblewrap does not work on this machine: NOT tested")
    sandbox.choose("bubblewrap")
    for source in (f'#include "{__file__}"', '#include "/etc/passwd"', f'asm(".incbin \\"{__file__}\\"");'):
        found = run(source + "\nint main() {}\n")
        assert found["validity"] == 0.0
        assert "No such file" in str(found.artifacts) or "file not found" in str(found.artifacts), found.artifacts


def test_a_compilation_without_end_is_ended(run, monkeypatch):
    monkeypatch.setattr(cpp, "BOUNDS", cpp.oneshot.Bounds(wall_s=1.0, memory_mb=1024, processes=32, disk_mb=64))
    source = "template <int n> struct A { static const int v = A<n - 1>::v + A<n - 2>::v + n; };\n"
    source = "#include <array>\nconstexpr long f(long n) { return n < 2 ? n : f(n - 1) + f(n - 2); }\n"
    source += "".join(f"std::array<char, f({n}) % 7 + 1> a{n};\n" for n in range(24, 400)) + "int main() {}\n"
    found = run(source)
    assert found["validity"] == 0.0 and ("not compiled after" in found["error"] or "does not compile" in found["error"])


def test_a_missing_compiler_is_one_message(run, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(EftError, match="no C\\+\\+ compiler") as caught:
        run(SUM + "// never compiled")
    assert "apt-get install g++" in caught.value.way_out
