"""A plan as one line of text."""

from __future__ import annotations

from hmlet.config import resolve
from hmlet.system.units import readable
from hmlet.training.capacity import plan_training
from hmlet.training.planning import Sizes

SIZES = Sizes(1000, 500, 10_000)


def test_a_plan_says_whether_it_fits_and_where() -> None:
    recipe = resolve("bpr", overrides=["model.embedding_size=8"])
    for devices, memory, text in (
        (1, "1GB", "on cuda: fits, {} of 1.0 GB"),
        (2, "1GB", "on 2 × cuda: fits, {} of 1.0 GB"),
        (1, 1000, "on cuda: does not fit, {} of 1.0 kB"),
    ):
        plan = plan_training(recipe, SIZES, device="cuda", devices=devices, memory=memory)
        assert repr(plan) == f"<Plan bpr {text.format(readable(plan.memory.total))}>"
