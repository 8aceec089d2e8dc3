"""The page: valid, self-contained, deaf to hostile text, and whole whatever is missing."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from made_up_results import HOSTILE, results, rich

from eft import manifest, stages
from eft.errors import EftError, UsageError
from eft.evaluate import markdown, page, provenance, report
from eft.evaluate.charts import axis, plot
from eft.evaluate.compare import compare
from eft.evaluate.results import MutatorInfo, Results, Search, TaskInfo, to_json
from eft.evaluate.terminal import show
from eft.evaluate.verdict import verdict

VOID = {"meta", "br", "img", "input", "hr", "link", "line", "circle", "path"}


class Checker(HTMLParser):
    """Tags must nest; nothing may be fetched or run."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.stack: list[str] = []
        self.problems: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag in {"script", "iframe", "object", "embed", "link", "img", "form", "base"}:
            self.problems.append(f"<{tag}>")
        for name, value in attrs:
            if (tag, name) == ("a", "href") and re.fullmatch(r"#loop-\d+", value or ""):
                continue  # to a place on the page
            if name.startswith("on") or name in {"src", "href", "action", "xlink:href", "srcset", "background"}:
                self.problems.append(f"{tag} {name}={value}")
            if name in {"style", "content"} and ("url(" in (value or "") or "://" in (value or "")):
                self.problems.append(f"{tag} {name}={value}")
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        if not self.stack or self.stack.pop() != tag:
            self.problems.append(f"</{tag}> out of place")

    def handle_data(self, data):
        self.text.append(data)


def render(r: Results, folder: Path) -> tuple[str, str]:
    """(the page, its visible text); checked."""
    comparison = compare(r, draws=100)
    html = page.render(r, comparison, verdict(r, comparison), provenance.read(folder))
    checker = Checker()
    checker.feed(html)
    checker.close()
    assert not checker.problems and not checker.stack, (checker.problems[:5], checker.stack)
    style = html.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style and "@import" not in style and "http" not in style
    return html, "".join(checker.text)


def recipe(folder: Path) -> Path:
    """A recipe's outputs: manifests with counts, and a training log."""
    for name, counts in {
        "harvest": {"transitions": 88, "files": {"read": 10}},
        "sft": {"rows": 1280, HOSTILE: HOSTILE[:60]},
    }.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "x").write_text("x")
        manifest.write(folder / name, name, {}, [], [folder / name / "x"], counts, 0.0)
    log = [{"step": i, "loss": 1 / i, "learning_rate": 1e-4} for i in range(1, 20)] + [{"step": 10, "eval_loss": 0.2}]
    (folder / "sft" / "losses.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log) + '{"torn')
    (folder / "kto").mkdir()
    (folder / "kto" / "manifest.json").write_text('{"torn')
    return folder


def lineage(folder: Path, **changes) -> Path:
    """What `eft inherit` leaves: a root, a branch that was inherited and one that was not."""
    node = {"id": "a", "name": "root", "parent": None, "round": -1, "kind": "root", "status": "committed", "numbers": {}}
    nodes = [node, {**node, "id": "b", "name": HOSTILE, "parent": "a", "round": 0, "numbers": {"advantage": 0.25}},
             {**node, "id": "c", "name": "c", "parent": "a", "round": 0, "status": "rejected", **changes}]  # fmt: skip
    (folder / "inherit").mkdir(parents=True)
    (folder / "inherit" / "lineage.json").write_text(json.dumps({"nodes": nodes, "root": "b", "archive": [{}, {}]}))
    return folder


def test_the_lineage_of_an_inheritance_loop_is_in_the_page(tmp_path):
    html, text = render(results(), lineage(tmp_path))
    assert "Who inherited" in text and "2 models' experience" in text and "round 1" in text
    assert html.count('r="7"') == 3  # a dot for each state
    assert "advantage +0.250" in html and "#9aa0a6" in html
    assert "Who inherited" not in render(results(), tmp_path / "none")[1]


@pytest.mark.parametrize("wrong", [{"parent": "z"}, {"round": "1"}, {"status": "<b>"}, {"numbers": []}, {"round": 10**9}])
def test_a_lineage_that_is_none_is_left_out(tmp_path, wrong):
    assert "Who inherited" not in render(results(), lineage(tmp_path, **wrong))[1]


def test_the_whole_page(tmp_path):
    html, text = render(results(), recipe(tmp_path))
    for part in ("loses to", "What they do not show", "tour", "best_of_sft", "search text not found", "hit_rate", "88",
                 "sft: loss by step", "eft evaluate --config", "Belady's optimum", "no best known value"):  # fmt: skip
        assert part in text, part
    assert len(html) < 400_000
    assert "No record of: collect, label, clean, build, kto, export" in text


def test_hostile_text_stays_text(tmp_path):
    r = results(seeds=2, iterations=6, hostile=True)
    names = {"sft": '"><script>x</script>', "kto": "k{{7*7}}"}
    r = dataclasses.replace(
        r,
        mutators=tuple(
            dataclasses.replace(m, name=names.get(m.name, m.name), of=names.get(m.of, m.of)) for m in r.mutators
        ),
        searches=tuple(dataclasses.replace(s, mutator=names.get(s.mutator, s.mutator)) for s in r.searches)
        + (
            Search("ast", "tour", 9, status="failed", reason=HOSTILE),
            Search("ast", "tour", 8, outcomes={HOSTILE: 1}, proposals=1),
        ),
        config={**r.config, "suite": HOSTILE, "prompt_format": HOSTILE},
        command=HOSTILE,
        versions={HOSTILE: HOSTILE},
        tasks=(*r.tasks, TaskInfo(HOSTILE, HOSTILE, raw_metric=HOSTILE, best_known_source=HOSTILE)),
    )
    html, text = render(r, recipe(tmp_path))
    assert "{{ 7*7 }}" in text and "k{{7*7}}" in text  # shown, not evaluated
    assert "\u202e" not in html and "\x00" not in html  # neither reorders nor breaks what a reader sees


@pytest.mark.parametrize(
    "change",
    [
        {"searches": ()},
        {"searches": (), "mutators": (), "tasks": (), "config": {}, "versions": {}, "seeds": (), "command": ""},
        {"searches": (Search("sft", "tour", 0, status="failed", reason="the server died"),)},
        {"searches": (Search("sft", "tour", 0),)},
        {
            "searches": (
                Search("sft", "tour", 0, curve=(None, 3.0), proposals=2, outcomes={"new_reason": 2}, gain=None),
            )
        },
        {"mutators": (MutatorInfo("sft", error="no vLLM"),)},
        {"tasks": (TaskInfo("tour"),)},
        {"config": {"iterations": None, "seeds": [1, 2]}, "planned": 500},
    ],
)
def test_whatever_is_missing(tmp_path, change):
    r = dataclasses.replace(results(seeds=1, iterations=3), **change)
    _, text = render(r, tmp_path)
    assert "nothing can be said here about the training data" in text
    show(r, compare(r, draws=20), width=100)


def test_partial_results_say_so(tmp_path):
    r = results(seeds=2, iterations=4)
    _, text = render(dataclasses.replace(r, planned=99), tmp_path)
    assert "partial: 40 of 99 searches" in text


def test_terminal(capsys):
    r = results(seeds=3)
    show(r, compare(r, draws=50), width=120)
    out = capsys.readouterr()
    assert out.out == "" and "best_of_sft" in out.err and "loses to" in out.err


def test_everything_at_once(tmp_path):
    """Two scaffolds, hidden instances, a format control, two forms of the base, lineage, domains, a sandbox."""
    html, text = render(rich(seeds=3, iterations=12), recipe(tmp_path))
    for part in ("Under openevolve", "under tournament", "final value on hidden instances", "routing, packing",
                 "bubblewrap: no network", "contained (1 task)", "proposal 9", "seedsneeded", "2 edits", "time out",
                 "better one is the reference", "random_edits", "Holm", "openevolve, tournament"):  # fmt: skip
        assert part in text, part
    assert len(html) < 900_000


def test_markdown_and_json_say_the_same(tmp_path):
    r = rich(seeds=3, iterations=12)
    manifest.write_json(tmp_path / "evaluate" / "results.json", to_json(r))
    report.run(report.Config(results=tmp_path / "evaluate", output=tmp_path / "r.html", provenance=recipe(tmp_path)))
    page_, lines, data = (tmp_path / f"r.{s}" for s in ("html", "md", "json"))
    found, written = json.loads(data.read_text()), lines.read_text()
    assert written.startswith("# Under openevolve") and found["verdict"]["headline"] in page_.read_text()
    assert {p["strength"] for p in found["pairs"]} <= {"better", "better_here", "worse", "worse_here", "open", "same"}
    assert found["contained"]["sandbox"] == "bubblewrap: no network, own file system"
    assert len(found["cells"]) == 10 * 13 and found["hidden"] and found["transfer"]
    rows = [line for line in written.splitlines() if line.startswith("|")]
    assert any("| harvest |" in row for row in rows) and any("best_of_kto" in row for row in rows)


def test_markdown_is_deaf_to_hostile_text():
    words = "`a` [b](javascript:x) **c** | d <img src=x> _e_ $f$ \\\n# g \u202e\x00"
    shown = markdown.safe(words)
    assert "\n" not in shown and "<" not in shown and "\u202e" not in shown and "\x00" not in shown
    for active in ("`", "[", "]", "*", "|", "$"):
        assert all(shown[i - 1] == "\\" for i, c in enumerate(shown) if c == active), (active, shown)
    for start in ("# g", "- g", "1. g", "> g", "+ g"):
        assert markdown.safe(start)[0] == "&"
    assert markdown.safe("best_of_kto") == "best_of_kto" and markdown.safe("+3.1") == "+3.1"
    (row,) = markdown.table(["a", "b"], [[words, "x"]])[2:3]
    assert row.count("|") - row.count("\\|") == 3


def test_missing_parts_in_markdown_and_json(tmp_path):
    failed = (Search("sft", "tour", 0, status="failed"),)
    for change in ({"searches": ()}, {"searches": (), "mutators": (), "tasks": (), "config": {}},
                   {"tasks": (TaskInfo("tour"),)}, {"searches": failed}):  # fmt: skip
        r = dataclasses.replace(results(seeds=1, iterations=3), **change)
        manifest.write_json(tmp_path / "results.json", to_json(r))
        report.run(report.Config(results=tmp_path, output=tmp_path / "r.html"))
        assert (tmp_path / "r.md").read_text().startswith("# ") and json.loads((tmp_path / "r.json").read_text())


def test_an_output_that_its_own_markdown_would_overwrite_is_refused(tmp_path):
    manifest.write_json(tmp_path / "results.json", to_json(results(seeds=1, iterations=3)))
    with pytest.raises(UsageError, match="is an HTML file"):
        report.run(report.Config(results=tmp_path, output=tmp_path / "r.md"))


def test_report_verb(tmp_path):
    manifest.write_json(tmp_path / "evaluate" / "results.json", to_json(results(seeds=2, iterations=4)))
    config = report.Config(results=tmp_path / "evaluate", output=tmp_path / "report.html")
    assert stages.execute("report", config)["skipped"] is False
    assert stages.execute("report", config)["skipped"] is True
    recipe(tmp_path)  # the provenance is an input too
    assert stages.execute("report", config)["skipped"] is False
    assert "sft: loss by step" in (tmp_path / "report.html").read_text()
    (tmp_path / "report.html").unlink()
    assert stages.execute("report", config)["skipped"] is False


NO_RESULTS = {
    "{": "cannot be read",
    "[]": "not the result",
    '{"searches": [], "format": 9}': "format 9",
    '{"searches": [3]}': "damaged",
    '{"searches": [{"mutator": "a"}]}': "damaged",
    '{"searches": [], "planned": null}': "planned",
    '{"searches": [], "config": 5}': "config",
    '{"searches": [], "started": NaN}': "not a finite number",
    '{"searches": [], "seconds": 1e999}': "not a finite number",
    '{"searches": [{"mutator": "a", "task": "t", "seed": 0, "best_raw": "x"}]}': "searches.0.best_raw",
    "[" * 100_000: "cannot be read",
}


def test_what_is_no_result_is_refused(tmp_path):
    def attempt(**change):
        report.run(report.Config(**{"results": tmp_path, "output": tmp_path / "r.html", **change}))

    with pytest.raises(UsageError, match="no results"):
        attempt()
    for text, message in NO_RESULTS.items():
        (tmp_path / "results.json").write_text(text)
        with pytest.raises(EftError, match=message):
            attempt()
    with pytest.raises(UsageError, match="is a folder"):
        attempt(output=tmp_path)


def test_axes():
    assert axis([0.0, 0.93]).ticks == pytest.approx((0.0, 0.2, 0.4, 0.6, 0.8, 1.0))
    assert axis([]).at(0.5) == 50
    flat = axis([3.0, 3.0])
    assert flat.low < 3.0 < flat.high
    assert axis([float("nan"), 1.0, 2.0]).low == 1.0
    assert axis([-1e-9, 1e9]).at(2e9) == 100
    assert plot("x", [], label=str).note and plot("x", [("c", [(1.0, 1.0, 1.0)])], label=str).lines
