"""Packing: bins, steps that stay what they were, rows that do not see each other, and models that are refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eft.errors import UsageError
from eft.train import pack

LENGTHS = st.lists(st.integers(1, 100), min_size=1, max_size=40)


@given(LENGTHS, st.integers(100, 300))
def test_best_fit_holds_every_row_once_and_no_bin_overflows(lengths: list[int], capacity: int) -> None:
    bins = pack.best_fit(lengths, capacity)
    assert sorted(i for b in bins for i in b) == list(range(len(lengths)))
    sums = [sum(lengths[i] for i in b) for b in bins]
    assert max(sums) <= capacity
    assert len(bins) <= 1 + 2 * sum(lengths) // capacity, "any two bins are fuller than one"


@given(LENGTHS, st.integers(100, 300), st.data())
def test_even_bins_are_as_many_as_asked_for(lengths: list[int], capacity: int, data) -> None:
    fewest = len(pack.best_fit(lengths, capacity))
    count = data.draw(st.integers(fewest, len(lengths)))
    bins = pack.spread_evenly(lengths, count, capacity)
    assert len(bins) == count and all(bins) and sorted(i for b in bins for i in b) == list(range(len(lengths)))
    assert max(sum(lengths[i] for i in b) for b in bins) <= capacity


@settings(max_examples=30)
@given(st.integers(1, 6), st.sampled_from([1, 2, 4]), st.integers(0, 2**16))
def test_steps_keep_their_rows_and_have_as_many_packs_each(steps: int, ranks: int, seed: int) -> None:
    import random

    rng, batch = random.Random(seed), 8
    lengths = [rng.randint(1, 100) for _ in range(50)]
    indices = [rng.randrange(50) for _ in range(steps * batch)]
    count, bins = pack.steps(indices, lengths, batch, ranks, 120)
    assert count % ranks == 0 and len(bins) == steps * count
    for s in range(steps):
        rows = [i for b in bins[s * count : (s + 1) * count] for i in b]
        assert sorted(rows) == sorted(indices[s * batch : (s + 1) * batch])
    with pytest.raises(UsageError, match="multiple of 3 ranks"):
        pack.steps(indices, lengths, batch, 3, 120)


@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
@pytest.mark.parametrize("kernel", [pack.SEGMENTS, "sdpa", "eager"])
def test_packed_is_unpacked_token_by_token(architecture: str, kernel: str) -> None:
    import torch

    from eft.models.load import load_model
    from eft.train.sft_trainer import _boundaries

    pack.register()
    model = load_model(f"random:{architecture}", attention=kernel)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3)  # random weights hardly attend to anything: make leaks large
    rows = [torch.randint(3, 600, (n,), generator=torch.Generator().manual_seed(n)) for n in (31, 7, 64, 2)]
    inside = _boundaries([len(r) for r in rows])
    packed = model(input_ids=torch.cat(rows)[None], use_cache=False, **inside).logits[0]
    alone = torch.cat([model(input_ids=r[None], use_cache=False).logits[0] for r in rows])
    assert (packed.log_softmax(-1) - alone.log_softmax(-1)).abs().max() < 1e-5
    leaking = model(input_ids=torch.cat(rows)[None], use_cache=False).logits[0]
    assert (leaking.log_softmax(-1) - alone.log_softmax(-1)).abs().max() > 1e-2, "the test would notice"


def test_the_kernel_generates_as_sdpa_does() -> None:
    import torch

    from eft.models.load import load_model

    pack.register()
    ids = torch.randint(3, 600, (2, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, :5] = 0  # padded on the left
    texts = [
        load_model("random:qwen3", attention=kernel)
        .generate(input_ids=ids, attention_mask=mask, max_new_tokens=8, do_sample=False)
        .tolist()
        for kernel in (pack.SEGMENTS, "sdpa")
    ]
    assert texts[0] == texts[1]


def test_models_that_carry_a_state_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from eft.models.load import config_of, load_model
    from eft.train.sft_trainer import _boundaries

    hybrid = config_of("random:qwen3_5")
    with pytest.raises(UsageError, match="packing is refused") as e:
        pack.check(hybrid, cpu=True)
    assert "linear_attention" in str(e.value) and "leaks from one row" in str(e.value)
    with pytest.raises(UsageError, match="causal-conv1d and flash-linear-attention"):
        pack.check(hybrid, cpu=False)
    monkeypatch.setattr(pack.importlib.util, "find_spec", lambda name: object())
    pack.check(hybrid, cpu=False)
    with pytest.raises(UsageError):
        pack.check(hybrid, cpu=True)
    for name in ("random:qwen3", "random:llama"):
        pack.check(config_of(name), cpu=True)
    # and rightly: without the kernels the second row sees the first
    model = load_model("random:qwen3_5")
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3)
    rows = [torch.randint(3, 600, (20,), generator=torch.Generator().manual_seed(n)) for n in (1, 2)]
    places = _boundaries([20, 20])["position_ids"]
    packed = model(input_ids=torch.cat(rows)[None], use_cache=False, position_ids=places).logits[0, 20:]
    alone = model(input_ids=rows[1][None], use_cache=False).logits[0]
    assert (packed.log_softmax(-1) - alone.log_softmax(-1)).abs().max() > 1e-3
