"""The model card: a README.md with a YAML header, from what the manifests say and nothing else."""

from __future__ import annotations

import json
import math
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2
import yaml

from eft import __version__, hub, manifest
from eft.errors import EftError
from eft.tokenizers import EMBEDDED

EMBEDDED_BASE = "HuggingFaceTB/SmolLM2-135M-Instruct"
DESCRIPTION = {
    "sft": "Supervised fine-tuning on transitions that improved the score, loss on the response only.",
    "kto": "KTO from the model above, which is also the reference, on improved (desirable) and regressed (undesirable) "
    "transitions.",
}
CARD = """---
{{ header }}
---

# {{ title }}

{% if history -%}
A mutator for LLM-driven evolutionary search: given a program, its score and the search's history, it answers with an
edit. Trained from `{{ base }}` with evolution fine-tuning (eft {{ version }}).
{%- else -%}
`{{ base }}` as eft serves it: the untouched model, a control for tuned ones.
{%- endif %}
{% if counts.adapter %}
These are LoRA adapters: they need their base, `{{ hub_base or base }}`.
{% endif %}
## Prompt format

`{{ prompt_format }}`. The model answers well only to prompts in the format that it was trained on.

## Use

```sh
{% if counts.adapter -%}
vllm serve {{ hub_base or "BASE" }} --enable-lora --lora-modules mutator={{ address }}
{%- else -%}
vllm serve {{ address }}
{%- endif %}
```

```python
{% if counts.adapter -%}
from peft import AutoPeftModelForCausalLM
model = AutoPeftModelForCausalLM.from_pretrained("{{ address }}")
{%- else -%}
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("{{ address }}", dtype="auto")
{%- endif %}
```

{% if history -%}
## Data

| stage | data set | rows | tokens a row | content |
|---|---|---|---|---|
{% for done in history -%}
| {{ data(done) }} |
{% endfor %}
## Training

| stage | rows | dropped | steps | tokens | loss: first → last | validation loss: before → after |
|---|---|---|---|---|---|---|
{% for done in history -%}
| {{ row(done) }} |
{% endfor %}
{% for done in history -%}
**{{ done.stage }}**. {{ description[done.stage] }}

```sh
{{ command(done) }}
```

```json
{{ settings(done) }}
```

{% endfor -%}
{% endif -%}
{% if metrics -%}
## Evaluation

Held-out searches with equal budgets (`eft evaluate`): edits that parse, apply and evaluate; proposals that improve on their
parent; how much of the way from the start program to the best known value a search closed, on the mean.

| mutator | searches | proposals | valid edits | improving | gap closed |
|---|---|---|---|---|---|
{% for m in metrics -%}
| {{ m }} |
{% endfor %}
{% endif -%}
## Files

{{ "{:,}".format(counts.parameters) }} parameters in {{ counts.dtype }}{{ ", adapters merged in float32" if counts.merged_adapter }}.
Written with {{ libraries }}; reloaded and compared: largest difference of the logits {{ "%.1g" % counts.logit_difference }}.

## Limits

- It writes code that nobody has checked. Run it in a sandbox.
- It has learned from the searches in its training data; on other tasks, languages and prompt formats expect less.
- A lower loss is not a better search. Measure it with `eft evaluate` against the base model and the controls.

Licence: {{ license }}. The base model's own licence applies too.
"""  # noqa: E501 (a line of Markdown)
SHOWN = (
    "precision",
    "global_batch",
    "learning_rate",
    "schedule",
    "warmup",
    "weight_decay",
    "max_grad_norm",
    "max_tokens",
    "beta",
    "lora",
    "seed",
)


def lineage(checkpoint: str, root: Path) -> list[dict[str, Any]]:
    """The manifests of the trainings behind a checkpoint, the first one first; empty for a model that eft did not
    train."""
    history: list[dict[str, Any]] = []
    name, seen = checkpoint, set()
    while True:
        folder = (root / Path(name).expanduser()).resolve()
        done = manifest.read(folder.parent) if folder.is_dir() else None
        if done is None or done.get("stage") not in DESCRIPTION or folder in seen:
            return history[::-1]
        seen.add(folder)
        history.append(done)
        name, root = done["config"]["model"], Path(done["config"]["root"])


def base_of(checkpoint: str, history: list[dict[str, Any]]) -> str:
    """The name of the model that all this began with."""
    name = history[0]["config"]["model"] if history else checkpoint
    return EMBEDDED_BASE if name == EMBEDDED else name


def card(config: Any, history: list[dict[str, Any]], counts: dict[str, Any]) -> str:
    """The text of README.md. `config`: of the export; `history`: see `lineage`; `counts`: of the export."""
    base = base_of(config.checkpoint, history)
    hub_base = config.base_model or (base if base.count("/") == 1 and not Path(base).exists() else "")
    shown = hub_base or (base if ":" in base or not Path(base).is_absolute() else Path(base).name)
    title = config.title or (config.push_to_hub or config.out().name).split("/")[-1]
    evaluated = metrics(config.path(config.evaluation)) if config.evaluation else []
    sets = sorted({name for done in history if (name := _data_set(done))})
    header = {
        "license": config.license,
        "library_name": "peft" if counts.get("adapter") else "transformers",
        "pipeline_tag": "text-generation",
        **({"base_model": hub_base, "base_model_relation": "adapter" if counts.get("adapter") else "finetune"} if hub_base else {}),
        **({"datasets": sets} if sets else {}),
        "tags": ["evolution-finetuning", "code", *(done["stage"] for done in history), *config.tags],
    }
    formats = history[0]["counts"].get("prompt_formats", []) if history else []
    return jinja2.Template(CARD, keep_trailing_newline=True).render(
        header=yaml.safe_dump(header, sort_keys=False).strip(),
        title=title,
        base=shown,
        hub_base=hub_base,
        address=config.push_to_hub or config.out().name,
        version=__version__,
        history=history,
        row=_row,
        data=_data,
        command=_command,
        metrics=[_metric(m) for m in evaluated],
        settings=lambda done: json.dumps({k: done["config"][k] for k in SHOWN if done["config"].get(k) is not None}),
        description=DESCRIPTION,
        prompt_format=config.prompt_format or ", ".join(formats) or "not stated",
        counts=counts,
        libraries=", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "trl", "peft", "accelerate")),
        license=config.license,
    )


def _folder(done: dict[str, Any]) -> Path:
    """The data set's folder of a training stage."""
    return (Path(done["config"]["root"]) / Path(done["config"]["dataset"]).expanduser()).resolve()


def _data_set(done: dict[str, Any]) -> str | None:
    """The hub name under which a stage's data set was pushed, or None."""
    return hub.pushed(_folder(done).parent, "dataset") if Path(done["config"]["root"]).is_dir() else None


def _data(done: dict[str, Any]) -> str:
    """The cells of a stage's line on its data: what it was, told by content, since folders move."""
    folder, c = _folder(done), done["counts"]
    built = (manifest.read(folder.parent) or {}).get("counts", {})
    tasks = f"{built['tasks']} tasks" if "tasks" in built else "–"
    prints = [v for k, v in done.get("inputs", {}).items() if k.endswith("train.parquet")]
    mark = f" (sha256 {prints[0][:12]})" if prints and prints[0] != "absent" else ""
    steps = max(1, c["steps"] * done["config"]["global_batch"])
    return " | ".join([done["stage"], f"{_data_set(done) or folder.name}{mark}", f"{c['rows']:,}", f"{c['tokens'] / steps:,.0f}", tasks])


def _command(done: dict[str, Any]) -> str:
    """The command of a stage, with the recipe's keys that the settings below it give."""
    launch = done["config"].get("launch") or "auto"
    more = "" if launch == "auto" else f" --launch {Path(str(launch)).stem}"
    return f"eft {done['stage']} --config {done['stage']}.yaml{more}"


def metrics(place: Path) -> list[dict[str, Any]]:
    """What an evaluation (its folder, or results.json) says of every mutator: name, searches, proposals, valid, improved, gap.

    Raises EftError where it is no evaluation.
    """
    file = place / "results.json" if place.is_dir() else place
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        tasks = {t["name"]: t for t in found["tasks"]}
        rows = []
        for mutator in found["mutators"]:
            done = [s for s in found["searches"] if s["mutator"] == mutator["name"] and s["status"] == "done"]
            total: Counter[str] = Counter()
            for s in done:
                total.update(s["outcomes"])
            gaps = [g for s in done if (g := _gap(s, tasks[s["task"]])) is not None]
            improved = total["improved"]
            rows.append({"name": mutator["name"], "searches": len(done), "proposals": sum(s["proposals"] for s in done),
                         "valid": improved + total["not_improved"] + total["repaired"], "improved": improved,
                         "gap": sum(gaps) / len(gaps) if gaps else None})  # fmt: skip
        return rows
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise EftError("this is no evaluation", where=file, why=repr(e), way_out="give the folder of 'eft evaluate'") from None


def _gap(search: dict[str, Any], task: dict[str, Any]) -> float | None:
    """How much of the way from the start program to the best known value a search closed, on the hidden instances where there
    are such (see eft/evaluate/metrics.py)."""
    hidden, failed = task.get("has_hidden"), search.get("final_raw") is None
    if not failed or search.get("start_final_raw") is not None:
        start = search.get("start_final_raw")
        start = task.get("hidden_start_raw" if hidden else "start_raw") if start is None else start
        value = start if failed else search["final_raw"]  # what fails there is worth what it began with
        best = task.get("hidden_best_known") if hidden else None
        best = task.get("best_known") if best is None else best
    else:
        value, start, best = search.get("best_raw"), task.get("start_raw"), task.get("best_known")
    if None in (value, start, best) or start == best:
        return None
    gap = (value - start) / (best - start)
    return gap if math.isfinite(gap) else None


def _metric(m: dict[str, Any]) -> str:
    def share(part: int) -> str:
        return f"{100 * part / m['proposals']:.0f} %" if m["proposals"] else "–"

    gap = "–" if m["gap"] is None else f"{100 * m['gap']:.1f} %"
    return " | ".join([m["name"], str(m["searches"]), str(m["proposals"]), share(m["valid"]), share(m["improved"]), gap])


def _row(done: dict[str, Any]) -> str:
    """The cells of a training stage's line."""
    c = done["counts"]
    dropped = sum(v for k, v in c.items() if k.startswith("dropped_"))
    evals = f"{c['eval_loss_before']:.3f} → {c['eval_loss']:.3f}" if c.get("eval_loss") is not None else "–"
    rows = f"{c['rows']:,}" + (f" ({c['desirable']:,} + {c['undesirable']:,})" if "desirable" in c else "")
    losses = f"{c['first_loss']:.3f} → {c['final_loss']:.3f}"
    return " | ".join([done["stage"], rows, f"{dropped:,}", f"{c['steps']:,}", f"{c['tokens']:,}", losses, evals])
