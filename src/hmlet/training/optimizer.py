"""Adam by PyTorch's fused kernel, and Adam for tables whose state would not fit: both moments in bfloat16.

The classes of torch.optim load PyTorch's compiler in their first call, for a second. Its functions do not, and compute
the same.

The second moment falls by a thousandth a step, and bfloat16 keeps eight bits: rounded to the nearest number it would
never fall at all. Rounded up or down with the probability that makes the mean right, it does what float32 does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from hmlet.config import TrainConfig

BETA_1, EPSILON = 0.9, 1e-8  # PyTorch's, and the Adam paper's
CHUNK = 1 << 24  # entries that are worked on at once: what float32 needs in passing stays small beside a large table


def make_optimizer(
    train: TrainConfig, parameters: Sequence[nn.Parameter], rate: Tensor, broken: Tensor, generator: torch.Generator
) -> Adam:
    """Adam as the recipe asks for it."""
    if train.optimizer_state == "bfloat16":
        return CompactAdam(parameters, rate, train.beta2, broken, generator)
    return FusedAdam(parameters, rate, train.beta2, broken)


class Adam(ABC):
    """Adam. It does nothing while `broken` is 1, and never asks the device for a number: its step size is a tensor."""

    moments: ClassVar[torch.dtype]

    def __init__(self, parameters: Sequence[nn.Parameter], rate: Tensor, beta2: float, broken: Tensor) -> None:
        self.parameters, self.rate, self.beta2, self.broken = parameters, rate, beta2, broken
        self.state: dict[nn.Parameter, dict[str, Tensor]] = defaultdict(dict)  # as torch.optim has it

    def zero_grad(self) -> None:
        """Forget every gradient."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient."""
        moved = [parameter for parameter in self.parameters if parameter.grad is not None]
        for parameter in moved:
            state = self.state[parameter]
            if not state:
                state["step"] = torch.zeros((), device=parameter.device)
                for name in ("exp_avg", "exp_avg_sq"):
                    state[name] = torch.zeros_like(parameter, dtype=self.moments)
        if moved:
            self._update(moved)

    @abstractmethod
    def _update(self, parameters: list[nn.Parameter]) -> None:
        """Move these parameters, which have a gradient and a state."""


class FusedAdam(Adam):
    """Adam in one kernel for all parameters."""

    moments = torch.float32

    def _update(self, parameters: list[nn.Parameter]) -> None:
        states = [self.state[parameter] for parameter in parameters]
        adam(
            list(parameters),
            [parameter.grad for parameter in parameters if parameter.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            found_inf=self.broken,  # the kernel does nothing where this is 1
            amsgrad=False,
            lr=self.rate,
            beta1=BETA_1,
            beta2=self.beta2,
            weight_decay=0.0,
            eps=EPSILON,
            maximize=False,
        )


class CompactAdam(Adam):
    """Adam with bfloat16 moments; the update itself is float32's, from moments that have not been rounded yet."""

    moments = torch.bfloat16

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        rate: Tensor,
        beta2: float,
        broken: Tensor,
        generator: torch.Generator,
    ) -> None:
        super().__init__(parameters, rate, beta2, broken)
        self.generator = generator

    def _update(self, parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            self._update_one(parameter)

    def _update_one(self, parameter: nn.Parameter) -> None:
        state = self.state[parameter]
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
