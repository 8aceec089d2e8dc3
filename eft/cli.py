"""The `eft` command: one verb per stage, in the pipeline's order, and a few side verbs.

Every option of a verb is a field of its stage's `Config`, so command line, config file and `--set` can never disagree.
Precedence: defaults < --config FILE < --set a.b=value < options. Nothing heavy is imported before a verb is known:
`eft --help` answers in well under half a second.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from eft import __version__
from eft.errors import EftError, UsageError, nearest

# verb -> (module, help). Modules export Config, run(config) and inputs(config); see eft/stages.py.
VERBS = {
    "collect": ("eft.search.collect", "Run searches on the training tasks and keep their logs."),
    "harvest": ("data_tools.harvest", "Read the logs of searches into one table of transitions."),
    "label": ("data_tools.label", "Label transitions: improved, no change, regressed, repair, breakage."),
    "clean": ("data_tools.clean", "Drop what must not be learned, with a reason for every row."),
    "build": ("data_tools.build", "Write the SFT and KTO training sets, split by task."),
    "sft": ("eft.train.sft", "Fine-tune on improved transitions."),
    "kto": ("eft.train.kto", "Continue with KTO on improved and regressed transitions."),
    "export": ("eft.train.export", "Write a checkpoint as a model folder, verified by reloading it."),
    "serve": ("eft.mutators.server", "Serve a model through vLLM, in vLLM's own environment."),
    "evaluate": ("eft.evaluate.run", "Search held-out tasks with the tuned mutator and with its controls."),
    "report": ("eft.evaluate.report", "Write the results of an evaluation as one HTML file."),
}
SIDE_VERBS = {
    "preview": ("data_tools.preview", "Look at a data set: samples by token, what was dropped, histograms."),
    "aa": ("eft.evaluate.aa", "Compare a mutator with itself: how often does the report see a difference?"),
    "run": ("eft.recipes", "Run a whole recipe, stage by stage, skipping what is up to date."),
    "recipes": ("eft.recipes", "List the shipped recipes and accelerate configs, or copy one."),
    "gateway": ("eft.mutators.record", "Record any search: an OpenAI-compatible proxy that journals everything."),
    "gate": ("eft.gate.run", "May a candidate replace the root? COMMIT, REJECT or UNDECIDED on fresh items."),
    "audit": ("eft.gate.audit", "What would gates have done with real updates, measured on a large pool?"),
    "inherit": ("eft.loops.inheritance", "Rounds of self-training that inherit an update only where the gate commits."),
    "tasks": ("eft.tasks.suite", "List, show, run, validate and import tasks."),
}
TASK_VERBS = {
    "list": ("eft.tasks.suite", "List the tasks of a suite by role."),
    "show": ("eft.tasks.show", "What one task asks for, and its seed program."),
    "run": ("eft.tasks.run", "Evaluate one program on a task, as a search would."),
    "validate": ("eft.mutators.validate", "Is a task fit to be searched on? Attacks it, too."),
    "import": ("eft.tasks.importers", "Turn a checkout of a public benchmark family into task folders."),
}


def _options(config: type) -> list[click.Parameter]:
    """The command-line options of a stage: one for every scalar or list field of its Config."""
    import typing

    params: list[click.Parameter] = []
    if config.positional:
        many = typing.get_origin(config.model_fields[config.positional].annotation) in (list, tuple)
        params.append(click.Argument([config.positional], nargs=-1 if many else 1, required=False))
    for name, field in config.model_fields.items():
        kinds = [field.annotation, *typing.get_args(field.annotation)]
        if name == config.positional or any(isinstance(k, type) and issubclass(k, (dict, _section())) for k in kinds):
            continue  # sections are reached through --set
        many = typing.get_origin(field.annotation) in (list, tuple)
        if typing.get_origin(field.annotation) is dict:
            continue
        names = [f"--{name.replace('_', '-')}", name]
        if name == "output":
            names.insert(0, "-o")
        if field.annotation is bool:
            names[names.index(f"--{name.replace('_', '-')}")] = f"--{name.replace('_', '-')}/--no-{name.replace('_', '-')}"
            params.append(click.Option(names, default=None, help=field.description, show_default=False))
        else:
            shown = field.get_default(call_default_factory=True) if not field.is_required() else None
            default = "" if shown in (None, "", [], (), {}) else f" [default: {shown}]"
            text = (field.description or "") + (" (repeatable)" if many else "") + default
            params.append(click.Option(names, default=None, multiple=many, metavar=name.upper(), help=text))
    return params


def _paragraphs(doc: str) -> str:
    """A module's docstring for click, which would re-wrap indented examples but for a \\b before them."""
    return "\n\n".join("\b\n" + p if "\n " in p or p.startswith(" ") else p for p in doc.strip("\n").split("\n\n"))


def _section() -> type:
    from eft.config import Section

    return Section


COMMON: list[tuple[list[str], dict[str, Any]]] = [
    (["--config", "config_file"], {"type": click.Path(path_type=Path), "help": "YAML file with this stage's options."}),
    (["--set", "sets"], {"multiple": True, "metavar": "A.B=VALUE", "help": "Override one key; repeatable."}),
    (["--dry-run"], {"is_flag": True, 
      "help": "Print and write the resolved config (sft, kto: and what the training will take); touch nothing else."}),
    (["--json", "as_json"], {"is_flag": True, "help": "End with one JSON object on the last line of standard output."}),
    (["--force"], {"is_flag": True, "help": "Run even where the output is up to date."}),
]


def _invoke(verb: str, path: str, *, config_file: Path | None, sets: tuple[str, ...], dry_run: bool, as_json: bool,
            force: bool, **flags: Any) -> None:  # fmt: skip
    import importlib

    from eft import config as configs
    from eft import manifest, stages

    module = importlib.import_module(path)
    # An empty positional list means "not given on the command line": the config file may name it.
    flags = {k: (list(v) or None) if isinstance(v, tuple) else v for k, v in flags.items()}
    if flags.get("output"):  # what is typed is relative to where it is typed; what a file says, to the file's `root`
        flags["output"] = str(Path.cwd() / flags["output"]) if config_file else flags["output"]
    config = configs.load(module.Config, config_file, sets, flags, section=verb)
    if dry_run:
        text = configs.dump(config)
        click.echo(text, nl=False, err=as_json)
        if config.output is not None:
            out = config.out()
            folder = out.parent if out.suffix else out
            manifest.write_text(folder / "config.yaml", text)
        told: dict[str, Any] = {}
        if hasattr(module, "dry_run"):  # what the stage can tell beforehand
            comments, told["plan"] = module.dry_run(config)
            click.echo(comments, nl=False, err=as_json)
        if as_json:
            click.echo(json.dumps({"verb": verb, "dry_run": True, "config": config.model_dump(mode="json"), **told}))
        return
    if verb in stages.STAGES and verb != "serve":
        done = stages.execute(verb, config, force=force)
        if done["skipped"]:
            click.echo(f"{verb}: up to date, {config.out()} (--force runs it again)", err=True)
        result = {"verb": verb, "output": str(config.out()), "skipped": done["skipped"], **done["counts"]}
    else:
        result = module.run(config) or {}
    if as_json:
        click.echo(json.dumps(result, default=str))
    if isinstance(result, dict) and result.get("exit_code"):  # an answer, not a failure: eft gate documents its codes
        sys.stdout.flush()
        sys.exit(result["exit_code"])


def _command(verb: str, path: str, help_text: str) -> click.Command:
    """The command of one stage module."""
    import importlib

    module = importlib.import_module(path)
    params = _options(module.Config) + [click.Option(names, **kw) for names, kw in COMMON]

    def callback(**kwargs: Any) -> None:
        _invoke(verb, path, **kwargs)

    text = f"{help_text}\n\n{_paragraphs(module.__doc__ or '')}"
    return click.Command(verb.split()[-1], params=params, callback=callback, help=text)


@click.pass_context
def _list_tasks(ctx: click.Context) -> None:
    """`eft tasks` alone lists."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(_command("tasks list", *TASK_VERBS["list"]))


class TaskVerbs(click.Group):
    """`eft tasks VERB`: stage modules like the others, one level down."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(TASK_VERBS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, help_text) for name, (_, help_text) in TASK_VERBS.items()])

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return _command(f"tasks {name}", *TASK_VERBS[name]) if name in TASK_VERBS else None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args[0] not in TASK_VERBS and not args[0].startswith("-"):
            raise UsageError(f"there is no 'eft tasks {args[0]}'", way_out=nearest(args[0], TASK_VERBS))
        return super().resolve_command(ctx, args)


class Verbs(click.Group):
    """Builds a verb's command, and imports its module, only when that verb is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*VERBS, *SIDE_VERBS]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, verbs in (("Pipeline, in order", VERBS), ("Beside it", SIDE_VERBS)):
            with formatter.section(title):
                formatter.write_dl([(name, help_text) for name, (_, help_text) in verbs.items()])

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        import importlib

        known = {**VERBS, **SIDE_VERBS}
        if name not in known:
            return None
        path, help_text = known[name]
        if name == "recipes":
            return importlib.import_module(path).command
        if name == "tasks":
            return TaskVerbs(name, help=help_text, invoke_without_command=True, callback=_list_tasks)
        return _command(name, path, help_text)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in {**VERBS, **SIDE_VERBS} and not args[0].startswith("-"):
            raise UsageError(f"unknown verb '{args[0]}'", way_out=nearest(args[0], {**VERBS, **SIDE_VERBS}))
        return super().resolve_command(ctx, args)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="eft")
def cli() -> None:
    """Evolution fine-tuning: from the logs of evolutionary searches to a mutator that searches better."""


def main() -> None:
    """Entry point: EftError becomes one clear message and exit code 1 or 2, anything else is a traceback (a bug)."""
    try:
        cli(standalone_mode=False)
        sys.stdout.flush()
    except EftError as e:
        click.echo(f"error: {e}", err=True)
        sys.exit(e.exit_code)
    except click.exceptions.Exit as e:
        sys.exit(e.exit_code)
    except click.Abort:
        sys.exit(130)
    except KeyboardInterrupt:
        click.echo("interrupted; run the same command again to continue", err=True)
        sys.exit(130)
    except click.ClickException as e:
        e.show()
        sys.exit(2)
    except OSError as e:  # outputs are guarded where they are written (eft.manifest): this is standard output
        if e.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        click.echo("error: the disk is full\n  where: standard output, or a temporary folder", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still buffered would fail again at exit
        sys.exit(1)


if __name__ == "__main__":
    main()
