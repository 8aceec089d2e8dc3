"""Rounds of self-training that inherit an update only where fresh evidence says that it is better than the root.

    eft inherit --config loop.yaml [--rounds 5]          see docs/gate.md for a file

A round: the root drives searches on the suite's training tasks (and teachers do, where some are named) → everything is
archived → harvest, label, clean, build → K branches are trained from the root: SFT, KTO, or SFT on what the root's own
replies improved (rejection) → all branches are screened on the same items → the winner is frozen, and confirmed against
the root on fresh items → inherited, or the root stays. Stages run as processes and are skipped where they are done.

Killed at any point, the same command continues: no item is spent twice, no update committed twice.
Writes OUT/archive.jsonl, OUT/rounds/<k>/, OUT/lineage.{json,html,svg}, OUT/root.json (the newest root).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from eft import manifest, stages
from eft.config import Section, StageConfig
from eft.errors import EftError, UsageError
from eft.gate import evidence, lineage
from eft.gate.decide import Rule
from eft.gate.evidence import Item, Pool
from eft.gate.host import State
from eft.gate.run import Recording, open_pool, words
from eft.gate.score import ModelHost, Serving, check_comparable, model_state
from eft.loops.archive import Archive, Entry
from eft.loops.rounds import inherit
from eft.records import Label, read_transitions

LOOP = "inherit"


class Searches(Section):
    """Searches of a round. `by`: the root, or a teacher without a model."""

    by: Literal["root", "ast"] = "root"
    tasks: list[str] = Field(default_factory=list, description="instead of the suite's training tasks")
    seeds: int = Field(1, ge=1, description="searches per task; other seeds every round")
    iterations: int = Field(20, ge=1, description="candidates per search")
    lookahead: int = Field(8, ge=0, description="ast: edits evaluated per parent")


class Branch(Section):
    """A candidate update. `kind`: sft, kto, or rejection (SFT on the root's own best replies alone)."""

    kind: Literal["sft", "kto", "rejection"] = "sft"
    train: dict[str, Any] = Field(
        default_factory=dict, description="options of eft sft or eft kto, by their names there"
    )


class Config(StageConfig):
    """Options of `eft inherit`."""

    positional: ClassVar[str | None] = None

    model: str = Field("", description="the first root: a folder, hub id, embedded:… or random:…")
    suite: str = Field("embedded", description="a shipped suite, or a suite's YAML file")
    rounds: int = Field(3, ge=1, description="rounds in all; more of them continue a finished loop")
    searches: list[Searches] = Field(default_factory=lambda: [Searches()], description="what is searched every round")
    branch_searches: Searches | None = Field(None, description="searches by every branch too, for the archive")
    branches: dict[str, Branch] = Field(default_factory=dict, description="name -> candidate update of every round")
    build: dict[str, Any] = Field(default_factory=dict, description="options of eft build")
    clean: dict[str, Any] = Field(default_factory=dict, description="options of eft clean")
    archive: Literal["current", "committed", "all"] = Field(
        "all", description="experience to learn from: this round's, also of inherited models, also of rejected ones"
    )
    max_age: int | None = Field(None, ge=0, description="oldest experience, in rounds")
    prompt_format: str = Field("eft@1", description="of the searches")
    pool: Path = Field(Path("pool"), description="pool of items, under the output; made where it is not there")
    kind: Literal["mutation", "judge", "search"] = Field("mutation", description="items, see eft gate")
    record: Recording = Recording()
    serving: Serving = Serving()
    screening: int = Field(64, ge=1, description="screening items a round")
    budget: int = Field(128, ge=1, description="confirmation items a round, at most")
    fresh: bool = Field(True, description="confirm on fresh items; no: on the screening evidence at alpha / K")
    method: str = Field("tau", description="rule of the gate; tau keeps most of what is useful")
    alpha: float = 0.05
    beta: float = 0.05
    margin: float = 0.0
    effect: float = 0.05
    sandbox: Literal["auto", "bubblewrap", "rlimits", "none"] = "auto"
    output: Path | None = Field(Path("inherit"), description="the loop's folder")

    @field_validator("branches")
    @classmethod
    def _named(cls, branches: dict[str, Branch]) -> dict[str, Branch]:
        for name in branches:
            if not evidence.NAME.fullmatch(name):
                raise ValueError(f"'{name}' cannot name a branch")
        return branches


def inputs(config: Config) -> list[Path]:
    return []


def run(config: Config) -> dict[str, Any]:
    """Run the loop to its end. Raises EftError where a stage or a measurement fails; the same command continues."""
    from eft.tasks import sandbox

    if not config.model or not config.branches:
        raise UsageError(
            "a loop needs a first root and branches",
            way_out="give `model:` and `branches:` in the config file (docs/gate.md has one)",
        )
    rule = Rule(method=config.method, alpha=config.alpha, beta=config.beta, margin=config.margin, effect=config.effect)
    sandbox.choose(config.sandbox)
    out, started = config.out().resolve(), time.time()
    with evidence.locked(out / ".lock", "is running this loop"):
        first = model_state(config.model, config.root)
        need = {"screening": config.screening * config.rounds, "confirmation": config.budget * config.rounds}
        pool = open_pool(config.model_copy(update={"pool": out / config.pool}), need)
        _same_loop(out, config, first)
        host = SelfTraining(config, out, pool, first)

        def told(number: int, result: dict[str, Any] | None) -> None:
            decided = result and {
                **result,
                "candidate_mean": result.get("candidate_mean", result["root_mean"] + result["mean"]),
            }
            print(
                f"inherit: round {number + 1} of {config.rounds}: {words(decided) if decided else 'no branch'}",
                file=sys.stderr,
                flush=True,
            )

        with host:
            last = inherit(
                pool,
                LOOP,
                first,
                host,
                rule,
                rounds=config.rounds,
                screening=config.screening,
                budget=config.budget,
                fresh=config.fresh,
                told=told,
            )
        found = host.write_lineage(config.rounds - 1)
    commits = sum(n["kind"] == "branch" and n["status"] == "committed" for n in found)
    print(
        f"inherit: {commits} of {config.rounds} rounds inherited; root {last.name} in {out / 'root.json'}; "
        f"{time.time() - started:.0f} s",
        file=sys.stderr,
    )
    return {
        "verb": "inherit",
        "output": str(out),
        "rounds": config.rounds,
        "committed": commits,
        "root": last.to_json(),
        "place": last.payload.get("place"),
    }


def _same_loop(out: Path, config: Config, first: State) -> None:
    """Raises UsageError where the folder holds another loop. More rounds are the same loop."""
    about = {
        k: v
        for k, v in config.model_dump(mode="json").items()
        if k not in ("rounds", "record", "root", "output", "sandbox")
    }
    about = {"first": first.to_json(), **about}
    file = out / "loop.json"
    if file.exists():
        import json

        known = json.loads(file.read_text())
        differ = [k for k in about if known.get(k) != json.loads(evidence.canonical(about))[k]]
        if differ:
            raise UsageError(
                "another loop has begun in this folder",
                where=out,
                why=f"`{differ[0]}` differs",
                way_out="give another --output, or the configuration in loop.json",
            )
    else:
        manifest.write_json(file, about)


class SelfTraining(ModelHost):
    """The host of the loop: models that learn from searches. See eft/loops/rounds.py for what is asked of it when."""

    def __init__(self, config: Config, out: Path, pool: Pool, first: State) -> None:
        super().__init__(out / "work", config.serving)
        self.config, self.out, self.pool, self.first = config, out, pool, first
        self.archive = Archive(out)
        self.number, self.root = 0, first

    def folder(self, *parts: str) -> Path:
        return self.out / "rounds" / str(self.number) / Path(*parts)

    def status(self) -> dict[str, str]:
        """fingerprint -> committed, rejected, undecided; a state that became a root stays committed."""
        found: dict[str, str] = {}
        for n in lineage.nodes(self.pool, LOOP, self.first.to_json(), self.config.rounds):
            if found.get(n["id"]) != "committed":
                found[n["id"]] = n["status"]
        return found

    # ---- experience

    def begin(self, number: int, root: State) -> None:
        self.number, self.root = number, root
        for k, searches in enumerate(self.config.searches):
            self._search(f"{k}-{searches.by}", searches, root if searches.by == "root" else None)

    def _search(self, label: str, searches: Searches, state: State | None) -> None:
        """Run searches by `state` (None: the teacher) and archive them, unless that is done."""
        entry = f"r{self.number}.{label}"
        if self.archive.has(entry):
            return
        c, runs = self.config, self.folder("runs", label)
        options = {
            "suite": c.suite if "/" not in c.suite and not c.suite.endswith(".yaml") else c.path(c.suite).resolve(),
            "role": "train",
            "seeds": searches.seeds,
            "first_seed": self.number * searches.seeds,
            "iterations": searches.iterations,
            "forms": "[diff]",
            "prompt_format": c.prompt_format,
            "output": runs,
        }
        if searches.tasks:
            options["tasks"] = f"[{', '.join(searches.tasks)}]"
        if state is None:
            options["mutator.lookahead"] = searches.lookahead
        else:
            url, model, _ = self.endpoint(state)
            options |= {
                "mutator.base_url": url,
                "mutator.model": model,
                "mutator.name": f"state-{state.fingerprint}",
                "max_tokens": c.serving.max_tokens,
                "temperature": c.serving.temperature,
                "top_p": c.serving.top_p,
                "workers": c.serving.workers,
            }
        done = _stage("collect", options)
        by, name = (state.fingerprint, state.name) if state else (searches.by, f"{searches.by} (teacher)")
        self.archive.add(
            Entry(
                entry,
                self.number,
                by,
                name,
                str(runs.relative_to(self.out)),
                int(done.get("replies", 0)),
                time.time(),
                int(done.get("valid_edits", -1)),
            )
        )

    def _data(self, label: str, entries: list[Entry], build: dict[str, Any]) -> Path | None:
        """Training sets from archived experience; None where nothing in it improved."""
        entries = [e for e in entries if e.valid]
        if not entries:
            return None  # not one edit could be applied and evaluated: there is no transition to harvest
        at, c = self.folder(label), self.config
        _stage("harvest", {"runs": f"[{', '.join(str(self.out / e.path) for e in entries)}]", "output": at / "harvest"})
        _stage("label", {"source": at / "harvest", "output": at / "label"})
        improved = sum(r.label == Label.IMPROVED for r in read_transitions(at / "label"))
        if not improved:
            return None
        _stage("clean", {"source": at / "label", "output": at / "clean", **c.clean})
        tasks = {r.task for r in read_transitions(at / "clean")}
        evidence.refuse_training_on(self.pool, tasks, at / "clean")
        if not any(r.label == Label.IMPROVED for r in read_transitions(at / "clean")):
            return None
        _stage("build", {"source": at / "clean", "output": at / "build", **build})
        return at / "build"

    # ---- branches

    def propose(self) -> list[State]:
        chosen = self.archive.choose(self.config.archive, self.number, self.status(), self.config.max_age)
        own = [e for e in chosen if e.by == self.root.fingerprint]
        wanted = {b.kind for b in self.config.branches.values()}
        data = self._data("data", chosen, self.config.build) if wanted & {"sft", "kto"} else None
        kept = None
        if "rejection" in wanted and own:
            kept = self._data("own", own, {**self.config.build, "rank": "gain", "kto": False})
        made = []
        for name, branch in self.config.branches.items():
            verb = "kto" if branch.kind == "kto" else "sft"
            source = kept if branch.kind == "rejection" else data
            if source is None or not (source / verb / "train.parquet").exists():
                print(f"inherit: round {self.number + 1}: no data for branch '{name}' ({branch.kind})", file=sys.stderr)
                continue
            made.append(self._train(name, verb, source / verb, branch))
        return made

    def _train(self, name: str, verb: str, dataset: Path, branch: Branch) -> State:
        place = self.root.payload.get("place")
        if place is None:
            raise UsageError("only models with weights at hand can be trained", where=self.root.name)
        out = self.folder("branches", name)
        _stage(
            verb,
            {
                **branch.train,
                "dataset": dataset,
                "model": place,
                "output": out,
                "seed": branch.train.get("seed", 0) + self.number,
            },
        )
        state = model_state(str(out / "final"))
        check_comparable(self.root, state)
        return State(f"r{self.number + 1}-{name}", state.fingerprint, state.payload)

    def recover(self, number: int, root: State, winner: State) -> State:
        """The place of recovery: repair and preservation teachers on donors' experience would make another state of the
        winner here, between screening and confirmation. This first form confirms the winner as it is."""
        return winner

    def evaluate(self, state: State, items: Sequence[Item]) -> list[float]:
        return super().evaluate(state, items)

    def end(self, number: int, root: State, branches: Sequence[State], result: dict[str, Any] | None) -> None:
        if self.config.branch_searches is not None:
            for state in branches:  # also of rejected ones: what they tried is experience like any other
                self._search(f"branch-{state.name}", self.config.branch_searches, state)
        if not any(
            e["kind"] == "decision" and e["decision"].startswith(f"{LOOP}.r{number + 1}.") for e in self.pool.ledger()
        ):
            manifest.write_json(
                self.out / "root.json", {**root.to_json(), "place": root.payload.get("place"), "round": number + 1}
            )
        self.write_lineage(number)

    def write_lineage(self, number: int) -> list[dict[str, Any]]:
        """lineage.{json,svg,html} as of a round. Returns the nodes."""
        found = lineage.nodes(self.pool, LOOP, self.first.to_json(), self.config.rounds)
        value = {"nodes": found, "root": lineage.current(found), "archive": self.archive.to_json(number, self.status())}
        manifest.write_json(self.out / "lineage.json", value)
        manifest.write_text(self.out / "lineage.svg", lineage.svg(found) + "\n")
        manifest.write_text(self.out / "lineage.html", lineage.page(value))
        return found


def _stage(verb: str, options: dict[str, Any]) -> dict[str, Any]:
    """Run a stage as a process; nested options may be mappings. Raises EftError where it fails."""
    import yaml

    out = Path(options["output"])
    file = out.with_name(f"{out.name}.{verb}.yaml")
    nested: dict[str, Any] = {}
    for key, value in options.items():
        *parents, last = key.split(".")
        at = nested
        for p in parents:
            at = at.setdefault(p, {})
        at[last] = str(value) if isinstance(value, Path) else value
    for key in ("runs", "forms", "tasks"):
        if isinstance(nested.get(key), str):
            nested[key] = yaml.safe_load(nested[key])
    manifest.write_text(file, yaml.safe_dump(nested, sort_keys=False))
    try:
        return stages.run(verb, config=file)
    except EftError as e:
        raise EftError(
            f"the loop cannot go on: {e.what}",
            where=e.where,
            why=e.why,
            way_out=f"see above; to repeat the stage alone: eft {verb} --config {file}",
        ) from None
