"""Prompt formats as settings of OpenEvolve, and the whole OpenEvolve config of one search.

`openevolve@0.4` is the stock prompt. `eft@1` (templates/eft_1) is ours for small models: one line of system message,
the score, a few recent edits with their outcomes, the program, one SEARCH/REPLACE form to fill in.

What eft@1 can and cannot show. OpenEvolve offers a template two lists of earlier programs: the island's best ones, with
the edit that made each and whether it scored better than its own parent ("Best edits"), and a sample of the others
without that word ("Other edits": the reader compares the score with the current one; mostly rejected edits). It has no
list in order of time, and replies that could not be applied appear nowhere. Programs displaced by a better one in their
MAP-Elites cell are gone. In rewrite mode every change is called "Full rewrite".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from eft import resources
from eft.errors import UsageError, nearest
from eft.search.spec import SearchSpec

RELEASE_FORMAT = "openevolve@0.4"


@dataclass(frozen=True)
class PromptSettings:
    """What a prompt format needs of OpenEvolve. `template`: folder under eft/templates, "" for the stock templates."""

    template: str = ""
    prompt: dict[str, Any] = field(default_factory=dict)
    database: dict[str, Any] = field(default_factory=dict)
    metrics: tuple[str, ...] | None = None  # the only metrics that OpenEvolve is told; None: all of them
    system_message: str | None = None  # None: the task's own


PROMPT_SETTINGS: dict[str, PromptSettings] = {
    RELEASE_FORMAT: PromptSettings(),
    "eft@1": PromptSettings(
        template="eft_1",
        system_message="You improve programs step by step.",
        # An edit counts as "improved" only where *every* metric rose, so OpenEvolve is told the one that it maximises;
        # the others stay in evaluations.jsonl.
        metrics=("combined_score",),
        prompt={
            "num_top_programs": 2,  # lines under "Best edits"
            "num_diverse_programs": 2,  # at most so many lines under "Other edits"
            "use_template_stochasticity": False,
            "include_artifacts": False,
            "include_changes_under_chars": 80,
            "concise_implementation_max_lines": None,  # no further remarks behind an edit
            "comprehensive_implementation_min_lines": None,
            "suggest_simplification_after_chars": None,
            "diff_summary_max_line_len": 44,
            "diff_summary_max_lines": 2,
        },
        # One island and a small archive: parents are among the few best, so the edits shown are about them, and a
        # search of 20 candidates is not spread over five populations.
        database={"num_islands": 1, "archive_size": 2, "exploration_ratio": 0.1, "exploitation_ratio": 0.8},
    ),
}  # fmt: skip


def settings_for(prompt_format: str) -> PromptSettings:
    """Raises UsageError for an unknown format."""
    found = PROMPT_SETTINGS.get(prompt_format)
    if found is None:
        raise UsageError(f"unknown prompt format '{prompt_format}'", way_out=nearest(prompt_format, PROMPT_SETTINGS))
    return found


def checkpoint_interval(iterations: int) -> int:
    """How often OpenEvolve saves: every 10 to 100 candidates (all programs so far each time), and after the last one,
    which it does only where the interval divides the number of iterations. A killed search does not need it: it replays.
    """
    for interval in range(min(100, iterations), 9, -1):
        if iterations % interval == 0:
            return interval
    return iterations


def openevolve_config(spec: SearchSpec, task: Any, *, api_key: str = "none") -> dict[str, Any]:
    """The config of one search as OpenEvolve reads it (its YAML keys). `task`: a tasks.task.Task."""
    fmt = settings_for(spec.prompt_format)
    prompt = dict(fmt.prompt)
    system = fmt.system_message if fmt.system_message is not None else task.system_message
    if system:
        prompt["system_message"] = system
    if fmt.template:
        prompt["template_dir"] = str(resources.PACKAGE / "templates" / fmt.template)
    seed_length = len(task.initial_program.read_text(encoding="utf-8"))
    return {
        "max_iterations": spec.iterations,
        "checkpoint_interval": checkpoint_interval(spec.iterations),
        "random_seed": spec.seed,
        "language": task.language,
        "file_suffix": task.initial_program.suffix,
        "diff_based_evolution": spec.edit == "diff",
        "max_code_length": max(10_000, 3 * seed_length),
        "llm": {
            "api_base": spec.base_url,
            "api_key": api_key,
            "models": [{"name": spec.model, "weight": 1.0}],
            "temperature": spec.temperature,
            "top_p": spec.top_p,
            "max_tokens": spec.max_tokens,
            "timeout": max(1, round(spec.request_timeout_s)),
            # The gateway retries and journals; here, openai's retries would multiply with OpenEvolve's own.
            "retries": 0,
            "retry_delay": 0,
        },
        "prompt": prompt,
        "database": {"log_prompts": True, "artifacts_base_path": str(spec.folder / "artifacts"), **fmt.database},
        "evaluator": {
            # The task's own limit ends a candidate by killing it; this one only gives up waiting for a thread.
            "timeout": round(2 * task.timeout_s) + 60,
            "max_retries": 0,
            "cascade_evaluation": False,
            "parallel_evaluations": 1,
        },
        "evolution_trace": {
            "enabled": True,
            "format": "jsonl",
            "include_code": True,
            "include_prompts": True,
            "include_failures": True,
            "buffer_size": 1,  # every record on disk at once: a killed search loses none
            "output_path": str(spec.folder / "evolution_trace.jsonl"),
        },
    }
