"""eft report: the results of an evaluation as one self-contained HTML file, and a short table on the terminal.

    eft report out/smollm2_135m/evaluate -o report.html
    eft report out/a/evaluate out/b/evaluate -o both.html

Contract. RESULTS is an evaluation's folder or its results.json; a half-finished one is reported as such. Several are
compared as one where they are of the same tasks, prompt format, budget and sandbox, and refused with the reason where
they are not. The page needs no network and no script, follows the reader's light or dark scheme, prints, and fits a
phone. Loops beside programs have a section each: their controls, intervals and confirmations; the headline and all means
stay those of programs (of the first loop, where no programs were searched). Beside it lie the same report as Markdown
(report.md) and every number of it as JSON (report.json). Its sentences come from the numbers and their intervals; it
says what they do not show. The data's provenance is read from the manifests of the stages in `provenance` (default: the
folder above the first results, a recipe's root).

Honest limits: it reads the summaries in results.json; for whole replies and programs see the searches' own folders.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, field_validator

from eft import manifest
from eft.config import StageConfig
from eft.errors import UsageError
from eft.evaluate import markdown, page, sections
from eft.evaluate import provenance as stages
from eft.evaluate import results as tables
from eft.evaluate.combine import combine
from eft.evaluate.comparison import Comparison
from eft.evaluate.results import Results
from eft.evaluate.terminal import show
from eft.evaluate.verdict import Verdict, strength


class Config(StageConfig):
    """Options of `eft report`."""

    positional: ClassVar[str | None] = "results"

    results: list[Path] = Field(
        default_factory=lambda: [Path("evaluate")], description="evaluations' folders, or their results.json"
    )
    output: Path | None = Field(Path("report.html"), description="the HTML file")
    provenance: Path | None = Field(
        None, description="folder with the recipe's harvest/, build/, sft/, … [default: beside the results]"
    )


    @field_validator("results", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str | Path) else value

    @field_validator("results")
    @classmethod
    def _some(cls, value: list[Path]) -> list[Path]:
        if not value:
            raise ValueError("at least one evaluation is needed")
        return value


def _results(config: Config) -> list[Path]:
    paths = [config.path(p) for p in config.results]
    return [p / tables.NAME if p.is_dir() else p for p in paths]


def _beside(config: Config) -> Path:
    """Where the recipe's other stages left their outputs."""
    if config.provenance is not None:
        return config.path(config.provenance)
    return _results(config)[0].resolve().parent.parent


def inputs(config: Config) -> list[Path]:
    """The results, and the manifests that the provenance is read from."""
    beside = _beside(config)
    return [*_results(config), *(beside / sub / manifest.NAME for sub in stages.FOLDERS.values()),
            beside / stages.INHERIT / "lineage.json"]  # fmt: skip


def to_json(results: Results, comparison: Comparison, words: Verdict) -> dict[str, Any]:
    """Every number and sentence of the report as a JSON object."""
    pairs = [{**dataclasses.asdict(p), "strength": strength(p)} for p in comparison.pairs]
    about = {k: getattr(results, k) for k in ("config", "versions", "seeds", "planned", "started", "seconds")}
    return tables.plain({"verdict": dataclasses.asdict(words), **dataclasses.asdict(comparison), "pairs": pairs,
                         "tasks": [dataclasses.asdict(t) for t in results.tasks],
                         "contained": dict(page.contained(results)), **about})  # fmt: skip


def run(config: Config) -> Path:
    """Write the report. Returns its path.

    Raises UsageError or EftError where there are no results to report, or several that cannot be compared.
    """
    started = time.time()
    out = config.out()
    if out.is_dir():
        raise UsageError("the report is a file", where=out, why="this is a folder", way_out=f"-o {out / 'report.html'}")
    beside = {suffix: out.with_suffix(suffix) for suffix in (".md", ".json")}
    if out in beside.values():
        raise UsageError("the report is an HTML file", where=out, why="its Markdown and JSON are written beside it",
                         way_out=f"-o {out.with_suffix('.html')}")  # fmt: skip
    found = combine([(path, tables.load(path)) for path in _results(config)])
    main, others = sections.split(found)
    own, comparison, words = main.results, main.comparison, main.verdict
    known = stages.read(_beside(config))
    manifest.write_text(beside[".md"], markdown.render(own, comparison, words, known, sections.markdown(others)))
    numbers = {**to_json(own, comparison, words), "loop": main.name}
    manifest.write_json(beside[".json"], numbers | {"loops": {s.name: tables.plain(sections.to_json(s)) for s in others}})
    manifest.write_text(out, page.render(own, comparison, words, known, [sections.view(s) for s in others]))
    for each in (main, *others):
        show(each.results, each.comparison, title=each.name if others else "")
    print(f"report: {out}", file=sys.stderr)
    failed = sum(len(each.comparison.failed) for each in (main, *others))
    counts = {"searches": len(found.searches), "failed": failed, "bytes": out.stat().st_size}
    outputs = [out, *beside.values()]
    manifest.write(out, "report", config.model_dump(mode="json"), inputs(config), outputs, counts, started)
    return out
