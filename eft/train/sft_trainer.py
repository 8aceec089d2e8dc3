"""TRL's SFTTrainer on rows that are tokenised already, padded or packed, weighted or not.

Tokenising, cutting and packing are not TRL's but ours (tokens.py, data.py, pack.py). The loss is the same: the mean over
the tokens with a loss of the whole global batch, over micro batches and ranks; with weights the weighted mean, each row's
tokens counting as its weight. What differs is what is computed: nothing but what the loss needs.

- No attention mask: rows are padded on the right, where a causal model never looks. Without a mask the kernels know that
  attention is causal, which a mask of ones would hide from them.
- No entropy and no accuracy of every token, which cost several passes over all logits, and none of the exchanges between
  ranks after every micro batch that their averages need.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from trl import SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling
from trl.trainer.utils import add_fused_lm_head

from eft.errors import UsageError
from eft.train.data import IGNORED


@dataclass
class Batches(DataCollatorForLanguageModeling):
    """Collates rows (prompt_ids, completion_ids, weight), or one pack of rows of `table`.

    Gives input_ids and labels (rows, tokens), int64; packs also position_ids and what kernels want to know of where rows
    begin; `masked` also attention_mask; with `weighted` loss_weights, float32 seen as int32, 0 where there is no loss.
    """

    table: Any = None
    masked: bool = False
    weighted: bool = False

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        packed = "rows" in examples[0]
        rows = [r for e in examples for r in self._unpacked(e)] if packed else examples
        ids = [[*r["prompt_ids"], *r["completion_ids"]] for r in rows]
        learned = [len(r["completion_ids"]) for r in rows]
        weights = [r.get("weight", 1.0) if self.weighted else 1.0 for r in rows]
        sizes = [len(row) for row in ids]
        width = sum(sizes) if packed else max(sizes)
        if self.pad_to_multiple_of and not packed:
            width = -(-width // self.pad_to_multiple_of) * self.pad_to_multiple_of
        shape = (1 if packed else len(ids), width)
        input_ids = torch.full(shape, self.pad_token_id)
        labels = torch.full(shape, IGNORED)
        of_loss = torch.zeros(shape)
        place = 0
        for number, (row, n, weight) in enumerate(zip(ids, learned, weights, strict=True)):
            line, start = (0, place) if packed else (number, 0)
            end = start + len(row)
            input_ids[line, start:end] = torch.tensor(row)
            labels[line, end - n : end] = input_ids[line, end - n : end]
            of_loss[line, end - n : end] = weight
            place = end
        batch: dict[str, Any] = {"input_ids": input_ids, "labels": labels}
        if self.weighted:
            # as bits: DeepSpeed has floats among the inputs rounded to the model's dtype
            batch["loss_weights"] = of_loss.view(torch.int32)
        if packed:
            batch |= _boundaries(sizes)
        elif self.masked or self.return_position_ids:
            inside = torch.arange(width)[None] < torch.tensor(sizes)[:, None]
            batch["attention_mask"] = inside.long()
            if self.return_position_ids:
                batch["position_ids"] = torch.arange(width).expand(shape).contiguous() * inside
        return batch

    def _unpacked(self, example: dict[str, Any]) -> list[dict[str, Any]]:
        columns = self.table[example["rows"]]
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _boundaries(sizes: list[int]) -> dict[str, Any]:
    """Where rows of these sizes begin in a pack, in the words of the flash and linear attention kernels."""
    lengths = torch.tensor(sizes)
    ends = torch.cat([torch.zeros(1, dtype=torch.int32), lengths.cumsum(0).to(torch.int32)])
    return {
        "position_ids": torch.cat([torch.arange(n) for n in sizes])[None],
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": max(sizes),
        "max_length_k": max(sizes),
        "seq_idx": torch.repeat_interleave(torch.arange(len(sizes), dtype=torch.int32), lengths)[None],
    }


class RowTrainer(SFTTrainer):
    """SFTTrainer with the loss above. A mixture-of-experts model with a balancing loss, a smoothed or another loss, and
    sequence parallelism take TRL's own, which wants masks and knows no weights: see `plain`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.plain = not (
            self.aux_loss_enabled
            or self.label_smoother is not None
            or self.args.loss_type != "nll"
            or self.compute_loss_func is not None
            or self.data_collator.return_position_ids
        )
        self.data_collator.masked = not self.plain
        if self.data_collator.weighted and not self.plain:
            raise UsageError(
                "rows cannot be weighted here",
                why="a balancing loss of experts, another loss than nll and sequence parallelism are TRL's, which knows no weights",
                way_out="set `weights: false`",
            )
        if self.plain:
            model = self.accelerator.unwrap_model(self.model)
            add_fused_lm_head(model.get_base_model() if hasattr(model, "get_base_model") else model, outputs=("log_probs",))
        self.model_accepts_loss_kwargs = True  # the loss below divides by num_items_in_batch

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        return dataset

    def _set_signature_columns_if_needed(self) -> None:
        self._signature_columns = ["prompt_ids", "completion_ids", "weight", "rows"]

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Any:
        """The divisor of the global batch's loss: how many tokens have a loss, or the sum of their weights."""
        if not batch_samples or "loss_weights" not in batch_samples[0]:
            return super()._get_num_items_in_batch(batch_samples, device)
        total = sum(batch["loss_weights"].view(torch.float32).sum() for batch in batch_samples)
        return self.accelerator.gather(total.to(device)).sum() if self.args.world_size > 1 else total.to(device)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        if not self.plain or return_outputs:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        weights = inputs.pop("loss_weights", None)
        outputs = model(**inputs, use_cache=False, fused_lm_head=True)
        losses = -outputs.log_probs  # (rows, tokens - 1), zero without a label
        if num_items_in_batch is None:  # evaluation: the likelihood itself, without weights
            return losses.sum() / outputs.label_mask.sum().clamp(min=1)
        if weights is not None:
            losses = losses * weights.view(torch.float32)[:, 1:]
        loss = losses.sum() / num_items_in_batch
        return loss * self.accelerator.num_processes  # DDP averages over the ranks
