"""Searches on the machines of a Ray cluster: `--executor ray`.

RAY_ADDRESS names the cluster; without it a local one is started for as long as the searches last. Every machine needs
this environment at the same path, and sees the same files (a shared folder for the output and for tasks of one's own).
Searches reach the gateway over the network: give it an address that they can reach, in a network where only they can,
since it asks nobody for a password.
"""

from __future__ import annotations

import os
import subprocess
from typing import Any

from eft.errors import EftError
from eft.search import process
from eft.search.spec import SearchSpec


def _search(spec: dict[str, Any]) -> int:
    """On a machine of the cluster: run one search to its end. Its exit status, as of a process."""
    # The search dies with this worker, which Ray kills when the search is cancelled or its owner is gone.
    return process.start(SearchSpec(**spec)).wait()


class Remote:
    """A search on the cluster; the part of a process's interface that its keeper needs."""

    def __init__(self, ray: Any, reference: Any) -> None:
        self.ray, self.reference, self.why = ray, reference, ""
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit status, None while it waits for a machine or runs. `why` tells what Ray says of a lost one."""
        if self._code is None and self.ray.wait([self.reference], timeout=0)[0]:
            try:
                self._code = self.ray.get(self.reference)
            except self.ray.exceptions.RayError as e:  # its machine is gone, or it was cancelled
                self._code, self.why = 1, f"{type(e).__name__}: {str(e).strip().splitlines()[0][:300]}"
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired like Popen.wait."""
        self.ray.wait([self.reference], timeout=timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("search", timeout or 0.0)
        return code

    def end(self) -> None:
        """Cancel it, wherever it runs."""
        if self.poll() is None:
            self.ray.cancel(self.reference, force=True)


class Cluster:
    """Starts searches on a Ray cluster. A context manager."""

    def __init__(self) -> None:
        try:
            import ray
        except ImportError:
            way_out = "pip install 'evolution-finetuning[ray]', or --executor local"
            raise EftError("Ray is not installed", way_out=way_out) from None
        self.ray = ray

    def __enter__(self) -> Cluster:
        # What decides how a search runs (the sandbox's level, say) holds on all machines.
        ours = ("EFT_", "PYTHON")
        env = {k: v for k, v in process.environment().items() if k.startswith(ours) and k != process.PARENT}
        local = {} if os.environ.get("RAY_ADDRESS") else {"include_dashboard": False}
        try:
            self.ray.init(log_to_driver=False, logging_level="error", runtime_env={"env_vars": env}, **local)
        except (OSError, RuntimeError, ValueError, ConnectionError) as e:
            raise EftError("the Ray cluster cannot be reached", where=os.environ.get("RAY_ADDRESS", "a local one"),
                           why=str(e).splitlines()[0] if str(e) else type(e).__name__) from None  # fmt: skip
        self._remote = self.ray.remote(max_retries=0)(_search)
        return self

    def __exit__(self, *exc: object) -> None:
        self.ray.shutdown()

    def start(self, spec: SearchSpec) -> Remote:
        """Queue the search; it starts where a core is free."""
        import dataclasses

        with process.clear_disk_errors(spec.folder):
            spec.folder.mkdir(parents=True, exist_ok=True)
        return Remote(self.ray, self._remote.remote(dataclasses.asdict(spec)))
