"""How likely a model finds given answers: log-likelihoods of completions of one prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


def completions(
    model: Any, tokenizer: Any, messages: list[dict[str, str]], answers: Sequence[str], *, max_tokens: int | None = None
) -> list[float]:
    """Mean log-probability per token (nats) of each answer and its end token, after `messages` in the chat template.

    Answers are padded on the right, which a causal model cannot see. At `max_tokens` of prompt and answer together the
    prompt loses its beginning. Raises ValueError for no answers.
    """
    import torch

    from eft.tokenizers import prompt_text

    encode = tokenizer.backend_tokenizer.encode
    prompt = encode(prompt_text(tokenizer, messages), add_special_tokens=False).ids
    tails = [encode(a, add_special_tokens=False).ids + [tokenizer.eos_token_id] for a in answers]
    if max_tokens is not None:
        prompt = prompt[-max(1, max_tokens - max(map(len, tails))) :]
    longest = max(map(len, tails))
    ids = torch.full((len(tails), longest), tokenizer.pad_token_id, dtype=torch.long)
    mask = torch.zeros((len(tails), len(prompt) + longest), dtype=torch.long)
    for row, tail in enumerate(tails):
        ids[row, : len(tail)] = torch.tensor(tail)
        mask[row, : len(prompt) + len(tail)] = 1
    ids, mask = ids.to(model.device), mask.to(model.device)
    with torch.inference_mode():
        logits = (_shared if _plain(model) else _whole)(model, torch.tensor([prompt], device=model.device), ids, mask)
        each = torch.gather(torch.log_softmax(logits.float(), dim=-1), 2, ids[..., None])[..., 0].cpu()
    return [float(each[row, : len(tail)].mean()) for row, tail in enumerate(tails)]


def _plain(model: Any) -> bool:
    """Does every layer attend to everything? Then a prompt's keys and values can be computed once for all answers."""
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
    return set(kinds) <= {"full_attention"}


def _shared(model: Any, prompt: Any, ids: Any, mask: Any) -> Any:
    """Logits before each answer's tokens, (answers, tokens, vocabulary): the prompt once, then the answers on top."""
    import torch
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    first = model(input_ids=prompt, cache=cache, use_cache=True, logits_to_keep=1).logits
    cache.batch_repeat_interleave(len(ids))
    rest = model(input_ids=ids, attention_mask=mask, cache=cache, use_cache=True).logits
    return torch.cat([first.expand(len(ids), -1, -1), rest[:, :-1]], dim=1)


def _whole(model: Any, prompt: Any, ids: Any, mask: Any) -> Any:
    """The same in one pass over prompt and answers, for models that keep more than keys and values."""
    import torch

    whole = torch.cat([prompt.expand(len(ids), -1), ids], dim=1)
    # the logits before the answers' tokens, and no others: a vocabulary of 250,000 makes whole ones large
    keep = ids.shape[1] + 1
    return model(input_ids=whole, attention_mask=mask, logits_to_keep=keep, use_cache=False).logits[:, :-1]


@dataclass(frozen=True)
class Encoded:
    """A prompt and the answers to it, as token ids; every answer ends with the end token."""

    prompt: tuple[int, ...]
    answers: tuple[tuple[int, ...], ...]


def encode(tokenizer: Any, messages: list[dict[str, str]], answers: Sequence[str], max_tokens: int) -> Encoded:
    """`messages` in the chat template and `answers`, cut to `max_tokens` together as in `completions`. Raises
    ValueError where an answer alone is longer."""
    from eft.tokenizers import prompt_text

    ids = tokenizer.backend_tokenizer.encode
    prompt = ids(prompt_text(tokenizer, messages), add_special_tokens=False).ids
    tails = [(*ids(a, add_special_tokens=False).ids, tokenizer.eos_token_id) for a in answers]
    room = max_tokens - max(map(len, tails))
    if room < 1:
        raise ValueError(f"an answer of {max(map(len, tails))} tokens leaves no room for a prompt in {max_tokens}")
    return Encoded(tuple(prompt[-room:]), tuple(tails))


def batched(
    model: Any, rows: Sequence[Encoded], *, pad: int, batch_tokens: int = 16384, between: Callable[[], None] | None = None
) -> list[list[float]]:
    """What `completions` gives (mean log-probability per token, nats), for many prompts: rows -> answers.

    Prompts of like length go through the model together, padded on the left to at most `batch_tokens` in all, and each
    once, whatever the number of its answers. `between` is called before every batch, and may raise. A model that keeps
    more than keys and values (linear attention) gets one prompt at a time.
    """
    import torch

    found: list[list[float]] = [[] for _ in rows]
    together = _plain(model)
    vocabulary = model.config.get_text_config().vocab_size
    for batch in _batches(rows, batch_tokens, vocabulary) if together else [[i] for i in range(len(rows))]:
        if between:
            between()
        chosen = [rows[i] for i in batch]
        owner = [k for k, row in enumerate(chosen) for _ in row.answers]
        ids, told = _padded([a for row in chosen for a in row.answers], pad, left=False)
        prompts, seen = _padded([row.prompt for row in chosen], pad, left=True)
        ids, told, prompts, seen = (x.to(model.device) for x in (ids, told, prompts, seen))
        with torch.inference_mode():
            if together:
                logits = _many(model, prompts, seen, ids, told, torch.tensor(owner, device=model.device))
            else:
                logits = _whole(model, prompts, ids, torch.cat([seen.expand(len(ids), -1), told], dim=1))
            each = torch.gather(logits.float(), 2, ids[..., None])[..., 0] - torch.logsumexp(logits.float(), dim=-1)
            means = (each * told).sum(1) / told.sum(1)
        for k, value in zip(owner, means.tolist(), strict=True):
            found[batch[k]].append(value)
    return found


def _batches(rows: Sequence[Encoded], batch_tokens: int, vocabulary: int) -> list[list[int]]:
    """Indices of rows by length; every batch within `batch_tokens` of padded prompts and answers, and within a quarter
    of a billion logits."""
    order = sorted(range(len(rows)), key=lambda i: (len(rows[i].prompt), i))
    done: list[list[int]] = []
    prompt = answer = answers = 0
    for i in order:
        tail, count = max(map(len, rows[i].answers)), len(rows[i].answers)
        p, a, n = max(prompt, len(rows[i].prompt)), max(answer, tail), answers + count
        # every answer carries the keys and values of its prompt
        if done and n * (p + a) <= batch_tokens and n * a * vocabulary <= 1 << 28:
            done[-1].append(i)
            prompt, answer, answers = p, a, n
        else:
            done.append([i])
            prompt, answer, answers = len(rows[i].prompt), tail, count
    return done


def _padded(sequences: Sequence[Sequence[int]], pad: int, left: bool) -> tuple[Any, Any]:
    """(ids, mask) of sequences padded to the longest of them."""
    import torch

    longest = max(map(len, sequences))
    ids = torch.full((len(sequences), longest), pad, dtype=torch.long)
    mask = torch.zeros((len(sequences), longest), dtype=torch.long)
    for row, sequence in enumerate(sequences):
        place = slice(longest - len(sequence), None) if left else slice(0, len(sequence))
        ids[row, place] = torch.tensor(sequence)
        mask[row, place] = 1
    return ids, mask


def _many(model: Any, prompts: Any, seen: Any, ids: Any, told: Any, owner: Any) -> Any:
    """Logits before each answer's tokens: prompts padded on the left once, then every answer on top of its own."""
    import torch
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    lengths = seen.sum(1)
    first = model(
        input_ids=prompts,
        attention_mask=seen,
        position_ids=(seen.cumsum(1) - 1).clamp(min=0),
        cache=cache,
        use_cache=True,
        logits_to_keep=1,
    ).logits
    cache.batch_select_indices(owner)
    positions = lengths[owner][:, None] + torch.arange(ids.shape[1], device=ids.device)[None]
    mask = torch.cat([seen[owner], told], dim=1)
    rest = model(
        input_ids=ids, attention_mask=mask, position_ids=positions, cache=cache, use_cache=True
    ).logits
    return torch.cat([first[owner], rest[:, :-1]], dim=1)
