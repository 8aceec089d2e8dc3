"""Make the environments of other scaffolds: `.venv-scaffolds/shinka` and `.venv-scaffolds/skydiscover`. Optional.

    make scaffold-env                      both
    python scripts/make_scaffold_env.py shinka

ShinkaEvolve and SkyDiscover pin versions of their own, so neither shares an environment with eft: each is run as a
process, and what it leaves on the disk is read. Searches with `scaffold: shinka` need the first; some tests need them
(without, they say so and are skipped). EFT_SCAFFOLD_VENVS names another folder. Repeated, it returns at once. Uses only
the standard library.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
ROOT = Path(os.environ.get("EFT_SCAFFOLD_VENVS", HERE / ".venv-scaffolds"))
# Exactly what the readers and the driver were tested with. SkyDiscover's sandboxed evaluation needs numpy only.
PACKAGES = {"shinka": "shinka-evolve==0.0.7", "skydiscover": "skydiscover==0.1.0"}
MODULES = {"shinka": "shinka.core", "skydiscover": "skydiscover"}


def fail(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(1)


def say(message: str) -> None:
    print(message, file=sys.stderr)


def make(name: str) -> None:
    """Make one environment, unless its stamp says that it is what it should be."""
    venv, package = ROOT / name, PACKAGES[name]
    python, mark = venv / "bin" / "python", venv / ".eft-stamp"
    if mark.exists() and mark.read_text() == package and python.exists():
        return
    started = time.time()
    say(f"scaffold environment {venv}: {package}")
    mark.unlink(missing_ok=True)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    install = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", package]
    if subprocess.run(install).returncode != 0:
        fail(f"pip failed: {package}\n  way out: check the network and run the same command again")
    seen = subprocess.run([str(python), "-c", f"import {MODULES[name]}"], capture_output=True, text=True)
    if seen.returncode != 0:
        fail(f"{package} does not work\n  where: {venv}\n  why: {seen.stderr.strip()[-500:]}")
    mark.write_text(package)
    say(f"scaffold environment {name} ready after {time.time() - started:.0f} s")


def main(names: list[str]) -> None:
    if sys.version_info < (3, 11):  # noqa: UP036
        fail(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}")
    unknown = [n for n in names if n not in PACKAGES]
    if unknown:
        fail(f"no scaffold '{unknown[0]}'; valid: {', '.join(PACKAGES)}")
    for name in names or PACKAGES:
        make(name)


if __name__ == "__main__":
    main(sys.argv[1:])
