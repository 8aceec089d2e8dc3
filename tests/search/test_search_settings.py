"""The OpenEvolve config of a search, and the prompts that come of it."""

from __future__ import annotations

import re

import pytest
import yaml

from eft import prompts, resources
from eft.errors import UsageError
from eft.search.settings import PROMPT_SETTINGS, checkpoint_interval, openevolve_config, settings_for
from eft.tasks.task import load_task


def test_an_unknown_format_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="eft@1"):
        settings_for("eft@2")


@pytest.mark.parametrize("iterations, interval", [(100, 100), (20, 20), (30, 30), (194, 97), (1, 1), (300, 100)])
def test_the_last_candidate_is_in_a_checkpoint(iterations, interval) -> None:
    assert checkpoint_interval(iterations) == interval
    assert iterations % interval == 0


def test_the_papers_defaults(spec, toy) -> None:
    config = openevolve_config(spec(iterations=100), load_task(toy))
    llm = config["llm"]
    assert (llm["temperature"], llm["top_p"], llm["max_tokens"], llm["retries"]) == (0.7, 0.95, 30_000, 0)
    assert config["max_iterations"] == 100 and config["evaluator"]["parallel_evaluations"] == 1
    trace = config["evolution_trace"]
    assert trace["buffer_size"] == 1 and all(trace[f"include_{what}"] for what in ("failures", "code", "prompts"))
    assert config["database"]["log_prompts"] and config["diff_based_evolution"]
    assert yaml.safe_load(yaml.safe_dump(config)) == config


def test_the_stock_format_keeps_the_tasks_message(spec, toy) -> None:
    (toy / "config.yaml").write_text("prompt:\n  system_message: Pack tightly.\n" + (toy / "config.yaml").read_text())
    task = load_task(toy)
    stock, ours = (openevolve_config(spec(prompt_format=f), task)["prompt"] for f in ("openevolve@0.4", "eft@1"))
    assert stock == {"system_message": "Pack tightly."}
    assert "\n" not in ours["system_message"] and ours["template_dir"].endswith("eft_1")


@pytest.mark.parametrize("name", [f for f, s in PROMPT_SETTINGS.items() if s.template])
def test_templates_keep_the_lines_that_readers_rely_on(name) -> None:
    folder = resources.PACKAGE / "templates" / PROMPT_SETTINGS[name].template
    for file, kind in (("diff_user.txt", "diff"), ("full_rewrite_user.txt", "rewrite")):
        text = (folder / file).read_text()
        user = text.format(fitness_score="0.5000", evolution_history="", language="python", current_program="x = 1\n")
        assert prompts.current_program(user) == "x = 1\n"
        assert prompts.edit_kind(user) == kind
        assert prompts.detect_format("", user) == name


@pytest.mark.integration
def test_eft_1_stays_under_400_tokens_on_every_shipped_task(spec) -> None:
    """Rendered by OpenEvolve itself, with a full history: two best edits and one other, of the longest number lines."""
    from openevolve import Config
    from openevolve.prompt.sampler import PromptSampler

    from eft import tokenizers
    from eft.errors import EftError
    from eft.tasks.suite import ROLES, load_suite

    try:
        tokenizer = tokenizers.load(tokenizers.EMBEDDED)
    except EftError as e:
        pytest.skip(f"THE LENGTH OF PROMPTS WAS NOT TESTED: {e}")
    suite = load_suite("embedded")
    for task in [t for role in ROLES for t in suite.tasks(role)]:
        config = Config.from_dict(openevolve_config(spec(), task))
        lines = sorted((line.strip() for line in task.seed().split("\n") if re.match(r"[A-Z_0-9]+ = ", line)), key=len)
        history = [_program(str(k), task.seed(), line) for k, line in enumerate(lines[-3:])]
        for diff in (True, False):
            prompt = PromptSampler(config.prompt).build_prompt(
                current_program=task.seed(), program_metrics={"combined_score": 0.5}, previous_programs=history[-2:],
                top_programs=history[-2:], inspirations=history[:1], language="python", diff_based_evolution=diff,
                feature_dimensions=config.database.feature_dimensions,
            )  # fmt: skip
            assert prompt["user"].count("Change 1:") == 3 and "improved" in prompt["user"]
            messages = [{"role": role, "content": prompt[role]} for role in ("system", "user")]
            (tokens,) = tokenizers.count(tokenizer, [tokenizers.prompt_text(tokenizer, messages)])
            assert tokens < 400, (task.name, diff, tokens)


def _program(key: str, code: str, line: str) -> dict:
    change = f"Change 1: '{line}' to '{line}25'"
    return {"id": key, "code": code, "metrics": {"combined_score": 0.5},
            "metadata": {"changes": change, "parent_metrics": {"combined_score": 0.4}}}  # fmt: skip
