"""Look: what is in a data set, in the terminal and as one HTML file.

    eft preview DATASET [-o preview.html] [--tokenizer NAME]

DATASET is the output of `eft build` or of `eft clean`. The page shows samples as the model will see them, token by
token, with what the loss is taken on; what was dropped and why; how many rows stayed, beside the paper's 90.6 %; and
histograms of tokens, changes of the score, labels by task, domain, language, kind of edit and source. It needs no
network and no script, and follows the reader's light or dark scheme.

Without a tokenizer (given, or known from `eft clean`) samples are shown as text. Long prompts are shown from both ends,
and the page says how many tokens it left out: the data themselves are never cut.

Raises EftError for a folder that is neither, and for a tokenizer that cannot be loaded.
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from data_tools import choose, clean, shards
from data_tools.counts import read_counts
from data_tools.split import rank
from eft import manifest
from eft.errors import EftError, UsageError
from eft.records import Label

PAPER = 0.906  # of the paper's raw transitions stayed in its collection
SHOWN = 400  # tokens of a prompt that are shown from each end
COLOURS = {"improved": "good", "repair": "mend", "no_change": "flat", "regressed": "bad", "breakage": "broken",
           "unrecoverable": "lost"}  # fmt: skip


class Config(shards.Workers):
    positional: ClassVar[str] = "dataset"

    dataset: Path = Field(Path("build"), description="Output folder of 'eft build' or 'eft clean'.")
    output: Path | None = Field(Path("preview.html"), description="The HTML file.")
    tokenizer: str = Field("", description="Default: the one that 'eft clean' counted with.")
    samples: int = Field(4, ge=0, le=50, description="Rows of every label that are shown whole.")
    seed: int = Field(0, description="Which rows are shown.")


@dataclass(frozen=True)
class Bar:
    """One line of a bar chart. `parts`: (css class, share of the widest line in percent, number)."""

    name: str
    parts: tuple[tuple[str, float, int], ...]
    total: int


@dataclass
class Chart:
    title: str
    bars: list[Bar]
    note: str = ""


@dataclass
class Sample:
    """One row as the model sees it. `spans`: (text, "prompt", "learned" or "gap", odd or even)."""

    row: dict[str, Any]
    spans: list[tuple[str, str, bool]]
    prompt_tokens: int = 0
    response_tokens: int = 0


@dataclass
class View:
    """All that is shown."""

    name: str
    tokenizer: str
    rows: int
    kept: int  # by `eft clean`, of `harvested`
    harvested: int
    drops: list[tuple[str, str, int]]
    charts: list[Chart]
    samples: list[Sample]
    facts: list[tuple[str, str]]
    notes: list[str] = field(default_factory=list)

    @property
    def retention(self) -> float | None:
        return self.kept / self.harvested if self.harvested else None


def inputs(config: Config) -> list[Path]:
    return [config.path(config.dataset)]


def run(config: Config) -> dict[str, Any]:
    started, dataset, out = time.time(), config.path(config.dataset), config.out()
    if out.is_dir():
        way_out = f"-o {out / 'preview.html'}"
        raise UsageError("the preview is a file", where=out, why="this is a folder", way_out=way_out)
    view = look(config, dataset)
    manifest.write_text(out, render(view))
    show(view)
    print(f"preview: {out}", file=sys.stderr)
    return {"verb": "preview", "output": str(out), "rows": view.rows, "retention": view.retention,
            "samples": len(view.samples), "bytes": out.stat().st_size,
            "seconds": round(time.time() - started, 1)}  # fmt: skip


# --------------------------------------------------------------------------------------------------------------- look


def look(config: Config, dataset: Path) -> View:
    """Gather all that is shown. Raises EftError for a folder that no stage finished."""
    done = manifest.read(dataset)
    if done is None or done.get("stage") not in ("build", "clean"):
        why = "it is not the finished output of 'eft build' or 'eft clean'" if dataset.exists() else "it does not exist"
        raise EftError("there is no data set to look at", where=dataset, why=why,
                       way_out="run 'eft clean' or 'eft build'")  # fmt: skip
    built = done["stage"] == "build"
    cleaned_folder, cleaned = _above(dataset, done) if built else (dataset, done)
    rows = _built_rows(dataset) if built else []
    light = choose.read(cleaned_folder, config) if cleaned_folder else []
    if not built:
        rows = [{"id": r.id, "task": r.task, "domain": r.domain, "label": r.label, "delta": r.delta,
                 "edit_kind": r.edit_kind, "model": r.model} for r in light]  # fmt: skip
    more = {r.id: r for r in light}
    for row in rows:
        known = more.get(row["id"])
        row["language"], row["source"] = (known.language, known.scaffold) if known else ("", "")
    tokenizer, name, missing = _tokenizer(config, (cleaned or {}).get("config", {}).get("tokenizer", ""))
    tokens = read_counts(cleaned_folder, config.tokenizer) if cleaned_folder else {}
    counts = (cleaned or {}).get("counts", {})
    drops = [(reason, clean.REASONS.get(reason, ""), n) for reason, n in counts.get("reasons", {}).items()]
    left_out = (
        [(f"left out by build: {k}", "", n) for k, n in done["counts"].get("left_out", {}).items()] if built else []
    )
    view = View(
        name=dataset.name, tokenizer=name, rows=len(rows), kept=counts.get("kept", 0),
        harvested=counts.get("rows", 0), drops=sorted(drops, key=lambda d: -d[2]) + left_out,
        charts=charts(rows, tokens),
        samples=_samples(config, dataset, built, tokenizer), facts=_facts(done, built, rows),
    )  # fmt: skip
    if missing:
        view.notes.append(f"The tokenizer that 'eft clean' counted with cannot be loaded here: {missing}.")
    if not name:
        view.notes.append("Without a tokenizer (give --tokenizer NAME) samples are shown as text; the loss is on the "
                          "coloured part.")  # fmt: skip
    if built and cleaned_folder is None:
        view.notes.append("The cleaned rows that this set was built from are gone: no drops, languages and tokens.")
    return view


def _tokenizer(config: Config, counted: str) -> tuple[Any, str, str]:
    """The tokenizer, its name, and the name of one that is missing here but was not asked for: a page without tokens is
    better than none."""
    from eft import tokenizers

    name = config.tokenizer or counted
    try:
        return (tokenizers.load(name), name, "") if name else (None, "", "")
    except EftError:
        if config.tokenizer:
            raise
        return None, "", name


def _above(dataset: Path, done: dict[str, Any]) -> tuple[Path | None, dict[str, Any] | None]:
    """The folder that a build was made from, and its manifest, where they still are."""
    for path in map(Path, done.get("inputs", {})):
        known = manifest.read(path)
        if known is not None:
            return path, known if known.get("stage") == "clean" else None
    return None, None


def _built_rows(dataset: Path) -> list[dict[str, Any]]:
    """The rows of all sets of a build, each once, without their texts."""
    import pyarrow.parquet as pq

    found: dict[str, dict[str, Any]] = {}
    for kind in ("sft", "kto"):
        for file in sorted((dataset / kind).glob("*.parquet")):
            columns = ["id", "task", "domain", "delta", "label", "edit_kind", "model"]
            for row in pq.read_table(file, columns=columns).to_pylist():
                if kind == "kto":
                    row["label"] = str(Label.IMPROVED if row["label"] else Label.REGRESSED)
                found.setdefault(row["id"], row)
    if not found:
        raise EftError("there are no training sets in this build", where=dataset,
                       way_out="look at the output of 'eft clean' instead")  # fmt: skip
    return [found[key] for key in sorted(found)]


def _facts(done: dict[str, Any], built: bool, rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    counts = done["counts"]
    facts = [("rows", f"{len(rows):,}"), ("tasks", f"{len({r['task'] for r in rows}):,}")]
    if built:
        for key, text in (("sft_train", "SFT, train"), ("sft_validation", "SFT, validation"),
                          ("kto_train", "KTO, train"), ("kto_validation", "KTO, validation"),
                          ("validation_tasks", "validation tasks")):  # fmt: skip
            if key in counts:
                facts.append((text, f"{counts[key]:,}"))
        if "desirable_weight" in counts:
            facts.append(("KTO weights", f"{counts['desirable_weight']:g} : {counts['undesirable_weight']:g}"))
    else:
        facts += [(f"redacted: {kind.replace('_', ' ')}", f"{n:,}") for kind, n in counts.get("redacted", {}).items()]
    return facts


# ------------------------------------------------------------------------------------------------------------- charts


def charts(rows: Sequence[dict[str, Any]], tokens: dict[str, tuple[int, int]]) -> list[Chart]:
    """The histograms, those that have something to show."""
    made: list[Chart] = []
    counted = [sum(tokens[r["id"]]) for r in rows if r["id"] in tokens]
    if counted:
        counted.sort()
        note = (f"median {counted[len(counted) // 2]:,}, 95 % below {counted[int(0.95 * (len(counted) - 1))]:,}, "
                f"longest {counted[-1]:,}")  # fmt: skip
        made.append(Chart("Tokens of prompt and response", histogram(counted, log=True), note))
    deltas = [r["delta"] for r in rows if r["delta"] is not None and math.isfinite(r["delta"])]
    if deltas:
        made.append(Chart("Change of the score", delta_bars(deltas), f"{sum(d > 0 for d in deltas):,} better, "
                          f"{sum(d == 0 for d in deltas):,} equal, {sum(d < 0 for d in deltas):,} worse"))  # fmt: skip
    for title, key, most in (("Labels by task", "task", 24), ("Labels by domain", "domain", 16),
                             ("Labels by language", "language", 8), ("Labels by kind of edit", "edit_kind", 4),
                             ("Labels by source", "source", 8), ("Labels by model", "model", 8)):  # fmt: skip
        bars, others = by(rows, key, most)
        if len(bars) > 1 or key in ("task", "domain"):
            made.append(Chart(title, bars, f"and {others:,} more with fewer rows" if others else ""))
    return made


def by(rows: Sequence[dict[str, Any]], key: str, most: int) -> tuple[list[Bar], int]:
    """Labels by a property, the most frequent values first; and how many values are not shown."""
    table: dict[str, Counter[str]] = {}
    for row in rows:
        table.setdefault(row[key] or "unknown", Counter())[row["label"]] += 1
    order = sorted(table, key=lambda v: (-table[v].total(), v))
    widest = table[order[0]].total() if order else 1
    bars = []
    for value in order[:most]:
        parts = ((tone, round(100 * n / widest, 3), n) for label, tone in COLOURS.items() if (n := table[value][label]))
        bars.append(Bar(value, tuple(parts), table[value].total()))
    return bars, max(0, len(order) - most)


def histogram(values: Sequence[float], *, log: bool, bins: int = 12) -> list[Bar]:
    """Bars of about equal width, in the logarithm where `log`."""
    low, high = min(values), max(values)
    shown = "{:,.0f}" if all(float(v).is_integer() for v in values) else "{:,.4g}"
    if low == high:
        return [Bar(shown.format(low), (("flat", 100.0, len(values)),), len(values))]
    scale, back = (math.log, math.exp) if log and low > 0 else (float, float)
    edges = [back(scale(low) + (scale(high) - scale(low)) * i / bins) for i in range(bins + 1)]
    numbers = [0] * bins
    for value in values:
        place = int((scale(value) - scale(low)) / (scale(high) - scale(low)) * bins)
        numbers[min(max(place, 0), bins - 1)] += 1
    most = max(numbers)
    return [Bar(f"{shown.format(a)} – {shown.format(b)}", (("flat", round(100 * n / most, 3), n),) if n else (), n)
            for a, b, n in zip(edges, edges[1:], numbers, strict=False)]  # fmt: skip


def delta_bars(deltas: Sequence[float]) -> list[Bar]:
    """Changes of the score by sign and power of ten: scores of tasks have no common scale."""
    groups: Counter[tuple[int, int]] = Counter()
    for d in deltas:
        groups[(0, 0) if d == 0 else (1 if d > 0 else -1, max(-9, min(6, math.floor(math.log10(abs(d))))))] += 1
    most = max(groups.values())
    order = sorted(groups, key=lambda g: g[0] * (g[1] + 20), reverse=True)
    names = {g: "0" if g[0] == 0 else f"{'+' if g[0] > 0 else '−'} 1e{g[1]} – 1e{g[1] + 1}" for g in order}
    tone = {1: "good", 0: "flat", -1: "bad"}
    return [Bar(names[g], ((tone[g[0]], round(100 * groups[g] / most, 3), groups[g]),), groups[g]) for g in order]


# ------------------------------------------------------------------------------------------------------------ samples


def _samples(config: Config, dataset: Path, built: bool, tokenizer: Any) -> list[Sample]:
    chosen = _built_samples(config, dataset) if built else _clean_samples(config, dataset)
    return [_sample(row, tokenizer) for row in chosen]


def _built_samples(config: Config, dataset: Path) -> list[dict[str, Any]]:
    found = []
    for file, wanted in (("sft/train.parquet", None), ("kto/train.parquet", False)):
        if (dataset / file).is_file():
            rows = _picked(dataset / file, "label", wanted, config)
            found += [{**r, "label": str(Label.REGRESSED) if wanted is False else r["label"]} for r in rows]
    return found


def _clean_samples(config: Config, dataset: Path) -> list[dict[str, Any]]:
    from eft.records import TABLE

    found = []
    for label in Label:
        for row in _picked(dataset / TABLE, "label", str(label), config):
            system = [{"role": "system", "content": row["prompt_system"]}] if row["prompt_system"] else []
            found.append({**row, "prompt": [*system, {"role": "user", "content": row["prompt_user"]}],
                          "completion": [{"role": "assistant", "content": row["response"]}]})  # fmt: skip
    return found


def _picked(file: Path, key: str, wanted: Any, config: Config) -> list[dict[str, Any]]:
    """A few rows of a table, chosen by their ids, read without the others' texts."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    light = pq.read_table(file, columns=["id", key]).to_pylist()
    ids = [r["id"] for r in light if wanted is None or r[key] == wanted]
    ids = sorted(ids, key=lambda i: rank(config.seed, "preview", i))[: config.samples]
    rows = []
    with pq.ParquetFile(file) as table:
        for group in range(table.num_row_groups if ids else 0):
            part = table.read_row_group(group, columns=["id"])
            import pyarrow as pa

            mask = pc.is_in(part["id"], value_set=pa.array(ids))
            if pc.any(mask).as_py():
                rows += table.read_row_group(group).filter(mask).to_pylist()
    return sorted(rows, key=lambda r: ids.index(r["id"]))


def _sample(row: dict[str, Any], tokenizer: Any) -> Sample:
    response = row["completion"][0]["content"]
    if tokenizer is None:
        prompt = "\n\n".join(f"[{m['role']}]\n{m['content']}" for m in row["prompt"])
        parts = [(prompt[i : i + 6], "prompt") for i in range(0, len(prompt), 6)]
        return Sample(row, [*_shortened(parts, "characters", 6), (response, "learned", False)])
    from eft import tokenizers

    prompt = [(text, "prompt") for text in pieces(tokenizer, tokenizers.prompt_text(tokenizer, row["prompt"]))]
    answer = [(text, "learned") for text in pieces(tokenizer, response)] + [(tokenizer.eos_token, "learned")]
    shown = _shortened(prompt, "tokens", 1)
    learned = [(text, kind, i % 2 == 1) for i, (text, kind) in enumerate(answer)]
    return Sample(row, shown + learned, len(prompt), len(answer))


def _shortened(spans: list[tuple[str, str]], what: str, each: int) -> list[tuple[str, str, bool]]:
    out = [(text, kind, i % 2 == 1) for i, (text, kind) in enumerate(spans)]
    if len(spans) > 2 * SHOWN + 20:
        hidden = (len(spans) - 2 * SHOWN) * each
        return [
            *out[:SHOWN],
            (f" … {hidden:,} {what} of the prompt are not shown here … ", "gap", False),
            *out[-SHOWN:],
        ]
    return out


def pieces(tokenizer: Any, text: str) -> list[str]:
    """The text of every token, in order; joined they are `text`. Tokens inside one character share it: the first has
    it, the others are empty."""
    encoded = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
    out, begin = [], 0
    for _, end in encoded.offsets:
        end = max(begin, end)
        out.append(text[begin:end])
        begin = end
    if out:
        out[-1] += text[begin:]
    return out


# ---------------------------------------------------------------------------------------------------------------- show


def render(view: View) -> str:
    """The page. All texts are escaped; control characters are made visible."""
    import jinja2

    environment = jinja2.Environment(loader=jinja2.PackageLoader("data_tools"), autoescape=True, trim_blocks=True,
                                     lstrip_blocks=True)  # fmt: skip
    environment.filters["visible"] = visible
    environment.filters["percent"] = lambda x: f"{100 * x:.1f} %"
    return environment.get_template("preview.html.j2").render(
        view=view, paper=PAPER, colours=COLOURS, legend=_legend(view)
    )


def _legend(view: View) -> dict[str, str]:
    """The labels that the charts show, with their colours."""
    charts = [chart for chart in view.charts if chart.title.startswith("Labels")]
    shown = {tone for chart in charts for bar in chart.bars for tone, _, _ in bar.parts}
    return {label: tone for label, tone in COLOURS.items() if tone in shown}


def visible(text: str) -> str:
    """Control characters as their pictures, and those that turn the direction of writing, or that a terminal obeys, as
    their numbers; line ends stay."""
    return _UNSEEN.sub(_picture, text)


_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def _picture(match: re.Match) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 32 else "\u2421" if code == 127 else f"\\u{code:04x}"


def show(view: View) -> None:
    """The same on the terminal, shorter: on standard error, as all stages."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(stderr=True, highlight=False)
    kept = f"; clean kept {view.kept / view.harvested:.1%} of {view.harvested:,}" if view.harvested else ""
    kept += f" (paper: {PAPER:.1%})" if kept else ""
    console.print(Text(f"{visible(view.name)}: {view.rows:,} rows{kept}", style="bold"))
    console.print(Text("; ".join(f"{name} {value}" for name, value in view.facts)))
    for reason, meaning, number in view.drops:
        console.print(Text(f"  dropped x{number}: {reason}{f' ({meaning})' if meaning else ''}"))
    tones = {"good": "green", "mend": "cyan", "bad": "red", "flat": "blue", "broken": "magenta", "lost": "bright_black"}
    for chart in view.charts:
        table = Table(title=f"{chart.title}{f' ({chart.note})' if chart.note else ''}", show_header=False, box=None,
                      title_justify="left", padding=(0, 1))  # fmt: skip
        for bar in chart.bars:
            line = Text()
            for tone, share, _ in bar.parts:
                line.append("█" * max(1, round(share * 0.3)), style=tones[tone])
            table.add_row(Text(visible(bar.name)[:32]), line, Text(f"{bar.total:,}"))
        console.print(table)
    for sample in view.samples[:1]:
        console.print(
            Text(f"One sample ({visible(sample.row['label'])}, {visible(sample.row['task'])}); the loss is on the "
                 "green part:")  # fmt: skip
        )
        text = Text()
        for piece, kind, _ in sample.spans[-260:]:
            text.append(visible(piece), style="green" if kind == "learned" else "bright_black")
        console.print(text)
    for note in view.notes:
        console.print(Text(f"note: {note}"))
