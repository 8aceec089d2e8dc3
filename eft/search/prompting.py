"""Prompts of our own scaffolds, in the very words of OpenEvolve's: the same templates, rendered by its own sampler.

So a mutator that was trained on OpenEvolve's prompts is asked by every scaffold in the form that it knows.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from eft.search.settings import openevolve_config
from eft.search.spec import SearchSpec


@dataclass(frozen=True)
class Shown:
    """A program as prompts show it. `metrics`: what the scaffold is told; `changes`: the edit that made it in words,
    "" for the seed; `parent_metrics`: its parent's, from which the prompt says whether that edit improved anything."""

    id: str
    code: str
    metrics: dict[str, Any]
    changes: str = ""
    parent_metrics: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[str, Any] = field(default_factory=dict)


class Prompts:
    """Renders the prompts of one search."""

    def __init__(self, spec: SearchSpec, task: Any) -> None:
        from openevolve import Config
        from openevolve.prompt.sampler import PromptSampler

        self.spec, self.config = spec, Config.from_dict(openevolve_config(spec, task))
        self.sampler = PromptSampler(self.config.prompt)
        self.top, self.diverse = self.config.prompt.num_top_programs, self.config.prompt.num_diverse_programs

    def build(self, parent: Shown, best: list[Shown], others: list[Shown], number: int) -> list[dict[str, str]]:
        """The messages that ask for an edit of `parent`.

        best: the best programs so far, best first; others: further ones to be shown. number: of this request, from 1;
        with the search's seed it decides what the templates leave to chance.
        """
        random.seed(f"{self.spec.seed}:{number}")
        best = best[: self.top + self.diverse]
        prompt = self.sampler.build_prompt(
            current_program=parent.code, parent_program=parent.code, program_metrics=parent.metrics,
            previous_programs=[self._row(p) for p in best[: self.top]], top_programs=[self._row(p) for p in best],
            inspirations=[self._row(p) for p in others[: self.diverse]], language=self.config.language,
            evolution_round=number, diff_based_evolution=self.spec.edit == "diff",
            program_artifacts=dict(parent.artifacts) or None,
            feature_dimensions=self.config.database.feature_dimensions,
        )  # fmt: skip
        return [{"role": "system", "content": prompt["system"]}, {"role": "user", "content": prompt["user"]}]

    def _row(self, program: Shown) -> dict[str, Any]:
        """The program as OpenEvolve's sampler reads it."""
        row = {"id": program.id, "code": program.code, "metrics": program.metrics, "metadata": {"island": 0}}
        if program.changes:
            row["metadata"] |= {"changes": program.changes, "parent_metrics": program.parent_metrics}
        else:
            row["changes_description"] = self.config.prompt.initial_changes_description
        return row

    def words(self, response: str) -> str:
        """The edit in a reply as the prompt's history will tell it."""
        if self.spec.edit != "diff":
            return "Full rewrite"
        from openevolve.utils.code_utils import extract_diffs, format_diff_summary

        try:
            blocks = extract_diffs(response, self.config.diff_pattern)
        except ValueError:
            return ""
        return format_diff_summary(blocks, max_line_len=self.config.prompt.diff_summary_max_line_len,
                                   max_lines=self.config.prompt.diff_summary_max_lines)  # fmt: skip
