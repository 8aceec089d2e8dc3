"""AdamW for bfloat16 weights: float32 master weights and moments inside the optimizer.

A step of lr 1e-5 is far below what a bfloat16 weight can represent, so plain AdamW on bfloat16 weights stands still.
Here the float32 master moves, and the bfloat16 weight is its rounding. On CPUs without matrix units for float32 this is
the fastest way to train (docs/benchmarks.md); DeepSpeed brings the same for its own launches.

State per parameter: `master`, `exp_avg`, `exp_avg_sq` (float32, the parameter's shape), `step`. Memory: 2 + 2 + 12
bytes per parameter (weight, gradient, state). Limit: gradients accumulate in bfloat16, so prefer large micro batches to
accumulation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim.adamw import adamw


class MasterAdamW(torch.optim.Optimizer):
    """AdamW (decoupled weight decay) over float32 masters of the parameters given."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    master = p.detach().float().clone()
                    state |= {
                        "master": master,
                        "exp_avg": torch.zeros_like(master),
                        "exp_avg_sq": torch.zeros_like(master),
                        "step": torch.zeros((), dtype=torch.float32),
                    }
                # One parameter at a time: float32 copies of all gradients at once would double the peak memory.
                adamw(
                    [state["master"]],
                    [p.grad.float()],
                    [state["exp_avg"]],
                    [state["exp_avg_sq"]],
                    [],
                    [state["step"]],
                    fused=True,
                    amsgrad=False,
                    beta1=beta1,
                    beta2=beta2,
                    lr=group["lr"],
                    weight_decay=group["weight_decay"],
                    eps=group["eps"],
                    maximize=False,
                )
                p.copy_(state["master"])
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in torch, except that the state stays float32: torch rounds it to the parameter's dtype, which would make
        a resumed training another one."""
        super().load_state_dict(state_dict)
        saved = state_dict["state"]
        numbers = [i for group in state_dict["param_groups"] for i in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for number, p in zip(numbers, params, strict=True):
            for name in ("master", "exp_avg", "exp_avg_sq"):
                if number in saved:
                    self.state[p][name] = (
                        saved[number][name].detach().to(device=p.device, dtype=torch.float32, copy=True)
                    )
