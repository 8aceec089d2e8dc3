"""What the model makes of rows it does not train on, and of the task itself: looked at before, while and after training.

Held-out rows (`watch: rows`): the validation rows of the KTO set, improved and regressed ones in equal parts; for SFT
without such a set its own, which are all improved. Of every row the mean log-probability per token of its response:
- `eval_nll_improved`, `eval_nll_regressed`: negative means, over all rows and by domain (`…/Domain`);
- `eval_auc`: how often an improved row is likelier than a regressed one (0.5: no better than chance);
- `eval_auc_change`: the same for how much likelier each has become since before training, KTO's implied reward.
Sampled mutations (`watch: samples`): replies to held-out prompts, applied as the scaffold would, never run:
- `eval_valid_edits`: the share that changes the program into one that parses; `eval_cut_edits`: had no end.
`samples.jsonl` keeps them, with what became of each.

Every rank takes an equal part of the rows, and as many forward passes as the others, since ZeRO-3 gathers weights in
each. Random numbers are drawn apart from the training's, so a training that is watched is the one that is not.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from eft import edits, manifest, prompts
from eft.errors import EftError, UsageError
from eft.records import code_hash
from eft.train.callbacks import cut

SAMPLES = "samples.jsonl"
START = "heldout.json"  # the rows' log-probabilities before training
BATCH = 8  # mutations sampled together on a rank
SCORED = 4096  # tokens; the logits of a longer response may not fit beside a training


class Watch(TrainerCallback):
    """Looks, every `watch.every` steps and at both ends. `prepare` reads the rows, on all ranks."""

    def __init__(self, run: Any, trainer: Any, tokenizer: Any, meter: Any) -> None:
        self.run, self.trainer, self.tokenizer, self.meter = run, trainer, tokenizer, meter
        self.config = run.config.watch
        self.rank, self.world = run.args.process_index, run.args.world_size
        self.rows: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.looked = -1

    def prepare(self) -> None:
        """Choose the rows. What this launch cannot do is said and left out. Raises EftError for a table that is none,
        UsageError for one that is not there."""
        config = self.run.config
        wanted = min(config.eval_rows, 64) if self.config.rows is None else self.config.rows
        samples = self.config.samples
        if getattr(self.run.asked, "sequence", 1) > 1:
            if samples or self.config.rows:
                self.run.say("nothing is watched beside the loss: sequence parallelism shares each row out among ranks")
            return
        if samples and self.run.asked.kind == "fsdp":
            self.run.say("no mutations are sampled: FSDP does not hand out whole weights during a training")
            samples = 0
        file = table(config)
        if file is None:
            if samples:
                self.run.say("no mutations are sampled: the data has no validation table (`watch: {table: …}` names one)")
            return
        if wanted:
            self.rows = self._encoded(chosen(file, wanted, config.seed), file)
        if samples:
            self.asked = self._prompts(file)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero and self.asked:
            cut(self.run.out / SAMPLES, state.global_step)
        if state.global_step == 0:
            self.look(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step, every = state.global_step, self.config.every
        if step == state.max_steps or (every and step % every == 0):
            logging = control.should_log
            self.look(state)
            control.should_log = logging  # a line logged in between counts as the step's own
            control.should_evaluate = str(args.eval_strategy.value) != "no"

    def look(self, state: Any) -> None:
        """Measure, sample, and log it as one line."""
        if self.looked == state.global_step or not (self.rows or self.asked):
            return
        self.looked = state.global_step
        model = self.trainer.model_wrapped
        was = model.training
        model.eval()
        try:
            with isolated():
                found = self.likelihoods(state) if self.rows else {}
                if self.asked:
                    found |= self.mutations(state)
                self.trainer.log(found)  # before train(): TRL takes a line in training mode for its own
        finally:
            model.train(was)
        self.meter.mark = time.perf_counter()

    # ------------------------------------------------------------------------------------------------------- held out

    def likelihoods(self, state: Any) -> dict[str, float]:
        """NLL by label and domain and the AUCs, the same on every rank."""
        import torch

        each = -(-len(self.rows) // self.world)
        mine = [(self.rank + k * self.world) % len(self.rows) for k in range(each)]
        values = {}
        with torch.no_grad():
            for i in mine:
                prompt, completion = self.rows[i]["ids"]
                values[self.rows[i]["id"]] = mean_logprob(
                    self.trainer.model_wrapped, prompt, completion, self.run.args.device
                )
        now = {k: v for part in self._gathered(values) for k, v in part.items()}
        file = self.run.out / START
        if state.global_step == 0 and self.run.main:
            manifest.write_json(file, {k: v if v == v else None for k, v in now.items()})
        start = now
        if state.global_step:
            with contextlib.suppress(OSError, ValueError):
                start = json.loads(file.read_text())
        return summary(self.rows, now, start if state.global_step else {})

    def _encoded(self, rows: list[dict[str, Any]], file: Path) -> list[dict[str, Any]]:
        from eft.train.tokens import tokenize

        config = self.run.config
        pairs = tokenize(rows, self.tokenizer, config.template, file, config.thinking)
        kept = [
            {**{k: row[k] for k in ("id", "domain", "label")}, "ids": ids}
            for row, ids in zip(rows, pairs, strict=True)
            if ids and len(ids[0]) + len(ids[1]) <= config.max_tokens and len(ids[1]) <= SCORED
        ]
        labels = Counter(row["label"] for row in kept)
        left = f", {len(rows) - len(kept)} too long" if len(kept) < len(rows) else ""
        self.run.say(f"watching {labels[True]} improved and {labels[False]} regressed held-out rows{left}")
        return kept

    # -------------------------------------------------------------------------------------------------------- sampled

    def mutations(self, state: Any) -> dict[str, float]:
        """Sample replies, apply them, note them in samples.jsonl; the shares, the same on every rank."""
        import torch
        from trl.models.utils import unwrap_model_for_generation

        mine, made = self.asked[self.rank :: self.world], []
        torch.manual_seed(self.run.config.seed + self.rank)
        if torch.cuda.is_available():
            torch.cuda.manual_seed(self.run.config.seed + self.rank)
        with (
            torch.no_grad(),
            unwrap_model_for_generation(
                self.trainer.model_wrapped,
                self.trainer.accelerator,
                gradient_checkpointing_kwargs=self.run.args.gradient_checkpointing_kwargs,
            ) as model,
        ):
            for start in range(0, len(mine), BATCH):
                batch = mine[start : start + BATCH]
                for row, (text, ended) in zip(batch, self._replies(model, batch), strict=True):
                    became = outcome(row, text, ended)
                    made.append({"step": state.global_step, "id": row["id"], "task": row["task"], "became": became,
                                 "ended": ended, "response": text[:8000]})  # fmt: skip
        everything = [x for part in self._gathered(made) for x in part]
        if self.run.main:
            with open(self.run.out / SAMPLES, "a", encoding="utf-8") as file:
                file.writelines(json.dumps(x) + "\n" for x in everything)
        counts = Counter(x["became"] for x in everything)
        self.run.say(
            f"step {state.global_step}: {counts['valid']} of {len(everything)} sampled mutations are valid edits"
            + "".join(f", {n} {why}" for why, n in counts.most_common() if why != "valid")
        )
        return {
            "eval_valid_edits": round(counts["valid"] / len(everything), 4),
            "eval_cut_edits": round(sum(not x["ended"] for x in everything) / len(everything), 4),
        }

    def _replies(self, model: Any, rows: list[dict[str, Any]]) -> Iterator[tuple[str, bool]]:
        """(reply, did it end by itself) for each row's prompt."""
        import torch
        from transformers import GenerationConfig

        longest = max(len(row["ids"]) for row in rows)
        pad, end = self.tokenizer.pad_token_id, self.tokenizer.eos_token_id
        ids = torch.tensor([[pad] * (longest - len(row["ids"])) + row["ids"] for row in rows])
        mask = torch.tensor([[0] * (longest - len(row["ids"])) + [1] * len(row["ids"]) for row in rows])
        hot = self.config.temperature > 0
        settings = GenerationConfig(
            max_new_tokens=self.config.max_new_tokens,
            do_sample=hot,
            **({"temperature": self.config.temperature, "top_p": self.config.top_p, "top_k": 0} if hot else {}),
            eos_token_id=end,
            pad_token_id=pad,
            use_cache=True,
        )
        device = self.run.args.device
        made = model.generate(
            input_ids=ids.to(device), attention_mask=mask.to(device), generation_config=settings
        )[:, longest:].tolist()  # fmt: skip
        for reply in made:
            ended = end in reply
            text = self.tokenizer.decode(reply[: reply.index(end)] if ended else reply, skip_special_tokens=True)
            yield text.rpartition("</think>")[2].lstrip("\n"), ended

    def _prompts(self, file: Path) -> list[dict[str, Any]]:
        """Rows to sample for, of as many tasks as there are, with what is needed to apply a reply. Raises EftError where
        no prompt shows a program."""
        from eft.tokenizers import count
        from eft.train.tokens import arguments

        config, options = self.run.config, arguments(self.run.config.template, self.run.config.thinking)
        found = []
        for row in chosen(file, 4 * self.config.samples, config.seed + 1):
            text = self.tokenizer.apply_chat_template(
                row["prompt"], tokenize=False, add_generation_prompt=True, **options
            )
            parts = shown(row)
            if parts and count(self.tokenizer, [text])[0] + 1 < config.max_tokens:
                ids = self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
                found.append({"id": row["id"], "task": row["task"], "ids": ids, **parts})
        if not found:
            raise EftError(
                "no held-out prompt shows a program that a reply could be applied to",
                where=file,
                way_out="set `watch: {samples: 0}`, or another `watch: table`",
            )
        return [found[i % len(found)] for i in range(self.config.samples)]

    def _gathered(self, mine: Any) -> list[Any]:
        """What every rank has, in the order of the ranks."""
        import torch.distributed as dist

        if self.world == 1:
            return [mine]
        parts: list[Any] = [None] * self.world
        dist.all_gather_object(parts, mine)
        return parts


# ------------------------------------------------------------------------------------------------------------- rows


def table(config: Any) -> Path | None:
    """The table of held-out rows: as told; else the KTO set's, beside an SFT set or the very one; else the data's own."""
    if config.watch.table is not None:
        file = config.path(config.watch.table)
        if not file.is_file():
            raise UsageError("there is no table to watch", where=file, way_out="correct `watch: table`")
        return file
    own = config.file("validation")
    beside = own.parent.parent / "kto" / own.name
    return next((f for f in (beside, own) if f.is_file()), None)


def chosen(file: Path, wanted: int, seed: int) -> list[dict[str, Any]]:
    """`wanted` rows of a table, improved and regressed in equal parts where there are both, spread over domains and
    tasks; the same for a seed. Raises EftError for what is no such table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as opened:
            there = set(opened.schema_arrow.names)
            missing = {"id", "task", "prompt", "completion"} - there
            if missing:
                raise EftError("this table cannot be watched", where=file, why=f"missing columns: {', '.join(missing)}")
            keys = opened.read([c for c in ("id", "task", "domain", "label") if c in there]).to_pylist()
            groups: dict[bool, list[int]] = defaultdict(list)
            for i, row in enumerate(keys):
                groups[row.get("label") is not False].append(i)  # an SFT set's labels are names, all of improvements
            rng = random.Random(seed)
            lists = [_spread(g, keys, rng) for _, g in sorted(groups.items())]
            picked = sorted(x for g in lists for x in g[: -(-wanted // len(lists))])[: wanted + 1]
            return _rows(opened, picked[:wanted] if len(lists) == 1 else picked, there)
    except (pa.ArrowInvalid, OSError) as e:
        raise EftError("this table cannot be read", where=file, why=str(e)) from None


def _spread(indices: list[int], keys: list[dict[str, Any]], rng: random.Random) -> list[int]:
    """`indices` so that domains, and within them tasks, take turns."""
    by: dict[tuple[str, str], list[int]] = defaultdict(list)
    for i in indices:
        by[keys[i].get("domain") or "", keys[i]["task"]].append(i)
    for group in by.values():
        rng.shuffle(group)
    domains: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for (domain, _), group in sorted(by.items()):
        domains[domain] += enumerate(group)
    ranked = [(turn, i) for rows in domains.values() for turn, (_, i) in enumerate(sorted(rows))]
    return [i for _, i in sorted(ranked)]


def _rows(opened: Any, indices: Sequence[int], there: set[str]) -> list[dict[str, Any]]:
    columns = ("id", "task", "domain", "label", "prompt", "completion", "reasoning", "prompt_format", "edit_kind")
    wanted, found, start = set(indices), [], 0
    for batch in opened.iter_batches(batch_size=256, columns=[c for c in columns if c in there]):
        here = [i - start for i in range(start, start + len(batch)) if i in wanted]
        for row in batch.take(here).to_pylist() if here else []:
            found.append({**row, "id": str(row["id"]), "domain": row.get("domain") or "", "label": row.get("label") is not False})
        start += len(batch)
    return found


# ---------------------------------------------------------------------------------------------------------- measures


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Random numbers drawn inside leave those outside as they were."""
    import torch

    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        yield


def mean_logprob(model: Any, prompt: Sequence[int], completion: Sequence[int], device: Any) -> float:
    """Mean log-probability per token (nats) of a completion; one forward pass, logits of the completion only."""
    import torch

    ids = torch.tensor([[*prompt, *completion]], device=device)
    logits = model(input_ids=ids, use_cache=False, logits_to_keep=len(completion) + 1).logits[0, :-1]
    target, total = ids[0, len(prompt) :], 0.0
    for start in range(0, len(completion), 512):  # in float32, and not all of a large vocabulary at once
        part = torch.log_softmax(logits[start : start + 512].float(), dim=-1)
        total += part.gather(1, target[start : start + 512, None]).sum().item()
    return total / len(completion)


def auc(positive: Sequence[float], negative: Sequence[float]) -> float | None:
    """How often one of `positive` is larger than one of `negative`, ties half (Mann and Whitney); None without both."""
    from scipy.stats import rankdata

    if not positive or not negative:
        return None
    ranks = rankdata([*positive, *negative])[: len(positive)].sum()
    return float((ranks - len(positive) * (len(positive) + 1) / 2) / (len(positive) * len(negative)))


def summary(rows: list[dict[str, Any]], now: dict[str, float], start: dict[str, float]) -> dict[str, float]:
    """The figures of a look, see the module. `now`, `start`: mean log-probability by row id; {}: before training."""
    found: dict[str, float] = {}
    groups = {"": rows}
    if len({row["domain"] for row in rows}) > 1:
        groups |= {f"/{d}": [r for r in rows if r["domain"] == d] for d in sorted({r["domain"] for r in rows}) if d}
    for suffix, members in groups.items():
        sides = {flag: [r["id"] for r in members if r["label"] is flag] for flag in (True, False)}
        for flag, name in ((True, "improved"), (False, "regressed")):
            if sides[flag]:
                found[f"eval_nll_{name}{suffix}"] = round(-sum(now[i] for i in sides[flag]) / len(sides[flag]), 5)
        value = auc(*([now[i] for i in sides[flag]] for flag in (True, False)))
        if value is not None:
            found[f"eval_auc{suffix}"] = round(value, 4)
        if value is not None and all(start.get(r["id"]) is not None for r in members):
            change = auc(*([now[i] - start[i] for i in sides[flag]] for flag in (True, False)))
            found[f"eval_auc_change{suffix}"] = round(change or 0.0, 4)
    return found


def shown(row: dict[str, Any]) -> dict[str, str] | None:
    """What is needed to apply a reply to a row's prompt: parent, kind, dialect, language; None where it shows no
    program or does not say how to answer."""
    from eft.dialects import DIALECTS as scaffolds

    user = row["prompt"][-1]["content"]
    parent, kind = prompts.current_program(user), row.get("edit_kind") or prompts.edit_kind(user)
    if not parent or kind not in ("diff", "rewrite"):
        return None
    style = row.get("prompt_format") or ""
    before = user[: user.rfind(parent)]
    tag = re.search(r"```(\w+)[ \t]*\r?\n$", before)
    return {
        "parent": parent,
        "kind": kind,
        "dialect": style if style in edits.DIALECTS or style in scaffolds else edits.DEFAULT_DIALECT,
        "language": tag[1] if tag else "python",
    }


def outcome(row: dict[str, Any], text: str, ended: bool) -> str:
    """What the scaffold makes of a reply: "valid", or why not: an edits.Why, "syntax", "cut" (no end, and no edit)."""
    edit = edits.apply(row["parent"], text, kind=row["kind"], dialect=row["dialect"], language=row["language"])
    if not edit:
        return str(edit.why) if ended else "cut"
    if code_hash(edit.child) == code_hash(row["parent"]):
        return str(edits.Why.NO_OP)
    if row["language"] == "python" and edits.parse_python(edit.child) is None:
        return "syntax" if ended else "cut"
    return "valid"
