"""What a training makes small: one file per loss.

A new loss is one file and one line below, or one call of `register` from outside the package.
"""

from __future__ import annotations

from typing import Any, TypeVar

from hmlet.losses.base import Loss, LossConfig, Sampler, Terms, penalty
from hmlet.losses.bpr import BPR
from hmlet.losses.bsl import BSL
from hmlet.losses.multinomial import Multinomial
from hmlet.losses.softmax import Softmax
from hmlet.losses.softmax_at_k import SoftmaxAtK

__all__ = ["LOSSES", "Loss", "LossConfig", "Sampler", "Terms", "build_loss", "penalty", "register"]

LOSSES: dict[str, type[Loss[Any]]] = {}
"""Every loss by its name."""
Registered = TypeVar("Registered", bound=type[Loss[Any]])


def register(loss: Registered) -> Registered:
    """Make a loss known by its name; usable as a decorator."""
    LOSSES[loss.name] = loss
    return loss


for _loss in (BPR, Softmax, Multinomial, SoftmaxAtK, BSL):
    register(_loss)


def build_loss(name: str, config: LossConfig) -> Loss[Any]:
    """The loss that a recipe names, with its settings."""
    return LOSSES[name](config)
