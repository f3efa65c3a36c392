"""The operator Â: the interface of its implementations, and the gradient that they share.

Shapes: N nodes, D columns, E undirected edges (2 E entries).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hmlet.graph.kernels.parts import part


class Product(ABC):
    """What a model propagates by: Â x, differentiable in x. An `Operator` is one; fold-in has others."""

    @abstractmethod
    def __call__(self, x_ND: Tensor) -> Tensor:
        """Â x."""

    def append(self, layers: list[Tensor]) -> None:
        """Turn the layers e⁰ … eᵢ into e⁰ … eᵢ, Â eᵢ."""
        layers.append(self(layers[-1]))


@dataclass(frozen=True, eq=False, kw_only=True)
class Operator(Product):
    """Â (+ a diagonal): y_n = scale_n Σ_m scale_m x_m over the neighbours m of n, + loop_n x_n."""

    n_nodes: int
    n_edges: int  # of the whole graph, whatever is dropped
    loop: Tensor | None = None  # N: the diagonal of a normalisation with self-loops
    storage: torch.dtype | None = None  # the type that x is stored in for the product; x's own where None
    key: Tensor | None = None  # of the dropout that made this operator, if one did

    @property
    def nbytes(self) -> int:
        """The bytes that the operator holds on its device."""
        tensors = self._held() if self.loop is None else [*self._held(), self.loop]
        return sum(tensor.nbytes for tensor in tensors)

    def drop(self, rate: float, key: Tensor) -> Operator:
        """The operator without a share `rate` of the undirected edges; the others are scaled by 1 / (1 - rate).

        `key` is one int64 on the operator's device (see `draw_key`). On CUDA the host does not read it.
        """
        assert self.key is None, "edges are dropped from the whole operator, once"
        if rate == 0.0:
            return self
        with part("edge dropout"):
            return self._thin(rate, key)

    def product(self, x_ND: Tensor, addend_ND: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Â x (+ addend), without a gradient. x is gathered in the storage type, which is also the result's default."""
        with part("product"):
            x_ND = x_ND if self.storage is None else x_ND.to(self.storage)
            y_ND = self._sum(x_ND, addend_ND, dtype)
            if self.loop is None:
                return y_ND
            return y_ND.addcmul_(self.loop[:, None].to(y_ND.dtype), x_ND.to(y_ND.dtype))

    def __call__(self, x_ND: Tensor) -> Tensor:
        """Â x, differentiable in x."""
        return self.fork(x_ND)[0]

    def append(self, layers: list[Tensor]) -> None:
        """As of any product; its backward adds the gradient that eᵢ gets from its other uses."""
        y_ND, layers[-1] = self.fork(layers[-1])
        layers.append(y_ND)

    def fork(self, x_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Â x, and x for whatever else uses it: the product's backward adds the gradient that comes that way."""
        forked: tuple[Tensor, Tensor] = _Fork.apply(x_ND, self)  # type: ignore[no-untyped-call]
        return forked

    @abstractmethod
    def weigh(self, weights_E: Tensor) -> Operator:
        """The operator with these weights at its undirected edges."""

    @abstractmethod
    def _held(self) -> list[Tensor]:
        """The tensors that the implementation holds on the device."""

    @abstractmethod
    def _thin(self, rate: float, key: Tensor) -> Operator:
        """`drop`, for a rate above 0."""

    @abstractmethod
    def _sum(self, x_ND: Tensor, addend_ND: Tensor | None, dtype: torch.dtype | None) -> Tensor:
        """addend + Σ over each row's entries of weight · x[neighbour]: N × D, in x's type or another. A new tensor."""


class _Fork(torch.autograd.Function):
    """y = Â x beside x itself. x̄ = Â ȳ + what comes back by x, because Â is symmetric."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, operator: Operator) -> tuple[Tensor, Tensor]:
        ctx.operator, ctx.dtype = operator, x_ND.dtype
        ctx.set_materialize_grads(False)
        return operator.product(x_ND), x_ND.view_as(x_ND)

    @staticmethod
    def backward(ctx: Any, grad_y_ND: Tensor | None, grad_x_ND: Tensor | None) -> tuple[Tensor | None, None]:
        if grad_y_ND is None:
            return grad_x_ND, None
        return ctx.operator.product(grad_y_ND, grad_x_ND, ctx.dtype), None


def draw_key(generator: torch.Generator, device: torch.device) -> Tensor:
    """A fresh key for the hash of dropout, drawn on the device: one int64."""
    return torch.randint(2**62, (1,), generator=generator, device=device)
