"""Export: a checkpoint as a model folder that any engine loads, with a model card, verified by reloading it.

    eft export out/smoke/kto/final -o out/smoke/export/kto
    eft export embedded:smollm2-135m -o out/base             the untouched model, to be served as a control
    eft export out/m/kto/final -o out/m/export --push-to-hub ORG/NAME [--private] [--revision BRANCH]

Writes weights, tokenizer with chat template, README.md. An adapter is merged in float32 and only then rounded to its base's
dtype (that merging changed no answer is checked on the logits), or kept with `--adapter keep`. It is done only when the folder,
loaded again, gives the same logits as the model that was exported, names its tensors as its base does, and holds no tied
weight twice. `--push-to-hub` uploads it then; interrupted, the same command continues the upload. What only the card says
(title, tags, `--evaluation RESULTS`) can be given later: the weights are not written again. With `--require-gate FILE` nothing
is written or uploaded that `eft gate` has not committed.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from eft import __version__, hub, manifest
from eft.config import StageConfig
from eft.errors import EftError, UsageError, nearest
from eft.models.load import ADAPTER, adapter_base, load_model, locate

DTYPES = ("auto", "float32", "bfloat16", "float16")
PROBE = "def solve(values):\n    best = None\n    for value in values:\n        if best is None or value > best:\n"


class Config(StageConfig):
    """`eft export`."""

    positional: ClassVar[str] = "checkpoint"

    checkpoint: str = Field(description="model folder, adapter folder, hub id, embedded:… or random:…")
    dtype: str = Field("auto", description="float32 or bfloat16; auto: as the checkpoint's own weights")
    adapter: Literal["merge", "keep"] = Field("merge", description="merge an adapter into its base, or keep it as one")
    base_model: str = Field("", description="the base's name on the hub, for the card, and for an adapter that is kept")
    shard: str = Field("5GB", description="largest size of a weights file")
    evaluation: Path | None = Field(None, description="results of 'eft evaluate' with this model, for the card")
    prompt_format: str = Field(
        "", description="format of the prompts that the model was trained on, for the card (eft@1)"
    )
    title: str = Field("", description="name of the model, for the card; default: the output folder's name")
    license: str = Field("apache-2.0", description="licence of the weights, for the card")
    tags: list[str] = Field(default_factory=list, description="further tags, for the card")
    require_gate: Path | None = Field(
        None, description="decision.json of 'eft gate': export only what it committed, these very weights"
    )
    push_to_hub: str | None = Field(
        None, description="ORG/NAME to upload to, with the token of `hf auth login` or HF_TOKEN"
    )
    private: bool = Field(False, description="a repository that is made anew is private")
    revision: str | None = Field(None, description="branch to upload to; default: the main one")


# What only the card and the upload go by: a change leaves the weights as they are.
SAID = ("prompt_format", "title", "license", "tags", "evaluation", "push_to_hub", "private", "revision")
# Files that go from a repository when an upload has none of their name: another model's shards, or its adapter.
REPLACED = ("*.safetensors", "*.safetensors.index.json", "adapter_*", "pytorch_model*")


def inputs(config: Config) -> list[Path]:
    """What the stage reads: the stage that made the checkpoint, where one did, the decision of a gate, an evaluation."""
    given = [config.path(p) for p in (config.require_gate, config.evaluation) if p]
    return [*_source(config), *given]


def _source(config: Config) -> list[Path]:
    folder = config.path(config.checkpoint)
    if not folder.is_dir():
        return []
    return [folder.parent if (folder.parent / manifest.NAME).is_file() else folder]


def run(config: Config) -> Path:
    """Write the model folder. Returns it."""
    name = locate(config.checkpoint, config.root)
    adapter = (Path(name) / ADAPTER).is_file()
    check(config, name, adapter)
    if config.push_to_hub:
        hub.ready(place(config))
    if config.require_gate is not None:
        require_gate(config.path(config.require_gate), name)
    out = config.out()
    done = _written(config)
    if done is None:
        write(config, name, adapter)
    else:
        say(f"{out}: the weights are there, only the card is written anew")
        describe(config, out, done["counts"], done["started"])
    push(config)
    return out


def check(config: Config, name: str, adapter: bool) -> None:
    """What can be known to be wrong before the model is loaded. Raises EftError."""
    from eft.train.card import metrics

    config.out()
    if config.dtype not in DTYPES:
        raise UsageError(f"unknown dtype '{config.dtype}'", way_out=nearest(config.dtype, DTYPES))
    if not re.fullmatch(r"\d+(\.\d+)?(KB|MB|GB|TB)", config.shard):
        raise UsageError(f"'{config.shard}' is no size", where="shard", way_out="5GB, 500MB")
    if config.adapter == "keep" and not adapter:
        raise UsageError("this checkpoint is no adapter", where=config.checkpoint, way_out="leave out --adapter keep")
    if config.adapter == "keep" and config.push_to_hub and not _hub_base(config, name):
        raise UsageError("an adapter on the hub needs a base that others have", where=config.push_to_hub,
                         why=f"its base is {adapter_base(Path(name))}",
                         way_out="give --base-model ORG/NAME, or push the merged model")  # fmt: skip
    if config.evaluation is not None:
        metrics(config.path(config.evaluation))
    if adapter:
        from eft.models.load import skeleton
        from eft.train import checks

        checks.adapter(Path(name), skeleton(name))


def _hub_base(config: Config, name: str) -> str:
    """The hub name of the base that the adapter `name` belongs on; "" where it has none."""
    base = config.base_model or adapter_base(Path(name))
    return base if base.count("/") == 1 and not Path(base).exists() and ":" not in base else ""


def _written(config: Config) -> dict[str, Any] | None:
    """The manifest of an earlier export of the same weights, or None."""
    done, resolved = manifest.read(config.out()), config.model_dump(mode="json")
    if done is None or done.get("stage") != "export":
        return None
    then = {**done["config"], **{k: resolved[k] for k in (*SAID, "root", "output")}}
    if then != resolved or done.get("version") != __version__:
        return None
    if any(done["inputs"].get(str(p)) != manifest.fingerprint(p) for p in _source(config)):
        return None
    files = {config.out() / n: o["bytes"] for n, o in done["outputs"].items()}
    return done if all(f.is_file() and f.stat().st_size == size for f, size in files.items()) else None


def discard(config: Config) -> None:
    """Forget what is there, so that it is written anew (--force)."""
    (config.out() / manifest.NAME).unlink(missing_ok=True)


def write(config: Config, name: str, adapter: bool) -> None:
    """The weights, checked, then the card and the manifest."""
    from eft import tokenizers
    from eft.models import save
    from eft.train import adapters

    started, out = time.time(), config.out()
    tokenizer = tokenizers.load(name)
    dtype = _dtype(name) if config.dtype == "auto" else config.dtype
    say(f"loading {name} in {dtype}")
    keep = config.adapter == "keep"
    if adapter:
        model, expected, counts = adapters.load(Path(name), dtype, tokenizer, logits, merge=not keep)
        say(f"adapter {'kept' if keep else 'merged in float32'}: logits differ by {counts['adapter_difference']:.1g}"
            + ("" if keep else f", rounded to {dtype} by {counts['rounding']:.1g}"))  # fmt: skip
    else:
        model, counts = load_model(name, dtype), {}
        expected = logits(model, tokenizer)
    counts |= {"parameters": sum(p.numel() for p in model.parameters()), "dtype": dtype,
               "merged_adapter": adapter and not keep, "adapter": keep}  # fmt: skip
    with manifest.building(out) as aside:
        if keep:
            adapters.copy(Path(name), aside, tokenizer, _hub_base(config, name))
            counts["logit_difference"] = adapters.compare(aside, Path(name), dtype, tokenizer, logits, expected)
            counts["parameters"] = save.stored_parameters(aside)
        else:
            save.save_model(model, tokenizer, aside, shard=config.shard)
            save.check_weights(aside, counts["parameters"])
            save.check_ties(aside, model)
            save.processor(aside, *_origins(config, name))
            counts["logit_difference"] = compare(aside, dtype, tokenizer, expected)
        describe(config, aside, counts, started)
    say(
        f"{out}: {counts['parameters']:,} parameters in {dtype}; "
        f"reloaded, logits differ by {counts['logit_difference']:.1g}"
    )


def _origins(config: Config, name: str) -> list[str]:
    """Where files that training does not carry along are found: the checkpoint, what it was trained from, and so on."""
    from eft.train.card import lineage

    found = [name]
    for done in reversed(lineage(config.checkpoint, config.root)):
        found.append(locate(done["config"]["model"], Path(done["config"]["root"])))
    return found


def describe(config: Config, folder: Path, counts: dict[str, Any], started: float) -> None:
    """The card, and last the manifest. The card is none of its outputs: with a new one the model stays the same."""
    from eft.train.card import card, lineage

    history = lineage(config.checkpoint, config.root)
    manifest.write_text(folder / "README.md", card(config, history, counts))
    ours = {"README.md", manifest.NAME, hub.RECORD, "config.yaml"}
    outputs = sorted(f for f in folder.rglob("*") if f.is_file() and f.name not in ours)
    manifest.write(folder, "export", config.model_dump(mode="json"), inputs(config), outputs, counts, started)


def place(config: Config) -> hub.Place:
    assert config.push_to_hub is not None
    return hub.Place(config.push_to_hub, "model", config.private, config.revision)


def push(config: Config) -> None:
    """Upload the finished folder, where that was asked for and has not happened yet."""
    if not config.push_to_hub:
        return
    out = config.out()
    files = [*(manifest.read(out) or {}).get("outputs", {}), "README.md"]
    hub.push(out, place(config), files, replaces=REPLACED)


def require_gate(file: Path, place: str) -> None:
    """Raise EftError unless `file` is a decision of `eft gate` that committed the weights of the model `place`."""
    from eft.models.identity import fingerprint

    try:
        decision = json.loads(file.read_text(encoding="utf-8"))
        verdict, candidate = str(decision["verdict"]), decision["candidate"]
        gated = str(candidate["fingerprint"])
    except FileNotFoundError:
        way_out = "run 'eft gate ROOT CANDIDATE' first"
        raise EftError("there is no decision of a gate", where=file, way_out=way_out) from None
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise EftError("this is not a decision of 'eft gate'", where=file, why=repr(e)) from None
    if verdict != "COMMIT":
        raise EftError("the gate did not commit this model: it is not exported", where=file,
                       why=f"{verdict}: mean advantage {100 * float(decision.get('mean') or 0):+.2f} points on "
                       f"{decision.get('used', 0)} items")  # fmt: skip
    if gated != (found := fingerprint(place)):
        raise EftError("the gate decided about other weights", where=file,
                       why=f"it committed {candidate.get('name')} ({gated}), and {place} is {found}",
                       way_out="gate this very checkpoint")  # fmt: skip


def say(text: str) -> None:
    print(f"export: {text}", file=sys.stderr, flush=True)


def _dtype(name: str) -> str:
    """The dtype of the checkpoint's weights: of its base for an adapter; bfloat16 for the embedded model."""
    from transformers import AutoConfig

    from eft.tokenizers import EMBEDDED, RANDOM

    if name == EMBEDDED:
        return "bfloat16"
    if name.startswith(RANDOM):
        return "float32"
    if (Path(name) / ADAPTER).is_file():
        return _dtype(adapter_base(Path(name)))
    stored = AutoConfig.from_pretrained(name).dtype
    return str(stored).removeprefix("torch.") if stored is not None else "float32"


def logits(model: Any, tokenizer: Any) -> Any:
    """The model's logits on a fixed conversation, (tokens, vocabulary), float32."""
    import torch

    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": PROBE}], tokenize=False, add_generation_prompt=True
    )
    ids = torch.tensor([tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids])
    model.eval()
    with torch.no_grad():
        return model(input_ids=ids.to(model.device)).logits[0].float().cpu()


def distance(found: Any, expected: Any) -> float:
    """The largest difference of two sets of logits; infinite where they are of different shapes."""
    return (found - expected).abs().max().item() if found.shape == expected.shape else float("inf")


def compare(folder: Path, dtype: str, tokenizer: Any, expected: Any) -> float:
    """The largest difference between `expected` and the logits of the folder loaded again.

    Raises EftError where it is more than rounding: the same weights in the same dtype give the same numbers.
    """
    from eft import tokenizers

    if tokenizers.identity(tokenizers.load(str(folder))) != tokenizers.identity(tokenizer):
        raise EftError("the exported tokenizer is another one than the checkpoint's", where=folder)
    found = logits(load_model(str(folder), dtype), tokenizer)
    difference = distance(found, expected)
    if not difference <= 1e-4 * max(1.0, expected.abs().max().item()):
        raise EftError(
            "the exported model does not answer like the checkpoint",
            where=folder,
            why=f"its logits differ by {difference:.3g}",
            way_out="this is a bug; the checkpoint itself is untouched",
        )
    return difference
