"""Adam for tables whose state would not fit: both moments in bfloat16, rounded at random.

The second moment falls by a thousandth a step, and bfloat16 keeps eight bits: rounded to the nearest number it would
never fall at all. Rounded up or down with the probability that makes the mean right, it does what float32 does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from hmlet.config import TrainConfig

BETA_1, EPSILON = 0.9, 1e-8  # PyTorch's, and the Adam paper's
CHUNK = 1 << 24  # entries that are worked on at once: what float32 needs in passing stays small beside a large table


def make_optimizer(
    train: TrainConfig, parameters: list[nn.Parameter], rate: Tensor, broken: Tensor, generator: torch.Generator
) -> torch.optim.Optimizer:
    """Adam as the recipe asks for it. It does nothing while `broken` is 1, and never asks the device for a number."""
    if train.optimizer_state == "bfloat16":
        return CompactAdam(parameters, rate, train.beta2, broken, generator)
    optimizer = torch.optim.Adam(
        parameters, lr=rate, betas=(BETA_1, train.beta2), eps=EPSILON, fused=True, capturable=rate.is_cuda
    )
    optimizer.found_inf = broken  # type: ignore[attr-defined]  # fused Adam skips its update where this is 1
    return optimizer


class CompactAdam(torch.optim.Optimizer):
    """Adam with bfloat16 moments; the update itself is float32's, from moments that have not been rounded yet."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        rate: Tensor,
        beta2: float,
        broken: Tensor,
        generator: torch.Generator,
    ) -> None:
        super().__init__(parameters, {})
        self.rate, self.beta2, self.broken, self.generator = rate, beta2, broken, generator

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter)

    def _update(self, parameter: nn.Parameter) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            for name in ("exp_avg", "exp_avg_sq"):  # as PyTorch's Adam calls them
                state[name] = torch.zeros_like(parameter, dtype=torch.bfloat16)
        state["step"] += 1.0 - self.broken
        rate = self.rate / (1.0 - BETA_1 ** state["step"])
        correction = (1.0 - self.beta2 ** state["step"]).sqrt()
        flat = (parameter.view(-1), parameter.grad.view(-1), state["exp_avg"].view(-1), state["exp_avg_sq"].view(-1))  # type: ignore[union-attr]
        for value, gradient, first, second in zip(*(each.split(CHUNK) for each in flat), strict=True):
            mean = torch.lerp(first.float(), gradient, 1.0 - BETA_1)
            square = torch.lerp(second.float(), gradient.square(), 1.0 - self.beta2)
            moved = value - rate * mean / (square.sqrt() / correction + EPSILON)
            for place, new in ((value, moved), (first, self._rounded(mean)), (second, self._rounded(square))):
                place.copy_(torch.where(self.broken > 0, place, new))

    def _rounded(self, x: Tensor) -> Tensor:
        """x in bfloat16, up or down at random: 16 random bits are added to the 16 that are cut off."""
        bits = torch.randint(1 << 16, x.shape, dtype=torch.int32, generator=self.generator, device=x.device)
        return bits.add_(x.view(torch.int32)).bitwise_and_(-(1 << 16)).view(torch.float32).bfloat16()
