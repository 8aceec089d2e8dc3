"""TRL's KTOTrainer on rows that are tokenised already.

TRL tokenises by itself, and its rules (truncation, silent drops, a prefix that may be shortened) are not ours: see
data.py. The loss, the KL term and the metrics are TRL's.
"""

from __future__ import annotations

from typing import Any

from trl import KTOTrainer
from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference


class pair_completions(DataCollatorForUnpairedPreference):  # noqa: N801 (used as a function)
    """Collates a micro batch and adds the mismatched completions of KTO's KL term: row i gets the completion of row
    i-1, the first one that of the last, as TRL's own preparation does. The rows of a micro batch are contiguous, on
    every rank."""

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        shifted = [examples[i - 1]["completion_ids"] for i in range(len(examples))]
        return super().torch_call([{**e, "KL_completion_ids": ids} for e, ids in zip(examples, shifted, strict=True)])


class PairedTrainer(KTOTrainer):
    """KTOTrainer that takes datasets with prompt_ids, completion_ids and label as they are."""

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        return dataset
