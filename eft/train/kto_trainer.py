"""KTO on rows that are tokenised already, with TRL's loss and half of TRL's work.

The loss, the KL term and the names of the metrics are those of TRL's KTOTrainer, row by row (tests/train/test_kto.py).
What is different:

- A row's completion and the mismatched one of its KL term come after the same prompt. The prompt is computed once, in
  the pass that has gradients; the KL pass reads its keys and values and computes the mismatched completion only (see
  `PromptStates`). That is exact for causal attention over all tokens, and checked on the first micro batch; other
  models (linear attention, sliding windows) get a whole second pass.
- The reference's log-probabilities come from reference.py, so there is no reference model.
- Only completions are projected to the vocabulary, and of what can be known of them only the log-probability is
  computed. Metrics are summed on each rank and exchanged when they are logged.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import torch
import torch.nn.functional as F
from transformers import TrainerCallback
from transformers.cache_utils import Cache, DynamicLayer
from trl import KTOTrainer
from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference
from trl.trainer.utils import add_fused_lm_head, use_adapter

from eft.errors import EftError
from eft.train import reference
from eft.train.order import partner

IGNORED = -100


class pair_completions(DataCollatorForUnpairedPreference):  # noqa: N801 (used as a function)
    """Collates a micro batch and adds the mismatched completions of KTO's KL term: row i gets the completion of row
    i-1, the first one that of the last, as TRL's own preparation does. The rows of a micro batch are contiguous, on
    every rank. With a `store`, their reference log-probabilities too."""

    store: reference.Store | None = None

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        shifted = [examples[partner(i, len(examples))]["completion_ids"] for i in range(len(examples))]
        batch = super().torch_call([{**e, "KL_completion_ids": ids} for e, ids in zip(examples, shifted, strict=True)])
        if self.store is not None:
            matched, mismatched = keys(examples)
            batch["ref_logps"] = bits([self.store.values[k] for k in matched])
            batch["ref_KL_logps"] = bits([self.store.values[k] for k in mismatched])
        return batch


def bits(values: list[float]) -> Any:
    """float32 values as the integers that have the same bits.

    Under DeepSpeed transformers rounds every float of a batch to the model's dtype. A log-probability of -150 in bfloat16
    is a whole number: with TRL's precomputed reference this gives the first step a KL term of 0.1 nats that is not there.
    """
    return torch.tensor(values, dtype=torch.float32).view(torch.int32)


def keys(examples: list[dict[str, Any]]) -> tuple[list[bytes], list[bytes]]:
    """The rows of a micro batch as keys of the store: with their own completions, and with those of the KL term."""
    shifted = [examples[partner(i, len(examples))]["completion_ids"] for i in range(len(examples))]
    return (
        [reference.row_key(e["prompt_ids"], e["completion_ids"]) for e in examples],
        [reference.row_key(e["prompt_ids"], ids) for e, ids in zip(examples, shifted, strict=True)],
    )


class _States(DynamicLayer):
    """Keys and values of one layer, (rows, heads, tokens, head size): kept while `mode` is "record", put in front of
    what comes while it is "read", left alone otherwise (activation checkpointing runs a layer twice)."""

    mode, kept = "record", 0

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        if self.mode == "read":
            return torch.cat([self.keys, key_states], -2), torch.cat([self.values, value_states], -2)
        if self.mode == "record" and not self.is_initialized:
            self.keys = key_states.detach()[..., : self.kept, :]
            self.values = value_states.detach()[..., : self.kept, :]
            self.is_initialized = True
        return key_states, value_states

    def get_seq_length(self) -> int:
        return self.keys.shape[-2] if self.mode == "read" else 0


class PromptStates(Cache):
    """Keys and values of prompts, taken from one pass for the next. Nothing is copied, and no gradient flows.

    `kept`: how many first tokens are of use.
    """

    def __init__(self, layers: int, kept: int) -> None:
        super().__init__(layers=[_States() for _ in range(layers)])
        for layer in self.layers:
            layer.kept = kept

    def turn(self, mode: str) -> None:
        """See `_States`. Closed, it holds no memory."""
        for layer in self.layers:
            layer.mode = mode
            if mode == "closed":
                layer.keys = layer.values = None

    @property
    def whole(self) -> bool:
        """Has every layer been recorded?"""
        return all(layer.is_initialized for layer in self.layers)


def shares_prompts(model: Any) -> bool:
    """Can the KL pass read the prompt's keys and values, that is, does every layer attend to all tokens before?"""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    plain = set(kinds) == {"full_attention"} if kinds else not getattr(config, "sliding_window", None)
    base = getattr(model.get_base_model() if hasattr(model, "get_base_model") else model, "base_model", model)
    return bool(plain and "cache" in inspect.signature(type(base).forward).parameters)


class PairedTrainer(KTOTrainer):
    """KTOTrainer for datasets with prompt_ids, completion_ids and label, whose reference is in a store.

    `share`: see the module. Takes no ref_model.
    """

    # TRL would load a reference model, or compute the reference with other kernels than the training's, or keep
    # hashing the weights; none of it is wanted, whatever it sets.
    ref_model = property(lambda self: None, lambda self, value: None)

    def __init__(self, *args: Any, share: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, ref_model=object(), **kwargs)
        base = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        base.__dict__.pop("forward", None)  # TRL's has entropies and mean logits, which cost time
        add_fused_lm_head(base)
        for module in self.model.modules():  # disable_dropout of TRL does not know of these
            if getattr(module, "attention_dropout", 0.0) and self.args.disable_dropout:
                module.attention_dropout = 0.0
        self.layers = self.model.config.get_text_config().num_hidden_layers
        self.share = share and shares_prompts(self.model)
        self._sums: dict[str, Any] = {}

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        return dataset

    def log_probs(self, model: Any, batch: dict[str, Any]) -> tuple[Any, Any]:
        """(of the completions, of the mismatched ones): summed log-probabilities by row, the second without a gradient.

        `batch`: tensors of the collator, on the model's device.
        """
        labels = batch["input_ids"].masked_fill(batch["completion_mask"] == 0, IGNORED)
        states = None
        if self.share:
            prompts = _prompts(batch["completion_mask"], batch["attention_mask"])
            states = PromptStates(self.layers, int(prompts.max()) - 1)
        cache = {"cache": states} if states is not None else {}
        with _keeping(self.model, states is not None and torch.is_grad_enabled()):
            matched = model(
                input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels, fused_lm_head=True,
                **cache,
            ).log_probs.sum(-1)  # fmt: skip
        with torch.no_grad():
            if states is None or not states.whole:
                return matched, self._whole_pass(model, batch)
            states.turn("read")
            mismatched = model(**_after_prompts(batch, prompts, states), fused_lm_head=True).log_probs.sum(-1)
            states.turn("closed")
        return matched, mismatched

    def _whole_pass(self, model: Any, batch: dict[str, Any]) -> Any:
        labels = batch["KL_input_ids"].masked_fill(batch["KL_completion_mask"] == 0, IGNORED)
        return model(
            input_ids=batch["KL_input_ids"], attention_mask=batch["KL_attention_mask"], labels=labels, fused_lm_head=True
        ).log_probs.sum(-1)

    def _compute_loss(self, model: Any, inputs: dict[str, Any], return_outputs: bool) -> Any:
        batch = {k: v.to(self.accelerator.device) for k, v in inputs.items()}
        matched, mismatched = self.log_probs(model, batch)
        drift = (mismatched - batch["ref_KL_logps"].view(torch.float32)).mean().detach()
        kl = self.accelerator.gather(drift).mean().clamp(min=0)
        ratios, good = matched - batch["ref_logps"].view(torch.float32), batch["label"].bool()
        # Eqn (7) of the KTO paper, arXiv 2402.01306
        signs = torch.where(good, 1.0, -1.0)
        weights = torch.where(good, self.desirable_weight, self.undesirable_weight)
        losses = weights * (1 - F.sigmoid(self.beta * signs * (ratios - kl)))
        self._count(batch, ratios.detach(), matched.detach(), good, kl)
        # A mean over all rows, not TRL's nanmean: a row without a number has to be seen.
        return (losses.mean(), None) if return_outputs else losses.mean()

    def _count(self, batch: dict[str, Any], ratios: Any, log_probs: Any, good: Any, kl: Any) -> None:
        mode = "train" if self.model.training else "eval"
        rewards, good = self.beta * ratios.double(), good.double()
        bad = 1 - good
        log_probs = log_probs.double()
        found = [(rewards * good).sum(), (rewards * bad).sum(), (log_probs * good).sum(), (log_probs * bad).sum(),
                 good.sum(), bad.sum(), batch["attention_mask"].sum().double(), kl.double(), torch.ones_like(kl).double()]  # fmt: skip
        self._sums[mode] = self._sums.get(mode, 0) + torch.stack(found)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        mode = "train" if self.model.training else "eval"
        if mode in self._sums:  # on all ranks or none
            sums = self.accelerator.reduce(self._sums.pop(mode), "sum").tolist()
            self._metrics[mode].update({k: [v] for k, v in self._averages(mode, sums).items()})
        super().log(logs, start_time)

    def _averages(self, mode: str, sums: list[float]) -> dict[str, float]:
        """Of all rows since the last line: TRL's names; margins are of all rows, not of pairs that happened to meet."""
        good_reward, bad_reward, good_log_prob, bad_log_prob, good, bad, tokens, kl, times = sums
        found = {"kl": kl / times, "desirable": good, "undesirable": bad}
        if good:
            found |= {"rewards/chosen": good_reward / good, "logps/chosen": good_log_prob / good}
        if bad:
            found |= {"rewards/rejected": bad_reward / bad, "logps/rejected": bad_log_prob / bad}
        if good and bad:
            found["rewards/margins"] = found["rewards/chosen"] - found["rewards/rejected"]
        if mode == "train":
            self._total_train_tokens += tokens
            found["num_tokens"] = self._total_train_tokens
        return found


class _keeping:  # noqa: N801 (used as a function)
    """Let checkpointed layers hand their keys and values to a recording cache. transformers withholds caches from them,
    since a layer that is computed twice would write twice; `_States` writes once."""

    def __init__(self, model: Any, wanted: bool) -> None:
        self.modules = [m for m in model.modules() if getattr(m, "gradient_checkpointing", False)] if wanted else []

    def __enter__(self) -> None:
        for module in self.modules:
            module._can_checkpoint_with_cache = True

    def __exit__(self, *exc: Any) -> None:
        for module in self.modules:
            module.__dict__.pop("_can_checkpoint_with_cache", None)


def _prompts(completion_mask: Any, attention_mask: Any) -> Any:
    """Tokens of each row's prompt."""
    return attention_mask.sum(-1) - completion_mask.sum(-1)


def _after_prompts(batch: dict[str, Any], prompts: Any, states: PromptStates) -> dict[str, Any]:
    """Arguments of a pass over the mismatched completions that goes on from the prompts' states.

    Each row begins with the last token of its prompt, which predicts the first one of the completion. Rows of shorter
    prompts leave a gap behind theirs in the states, masked.
    """
    ids, mask = batch["KL_input_ids"], batch["KL_completion_mask"]
    sizes = mask.sum(-1)
    width, device = int(sizes.max()) + 1, ids.device
    offsets = torch.arange(width, device=device)[None]
    positions = prompts[:, None] - 1 + offsets
    real = offsets <= sizes[:, None]
    tokens = ids.gather(1, positions.clamp(max=ids.shape[1] - 1))
    kept = torch.arange(states.layers[0].kept, device=device)[None] < prompts[:, None] - 1
    return {
        "input_ids": tokens.masked_fill(~real, 0),
        "labels": tokens.masked_fill(~real | (offsets == 0), IGNORED),
        "position_ids": positions.masked_fill(~real, 0),
        "attention_mask": torch.cat([kept, real], 1).long(),
        "cache": states,
    }


class ComputeReference(TrainerCallback):
    """Fills the store before the first step, with the wrapped model that the steps use."""

    def __init__(self, trainer: PairedTrainer, collate: pair_completions, open_store: Any, run: Any) -> None:
        """`open_store(share)` makes the store, once it is known how the KL pass is computed."""
        self.trainer, self.collate, self.open_store, self.run = trainer, collate, open_store, run

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer, run = self.trainer, self.run
        sets = [d for d in (trainer.train_dataset, trainer.eval_dataset) if d is not None]
        micro, ranks = args.per_device_train_batch_size, trainer.accelerator.num_processes
        first = reference.rows(trainer.train_dataset, 0, micro)
        if trainer.share:
            self._prove(first)
        store = self.open_store(trainer.share)
        store.read()
        run.wait()  # nobody writes before all have read
        if run.resume is None and all(k in store.values for part in keys(first) for k in part):
            self._spot_check(store, first)
        missing, needed, seen = [], [], set(store.values)
        for dataset in sets:
            for start, block in reference.blocks(dataset, micro):
                found = [k for part in keys(block) for k in part]
                needed += found
                if not seen.issuperset(found):
                    missing.append((dataset, start, found))
                    seen.update(found)
        if missing:
            self._fill(store, missing, micro, ranks)
        else:
            run.say(f"reference: {len(set(needed)):,} log-probabilities are there, {store.folder}")
        reference.verify(store, needed, run.out / reference.NOTE, resumed=run.resume is not None, write=run.main)
        self.collate.store = store
        run.counts |= {"reference_computed": len(missing) * micro, "kl_from_prompts": trainer.share}
        run.wait()

    def _fill(self, store: reference.Store, missing: list[tuple[Any, int, list[bytes]]], micro: int, ranks: int) -> None:
        """`missing`: (dataset, first row, keys) of the micro batches to compute."""
        trainer, run = self.trainer, self.run
        resumed = run.resume is not None  # else the policy is the reference; new adapters change nothing
        if resumed and not hasattr(trainer.model, "peft_config"):
            raise EftError(
                "the reference log-probabilities of this training are gone",
                where=store.folder,
                why="the model is no longer the one that it began with",
                way_out=f"bring the folder back, or start anew: remove the checkpoints in {run.out}",
            )
        run.say(f"reference: computing {len(missing) * micro:,} rows, once, {store.folder}")
        rank = trainer.accelerator.process_index
        for start in range(0, len(missing), ranks):
            # Every rank takes part every time, with a block that is there twice at the end: ZeRO-3 gathers weights.
            dataset, first, _ = missing[min(start + rank, len(missing) - 1)]
            mine = reference.rows(dataset, first, micro)
            values = trainer.accelerator.gather(torch.cat(self._compute(mine, base=resumed)).float()).tolist()
            for r in range(ranks):
                found = missing[min(start + r, len(missing) - 1)][2]
                store.add(found, values[r * len(found) : (r + 1) * len(found)], write=run.main)
        if run.main:
            store.flush()

    def _compute(self, block: list[dict[str, Any]], *, base: bool) -> tuple[Any, Any]:
        """Log-probabilities of a micro batch as training computes them. `base`: of the model without its adapter."""


        trainer = self.trainer
        batch = {k: v.to(trainer.accelerator.device) for k, v in self.collate(block).items()}
        model = trainer.model_wrapped
        adapter = use_adapter(trainer.accelerator.unwrap_model(model), None) if base else contextlib.nullcontext()
        was = trainer.model.training
        trainer.model.eval()
        try:
            with torch.no_grad(), trainer.compute_loss_context_manager(), adapter:
                return trainer.log_probs(model, batch)
        finally:
            trainer.model.train(was)

    def _prove(self, block: list[dict[str, Any]]) -> None:
        """Compare the KL pass from the prompts' states with a whole one; where they differ, there will be whole ones."""
        trainer = self.trainer
        with torch.no_grad():
            shared = self._compute(block, base=False)[1]
            trainer.share = False
            whole = self._compute(block, base=False)[1]
        off = (shared - whole).abs() - self._tolerance(whole)
        trainer.share = bool((trainer.accelerator.gather(off.max()[None]) <= 0).all())
        how = "from the prompts' states" if trainer.share else "by a whole pass, for its own states are not exact"
        self.run.say(f"KL term: {how} (largest difference {(shared - whole).abs().max().item():.1e} nats)")

    def _spot_check(self, store: reference.Store, block: list[dict[str, Any]]) -> None:
        """Before the first step the policy is the reference: what it computes must be what is stored."""
        trainer = self.trainer
        now = torch.cat(self._compute(block, base=False)).float()
        kept = torch.tensor([store.values[k] for part in keys(block) for k in part], device=now.device)
        off = (now - kept).abs() - self._tolerance(now)
        if bool((trainer.accelerator.gather(off.max()[None]) > 0).any()):
            self.run.say(f"reference: what is stored is not this model's, computing it again ({store.folder})")
            store.forget(write=self.run.main)
        self.run.wait()

    def _tolerance(self, values: Any) -> Any:
        """How far two ways to compute the same log-probability may be apart, by row: rounding of `values`' size in the
        dtype that is computed in."""
        exact = self.trainer.accelerator.mixed_precision == "no" and self.trainer.model.dtype == torch.float32
        return 1e-4 + values.abs() * 1e-5 if exact else 0.5 + values.abs() * 0.02
