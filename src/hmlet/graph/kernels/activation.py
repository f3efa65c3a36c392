"""What stands between the gate's products: BatchNorm with dropout and ReLU, φ, the choice and the mixture.

Where Triton runs each of them is a pass or two over its input; elsewhere PyTorch's own operations do the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hmlet.graph.kernels import backend
from hmlet.graph.kernels.operator import draw_key


def norm_dropout_relu(x_NH: Tensor, norm: nn.BatchNorm1d, rate: float, generator: torch.Generator | None) -> Tensor:
    """ReLU(BatchNorm(x)), with each entry zeroed with probability `rate` and the rest scaled up.

    Without a generator nothing is dropped.
    """
    if norm.training and generator is not None and backend.triton_runs(x_NH):
        y_NH: Tensor = _NormDropoutReLU.apply(  # type: ignore[no-untyped-call]
            x_NH.contiguous(), norm.weight, norm.bias, norm, rate, draw_key(generator, x_NH.device)
        )
        return y_NH
    return dropout_relu(norm(x_NH), rate, generator, 0, len(x_NH))


def dropout_relu(x_MH: Tensor, rate: float, generator: torch.Generator | None, first: int, n_rows: int) -> Tensor:
    """ReLU(x) with each entry zeroed with probability `rate` and the rest scaled up; plain ReLU without a generator.

    x is the rows from `first` on of a matrix that has `n_rows`: its entries' fate is as in the whole matrix.
    """
    if generator is None or rate == 0.0:
        return torch.relu(x_MH)
    y_MH: Tensor = _DropoutReLU.apply(x_MH, rate, generator, first, n_rows)  # type: ignore[no-untyped-call]
    return y_MH


class _NormDropoutReLU(torch.autograd.Function):
    """The three on CUDA: two passes forward, two backward, and x is all that is kept."""

    @staticmethod
    def forward(
        ctx: Any, x_NH: Tensor, weight_H: Tensor, bias_H: Tensor, norm: nn.BatchNorm1d, rate: float, key: Tensor
    ) -> Tensor:
        running = (norm.running_mean, norm.running_var, norm.num_batches_tracked)
        y_NH, saved = backend.kernels("cuda_mlp").norm_dropout_relu(
            x_NH, weight_H, bias_H, running, norm.momentum, norm.eps, rate, key
        )
        ctx.save_for_backward(x_NH, weight_H, bias_H)
        ctx.normalisation = saved
        result: Tensor = y_NH
        return result

    @staticmethod
    def backward(ctx: Any, grad_NH: Tensor) -> tuple[Tensor | None, ...]:
        x_NH, weight_H, bias_H = ctx.saved_tensors
        gradients = backend.kernels("cuda_mlp").norm_dropout_relu_backward(
            x_NH, weight_H, bias_H, ctx.normalisation, grad_NH
        )
        return *gradients, None, None, None


class _DropoutReLU(torch.autograd.Function):
    """y = ReLU(x) · kept / (1 - rate). Where y is positive x̄ = ȳ / (1 - rate), and 0 elsewhere: y is all one needs."""

    @staticmethod
    def forward(ctx: Any, x_MH: Tensor, rate: float, generator: torch.Generator, first: int, n_rows: int) -> Tensor:
        if backend.triton_runs(x_MH):
            y_MH: Tensor = backend.kernels("cuda_mlp").dropout_relu(
                x_MH.contiguous(), rate, draw_key(generator, x_MH.device), first
            )
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
        if self.name == "leaky-relu":
            return F.leaky_relu(x, self.leak)
        return {"elu": F.elu, "relu": torch.relu, "tanh": torch.tanh}[self.name](x)

    def fork(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """φ(x), and x for whatever else uses it, as Operator.fork does."""
        if not backend.triton_runs(x):
            return self(x), x
        forked: tuple[Tensor, Tensor] = _ForkActivation.apply(x.contiguous(), self)  # type: ignore[no-untyped-call]
        return forked


class _ForkActivation(torch.autograd.Function):
    """y = φ(x) beside x itself, on CUDA: φ' follows from y, and both gradients are added in one pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, activation: Activation) -> tuple[Tensor, Tensor]:
        y: Tensor = backend.kernels("cuda_gate").activation(x, activation.name, activation.leak)
        ctx.save_for_backward(y)
        ctx.activation = activation
        ctx.set_materialize_grads(False)
        return y, x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor | None, grad_x: Tensor | None) -> tuple[Tensor | None, None]:
        if grad_y is None:
            return grad_x, None
        (y,) = ctx.saved_tensors
        return backend.kernels("cuda_gate").activation_backward(
            y, grad_y, grad_x, ctx.activation.name, ctx.activation.leak
        ), None


def head(x_MH: Tensor, weight_H2: Tensor, bias_2: Tensor) -> Tensor:
    """x W + b, the gate's logits, in the parameters' type."""
    if backend.triton_runs(x_MH):
        logits_M2: Tensor = _Head.apply(x_MH.contiguous(), weight_H2, bias_2)  # type: ignore[no-untyped-call]
        return logits_M2
    return (x_MH @ weight_H2.to(x_MH.dtype)).to(bias_2.dtype) + bias_2


class _Head(torch.autograd.Function):
    """The gate's last layer on CUDA, with the gradients of its input and its weight in one pass."""

    @staticmethod
    def forward(ctx: Any, x_MH: Tensor, weight_H2: Tensor, bias_2: Tensor) -> Tensor:
        ctx.save_for_backward(x_MH, weight_H2)
        logits_M2: Tensor = backend.kernels("cuda_mlp").head(x_MH, weight_H2.contiguous(), bias_2)
        return logits_M2

    @staticmethod
    def backward(ctx: Any, grad_M2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x_MH, weight_H2 = ctx.saved_tensors
        return *backend.kernels("cuda_mlp").head_backward(x_MH, weight_H2.contiguous(), grad_M2), grad_M2.sum(0)


def gumbel_softmax(
    logits_N2: Tensor, temperature: float | Tensor, hard: bool, generator: torch.Generator | None
) -> Tensor:
    """softmax((logits + Gumbel noise) / τ); `hard` is one-hot forward with the soft gradient (straight-through).

    Without a generator there is no noise: `hard` is then the argmax, ties going to the first column.
    """
    if generator is None:
        return _choice(logits_N2, temperature, hard)
    if backend.triton_runs(logits_N2):
        key, temperature = draw_key(generator, logits_N2.device), torch.as_tensor(temperature, device=logits_N2.device)
        choice_N2: Tensor = _NoisyChoice.apply(logits_N2.contiguous(), temperature, hard, key)  # type: ignore[no-untyped-call]
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


class _NoisyChoice(torch.autograd.Function):
    """The choice on CUDA in one kernel each way, where PyTorch's operations would be some twenty small ones."""

    @staticmethod
    def forward(ctx: Any, logits_N2: Tensor, temperature: Tensor, hard: bool, key: Tensor) -> Tensor:
        soft_N2, choice_N2 = backend.kernels("cuda_gate").noisy_choice(logits_N2, temperature, hard, key)
        ctx.save_for_backward(soft_N2, temperature)
        chosen_N2: Tensor = choice_N2
        return chosen_N2

    @staticmethod
    def backward(ctx: Any, grad_N2: Tensor) -> tuple[Tensor | None, ...]:
        soft_N2, temperature = ctx.saved_tensors
        return backend.kernels("cuda_gate").noisy_choice_backward(soft_N2, temperature, grad_N2), None, None, None


def mix(choice_N2: Tensor, linear_ND: Tensor, nonlinear_ND: Tensor) -> Tensor:
    """g · [eᴸ, eᴺ] for each node: N × D in the embeddings' type."""
    if backend.triton_runs(linear_ND):
        mixed_ND: Tensor = _Mix.apply(  # type: ignore[no-untyped-call]
            choice_N2.contiguous(), linear_ND.contiguous(), nonlinear_ND.contiguous()
        )
        return mixed_ND
    choice_N2 = choice_N2.to(linear_ND.dtype)
    return choice_N2[:, :1] * linear_ND + choice_N2[:, 1:] * nonlinear_ND


class _Mix(torch.autograd.Function):
    """The gate's mixture on CUDA, with the three gradients in one pass."""

    @staticmethod
    def forward(ctx: Any, choice_N2: Tensor, linear_ND: Tensor, nonlinear_ND: Tensor) -> Tensor:
        ctx.save_for_backward(choice_N2, linear_ND, nonlinear_ND)
        mixed_ND: Tensor = backend.kernels("cuda_gate").mix(choice_N2, linear_ND, nonlinear_ND)
        return mixed_ND

    @staticmethod
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gradients: tuple[Tensor, Tensor, Tensor] = backend.kernels("cuda_gate").mix_backward(
            *ctx.saved_tensors, grad_ND
        )
        return gradients


def dense(linear_ND: Tensor, nonlinear_ND: Tensor, weight_2DH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(eᴸ ‖ eᴺ) W as two products, and both embeddings for `mix`, the only one that may use them afterwards."""
    forked: tuple[Tensor, Tensor, Tensor] = _Dense.apply(  # type: ignore[no-untyped-call]
        linear_ND, nonlinear_ND, weight_2DH
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
