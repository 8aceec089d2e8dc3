"""A recipe is a folder of YAML files that reproduces one model; `eft run` runs its stages in the pipeline's order.

`data.yaml` holds sections (collect, harvest, label, clean, build); `sft.yaml`, `kto.yaml`, `export.yaml`,
`evaluate.yaml` and `report.yaml` hold one stage each. A stage whose file or section is absent is left out. A *form*
(`short.yaml`, say) holds sections by verb that are merged over these files. The resolved files are written to
ROOT/configs/VERB.yaml, so that every stage of a run can be repeated by itself:

    eft run recipes/smoke                       all stages; up-to-date ones are skipped
    eft run recipes/smollm2_135m --form short   with smaller budgets
    eft run recipes/smoke --until build         the data stages only
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import click
import yaml
from pydantic import Field

from data_tools.readers import hub
from eft import config as configs
from eft import manifest, resources, stages
from eft.errors import EftError, UsageError, nearest

ORDER = [verb for verb in stages.STAGES if verb != "serve"]  # evaluate starts and stops its own servers


class Config(configs.StageConfig):
    """A whole recipe."""

    positional: ClassVar[str] = "recipe"

    recipe: str = Field(description="a recipe's folder, or the name of a shipped one")
    form: str = Field("", description="a form of the recipe, such as 'short'")
    root: Path = Field(Path("."), description="where outputs go, instead of the recipe's own root")
    runs: list[str] = Field(
        default_factory=list, description="further logs (or hub:ORG/NAME@REVISION) to harvest, beside collected ones"
    )
    first: str = Field("", description="first stage to run")
    until: str = Field("", description="last stage to run")


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` laid over `base`: sections key by key, anything else replaced."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def resolve(folder: Path, form: str = "", root: Path | None = None, runs: list[str] | None = None) -> dict[str, dict[str, Any]]:
    """The config of every stage of a recipe, by verb, in order.

    Raises UsageError for a folder without stage files, an unknown form, or a form that names an unknown verb.
    """
    files = {f.stem: configs.read_yaml(f) for f in sorted(folder.glob("*.yaml"))}
    sections: dict[str, dict[str, Any]] = {}
    data = files.get("data", {})
    for verb in ORDER:
        if verb in data:
            sections[verb] = merge({k: data[k] for k in ("root",) if k in data}, data[verb] or {})
        elif verb in files:
            sections[verb] = files[verb]
    if not sections:
        raise UsageError("this is not a recipe", where=folder, why="it holds none of data.yaml, sft.yaml, kto.yaml, …")
    unknown = set(data) - set(ORDER) - {"root"}
    if unknown:
        raise UsageError(f"unknown section '{min(unknown)}'", where=folder / "data.yaml", way_out=nearest(min(unknown), ORDER))
    if form:
        if form not in files or form in ("data", *ORDER):
            forms = sorted(set(files) - {"data", *ORDER})
            raise UsageError(f"the recipe has no form '{form}'", where=folder, way_out=f"forms: {', '.join(forms) or 'none'}")
        for verb, over in files[form].items():
            if verb not in sections:
                raise UsageError(f"form '{form}' names '{verb}'", where=folder / f"{form}.yaml", way_out=nearest(verb, sections))
            sections[verb] = merge(sections[verb], over or {})
    for config in sections.values():
        if root is not None:
            config["root"] = str(root)
    if runs and "harvest" in sections:
        extra = [r if hub.is_hub(r) else str(Path(r).expanduser().resolve()) for r in runs]
        missing = [r for r in extra if not hub.is_hub(r) and not Path(r).exists()]
        if missing:
            raise UsageError("there is no such run", where=missing[0],
                             way_out="RUNS and --runs name logs of searches, or hub:ORG/NAME@REVISION")  # fmt: skip
        sections["harvest"] = {**sections["harvest"], "runs": [*sections["harvest"].get("runs", []), *extra]}
    return sections


def inputs(config: Config) -> list[Path]:
    return []


def run(config: Config) -> dict[str, Any]:
    """Run the recipe; returns the counts by stage. The first stage that fails ends the run with its exit code."""
    for name in (config.first, config.until):
        if name and name not in ORDER:
            raise UsageError(f"unknown stage '{name}'", way_out=nearest(name, ORDER))
    folder = resources.path("recipes", config.recipe)
    root = config.root if config.root != Path(".") else None
    sections = resolve(folder, config.form, root, config.runs)
    chosen = list(sections)
    if config.first:
        chosen = [v for v in chosen if ORDER.index(v) >= ORDER.index(config.first)]
    if config.until:
        chosen = [v for v in chosen if ORDER.index(v) <= ORDER.index(config.until)]
    files = {}
    for verb in chosen:  # every mistake in any file surfaces before hours of work
        stage = configs.make(stages.module(verb).Config, sections[verb], source=folder)
        files[verb] = stage.root / "configs" / f"{verb}.yaml"
        manifest.write_text(files[verb], yaml.safe_dump(sections[verb], sort_keys=False, allow_unicode=True))
    results: dict[str, Any] = {}
    failed: StageFailed | None = None
    for number, verb in enumerate(chosen, 1):
        file = files[verb]
        print(f"\n[{number}/{len(chosen)}] eft {verb} --config {file}", file=sys.stderr, flush=True)
        started = time.time()
        # SIGTERM: a training saves, an evaluation ends its servers
        done = subprocess.run([sys.executable, "-m", "eft.cli", verb, "--config", str(file)],
                              preexec_fn=lambda: stages.with_parent(signal.SIGTERM))  # fmt: skip
        if done.returncode:
            failed = StageFailed(f"'eft {verb}' failed (exit code {done.returncode})", where=file,
                                 way_out="what was finished is kept; mend the cause and run the same command again",
                                 code=done.returncode)  # fmt: skip
            if verb == "evaluate" and "report" in chosen:
                continue  # some searches failed: the report shows the others, and says so
            raise failed
        results[verb] = round(time.time() - started, 1)
        print(f"[{number}/{len(chosen)}] {verb} took {results[verb]:.0f} s", file=sys.stderr, flush=True)
    if failed is not None:
        raise failed
    return {"recipe": str(folder), "form": config.form, "seconds": results}


class StageFailed(EftError):
    """A stage of a recipe failed; carries that stage's exit code."""

    def __init__(self, what: str, *, code: int, **kwargs: Any) -> None:
        super().__init__(what, **kwargs)
        self.exit_code = code


@click.group(help="List the shipped recipes and accelerate configs, or copy one to change it.")
def command() -> None:
    pass


@command.command("list", help="The shipped recipes and accelerate configs.")
def _list() -> None:
    for name in resources.names("recipes"):
        forms = sorted({f.stem for f in resources.path("recipes", name).glob("*.yaml")} - {"data", *ORDER})
        click.echo(f"recipes/{name}" + (f"  (forms: {', '.join(forms)})" if forms else ""))
    for name in resources.names("accelerate_configs"):
        click.echo(f"accelerate_configs/{name}")
    click.echo("accelerate_configs/slurm.sbatch")


@command.command("copy", help="Copy a shipped recipe (a folder) or accelerate config (a file) to TARGET.")
@click.argument("name")
@click.argument("target", type=click.Path(path_type=Path))
def _copy(name: str, target: Path) -> None:
    kind = "recipes" if name in resources.names("recipes") else "accelerate_configs"
    source = resources.path(kind, name)
    if target.exists():
        raise UsageError("the target exists already", where=target, way_out="name a new folder or file")
    if source.is_dir():
        with manifest.building(target) as aside:
            for file in sorted(p for p in source.rglob("*") if p.is_file()):
                copy = aside / file.relative_to(source)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, copy)
    else:
        with manifest.atomic_file(target) as aside:
            shutil.copy(source, aside)
    click.echo(f"{source} -> {target}")
