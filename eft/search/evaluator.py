"""Evaluation of candidates inside a search: through `eft.tasks.evaluate`, and never twice for the same code.

The cache lies beside the search, so a search that was killed and starts again finds every evaluation that was finished.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eft.records import Validity
from eft.search.settings import settings_for
from eft.search.spec import CACHE, SPEC, SearchSpec, finite

# What OpenEvolve loads as the task's evaluator. It runs in OpenEvolve's worker process.
EVALUATOR_PY = '''"""Written by eft: hands every candidate to eft.tasks.evaluate (out of process, cached by code)."""

from pathlib import Path

from eft.search.evaluator import Scorer

_scorer = Scorer.beside(Path(__file__))


def evaluate(program_path):
    return _scorer.for_openevolve(Path(program_path).read_text(encoding="utf-8"))
'''


class Scorer:
    """Evaluates code for one search. Not thread-safe: a search evaluates one candidate at a time."""

    def __init__(self, task: Any, cache: Path, metrics: tuple[str, ...] | None = None) -> None:
        """`task`: a tasks.task.Task; `metrics`: the only ones that the scaffold is told (None: all)."""
        self.task, self.cache, self.metrics = task, cache, metrics

    @classmethod
    def beside(cls, file: Path) -> Scorer:
        """The scorer of the search whose folder `file` lies in."""
        return cls.of(SearchSpec.load(file.parent / SPEC))

    @classmethod
    def of(cls, spec: SearchSpec) -> Scorer:
        """Raises EftError where the task cannot be loaded."""
        from eft.tasks.task import load_task

        return cls(load_task(Path(spec.task)), spec.folder / CACHE, settings_for(spec.prompt_format).metrics)

    def evaluate(self, code: str, hidden: bool = False) -> Any:
        """The tasks.evaluate.Evaluation of `code`, from the cache where it is there. `hidden`: on the task's hidden
        instances, which nothing may see before the search has ended."""
        from eft.tasks.evaluate import evaluate

        return evaluate(self.task, code, cache=self.cache, hidden=hidden)

    def told(self, evaluation: Any) -> dict[str, Any]:
        """The metrics that the scaffold is told: finite numbers and short words only, the score as `combined_score`.

        A failed program keeps what its evaluator said of the failure; a timeout gets OpenEvolve's own mark as well.
        """
        plain = {k: v[:200] if isinstance(v, str) else v for k, v in evaluation.metrics.items()
                 if isinstance(v, str | bool) or finite(v) is not None}  # fmt: skip
        if evaluation.validity == Validity.VALID:
            known = {**plain, "combined_score": evaluation.score}
            return {k: v for k, v in known.items() if self.metrics is None or k in self.metrics}
        if not isinstance(plain.get("error"), str):
            plain["error"] = str(evaluation.validity)
        if evaluation.validity == Validity.TIMEOUT:
            plain["timeout"] = True
        return plain

    def for_openevolve(self, code: str) -> Any:
        """The evaluation as OpenEvolve wants it: metrics and artifacts."""
        from openevolve.evaluation_result import EvaluationResult

        evaluation = self.evaluate(code)
        return EvaluationResult(metrics=self.told(evaluation), artifacts=dict(evaluation.artifacts or {}))
