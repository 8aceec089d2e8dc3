"""Memory, time and disk of a training, before it is started: what `--dry-run` and the first lines of a run print.

Memory per rank is the largest of three moments: the backward pass of the LM head, that of a decoder layer, the optimizer's
step. P parameters, T of them trained, N ranks, in bytes:

- weights 4P in float32, 2P in bfloat16; 4 bits under QLoRA: 0.516 per number of a linear layer (arXiv 2305.14314);
- gradients and optimizer of AdamW: 4T + 8T in float32, 2T + 12T with bfloat16 weights and float32 masters; ZeRO-1 divides
  the optimizer by N, ZeRO-2 the gradients too, ZeRO-3 and FSDP the weights too (Rajbhandari et al., arXiv 1910.02054). DDP
  holds a second copy of the gradients in its buckets; DeepSpeed a bucket of 5·10⁸ numbers, and in its step the float32
  copy of its share of the gradients; ZeRO-3 up to 10⁹ gathered parameters (all: DeepSpeed's defaults);
- activations: with checkpointing the input of every layer and what one layer keeps while it is recomputed (Chen et al.,
  arXiv 1604.06174), else what all layers keep; what a layer keeps is counted, see eft/train/shape.py. Ulysses divides
  rows by the ranks that share one (arXiv 2309.14509);
- LM head: hidden states and their gradient on the tokens with loss, a tile of 4,096 tokens × 32,768 words (on a CPU six
  more of them), and the float32 gradient of the whole matrix (TRL's fused head);
- on a GPU, 2 GiB for CUDA's context, NCCL and fragments, assumed.

Time is the FLOPs of the work (eft/train/flops.py; a recomputed forward pass, KTO's KL pass and its reference's log-probabilities among it) at an
assumed share of the device's peak. tests/train/test_estimate.py holds the memory against measured peaks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from eft.train.shape import Shape, evaluate

UTILISATION = 0.40  # of the peak, recomputation included: 30 % MFU with checkpointing; published full fine-tunes reach 28 %
BUCKET = 5e8  # numbers in a bucket of DeepSpeed's reduction, its default
LIVE = 1e9  # gathered parameters at a time under ZeRO-3, its default
TILE = (4096, 32768)  # tokens × words of a tile of TRL's fused LM head
TEMPORARIES = 6  # float32 tiles at a time, where no Triton kernel does it
NF4 = 0.5 + 0.127 / 8  # bytes per number, with double quantization
RUNTIME = 2 * 2**30  # bytes, on a GPU
GIB = 2**30

# Memory in GiB of the devices that an estimate can be asked for without having one.
DEVICES = {
    "B200": 180,
    "H200": 141,
    "H100": 80,
    "A100": 80,
    "L40S": 48,
    "A6000": 48,
    "RTX 5090": 32,
    "RTX 4090": 24,
    "RTX 3090": 24,
    "A10G": 24,
    "L4": 24,
}


@dataclass(frozen=True)
class Work:
    """What a training does with its data. `lengths`, `responses`: tokens of every row in training order, in all and with
    loss; `micro`: (rows, longest row, tokens with loss) of the heaviest forward pass on a rank; `packs`: of a step, over all
    ranks, where rows are packed."""

    steps: int
    lengths: list[int]
    responses: list[int]
    micro: tuple[int, int, int]
    packs: int | None = None

    @property
    def tokens(self) -> int:
        return sum(self.lengths)


@dataclass(frozen=True)
class Setting:
    """How it is trained, in the words that memory depends on. `kind`: none, ddp, deepspeed, fsdp; `weights`, `gradients`,
    `optimizer`: bytes per number; `sequence`: ranks that share a row."""

    kind: str
    stage: int | None
    ranks: int
    sequence: int = 1
    weights: float = 4
    gradients: float = 4
    optimizer: float = 8
    bits: int | None = None
    lora: bool = False
    checkpointing: bool = False
    accumulation: int = 1
    gpu: bool = False
    autocast: bool = False

    @property
    def shards(self) -> tuple[int, int, int]:
        """Over how many ranks weights, gradients and optimizer are divided."""
        n, stage = self.ranks, 3 if self.kind == "fsdp" else self.stage or 0
        return (n if stage >= 3 else 1, n if stage >= 2 else 1, n if stage >= 1 else 1)


@dataclass(frozen=True)
class Memory:
    """Bytes per rank by part, at the fullest moment; `fullest` names it."""

    parts: dict[str, float]
    fullest: str = ""

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def memory(shape: Shape, setting: Setting, work: Work) -> Memory:
    """The estimate for one rank, see above."""
    s, p, t = setting, shape.parameters, shape.trained
    by_weights, by_gradients, by_optimizer = s.shards
    weights = p * s.weights
    if s.bits:
        weights = shape.linear * (NF4 if s.bits == 4 else 1) + (p - shape.linear) * s.weights
    adapters = 4 * t if s.lora and s.kind != "deepspeed" else s.weights * t if s.lora else 0
    states = {
        "weights": (weights + adapters) / by_weights,
        "gradients": s.gradients * t / by_gradients,
        "optimizer": s.optimizer * t / by_optimizer,
        "buffers": _buffers(shape, s),
    }
    rows, longest, scored = work.micro
    length = -(-longest // s.sequence)
    scored = -(-scored // s.sequence)
    stream = rows * length * shape.hidden * shape.stream
    outside = evaluate(shape.outside, rows, length)
    layer = max(evaluate(fit, rows, length) for fit in shape.kept.values())
    if s.checkpointing:
        inputs = sum(shape.kinds.values()) * stream
        held = inputs + outside
        running = layer
    else:
        held = sum(n * evaluate(shape.kept[kind], rows, length) for kind, n in shape.kinds.items()) + outside
        running = 0.0
    matrix = shape.hidden * shape.vocabulary
    head = scored * shape.hidden * (shape.stream + 4 + shape.stream)
    computed = 2 if s.autocast else shape.stream
    head += min(scored, TILE[0]) * TILE[1] * computed
    if not s.gpu:  # the tile's kernel is written in torch here
        head += min(scored, TILE[0]) * min(shape.vocabulary, TILE[1]) * 4 * TEMPORARIES
    if not s.lora:
        head += matrix * (4 + (s.gradients if s.gradients < 4 else 0))
    # Gradients of the layers passed so far: all of them from the second micro batch on.
    early = 1.0 if s.accumulation > 1 or by_gradients > 1 else 0.0
    step = 4 * t / by_optimizer if s.kind == "deepspeed" else 0.0
    work_space = 3 * stream
    moments = {
        "head": {"activations": held, "head": head, "gradients": early * states["gradients"]},
        "layer": {"activations": held + running + work_space, "gradients": states["gradients"]},
        "step": {"optimizer": states["optimizer"] + step},
    }
    if s.checkpointing is False:  # activations go as gradients come: the middle is no fuller than the fuller end
        moments["layer"] = {
            "activations": held / max(1, sum(shape.kinds.values())) + work_space,
            "gradients": states["gradients"],
        }
    if early == 0.0:
        moments["head"]["gradients"] = 0.0
    best = Memory({})
    for name, over in moments.items():
        parts = {k: v for k, v in {**states, **over}.items() if v}
        if sum(parts.values()) > best.total:
            best = Memory(parts, name)
    return Memory({**best.parts, **({"runtime": float(RUNTIME)} if s.gpu else {})}, best.fullest)


def _buffers(shape: Shape, s: Setting) -> float:
    if s.kind == "ddp":
        return s.gradients * shape.trained
    if s.kind == "deepspeed":
        reduced = min(BUCKET, shape.trained) * s.gradients
        return reduced + (min(LIVE, shape.parameters) * s.weights if s.stage == 3 else 0)
    if s.kind == "fsdp":  # the layer that runs and the next one, whole, and the embedding
        return 2 * (2 * shape.largest + shape.hidden * shape.vocabulary)
    return 0.0


def passes(verb: str, setting: Setting) -> tuple[float, float]:
    """Forward passes that a token costs: (needed, with recomputation). A backward pass counts two, one where the weights
    are frozen; KTO adds the KL pass. (Its reference costs two more, once.)"""
    needed = 1 + (1 if setting.lora else 2) + (1 if verb == "kto" else 0)
    return needed, needed + (1 if setting.checkpointing else 0)


def seconds(flops: float, setting: Setting, peak: float) -> float:
    """Time for `flops` FLOPs of work in all."""
    return flops / (setting.ranks * peak * UTILISATION)


def disk(shape: Shape, setting: Setting, keep: int) -> float:
    """Bytes of the checkpoints at the fullest (one more than are kept, while it is written) and the finished model."""
    model = 2 * shape.parameters if setting.weights == 2 or setting.kind == "deepspeed" else 4 * shape.parameters
    model = 4 * shape.trained if setting.lora else model
    states = setting.optimizer * shape.trained + (model if setting.kind == "deepspeed" and not setting.lora else 0)
    return (keep + 1) * (model + states) + model


@dataclass(frozen=True)
class Estimate:
    """What is printed. `device`: name; `room`: its memory in bytes, 0 where it is not known; `assumed`: the device is
    none of this machine's."""

    device: str
    room: float
    assumed: bool
    memory: Memory
    seconds: float | None
    peak: float | None
    utilisation: float
    mfu: float
    disk: float
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Memory, time and disk in words, marked as estimates."""
        m = self.memory
        parts = ", ".join(f"{name} {size(n)}" for name, n in sorted(m.parts.items(), key=lambda x: -x[1]))
        of = f" of {size(self.room)}" if self.room else ""
        where = f"{self.device}{' (assumed: none is here)' if self.assumed else ''}"
        lines = [f"estimated memory per rank: {size(m.total)}{of} on {where}: {parts}"]
        if self.room and m.total > self.room:
            lines.append("that does not fit: lower max_tokens or micro_batch, shard more (zero3), or train adapters (lora)")
        if self.seconds is not None and self.peak:
            lines.append(
                f"estimated time: {duration(self.seconds)}, at {self.utilisation:.0%} of a peak of "
                f"{self.peak / 1e12:.3g} TFLOP/s per rank ({self.mfu:.0%} MFU), assumed"
            )
        lines.append(f"disk at the fullest: {size(self.disk)}")
        return lines + self.notes

    def numbers(self) -> dict[str, Any]:
        """The same for `--json`: bytes and seconds."""
        return {
            "device": self.device,
            "memory": {k: int(v) for k, v in self.memory.parts.items()},
            "memory_total": int(self.memory.total),
            "seconds": None if self.seconds is None else round(self.seconds),
            "disk": int(self.disk),
        }


def size(count: float) -> str:
    """Bytes in words: "5.2 MiB", "31.0 GiB"."""
    if count < 0.1 * GIB:
        return f"{count / 2**20:.3g} MiB"
    return f"{count / GIB:.1f} GiB"


def duration(s: float) -> str:
    """Seconds in words: "40 s", "12 min", "3.4 h"."""
    if s < 90:
        return f"{s:.0f} s"
    return f"{s / 60:.0f} min" if s < 5400 else f"{s / 3600:.1f} h"
