"""MasterAdamW: AdamW in float32 behind bfloat16 weights, exact over a restart."""

from __future__ import annotations

import copy

import torch

from eft.train.optimizer import MasterAdamW


def run(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step)).to(next(model.parameters()).dtype)
        model(x).float().pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))


def test_on_float32_weights_it_is_adamw() -> None:
    ours, theirs = net(), net()
    run(ours, MasterAdamW(ours.parameters(), lr=1e-2, weight_decay=0.1), range(20))
    run(theirs, torch.optim.AdamW(theirs.parameters(), lr=1e-2, weight_decay=0.1), range(20))
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_small_steps_add_up_behind_bfloat16_weights() -> None:
    model, plain = net().bfloat16(), net().bfloat16()
    before = [p.detach().float() for p in model.parameters()]
    optimizer = MasterAdamW(model.parameters(), lr=1e-6)
    run(model, optimizer, range(50))
    run(plain, torch.optim.AdamW(plain.parameters(), lr=1e-6), range(50))
    for p, still, start in zip(model.parameters(), plain.parameters(), before, strict=True):
        moved = (optimizer.state[p]["master"] - start).abs() > 1e-5  # 50 steps of 1e-6, most of them in one direction
        large = start.abs() > 0.1  # where 1e-6 is far below half a unit in the last place of bfloat16
        assert moved.float().mean() > 0.5
        assert torch.equal(p, optimizer.state[p]["master"].bfloat16())
        assert torch.equal(still.float()[large], start[large]), (
            "plain AdamW on bfloat16 weights stands still: that is why"
        )


def test_a_restart_changes_nothing() -> None:
    whole = net().bfloat16()
    run(whole, MasterAdamW(whole.parameters(), lr=1e-3), range(20))
    first = net().bfloat16()
    optimizer = MasterAdamW(first.parameters(), lr=1e-3)
    run(first, optimizer, range(10))
    weights, state = copy.deepcopy(first.state_dict()), copy.deepcopy(optimizer.state_dict())
    second = net().bfloat16()
    second.load_state_dict(weights)
    optimizer = MasterAdamW(second.parameters(), lr=1e-3)
    optimizer.load_state_dict(state)
    assert all(s["master"].dtype == torch.float32 for s in optimizer.state.values())
    run(second, optimizer, range(10, 20))
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), second.parameters(), strict=True))
