"""Any function as what a model propagates by."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from hmlet.graph.kernels import Product


class By(Product):
    """A product that is a function, differentiable as that is."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function

    def __call__(self, x_ND: Tensor) -> Tensor:
        return self.function(x_ND)


IDENTITY = By(lambda x_ND: x_ND)
