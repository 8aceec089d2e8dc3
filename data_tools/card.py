"""The data card: a README.md with the hub's YAML header and plots, from what the stages counted and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from data_tools.choose import describe
from eft import __version__, hub, manifest

if TYPE_CHECKING:
    from data_tools.build import Config
    from data_tools.sets import Plan

SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
CARD = """---
{{ header }}---

# {{ title }}

Transitions of LLM-driven evolutionary searches: an instruction with a parent program, its history and logs, and the
reply that made the child. `sft` has replies that improved the score; `kto` improved (`label` true) and regressed ones,
in an order that its KL term relies on: do not shuffle it. Made by eft {{ version }}.

```python
from datasets import load_dataset
rows = load_dataset("{{ address }}", "sft")
```

## Sources

| scaffold | model that answered | rows |
|---|---|---|
{% for name, n in sources -%}
| {{ name[0] or "not logged" }} | {{ name[1] or "not logged" }} | {{ n }} |
{% endfor %}
Licence: {{ licence }}.{% if published %} Rows of the Finch-Collection are CC BY 4.0; those derived from AtCoder and
ALE-Bench problems are from a CC BY-ND 4.0 source, released with authorisation as their authors state.{% endif %}

## Counts

| set | train | validation |
|---|---|---|
{% for name, train, validation in sizes -%}
| {{ name }} | {{ train }} | {{ validation }} |
{% endfor %}
{% if weights %}KTO weights: desirable {{ weights[0] }}, undesirable {{ weights[1] }} (KTO paper, section 4.2).

{% endif -%}
The split goes by task: no task is on both sides. No row is of a held-out or gate task.

| property | rows |
|---|---|
{% for title, values in properties -%}
{% for value, n in values -%}
| {{ title }}: {{ value or "unknown" }} | {{ n }} |
{% endfor -%}
{% endfor %}
{% for plot in plots %}![{{ plot[1] }}](plots/{{ plot[0] }})
{% endfor %}
## Drops

{% if cleaned -%}
{{ cleaned.kept }} of {{ cleaned.rows }} harvested rows stayed ({{ "%.1f" % (100 * cleaned.kept / cleaned.rows) }} %;
the paper's collection kept 90.6 %).
{% else -%}
The rows were not cleaned by eft.
{% endif -%}
{% if drops %}
| reason | rows |
|---|---|
{% for reason, n in drops -%}
| {{ reason }} | {{ n }} |
{% endfor -%}
{% endif -%}
"""


def write(out: Path, config: Config, source: Path, plans: Sequence[Plan], counts: dict[str, Any],
          tokens: dict[str, tuple[int, int]]) -> list[Path]:  # fmt: skip
    """OUT/README.md and OUT/plots. Returns the files."""
    import jinja2

    main = [plan for plan in plans if plan.file.parent.parent == out]
    rows = list({row.id: row for plan in main for row in plan.rows}.values())
    plots = _plots(out / "plots", rows, tokens)
    cleaned = (manifest.read(source) or {}).get("counts", {})
    cleaned = cleaned if "reasons" in cleaned and cleaned.get("rows") else None
    drops = list((cleaned or {}).get("reasons", {}).items())
    drops += [(f"left out: {reason}", n) for reason, n in counts["left_out"].items()]
    properties = [("label", describe(rows, lambda r: r.label)), ("domain", describe(rows, lambda r: r.domain)),
                  ("language", describe(rows, lambda r: r.language)), ("edit", describe(rows, lambda r: r.edit_kind)),
                  ("prompt format", describe(rows, lambda r: r.prompt_format))]  # fmt: skip
    files = {(plan.file.parent.name, plan.file.stem): len(plan.rows) for plan in main}
    text = jinja2.Environment(keep_trailing_newline=True).from_string(CARD).render(
        header=yaml.safe_dump(_header(config, plans, out, len(rows)), sort_keys=False, allow_unicode=True),
        title=_clean((config.push_to_hub or out.name).split("/")[-1]), version=__version__,
        address=_clean(config.push_to_hub or str(out.name)),
        sources=[((_clean(a), _clean(b)), n) for (a, b), n in
                 Counter((r.scaffold, r.model) for r in rows).most_common(20)],
        licence=_clean(config.license) or "not stated", published=any(r.scaffold == "finch" for r in rows),
        sizes=[(name, files.get((name, "train"), 0), files.get((name, "validation"), 0)) for name in ("sft", "kto")
               if (name, "train") in files],
        weights=(counts["desirable_weight"], counts["undesirable_weight"]) if "desirable_weight" in counts else None,
        properties=[(title, [(_clean(v), n) for v, n in list(values.items())[:12]]) for title, values in properties],
        plots=plots, cleaned=cleaned, drops=[(_clean(reason), n) for reason, n in drops],
    )  # fmt: skip
    manifest.write_text(out / "README.md", text)
    return [out / "README.md", *(out / "plots" / name for name, _ in plots)]


def _header(config: Config, plans: Sequence[Plan], out: Path, rows: int) -> dict[str, Any]:
    configs: dict[str, list[dict[str, str]]] = {}
    for plan in plans:
        inside = plan.file.relative_to(out)
        name = "_".join(inside.parent.parts)
        configs.setdefault(name, []).append({"split": plan.file.stem, "path": inside.as_posix()})
    return {
        **({"license": config.license} if config.license else {}),
        "language": ["code"], "pretty_name": (config.push_to_hub or out.name).split("/")[-1],
        "task_categories": ["text-generation"], "tags": ["evolution-fine-tuning", "program-evolution", "code"],
        "size_categories": [next((name for most, name in SIZES if rows < most), "n>1M")],
        "configs": [{"config_name": name, "data_files": files} for name, files in configs.items()],
    }  # fmt: skip


def _clean(text: str) -> str:
    """A name from somebody's log, harmless in a Markdown table."""
    return "".join(c for c in text if c.isprintable() and c not in "|`<>[]{}")[:120]


def _plots(folder: Path, rows: list[Any], tokens: dict[str, tuple[int, int]]) -> list[tuple[str, str]]:
    """(file name, what it shows) of the plots. Tokens only where they were counted."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    made = []

    def save(figure: Any, name: str, title: str) -> None:
        with manifest.atomic_file(folder / name) as temporary:
            figure.savefig(temporary, format="png", dpi=110, bbox_inches="tight", metadata={"Software": None})
        made.append((name, title))

    counted = [sum(tokens[r.id]) for r in rows if r.id in tokens and min(tokens[r.id]) >= 0]
    if counted:
        figure = Figure(figsize=(6, 2.6))
        axes = figure.subplots()
        axes.hist(counted, bins=40, color="#4c78a8")
        axes.set(xlabel="tokens of prompt and response", ylabel="rows")
        save(figure, "tokens.png", "Rows by tokens of prompt and response")
    domains = [d for d, _ in Counter(r.domain for r in rows).most_common(12)]
    figure = Figure(figsize=(6, 0.9 + 0.28 * len(domains)))
    axes = figure.subplots()
    left = [0] * len(domains)
    for label, colour in (("improved", "#2a9d8f"), ("repair", "#8ab17d"), ("regressed", "#c8553d")):
        values = [sum(r.label == label and r.domain == d for r in rows) for d in domains]
        if any(values):
            names = [_clean(d).replace("$", r"\$") or "unknown" for d in domains]  # a $ would begin a formula
            axes.barh(names, values, left=left, color=colour, label=label)
            left = [a + b for a, b in zip(left, values, strict=True)]
    axes.invert_yaxis()
    axes.set(xlabel="rows")
    axes.legend(frameon=False)
    save(figure, "labels.png", "Rows by domain and label")
    return made


def push(folder: Path, place: hub.Place) -> str:
    """Upload a finished data set (`folder`) to the hub. Returns its address. Whatever else lies in the folder stays here."""
    return hub.push(folder, place, (manifest.read(folder) or {}).get("outputs", {}))
