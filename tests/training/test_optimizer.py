"""Adam is PyTorch's own to the last bit, and with bfloat16 moments near it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from planted import checkerboard
from torch import nn

from hmlet.config import TrainConfig, resolve
from hmlet.training import optimizer
from hmlet.training.loop import fit
from hmlet.training.optimizer import Adam, CompactAdam, make_optimizer
from hmlet.training.trainer import StopTraining


def make(parameters: list[nn.Parameter], state: str, broken: float = 0.0, seed: int = 0, beta2: float = 0.999) -> Adam:
    train = TrainConfig.model_validate({"optimizer_state": state, "beta2": beta2})
    generator = torch.Generator().manual_seed(seed)
    return make_optimizer(train, parameters, torch.tensor(0.01), torch.tensor(broken), generator)


def descend(state: str, steps: int, seed: int = 0) -> torch.Tensor:
    """Where Adam comes on a quadratic whose gradients are noisy, from the same noise each time."""
    noise = torch.Generator().manual_seed(7)
    x = nn.Parameter(torch.linspace(-1.0, 1.0, 400).view(20, 20))
    adam = make([x], state, seed=seed)
    for _ in range(steps):
        x.grad = x.detach() + 0.1 * torch.randn(20, 20, generator=noise)
        adam.step()
    return x.detach()


def test_every_step_is_that_of_torch_optim() -> None:
    """Bit by bit, over steps of which one is broken and one leaves a parameter without a gradient."""
    noise = torch.Generator().manual_seed(3)
    start = [torch.randn(9, 4, generator=noise), torch.randn(5, generator=noise)]
    ours, theirs = ([nn.Parameter(each.clone()) for each in start] for _ in range(2))
    rate, broken = torch.tensor(0.01), torch.tensor(0.0)
    adam = make_optimizer(TrainConfig(beta2=0.95), ours, rate, broken, torch.Generator())
    reference = torch.optim.Adam(theirs, lr=rate, betas=(0.9, 0.95), eps=1e-8, fused=True)
    reference.found_inf = broken  # type: ignore[attr-defined]
    for step in range(6):
        rate.fill_(0.01 / (step + 1))
        broken.fill_(float(step == 3))
        for at, pair in enumerate(zip(ours, theirs, strict=True)):
            gradient = torch.randn(pair[0].shape, generator=noise)
            for parameter in pair:
                parameter.grad = None if (step, at) == (2, 1) else gradient.clone()
        adam.step()
        reference.step()
        for own, other in zip(ours, theirs, strict=True):
            assert torch.equal(own, other)
            assert {name: each.tolist() for name, each in adam.state[own].items()} == {
                name: each.tolist() for name, each in reference.state[other].items()
            }
    adam.zero_grad()
    assert [parameter.grad for parameter in ours] == [None, None]


def test_the_first_step_is_adams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moments are rounded after their use, so one step agrees to the last digits of float32, whatever the chunks."""
    expected = descend("float32", 1)
    assert torch.allclose(descend("bfloat16", 1), expected, rtol=0, atol=1e-7)
    monkeypatch.setattr(optimizer, "CHUNK", 7)
    assert torch.allclose(descend("bfloat16", 1), expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("state", ["float32", "bfloat16"])
def test_beta2_is_how_slowly_squared_gradients_are_forgotten(state: str) -> None:
    x = nn.Parameter(torch.zeros(1))
    adam = make([x], state, beta2=0.5)
    for gradient in (2.0, 0.0):
        x.grad = torch.full_like(x, gradient)
        adam.step()
    assert float(adam.state[x]["exp_avg_sq"]) == 0.5 * (0.5 * 2.0**2)


def test_many_steps_stay_near_adams() -> None:
    """Rounding at random moves a path by less than the noise of its gradients does."""
    exact = descend("float32", 300)
    assert float((descend("bfloat16", 300) - exact).norm() / exact.norm()) < 0.05


def test_the_second_moment_falls_as_it_should() -> None:
    """Without gradients v falls by a thousandth a step. To the nearest bfloat16 it would stand still for ever."""
    x = nn.Parameter(torch.zeros(10_000))
    adam = make([x], "bfloat16")
    x.grad = torch.ones_like(x)
    adam.step()
    start = float(adam.state[x]["exp_avg_sq"].double().mean())
    nearest = adam.state[x]["exp_avg_sq"][:1].clone()
    x.grad = torch.zeros_like(x)
    for _ in range(500):
        adam.step()
        nearest = (nearest.float() * TrainConfig().beta2).bfloat16()
    assert float(nearest) == pytest.approx(start, rel=0.01)  # the trap
    assert float(adam.state[x]["exp_avg_sq"].double().mean()) == pytest.approx(
        start * TrainConfig().beta2 ** 500, rel=0.01
    )


def test_rounding_is_right_in_the_mean_and_exact_where_it_can_be() -> None:
    adam = CompactAdam([nn.Parameter(torch.zeros(1))], torch.tensor(0.1), 0.999, torch.tensor(0.0), torch.Generator())
    values = torch.tensor([1.0, -2.5, 0.0, 1.001, -3.1415, 1e-30]).repeat(40_000, 1)
    rounded = adam._rounded(values.clone())
    assert rounded.dtype == torch.bfloat16
    assert torch.equal(rounded[:, :3].float(), values[:, :3])
    step = (values[0] * 2**-7).abs().double()  # an upper bound on bfloat16's spacing
    error = (rounded.double() - values.double()).mean(0).abs()
    assert (error <= 5 * step / (2 * math.sqrt(len(values)))).all()


def test_a_broken_step_moves_nothing() -> None:
    x = nn.Parameter(torch.ones(3, 2))
    adam = make([x], "bfloat16", broken=1.0)
    x.grad = torch.full_like(x, float("nan"))
    adam.step()
    assert torch.equal(x.detach(), torch.ones(3, 2))
    state = adam.state[x]
    assert (float(state["step"]), float(state["exp_avg"].sum()), float(state["exp_avg_sq"].sum())) == (0.0, 0.0, 0.0)


def test_state_takes_half_the_bytes() -> None:
    x = nn.Parameter(torch.zeros(50, 4))
    sizes = {}
    for kind in ("float32", "bfloat16"):
        adam = make([x], kind)
        x.grad = torch.ones_like(x)
        adam.step()
        sizes[kind] = sum(adam.state[x][name].nbytes for name in ("exp_avg", "exp_avg_sq"))
    assert sizes == {"float32": 2 * 50 * 4 * 4, "bfloat16": 50 * 4 * 4}


def test_a_resumed_training_is_the_uninterrupted_one(tmp_path: Path) -> None:
    """Moments and the numbers that round them come back from a checkpoint bit by bit."""
    settings = ["model.embedding_size=8", "train.epochs=4", "train.batch_size=64", "train.optimizer_state=bfloat16"]
    recipe, data = resolve("bpr", "hmlet", None, settings), checkerboard()

    def stop(event: dict[str, Any]) -> None:
        if event["epoch"] == 2:
            raise StopTraining

    whole = fit(data, recipe, tmp_path / "whole", device="cpu")
    with pytest.raises(StopTraining):
        fit(data, recipe, tmp_path / "run", device="cpu", listener=stop)
    resumed = fit(data, recipe, tmp_path / "run", device="cpu", resume=True)
    assert all(torch.equal(a, b) for a, b in zip(whole.factors(), resumed.factors(), strict=True))
