"""Scoring the replies only gives the losses and gradients of scoring everything."""

from __future__ import annotations

import pytest
import torch

from eft.models.load import load_model
from eft.train import head


@pytest.fixture
def trl_utils(monkeypatch: pytest.MonkeyPatch):
    from trl.trainer import utils

    monkeypatch.setattr(utils, "_use_triton", utils._use_triton)  # put back afterwards
    return utils


def test_same_losses_and_gradients_for_less_work(trl_utils) -> None:
    from trl.kernels.chunked_logprob import _use_triton

    scored = []
    whole = trl_utils._ChunkedLogProbFunction.apply

    class Counting:
        apply = staticmethod(lambda hidden, *rest: (scored.append(hidden.shape[0]), whole(hidden, *rest))[1])

    trl_utils._use_triton = _use_triton
    ids = torch.randint(3, 500, (3, 40), generator=torch.Generator().manual_seed(0))
    labels = ids.masked_fill(torch.arange(40)[None] < torch.tensor([[30], [25], [39]]), -100)
    results = []
    for patch in (lambda: None, head.score_responses_only):
        patch()
        model = load_model("random:qwen3")
        trl_utils.add_fused_lm_head(model, outputs=("log_probs", "entropy", "is_top1"))
        original, trl_utils._ChunkedLogProbFunction = trl_utils._ChunkedLogProbFunction, Counting
        outputs = model(input_ids=ids, labels=labels, fused_lm_head=True)
        trl_utils._ChunkedLogProbFunction = original
        outputs.loss.backward()
        results.append((outputs.log_probs.detach(), outputs.entropy.detach(), [p.grad for p in model.parameters()]))
    assert scored == [3 * 39, 10 + 15 + 1]
    (a, entropy_a, gradients_a), (b, entropy_b, gradients_b) = results
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropy_a, entropy_b, atol=1e-5, rtol=1e-5)
    for one, other in zip(gradients_a, gradients_b, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_another_trl_is_refused(trl_utils, monkeypatch: pytest.MonkeyPatch) -> None:
    from eft.errors import EftError

    monkeypatch.delattr(trl_utils, "_use_triton")
    with pytest.raises(EftError, match="release of TRL"):
        head.score_responses_only()
