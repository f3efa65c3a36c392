"""The floor's bytes and operations against cases counted by hand, and the measured rates' sanity."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hmlet.config import Recipe, resolve
from hmlet.graph import spectral
from hmlet.graph.work import INVERSE, Part, Rates
from hmlet.models import MODELS
from hmlet.training import floor
from hmlet.training.floor import (
    by_part,
    floor_seconds,
    gate_weights,
    gate_work,
    measure,
    multiplied_type,
    nominal_seconds,
    nominal_training_seconds,
    solving_parts,
    solving_seconds,
    step_parts,
    trained_gates,
)

UNIT = Rates(copied=1.0, gathered=1.0, multiplied=1.0)


def recipe(model: str, *overrides: str) -> Recipe:
    sizes = ["model.embedding_size=8", "train.batch_size=10"]
    return resolve(model, overrides=[*sizes, *overrides])


def total(recipe: Recipe, name: str, quantity: str, **options: int) -> float:
    """A quantity of all parts of one name, for 100 nodes and 300 edges."""
    return sum(getattr(part, quantity) for part in step_parts(recipe, 60, 40, 300, **options) if part.name == name)


def test_a_part_waits_for_the_slowest_of_three() -> None:
    part = Part("any", moved=60.0, gathered=50.0, operations=40.0)
    cases = {
        Rates(1.0, 1.0, 1.0): ("memory", 60.0),
        Rates(2.0, 1.0, 1.0): ("gather", 50.0),
        Rates(2.0, 2.0, 1.0): ("arithmetic", 40.0),
    }
    for rates, (bound, seconds) in cases.items():
        assert (part.bound(rates), part.seconds(rates)) == (bound, seconds)


def test_parts_of_one_name_are_added_and_named_by_what_most_of_their_time_waits_for() -> None:
    parts = [Part("a", moved=3.0), Part("b", operations=5.0), Part("a", gathered=4.0, moved=2.0)]
    table = by_part(parts, UNIT)
    assert table["a"] == {"floor_seconds": 7.0, "moved": 5.0, "gathered": 4.0, "operations": 0.0, "bound": "gather"}
    assert table["b"]["bound"] == "arithmetic"
    assert floor_seconds(parts, UNIT) == 12.0


def test_lightgcn_by_hand() -> None:
    plain = recipe("lightgcn", "model.layers=3", "train.edge_dropout=0.0")
    # 3 products forward, 3 backward; each gathers 600 rows of 8 floats, with a neighbour and a weight.
    assert total(plain, "product", "gathered") == 6 * 600 * (8 * 4 + 8)
    # The table (100 × 8 floats) is read and written once, and the graph is read.
    assert total(plain, "product", "moved") == 6 * (2 * 100 * 8 * 4 + 600 * 8)
    assert total(plain, "edge dropout", "moved") == 0
    # 30 rows of e⁰ and of 3 layers: read, and their gradient added.
    assert total(plain, "readout and loss", "moved") == 2 * 30 * 8 * (4 + 3 * 4)
    # Gradient in; parameter and two moments in and out: seven floats each.
    assert total(plain, "optimizer", "moved") == 100 * 8 * 7 * 4
    assert total(plain, "matrix products", "operations") == 0


@pytest.mark.parametrize(
    ("settings", "sampled_numbers", "rows", "products"),
    [
        (["bpr"], 10 * 7, 3 * 10, 0),  # 3 draws, a place, 2 offsets and an item for each triplet
        (["softmax"], 10 * 6, 10 + 40, 3 * 10 * 40),
        (["softmax", "loss.negatives=4"], 10 * 6, 10 + 4, 3 * 10 * 4),
        (["bsl", "loss.positives=2"], 5 * 8, 5 + 40, 3 * 5 * 40),
        (["multinomial"], 0, 10 + 40, 3 * 10 * 40),
        (["multinomial", "loss.negatives=4"], 0, 10 + 4, 3 * 10 * 4),
    ],
)
def test_a_batch_by_hand(settings: list[str], sampled_numbers: int, rows: int, products: int) -> None:
    """Rows of 8 numbers of e⁰ in 4 bytes and of three layers in 2, read and written; products of rows of 8."""
    how = recipe("lightgcn", "model.layers=3", f"train.loss={settings[0]}", *settings[1:])
    assert total(how, "sampling", "moved", storage=2) == 8 * sampled_numbers
    assert total(how, "readout and loss", "moved", storage=2) == 2 * rows * 8 * (4 + 3 * 2)
    assert total(how, "readout and loss", "operations", storage=2) == 2 * products * 8


def test_dropped_edges_are_neither_gathered_nor_read_by_the_products() -> None:
    thinned = recipe("lightgcn", "model.layers=1", "train.edge_dropout=0.5")
    assert total(thinned, "product", "gathered") == 2 * 300 * (8 * 4 + 8)
    # All 600 entries come in (neighbour, edge number, weight), half of them go out (neighbour, weight).
    assert total(thinned, "edge dropout", "moved") == 600 * 12 + 300 * 8


def test_bfloat16_halves_what_is_propagated_and_not_what_is_trained() -> None:
    plain = recipe("lightgcn", "model.layers=1", "train.edge_dropout=0.0")
    assert total(plain, "product", "gathered", storage=2) == 2 * 600 * (8 * 2 + 8)
    # Six floats of parameters and moments, a 2-byte gradient, and the new e⁰ in 2 bytes.
    assert total(plain, "optimizer", "moved", storage=2) == 100 * 8 * (24 + 2 + 2)


def test_a_gate_by_hand() -> None:
    parts = gate_work(100, 8, [6], 2)
    products = [part for part in parts if part.name == "matrix products"]
    # 16 → 6 → 2, forward, and backward to the input and to the weights.
    assert [part.operations for part in products] == [
        2 * 100 * 16 * 6,
        2 * 2 * 100 * 16 * 6,
        2 * 100 * 6 * 2,
        2 * 2 * 100 * 6 * 2,
    ]
    # Forward: 16 in, 6 out. Backward: branches (16), z and its gradient (12), the mixture's gradient (8), out (16).
    assert [part.moved for part in products[:2]] == [200 * (16 + 6), 200 * (16 + 12 + 8 + 16)]
    assert sum(part.moved for part in parts if part.name == "mixture") == 6 * 100 * 8 * 2


def test_what_batchnorm_forces_is_in_the_matrix_products() -> None:
    """16 → 6 → 4 → 2 for one node, one byte a number: each z is written and read again, both ways.

    The statistics of a layer's z need all rows, so z goes out to memory and comes in once more; so do, backward, z and
    the gradient of what ReLU made of it. Both sums over all rows can be made where that gradient is written, because
    the layer above reads z there anyway: what it multiplied by is ReLU and dropout of that z.
    """
    moved = [part.moved for part in gate_work(1, 8, [6, 4], 1) if part.name == "matrix products"]
    forward, backward = moved[::2], moved[1::2]
    z = 6 + 4
    assert sum(forward) == 16 + z + z + 2  # both branches in; each z out and in; logits out
    # Branches, and the mixture's gradient, in; their gradients out. Each z in twice, its gradient out and in.
    # The logits and their gradient in.
    assert sum(backward) == 16 + 8 + 16 + z + z + z + z + 2 + 2


def test_a_resting_gate_has_no_gradient_of_its_weights() -> None:
    trained, frozen = gate_work(100, 8, [6], 2), gate_work(100, 8, [6], 2, resting=True)
    forward = 2 * 100 * (16 * 6 + 6 * 2)
    assert sum(part.operations for part in trained) == 3 * forward
    assert sum(part.operations for part in frozen) == 2 * forward


def test_gowalla_has_the_operations_that_its_two_gates_are_known_to_cost() -> None:
    parts = step_parts(resolve("hmlet-end", "gpu"), 29_858, 40_981, 810_128, storage=2)
    assert sum(part.operations for part in parts) == pytest.approx(508e9, rel=0.001)
    gathered = sum(part.gathered for part in parts if part.name == "product")
    assert gathered == pytest.approx(8 * 0.6 * 1.66e9, rel=0.02)  # 1.66 GB a product without dropped edges


def test_matrix_factorisation_has_no_products_and_a_float32_gradient() -> None:
    names = [part.name for part in step_parts(recipe("bpr"), 60, 40, 300, storage=2)]
    assert names == ["sampling", "readout and loss", "optimizer"]
    assert total(recipe("bpr"), "optimizer", "moved", storage=2) == 100 * 8 * 7 * 4


@pytest.mark.parametrize(
    ("device", "precision", "storage"),
    [("cuda", "bfloat16", 2), ("cuda", "float32", 4), ("cpu", "bfloat16", 4)],
)
def test_nominal_seconds_are_those_of_the_parts_at_common_rates(device: str, precision: str, storage: int) -> None:
    rates = {"cpu": Rates(1e10, 2e10, 1e11), "cuda": Rates(2e12, 4e12, 1e14)}[device]
    how = recipe("lightgcn", f"train.precision={precision}")
    expected = sum(part.seconds(rates) for part in step_parts(how, 60, 40, 300, storage))
    assert nominal_seconds(how, 60, 40, 300, device) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("able", [False, True])
@pytest.mark.parametrize(("loss", "faster"), [("bpr", False), ("multinomial", True)])
def test_scores_of_many_items_are_multiplied_faster_by_a_cpu_with_bfloat16(
    loss: str, faster: bool, able: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hmlet.training.floor.multiplies_bfloat16", lambda device: able and device.type == "cpu")
    wide, narrow = (
        recipe("lightgcn", f"train.loss={loss}", f"train.precision={kind}", "train.batch_size=30000")
        for kind in ("float32", "bfloat16")
    )
    assert multiplied_type(wide, torch.device("cpu")) == torch.float32
    assert multiplied_type(narrow, torch.device("cuda")) == torch.bfloat16
    assert (multiplied_type(narrow, torch.device("cpu")) == torch.bfloat16) == (faster and able)
    seconds = [nominal_seconds(how, 30_000, 40_000, 10**6, "cpu") for how in (wide, narrow)]
    assert (seconds[1] < seconds[0] / 2) == (faster and able)


@pytest.mark.parametrize(("loss", "steps"), [("bpr", 30), ("multinomial", 6)])
def test_a_training_has_the_steps_of_its_epochs(loss: str, steps: int) -> None:
    """Batches of ten, of 300 interactions or 60 users."""
    how = recipe("lightgcn", f"train.loss={loss}", "train.epochs=7")
    step = nominal_seconds(how, 60, 40, 300, "cpu")
    assert nominal_training_seconds(how, 60, 40, 300, "cpu") == pytest.approx(7 * steps * step)


def test_a_solution_is_its_inverse_at_the_measured_rate_and_the_rest_at_common_ones() -> None:
    how = resolve("ease")
    parts = solving_parts(how.model, 60, 40, 300)
    inverse, rest = solving_seconds(how, 60, 40, 300, "cpu", 1000.0)
    assert inverse == 40**3 / 1000
    assert rest == pytest.approx(sum(part.seconds(Rates(1e10, 2e10, 1e11)) for part in parts if part.name != INVERSE))


VECTORS = 2 * (spectral.ROUNDS + 1) * 2 * 100 * (5 + spectral.EXTRA)  # columns times edges, to and fro


@pytest.mark.parametrize(
    ("name", "settings", "users", "expected"),
    [
        ("popularity", {}, 10, {"interactions": (400, 0, 0)}),
        ("wrmf", {"embedding_size": 2}, 10, {"systems": (0, 0, 2 * 2 * 100 * 4 + 30 * (2 * 4 + 8 / 3))}),
        (
            "wrmf",
            {"embedding_size": 8},
            10,
            {"systems": (0, 0, 2 * 100 * 8 * (8 + 5) + 30 * 128 + (10 * 512 + 20 * 125) / 3)},
        ),
        ("itemknn", {}, 10, {"pairs": (0, 16 * 1000, 0), "weights": (16 * 400, 0, 0)}),
        ("itemknn", {}, 0, {"pairs": (0, 16 * 10_000, 0), "weights": (16 * 400, 0, 0)}),
        ("ease", {}, 10, {"inverse": (0, 0, 1000), "rows": (0, 4 * 100 * (2 * 10 + 20), 0)}),
        ("ease", {}, 20, {"inverse": (0, 0, 8000), "rows": (0, 0, 0)}),
        ("ease", {}, 50, {"inverse": (0, 0, 8000), "rows": (0, 0, 0)}),
        ("gf-cf", {"vectors": 5}, 10, {"vectors": (0, 4 * VECTORS, 0), "low-pass filter": (0, 0, 2 * 400 * 5)}),
        ("cheby-cf", {"vectors": 5, "order": 3}, 10, {"polynomial": (0, 4 * 2 * 3 * 2 * 100 * 20, 0)}),
    ],
)
def test_the_work_of_a_solution(
    name: str, settings: dict[str, Any], users: int, expected: dict[str, tuple[float, float, float]]
) -> None:
    """Bytes moved, bytes gathered and operations for 20 items and 100 interactions; pairs are 100² over the users."""
    config: Any = MODELS[name].Config(name=name, **settings)  # type: ignore[call-arg]
    parts = {part.name: part for part in solving_parts(config, users, 20, 100)}
    for part, amounts in expected.items():
        found = parts[part]
        assert (found.moved, found.gathered, found.operations) == pytest.approx(amounts)
    if name in ("ease", "gf-cf", "cheby-cf"):
        assert {"pairs", "weights"} <= parts.keys()
    if name == "cheby-cf":
        assert {"vectors", "low-pass filter"} <= parts.keys()


def test_the_work_of_solving() -> None:
    """D = 3: each of 100 interactions adds 3 × 3 products to a system on either side, a multiply and an add each.
    Each of 30 nodes adds as many to a Gram matrix, and its system takes 3³ / 3 operations."""
    (part,) = solving_parts(resolve("wrmf", overrides=["model.embedding_size=3"]).model, 10, 20, 100)
    assert (part.name, part.operations) == ("systems", 2 * 100 * 2 * 9 + 30 * (2 * 9 + 9))


def test_the_work_of_small_systems() -> None:
    """The mean of 10 users has two neighbours, that of 20 items one: their systems have as many unknowns, not D = 3."""
    (part,) = solving_parts(resolve("wrmf", overrides=["model.embedding_size=3"]).model, 10, 20, 20)
    assert part.operations == pytest.approx(2 * 20 * 3 * 2 + 10 * (18 + 8 / 3) + 2 * 20 * 3 * 1 + 20 * (18 + 1 / 3))


def test_the_work_of_a_gate_on_ten_nodes() -> None:
    """An MLP 6 → 4 → 2 in 2 bytes a number: 32 weights, a multiply and an add for each and each node."""
    assert gate_weights(3, (4,)) == 6 * 4 + 4 * 2 == 32
    for resting, products in ((False, 3), (True, 2)):
        parts = gate_work(10, 3, (4,), 2, resting)
        assert sum(part.operations for part in parts) == products * 2 * 10 * 32
        table = 10 * 3 * 2
        dense = [10 * 2 * (6 + 4), 10 * 2 * 2 * (6 + 4) + table, 10 * 2 * (4 + 2), 10 * 2 * 2 * (4 + 2)]
        assert [part.moved for part in parts] == [*dense, 3 * table, 3 * table]


def test_what_gates_add_to_a_step() -> None:
    """Two gates of an MLP 6 → 4 → 2. Random gates have none."""
    settings = ["model.embedding_size=3", "model.gate_hidden=[4]"]
    learned, random = (
        recipe("hmlet-end", *settings, f"model.gate_choice={choice}") for choice in ("learned", "random")
    )
    assert (trained_gates(learned.model), trained_gates(random.model), trained_gates(recipe("ngcf").model)) == (2, 0, 0)
    own = [part for part in gate_work(100, 3, (4,), 4) if part.name == "matrix products"]
    assert total(learned, "matrix products", "operations") == 2 * sum(part.operations for part in own)
    moved = [total(learned, "optimizer", "moved", resting=resting) for resting in (False, True)]
    assert moved[0] - moved[1] == 2 * 32 * 28
    assert total(random, "matrix products", "operations") == 0


def test_a_sparse_graph_has_a_neighbour_for_every_row() -> None:
    offsets, neighbours = floor._regular(10, 5)
    assert (offsets.tolist(), len(neighbours)) == (list(range(11)), 10)
    offsets, neighbours = floor._regular(10, 29)
    assert (offsets.tolist(), len(neighbours)) == (list(range(0, 21, 2)), 20)


class Clock:
    """Stands for perf_counter: each measured piece of work takes the next of some times, again and again."""

    def __init__(self, *durations: float) -> None:
        self.now, self.readings, self.durations = 0.0, 0, durations

    def __call__(self) -> float:
        if self.readings % 2:  # the end of a piece of work
            self.now += self.durations[self.readings // 2 % len(self.durations)]
        self.readings += 1
        return self.now


def test_rates_are_the_work_over_the_best_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a best time of a quarter of a second, a rate is four times the work, which is counted by hand."""
    columns, nodes, degree = 16, (1 << 14) // (4 * 16), 4
    sizes = {"COPY_BYTES": 1 << 20, "MATRIX": 64, "CACHED_BYTES": 1 << 14, "GATHERS": nodes * degree}
    for name, size in sizes.items():
        monkeypatch.setattr(f"hmlet.training.floor.{name}", {"cpu": size})
    monkeypatch.setattr("hmlet.training.floor.perf_counter", Clock(0.5, 0.25, 1.0))
    drawn = torch.get_rng_state()
    rates = measure(torch.device("cpu"), torch.float32, columns)
    assert torch.equal(torch.get_rng_state(), drawn), "a profile leaves everyone's random numbers alone"
    assert rates.copied == 4 * 2 * (1 << 20)  # read and written
    assert rates.multiplied == 4 * 2 * 64**3  # a product and a sum for each
    assert rates.gathered == 4 * nodes * degree * (columns * 4 + 4 + 4)  # a row, a neighbour and a weight
