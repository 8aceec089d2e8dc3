"""Make the training environment: `.venv`, from locks/train.txt. Safe to repeat: a stamp of the lock makes it instant.

Uses only the standard library, since it runs before anything is installed. Set EFT_PYTHON to a Python >= 3.11 and
EFT_VENV to another folder if you like. PyTorch: whatever pip gives this machine for the pinned version; the script says
which build that is and how much disk it takes before it downloads.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
LOCK = HERE / "locks" / "train.txt"
VENV = Path(os.environ.get("EFT_VENV", HERE / ".venv"))


def fail(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(1)


def stamp() -> str:
    """What the environment is made from: the lock, and pyproject.toml for the editable install's entry points."""
    digest = hashlib.sha256()
    for file in (LOCK, HERE / "pyproject.toml"):
        digest.update(file.read_bytes())
    return f"{digest.hexdigest()} {HERE}"


def pip(*args: str) -> None:
    command = [str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", *args]
    if subprocess.run(command).returncode != 0:
        fail(f"pip failed: {' '.join(command[2:])}\n  way out: check the network and run the same command again")


def torch_build(requirement: str) -> str:
    """Ask pip what it would install for torch here, without installing it."""
    with tempfile.TemporaryDirectory() as d:
        report = Path(d) / "report.json"
        command = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--quiet", "--dry-run", "--report", str(report)]
        subprocess.run([*command, requirement], check=False, stdout=subprocess.DEVNULL)
        try:
            plan = json.loads(report.read_text())["install"]
        except (OSError, ValueError, KeyError):
            return "unknown build"
    cuda = any(p["metadata"]["name"].lower().startswith(("nvidia", "cuda")) for p in plan)
    return "CUDA build, environment of about 7 GB" if cuda else "CPU build, environment of about 2 GB"


def system_packages() -> None:
    """What pip cannot install: bubblewrap, which confines candidate programs, and a C++ compiler. Installed where this
    process may (root, apt); said where not."""
    missing = {p for p, found in (("bubblewrap", shutil.which("bwrap")),
                                  ("g++", shutil.which("g++") or shutil.which("c++"))) if not found}  # fmt: skip
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"installing {' and '.join(sorted(missing))} (apt-get)", file=sys.stderr)
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": env}
        subprocess.run(["apt-get", "update"], **quiet)
        subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", *sorted(missing)], **quiet)
    if shutil.which("bwrap") is None:
        print("warning: bubblewrap is not installed, and searches refuse to run candidate programs without it\n"
              "  way out: install the system package bubblewrap, or say EFT_SANDBOX=rlimits (weaker: docs/sandbox.md)",
              file=sys.stderr)  # fmt: skip
    if shutil.which("g++") is None and shutil.which("c++") is None:
        print("warning: no C++ compiler found; DeepSpeed on CPU builds a small extension and needs one, and so do the "
              "C++ tasks", file=sys.stderr)  # fmt: skip


def main() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036  that is what is checked here
        fail(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}\n  way out: EFT_PYTHON=python3.11 make env")
    mark = VENV / ".eft-stamp"
    if mark.exists() and mark.read_text() == stamp():
        return
    system_packages()
    started = time.time()
    if not (VENV / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    lines = [line.strip() for line in LOCK.read_text().splitlines()]
    pins = [line for line in lines if line and not line.startswith("#")]
    torch = next(p for p in pins if p.startswith("torch=="))
    have = subprocess.run([str(VENV / "bin" / "python"), "-m", "pip", "show", "torch"], capture_output=True, text=True)
    if f"Version: {torch.split('==')[1]}" not in have.stdout:
        print(f"training environment {VENV}: {torch}, {torch_build(torch)}", file=sys.stderr)
        pip("install", "--quiet", "--progress-bar", "on", torch)
    print(f"training environment: {len(pins)} pinned packages", file=sys.stderr)
    pip("install", "--quiet", "--progress-bar", "on", "--no-deps", *[p for p in pins if p != torch])
    pip("install", "--quiet", "--no-deps", "--editable", str(HERE))
    mark.write_text(stamp())
    print(f"training environment ready after {time.time() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
