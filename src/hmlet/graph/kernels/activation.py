"""The gate's layers between the sparse products: BatchNorm with dropout and ReLU, φ, the choice and the mixture.

With Triton each of them is a pass or two over its input (triton_gate, triton_mlp); elsewhere PyTorch's own operations
do the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hmlet.graph.kernels import launching
from hmlet.graph.kernels.operator import draw_key
from hmlet.graph.kernels.parts import part


def norm_dropout_relu(x_NH: Tensor, norm: nn.BatchNorm1d, rate: float, generator: torch.Generator | None) -> Tensor:
    """ReLU(BatchNorm(x)), with each entry zeroed with probability `rate` and the rest scaled up.

    Without a generator nothing is dropped.
    """
    with part("BatchNorm, dropout, activation"):
        if norm.training and generator is not None and launching.triton_runs(x_NH):
            from hmlet.graph.kernels.triton_mlp import NormDropoutReLU

            y_NH: Tensor = NormDropoutReLU.apply(  # type: ignore[no-untyped-call]
                x_NH.contiguous(), norm.weight, norm.bias, norm, rate, draw_key(generator, x_NH.device)
            )
            return y_NH
        return dropout_relu(norm(x_NH), rate, generator, 0, len(x_NH))


def dropout_relu(x_MH: Tensor, rate: float, generator: torch.Generator | None, first: int, n_rows: int) -> Tensor:
    """ReLU(x) with each entry zeroed with probability `rate` and the rest scaled up; plain ReLU without a generator.

    x is the rows from `first` on of a matrix that has `n_rows`: its entries' fate is as in the whole matrix.
    """
    with part("BatchNorm, dropout, activation"):
        if generator is None or rate == 0.0:
            return torch.relu(x_MH)
        y_MH: Tensor = _DropoutReLU.apply(x_MH, rate, generator, first, n_rows)  # type: ignore[no-untyped-call]
        return y_MH


class _DropoutReLU(torch.autograd.Function):
    """y = ReLU(x) · kept / (1 - rate). Where y is positive x̄ = ȳ / (1 - rate), and 0 elsewhere: y is all one needs."""

    @staticmethod
    def forward(ctx: Any, x_MH: Tensor, rate: float, generator: torch.Generator, first: int, n_rows: int) -> Tensor:
        if launching.triton_runs(x_MH):
            from hmlet.graph.kernels import triton_mlp

            y_MH = triton_mlp.dropout_relu(x_MH.contiguous(), rate, draw_key(generator, x_MH.device), first)
        else:
            y_MH = torch.relu(x_MH).mul_(_kept(x_MH, rate, generator, first, n_rows)).mul_(1.0 / (1.0 - rate))
        ctx.save_for_backward(y_MH)
        ctx.rate = rate
        return y_MH

    @staticmethod
    def backward(ctx: Any, grad_MH: Tensor) -> tuple[Tensor | None, ...]:
        (y_MH,) = ctx.saved_tensors
        scale = 1.0 / (1.0 - ctx.rate)
        return torch.ops.aten.threshold_backward(grad_MH, y_MH, 0.0).mul_(scale), None, None, None, None


@dataclass(frozen=True)
class Activation:
    """φ of the non-linear branch: elu, leaky-relu, relu or tanh."""

    name: str
    leak: float = 0.0  # the slope of leaky-relu below zero

    def __call__(self, x: Tensor) -> Tensor:
        """φ(x)."""
        with part("BatchNorm, dropout, activation"):
            if self.name == "leaky-relu":
                return F.leaky_relu(x, self.leak)
            return {"elu": F.elu, "relu": torch.relu, "tanh": torch.tanh}[self.name](x)

    def of(self, layers: list[Tensor], at: int) -> Tensor:
        """φ of a layer that has other uses, whose gradient it adds to its own."""
        y, layers[at] = self.fork(layers[at])
        return y

    def fork(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """φ(x), and x for whatever else uses it, as Operator.fork does."""
        if not launching.triton_runs(x):
            return self(x), x
        from hmlet.graph.kernels.triton_gate import ForkActivation

        with part("BatchNorm, dropout, activation"):
            forked: tuple[Tensor, Tensor] = ForkActivation.apply(  # type: ignore[no-untyped-call]
                x.contiguous(), self.name, self.leak
            )
        return forked


def times(x_MD: Tensor, weight_DH: Tensor) -> Tensor:
    """x W in the type of x."""
    with part("matrix products"):
        return x_MD @ weight_DH.to(x_MD.dtype)


def head(x_MH: Tensor, weight_H2: Tensor, bias_2: Tensor) -> Tensor:
    """x W + b, the gate's logits, in the parameters' type."""
    with part("matrix products"):
        if launching.triton_runs(x_MH):
            from hmlet.graph.kernels.triton_mlp import Head

            logits_M2: Tensor = Head.apply(x_MH.contiguous(), weight_H2, bias_2)  # type: ignore[no-untyped-call]
            return logits_M2
        return (x_MH @ weight_H2.to(x_MH.dtype)).to(bias_2.dtype) + bias_2


def gumbel_softmax(
    logits_N2: Tensor, temperature: float | Tensor, hard: bool, generator: torch.Generator | None
) -> Tensor:
    """softmax((logits + Gumbel noise) / τ); `hard` is one-hot forward with the soft gradient (straight-through).

    Without a generator there is no noise: `hard` is then the argmax, ties going to the first column.
    """
    with part("mixture"):
        if generator is None:
            return _choice(logits_N2, temperature, hard)
        if launching.triton_runs(logits_N2):
            from hmlet.graph.kernels.triton_gate import NoisyChoice

            key, device = draw_key(generator, logits_N2.device), logits_N2.device
            choice_N2: Tensor = NoisyChoice.apply(  # type: ignore[no-untyped-call]
                logits_N2.contiguous(), torch.as_tensor(temperature, device=device), hard, key
            )
            return choice_N2
        uniform_N2 = torch.empty_like(logits_N2).uniform_(generator=generator)
        # log of exactly 0 would be an infinite noise; the smallest normal number is rarer than float32 can draw.
        noise_N2 = -torch.log(-torch.log(uniform_N2.clamp_min(torch.finfo(torch.float32).tiny)))
        return _choice(logits_N2 + noise_N2, temperature, hard)


def _choice(logits_N2: Tensor, temperature: float | Tensor, hard: bool) -> Tensor:
    soft_N2 = torch.softmax(logits_N2 / temperature, dim=1)
    if not hard:
        return soft_N2
    second_N = logits_N2[:, 1] > logits_N2[:, 0]
    one_hot_N2 = torch.stack([~second_N, second_N], dim=1).to(soft_N2.dtype)
    return one_hot_N2 + (soft_N2 - soft_N2.detach())  # the bracket is exactly 0, so the choice stays exactly one-hot


def probabilities(logits_N2: Tensor) -> Tensor:
    """How probable the second branch is to each node, without noise and without a gradient: N."""
    with part("mixture"):
        return torch.softmax(logits_N2.detach(), dim=1)[:, 1]


def mix(choice_N2: Tensor, linear_ND: Tensor, nonlinear_ND: Tensor) -> Tensor:
    """g · [eᴸ, eᴺ] for each node: N × D in the embeddings' type."""
    with part("mixture"):
        if launching.triton_runs(linear_ND):
            from hmlet.graph.kernels.triton_gate import Mixture

            mixed_ND: Tensor = Mixture.apply(  # type: ignore[no-untyped-call]
                choice_N2.contiguous(), linear_ND.contiguous(), nonlinear_ND.contiguous()
            )
            return mixed_ND
        choice_N2 = choice_N2.to(linear_ND.dtype)
        return choice_N2[:, :1] * linear_ND + choice_N2[:, 1:] * nonlinear_ND


def dense(linear_ND: Tensor, nonlinear_ND: Tensor, weight_2DH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(eᴸ ‖ eᴺ) W as two products, and both embeddings for `mix`, the only one that may use them afterwards."""
    with part("matrix products"):
        forked: tuple[Tensor, Tensor, Tensor] = _Dense.apply(  # type: ignore[no-untyped-call]
            linear_ND, nonlinear_ND, weight_2DH.to(linear_ND.dtype)
        )
    return forked


class _Dense(torch.autograd.Function):
    """The gate's first layer. Backward, each product is added onto the gradient that the mixture has left."""

    @staticmethod
    def forward(ctx: Any, linear_ND: Tensor, nonlinear_ND: Tensor, weight_2DH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        size = linear_ND.shape[1]
        ctx.save_for_backward(linear_ND, nonlinear_ND, weight_2DH)
        hidden_NH = (linear_ND @ weight_2DH[:size]).addmm_(nonlinear_ND, weight_2DH[size:])
        return hidden_NH, linear_ND.view_as(linear_ND), nonlinear_ND.view_as(nonlinear_ND)

    @staticmethod
    def backward(ctx: Any, grad_NH: Tensor, *mixture_ND: Tensor) -> tuple[Tensor | None, ...]:
        linear_ND, nonlinear_ND, weight_2DH = ctx.saved_tensors
        halves_HD = weight_2DH.t().split(linear_ND.shape[1], dim=1)
        # In place: mix's backward made these tensors, and nobody else has them.
        gradients = [grad_ND.addmm_(grad_NH, half_HD) for grad_ND, half_HD in zip(mixture_ND, halves_HD, strict=True)]
        if not ctx.needs_input_grad[2]:
            return *gradients, None
        return *gradients, torch.cat([linear_ND.t() @ grad_NH, nonlinear_ND.t() @ grad_NH])


def _kept(x_MH: Tensor, rate: float, generator: torch.Generator, first: int, n_rows: int) -> Tensor:
    """Which entries stay: 16 random bits each, four from every draw, because drawing is what costs."""
    count = n_rows * x_MH.shape[1]
    draws = torch.empty((count + 3) // 4, dtype=torch.int64, device=x_MH.device)
    bits_NH = draws.random_(-(2**63), None, generator=generator).view(torch.int16)[:count].view(n_rows, x_MH.shape[1])
    return bits_NH[first : first + len(x_MH)] >= round(rate * 2**16) - 2**15
