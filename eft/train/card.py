"""The model card: a README.md with a YAML header, from what the manifests say and nothing else."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2
import yaml

from eft import __version__, manifest
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

## Prompt format

`{{ prompt_format }}`. The model answers well only to prompts in the format that it was trained on.

{% if history -%}
## Training

| stage | rows | dropped | steps | tokens | loss: first → last | validation loss: before → after |
|---|---|---|---|---|---|---|
{% for done in history -%}
| {{ row(done) }} |
{% endfor %}
{% for done in history -%}
**{{ done.stage }}**. {{ description[done.stage] }}

```json
{{ settings(done) }}
```

{% endfor -%}
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
    hub_base = base if base.count("/") == 1 and not Path(base).exists() else None
    title = config.title or config.out().name
    header = {
        "license": config.license,
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        **({"base_model": hub_base} if hub_base else {}),
        "tags": ["evolution-finetuning", "code", *(done["stage"] for done in history), *config.tags],
    }
    formats = history[0]["counts"].get("prompt_formats", []) if history else []
    return jinja2.Template(CARD, keep_trailing_newline=True).render(
        header=yaml.safe_dump(header, sort_keys=False).strip(),
        title=title,
        base=base,
        version=__version__,
        history=history,
        row=_row,
        settings=lambda done: json.dumps({k: done["config"][k] for k in SHOWN if done["config"].get(k) is not None}),
        description=DESCRIPTION,
        prompt_format=config.prompt_format or ", ".join(formats) or "not stated",
        counts=counts,
        libraries=", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "trl", "peft")),
        license=config.license,
    )


def _row(done: dict[str, Any]) -> str:
    """The cells of a training stage's line."""
    c = done["counts"]
    dropped = sum(v for k, v in c.items() if k.startswith("dropped_"))
    evals = f"{c['eval_loss_before']:.3f} → {c['eval_loss']:.3f}" if c.get("eval_loss") is not None else "–"
    rows = f"{c['rows']:,}" + (f" ({c['desirable']:,} + {c['undesirable']:,})" if "desirable" in c else "")
    losses = f"{c['first_loss']:.3f} → {c['final_loss']:.3f}"
    return " | ".join([done["stage"], rows, f"{dropped:,}", f"{c['steps']:,}", f"{c['tokens']:,}", losses, evals])
