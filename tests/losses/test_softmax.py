"""The softmax losses against naive loops in float64, their gradients, and the blocks that they are computed in."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from hmlet.config import resolve
from hmlet.errors import ConfigError
from hmlet.graph.kernels import kth_best, log_sum_exp
from hmlet.graph.layers import Layers
from hmlet.losses import LOSSES, Loss, softmax
from hmlet.losses.sampling import Pairs
from hmlet.training.floor import step_parts

N_USERS, N_ITEMS, SIZE = 5, 23, 6
OTHERS = torch.tensor([2, 7, 7, 0, 19, 4])  # item 7 was drawn twice; 2, 7 and 0 are own items of the batch
LOG_COUNTS = (torch.arange(N_ITEMS, dtype=torch.float64) * 3 % 11).log1p()  # of the items' interactions, and one more
CASES = [
    ("softmax", {}), ("softmax", {"similarity": "dot", "temperature": 1.0}), ("softmax", {"temperature_learned": True}),
    ("softmax@k", {"k": 3, "weight_temperature": 0.5}), ("softmax@k", {"similarity": "dot", "temperature": 0.7}),
    ("softmax@k", {"k": 3, "temperature_learned": True}),
    ("softmax@k", {"k": 1}),  # of the sampled items, whose share of one is less than half, still one
    ("softmax", {"popularity_weight": 0.2}), ("softmax", {"popularity_weight": 0.3, "temperature_learned": True}),
    ("softmax", {"popularity_weight": 0.5, "similarity": "dot", "temperature": 1.0}),
    ("softmax@k", {"k": 3, "popularity_weight": 0.2, "weight_temperature": 0.5}),
    ("bsl", {"positives": 2, "popularity_weight": 0.2, "temperature_ratio": 1.5}),
    ("bsl", {"positives": 2}), ("bsl", {"positives": 2, "temperature_ratio": 1.5, "similarity": "dot"}),
]  # fmt: skip


@pytest.fixture(params=[False, True], ids=["all items", "sampled"])
def sampled(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of two rows, and so few groups that the k best share some."""
    monkeypatch.setitem(log_sum_exp.BLOCK_BYTES, "cpu", 2 * 8 * N_ITEMS)


def tables() -> list[Tensor]:
    """Two layers in float64."""
    return [
        torch.randn(N_USERS + N_ITEMS, SIZE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        for seed in (1, 2)
    ]


def batch(name: str, sampled: bool) -> Pairs:
    """Two entries have the same user."""
    positive = torch.tensor([[2, 5], [7, 7], [0, 11], [22, 3]])
    own = positive if name == "bsl" else positive[:, :1]
    return Pairs(torch.tensor([0, 3, 3, 4]), own, OTHERS if sampled else None)


def loss_of(name: str, settings: dict[str, Any]) -> Loss[Pairs]:
    """A loss in float64, with a temperature that was not rounded to float32 before."""
    config: Any = LOSSES[name].Config(**settings)
    loss: Any = LOSSES[name](config).double()
    with torch.no_grad():
        loss.log_temperature.fill_(math.log(config.temperature))
    return cast("Loss[Pairs]", loss)


def ours(
    loss: Loss[Pairs],
    layers_ND: list[Tensor],
    drawn: Pairs,
    added_I: Tensor | None = None,
    precision: str = "float32",
) -> Tensor:
    config: Any = loss.config
    if config.popularity_weight and added_I is None:
        added_I = config.popularity_weight * LOG_COUNTS
    scored = {"similarity": config.similarity, "popularity_I": added_I, "precision": precision}
    return loss(Layers(layers_ND, layers_ND[0], N_USERS, **scored), drawn).value


def naive(name: str, settings: dict[str, Any], layers_ND: list[Tensor], drawn: Pairs) -> float:
    """The formulas as loops over numbers."""
    config: Any = LOSSES[name].Config(**settings)
    factors = (layers_ND[0] + layers_ND[1]) / 2
    total = 0.0
    for user, positives in zip(drawn.user.tolist(), drawn.positive.tolist(), strict=True):

        def score(item: int, user: int = user) -> float:
            a, b = factors[user], factors[N_USERS + item]
            length = float(a.norm() * b.norm()) if config.similarity == "cosine" else 1.0
            return float(a @ b) / length + config.popularity_weight * float(LOG_COUNTS[item])

        tau = config.temperature
        items, weight = (range(N_ITEMS), 1.0) if drawn.others is None else (OTHERS.tolist(), N_ITEMS / len(OTHERS))
        if name == "bsl":
            over = config.temperature_ratio * tau
            kept = sum(math.exp(score(item) / over) for item in positives) / len(positives)
            log_sum = math.log(weight * sum(math.exp(score(item) / tau) for item in items))
            total += -math.log(kept) + tau / over * log_sum
            continue
        (own,) = positives
        if drawn.others is None:
            log_sum = math.log(sum(math.exp(score(item) / tau) for item in items))
        else:
            others = sum(math.exp(score(item) / tau) for item in items if item != own)
            log_sum = math.log(math.exp(score(own) / tau) + weight * others)
        factor = 1.0
        if name == "softmax@k":
            place = max(1, round(config.k / weight))
            beta = sorted((score(item) for item in items), reverse=True)[place - 1]
            factor = 1 / (1 + math.exp(-(score(own) - beta) / config.weight_temperature))
        total += factor * (log_sum - score(own) / tau)
    return total / len(drawn.user)


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_a_loss_is_its_formula(name: str, settings: dict[str, Any], sampled: bool, small_blocks: None) -> None:
    drawn = batch(name, sampled)
    found = ours(loss_of(name, settings), tables(), drawn)
    assert found.item() == pytest.approx(naive(name, settings, tables(), drawn), rel=1e-12)


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_bfloat16_is_near_on_a_cpu_that_has_it_and_changes_nothing_on_others(
    name: str, settings: dict[str, Any], sampled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def value(able: bool, precision: str) -> float:
        monkeypatch.setattr(softmax, "multiplies_bfloat16", lambda device: able and device.type == "cpu")
        loss = loss_of(name, settings).float()
        return ours(loss, [table.float() for table in tables()], batch(name, sampled), precision=precision).item()

    right = value(True, "float32")
    assert value(False, "bfloat16") == right
    assert value(True, "bfloat16") != right
    assert value(True, "bfloat16") == pytest.approx(right, rel=2e-2)


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_gradients_equal_finite_differences(
    name: str, settings: dict[str, Any], sampled: bool, small_blocks: None
) -> None:
    """Of every layer, of a learned temperature and of what popularity adds.

    β has no gradient, so softmax@k is compared where β is constant.
    """
    loss, drawn = loss_of(name, settings), batch(name, sampled)
    weight = settings.get("popularity_weight")
    layers = [table.requires_grad_() for table in tables()]
    if weight:
        layers.append((weight * LOG_COUNTS).requires_grad_())
    parameters = list(loss.parameters())

    def value(*inputs: Tensor) -> Tensor:
        return ours(loss, list(inputs[:2]), drawn, inputs[2] if weight else None)

    if name != "softmax@k":
        assert torch.autograd.gradcheck(value, (*layers, *parameters))
        return
    fixed = {}

    def constant(*arguments: Any) -> Tensor:
        tau = loss.temperature().detach()  # type: ignore[operator]
        return fixed.setdefault("beta", kth_best(*arguments) * tau) / tau

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hmlet.losses.softmax_at_k.kth_best", constant)
        assert torch.autograd.gradcheck(value, (*layers, *parameters))


def test_bsl_of_one_positive_is_the_softmax() -> None:
    drawn = batch("softmax", sampled=False)
    bsl = ours(loss_of("bsl", {"positives": 1}), tables(), drawn)
    assert bsl.item() == pytest.approx(ours(loss_of("softmax", {}), tables(), drawn).item(), rel=1e-12)


def test_a_sampled_sum_is_right_on_the_average() -> None:
    """The mean of Z over all draws of one item is the whole sum, so that of exp(loss) is exp(loss) itself."""
    loss, pair = loss_of("softmax", {"similarity": "dot", "temperature": 1.0}), (torch.tensor([1]), torch.tensor([[4]]))
    exact = ours(loss, tables(), Pairs(*pair)).exp()
    drawn = [ours(loss, tables(), Pairs(*pair, torch.tensor([item]))).exp() for item in range(N_ITEMS)]
    assert torch.stack(drawn).mean().item() == pytest.approx(exact.item(), rel=1e-12)


@pytest.mark.parametrize("others", [None, OTHERS])
def test_scores_are_of_float32_factors_at_least(others: Tensor | None) -> None:
    """Layers in bfloat16 are added up in float32: the own scores of a batch are no bfloat16 numbers."""
    layers = Layers([table.bfloat16() for table in tables()], tables()[0], N_USERS, similarity="dot")
    loss: Any = LOSSES["softmax"](LOSSES["softmax"].Config(similarity="dot", temperature=1.0))  # type: ignore[call-arg]
    pairs = batch("softmax", sampled=False)._replace(others=others)
    compared = loss._compare(layers, pairs)
    assert {each.dtype for each in (compared.users_MF, compared.score_MP, compared.items_JF)} == {torch.float32}


def test_the_temperature_moves_geometrically_or_is_learned() -> None:
    loss: Any = loss_of("softmax", {"temperature": 0.4, "temperature_end": 0.1})
    found = []
    for progress in (0.0, 0.5, 1.0):
        loss.enter(progress)
        found.append(loss.log_temperature.exp().item())
    assert found == pytest.approx([0.4, 0.2, 0.1])
    assert list(loss.parameters()) == []
    learned: Any = loss_of("softmax", {"temperature_learned": True})
    with torch.no_grad():
        learned.log_temperature.fill_(-100.0)
    assert ours(learned, tables(), batch("softmax", sampled=False)).isfinite()
    assert learned.log_temperature.exp().item() == pytest.approx(0.025)


@pytest.mark.parametrize("setting", ["loss.temperature=0.001", "loss.negatives=-1", "loss.similarity=euclid"])
def test_a_wrong_setting_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match=setting.partition("=")[0]):
        resolve("lightgcn", overrides=["train.loss=softmax", setting])


@pytest.mark.parametrize(("loss", "least"), [("bsl", 0.01), ("multinomial", 0.5)])
def test_a_ratio_of_temperatures_has_bounds(loss: str, least: float) -> None:
    wanted = "loss.temperature_ratio={}".format
    for ratio in (least, 1e4):
        assert resolve("lightgcn", overrides=[f"train.loss={loss}", wanted(ratio)])
    for ratio in (1e-39, 0.99 * least, 1.01e4):
        with pytest.raises(ConfigError, match=f"loss.temperature_ratio = {ratio}"):
            resolve("lightgcn", overrides=[f"train.loss={loss}", wanted(ratio)])


@pytest.mark.parametrize("ratio", [0.01, 1e4])
def test_every_ratio_has_a_finite_loss(ratio: float) -> None:
    layers = [each.float() for each in tables()]
    assert ours(loss_of("bsl", {"temperature_ratio": ratio, "positives": 2}), layers, batch("bsl", False)).isfinite()


def test_a_learned_temperature_has_no_schedule() -> None:
    moving = ["loss.temperature_learned=true", "loss.temperature_end=0.2"]
    with pytest.raises(ConfigError, match="a learned temperature has no schedule"):
        resolve("lightgcn", overrides=["train.loss=softmax", *moving])


@pytest.mark.parametrize("more", [[], ["loss.temperature=0.3", "loss.temperature_end=0.1"]])
def test_popularity_may_outweigh_the_temperature_only_so_far(more: list[str]) -> None:
    """Beyond that, an item's count overflows, and a training would end with a loss that is not finite."""
    settings = ["train.loss=softmax", *more]
    resolve("lightgcn", overrides=[*settings, "loss.popularity_weight=0.39"])
    with pytest.raises(ConfigError, match="popularity_weight is more than 4 times the temperature"):
        resolve("lightgcn", overrides=[*settings, "loss.popularity_weight=0.41"])


def test_its_floor_has_the_matrix_products() -> None:
    """Three products of 10 users with 40 items in 8 columns; BSL has half as many users with two items each."""
    for loss, users in (("softmax", 10), ("bsl", 5)):
        settings = ["model.embedding_size=8", "train.batch_size=10", f"train.loss={loss}"]
        extra = ["loss.positives=2"] if loss == "bsl" else []
        parts = step_parts(resolve("lightgcn", overrides=[*settings, *extra]), 60, 40, 300)
        assert sum(part.operations for part in parts if part.name == "readout and loss") == 3 * 2 * users * 40 * 8


def test_the_nodes_of_a_batch_are_its_users_and_their_own_items() -> None:
    for name, items in (("softmax", [2, 7, 0, 22]), ("bsl", [2, 5, 7, 7, 0, 11, 22, 3])):
        nodes = batch(name, sampled=True).nodes(N_USERS)
        assert nodes.tolist() == [0, 3, 3, 4, *(N_USERS + item for item in items)]
