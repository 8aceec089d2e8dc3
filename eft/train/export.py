"""Export: a checkpoint as a model folder that any engine loads, with a model card, verified by reloading it.

    eft export out/smoke/kto/final -o out/smoke/export/kto
    eft export embedded:smollm2-135m -o out/base             the untouched model, to be served as a control

Writes weights (adapters merged in float32, then rounded), tokenizer with chat template, README.md. It is done only when
the folder, loaded again, gives the same logits as the model that was exported. `--push-to-hub ORG/NAME` uploads it
then; with `--require-gate FILE` nothing is written or uploaded that `eft gate` has not committed.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from eft import manifest
from eft.config import StageConfig
from eft.errors import EftError
from eft.models.load import ADAPTER, adapter_base, load_model, locate

PROBE = "def solve(values):\n    best = None\n    for value in values:\n        if best is None or value > best:\n"


class Config(StageConfig):
    """`eft export`."""

    positional: ClassVar[str] = "checkpoint"

    checkpoint: str = Field(description="model folder, adapter folder, hub id, embedded:… or random:…")
    dtype: str = Field("auto", description="float32 or bfloat16; auto: as the checkpoint's own weights")
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
    private: bool = Field(False, description="upload as a private repository")
    revision: str | None = Field(None, description="branch to upload to")


def inputs(config: Config) -> list[Path]:
    """What the stage reads: the stage that made the checkpoint, where one did, and the decision of a gate."""
    return [*_source(config), *([config.path(config.require_gate)] if config.require_gate else [])]


def _source(config: Config) -> list[Path]:
    folder = config.path(config.checkpoint)
    if not folder.is_dir():
        return []
    return [folder.parent if (folder.parent / manifest.NAME).is_file() else folder]


def run(config: Config) -> Path:
    """Write the model folder. Returns it."""
    from eft import tokenizers
    from eft.models.save import check_weights, save_model
    from eft.train.card import card, lineage

    started = time.time()
    name = locate(config.checkpoint, config.root)
    if config.require_gate is not None:
        require_gate(config.path(config.require_gate), name)
    out = config.out()
    tokenizer = tokenizers.load(name)
    dtype = _dtype(name) if config.dtype == "auto" else config.dtype
    say(f"loading {name} in {dtype}")
    model = load_model(name, dtype)
    counts: dict[str, Any] = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "dtype": dtype,
        "merged_adapter": (Path(name) / ADAPTER).is_file(),
    }
    expected = logits(model, tokenizer)
    history = lineage(config.checkpoint, config.root)
    with manifest.building(out) as aside:
        save_model(model, tokenizer, aside)
        check_weights(aside, counts["parameters"])
        counts["logit_difference"] = compare(aside, dtype, tokenizer, expected)
        manifest.write_text(aside / "README.md", card(config, history, counts))
        outputs = sorted(f for f in aside.rglob("*") if f.is_file())
        manifest.write(aside, "export", config.model_dump(mode="json"), inputs(config), outputs, counts, started)
    say(
        f"{out}: {counts['parameters']:,} parameters in {dtype}; "
        f"reloaded, logits differ by {counts['logit_difference']:.1g}"
    )
    if config.push_to_hub:
        push(out, config)
    return out


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
                       why=f"{verdict}: mean advantage {100 * float(decision.get('mean', 0)):+.2f} points on "
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


def compare(folder: Path, dtype: str, tokenizer: Any, expected: Any) -> float:
    """The largest difference between `expected` and the logits of the folder loaded again.

    Raises EftError where it is more than rounding: the same weights in the same dtype give the same numbers.
    """
    from eft import tokenizers

    if tokenizers.identity(tokenizers.load(str(folder))) != tokenizers.identity(tokenizer):
        raise EftError("the exported tokenizer is another one than the checkpoint's", where=folder)
    found = logits(load_model(str(folder), dtype), tokenizer)
    difference = (found - expected).abs().max().item() if found.shape == expected.shape else float("inf")
    if not difference <= 1e-4 * max(1.0, expected.abs().max().item()):
        raise EftError(
            "the exported model does not answer like the checkpoint",
            where=folder,
            why=f"its logits differ by {difference:.3g}",
            way_out="this is a bug; the checkpoint itself is untouched",
        )
    return difference


def push(folder: Path, config: Config) -> None:
    """Upload the folder. Raises EftError where the hub refuses or cannot be reached; the folder stays."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    api = HfApi()
    try:
        api.create_repo(config.push_to_hub, private=config.private, exist_ok=True)
        if config.revision:
            api.create_branch(config.push_to_hub, branch=config.revision, exist_ok=True)
        done = api.upload_folder(
            repo_id=config.push_to_hub,
            folder_path=folder,
            revision=config.revision,
            ignore_patterns=[manifest.NAME, "config.yaml"],
            commit_message="Upload from eft export",
        )
    except (HfHubHTTPError, LocalTokenNotFoundError, OSError, ValueError) as e:
        raise EftError(
            "the upload failed",
            where=config.push_to_hub,
            why=str(e).strip().splitlines()[0],
            way_out=f"`hf auth login`, then run the same command with --force; {folder} is complete",
        ) from None
    say(f"uploaded: {done.commit_url}")
