"""eft report: the results of an evaluation as one self-contained HTML file, and a short table on the terminal.

    eft report out/smollm2_135m/evaluate -o report.html

Contract. RESULTS is an evaluation's folder or its results.json; a half-finished one is reported as such. The page needs
no network and no script, follows the reader's light or dark scheme, prints, and fits a phone. Its sentences come from
the numbers and their intervals; it says what they do not show. The data's provenance is read from the manifests of the
stages in `provenance` (default: the folder above the results, a recipe's root).

Honest limits: it reads the summaries in results.json; for whole replies and programs see the searches' own folders.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from eft import manifest
from eft.config import StageConfig
from eft.errors import UsageError
from eft.evaluate import page
from eft.evaluate import provenance as stages
from eft.evaluate import results as tables
from eft.evaluate.compare import compare
from eft.evaluate.terminal import show
from eft.evaluate.verdict import verdict


class Config(StageConfig):
    """Options of `eft report`."""

    positional: ClassVar[str | None] = "results"

    results: Path = Field(Path("evaluate"), description="an evaluation's folder, or its results.json")
    output: Path | None = Field(Path("report.html"), description="the HTML file")
    provenance: Path | None = Field(
        None, description="folder with the recipe's harvest/, build/, sft/, … [default: beside the results]"
    )


def _results(config: Config) -> Path:
    path = config.path(config.results)
    return path / tables.NAME if path.is_dir() else path


def _beside(config: Config) -> Path:
    """Where the recipe's other stages left their outputs."""
    if config.provenance is not None:
        return config.path(config.provenance)
    return _results(config).resolve().parent.parent


def inputs(config: Config) -> list[Path]:
    """The results, and the manifests that the provenance is read from."""
    return [_results(config), *(_beside(config) / sub / manifest.NAME for sub in stages.FOLDERS.values())]


def run(config: Config) -> Path:
    """Write the report. Returns its path. Raises UsageError or EftError where there are no results to report."""
    started = time.time()
    out = config.out()
    if out.is_dir():
        raise UsageError("the report is a file", where=out, why="this is a folder", way_out=f"-o {out / 'report.html'}")
    found = tables.load(_results(config))
    comparison = compare(found)
    words = verdict(found, comparison)
    manifest.write_text(out, page.render(found, comparison, words, stages.read(_beside(config))))
    show(found, comparison)
    print(f"report: {out}", file=sys.stderr)
    counts = {"searches": len(found.searches), "failed": len(comparison.failed), "bytes": out.stat().st_size}
    manifest.write(out, "report", config.model_dump(mode="json"), inputs(config), [out], counts, started)
    return out
