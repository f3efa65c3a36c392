"""A plan as one line of text."""

from __future__ import annotations

import pytest

from hmlet.config import resolve
from hmlet.errors import ConfigError
from hmlet.graph import Sizes
from hmlet.system.units import readable
from hmlet.training.capacity import plan_training

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


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("ease", r"ease has a closed form, which runs in one process: use one device"),
        ("wrmf", r"wrmf has a closed form"),
        ("bpr", r"model\.embedding_size = 9 cannot be split over 2 ranks"),
    ],
)
def test_ranks_that_cannot_share_a_model_are_refused(model: str, message: str) -> None:
    size = [] if model == "ease" else ["model.embedding_size=9"]
    with pytest.raises(ConfigError, match=message):
        plan_training(resolve(model, overrides=size), SIZES, device="cuda", devices=2, memory="1GB")
