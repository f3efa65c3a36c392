"""The memory plan beside what PyTorch's allocator really hands out, and beside counts by hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from finished import NAMES
from planted import dataset
from torch.profiler import ProfilerActivity, profile

from hmlet.config import Recipe, Shape, resolve
from hmlet.data import Dataset
from hmlet.errors import OutOfMemory
from hmlet.graph import Sizes
from hmlet.graph.kernels import Operator, build_operator, multiplies_bfloat16, plan_operator
from hmlet.losses import build_loss
from hmlet.losses.sampling import Draw
from hmlet.models import MODELS
from hmlet.ranking import evaluation
from hmlet.runs.directory import RunDirectory
from hmlet.system.ranks import Ranks
from hmlet.system.spelling import in_shell
from hmlet.training import planning
from hmlet.training.planning import (
    Ledger,
    changes,
    fits,
    free_memory,
    leaves_much_free,
    lighter,
    memory_plan,
    plainly_fits,
    require_memory,
    smaller_model,
)
from hmlet.training.profiling import Unwatched
from hmlet.training.trainer import Trainer

TRAINED = sorted(set(NAMES) - {"wrmf", "hmlet-middle", "hmlet-front"})  # WRMF has no step; the two are as hmlet-end
LARGE = Sizes(90_000_000, 10_000_000, 10**9)


@pytest.fixture(autouse=True)
def _options() -> Iterator[None]:
    """Changes are named as on the command line."""
    with in_shell():
        yield


def recipe(model: str, *overrides: str) -> Recipe:
    return resolve(model, "hmlet", None, ["model.embedding_size=48", "train.edge_dropout=0.3", *overrides])


@pytest.fixture(scope="module")
def data() -> Dataset:
    """2,000 users and 1,000 items with 20 interactions a user, one in ten of them held out."""
    rng = np.random.default_rng(0)
    pairs = [(user, int(item)) for user in range(2000) for item in rng.choice(1000, 20, replace=False)]
    return dataset(2000, 1000, train=[pair for at, pair in enumerate(pairs) if at % 10], valid=pairs[::10])


def peak(work: Callable[[], object]) -> int:
    """The most bytes of tensors on CPU during some work beyond those before it, as the allocator counts them."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        work()
    events = found.profiler.kineto_results.events()  # type: ignore[union-attr]
    memory = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return int(max(np.cumsum([count for _, count in memory])))


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Blocks of ranking that do not hide what an evaluation takes beside them, one at a time in sight of `peak`."""
    monkeypatch.setitem(evaluation.BLOCK_BYTES, "cpu", 1 << 18)
    monkeypatch.setattr(evaluation, "JOINED", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


LOSSES = [["softmax"], ["softmax", "loss.negatives=300"], ["softmax@k", "loss.similarity=dot"], ["bsl"],
          ["multinomial"], ["multinomial", "train.batch_size=100", "loss.negatives=300"],
          ["multinomial", "loss.temperature_ratio=4"]]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "overrides"),
    [*((model, []) for model in TRAINED), *(("lightgcn", [f"train.loss={name}", *more]) for name, *more in LOSSES)],
)
def test_the_plan_is_what_training_takes(
    model: str, overrides: list[str], data: Dataset, tmp_path: Path, small_blocks: None
) -> None:
    """A step and an evaluation, each within 10 % of the allocator's peak."""
    chosen = recipe(model, *overrides)
    run = RunDirectory.create(tmp_path / "run", chosen, data, "cpu")
    trainer = Trainer(data, chosen, torch.device("cpu"), run, Unwatched())
    plan = memory_plan(chosen, Sizes.of(data))
    trainer.model.train()
    trainer.steps.take(0, 0)  # makes Adam's state and the gradients, which the plan counts as table and optimizer
    trainer.model.zero_grad(set_to_none=True)  # the profiler does not see what older tensors give back
    gradients = sum(each.nbytes for each in trainer.model.parameters())
    assert plan.activations + gradients == pytest.approx(peak(lambda: trainer.steps.take(1, 0)), rel=0.1)
    trainer._validate(1)  # makes the best model so far
    trainer.state.best_value = -1.0
    assert plan.ranking == pytest.approx(peak(lambda: trainer._validate(1)), rel=0.1)


def test_each_thread_ranks_a_block_of_its_own(small_blocks: None) -> None:
    """With three threads two blocks more are held, but never more blocks than there are."""
    chosen, many, few = recipe("bpr"), Sizes(2000, 1000, 10_000), Sizes(60, 1000, 10_000)
    alone = memory_plan(chosen, many).ranking
    alone_of_few = memory_plan(chosen, few).ranking
    torch.set_num_threads(3)
    users = evaluation.block_size(1000, "cpu")
    assert users > 60
    block = users * (2 + 4 if multiplies_bfloat16(torch.device("cpu")) else 5) * 1000
    assert memory_plan(chosen, many).ranking == alone + 2 * block
    assert memory_plan(chosen, few).ranking == alone_of_few


@pytest.mark.parametrize("state", ["float32", "bfloat16"])
def test_what_stays_is_counted_exactly(state: str, data: Dataset, tmp_path: Path) -> None:
    chosen = recipe("lightgcn", f"train.optimizer_state={state}")
    run = RunDirectory.create(tmp_path / "run", chosen, data, "cpu")
    trainer = Trainer(data, chosen, torch.device("cpu"), run, Unwatched())
    trainer.steps.take(0, 0)
    plan, edges = memory_plan(chosen, Sizes.of(data)), data.count("train")
    assert plan.graph == trainer.operator.nbytes + 24 * 2000 + 12 * edges
    moments = [trainer.steps.tensors()[f"adam.0.{name}"] for name in ("exp_avg", "exp_avg_sq")]
    assert plan.optimizer == sum(each.nbytes for each in moments)
    assert plan.table == 3 * 3000 * 48 * 4  # table, gradient, best


def _bytes(value: object) -> int:
    """Of all tensors that an object holds, at any depth."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, Operator):
        return value.nbytes
    inner = value if isinstance(value, tuple) else vars(value).values() if hasattr(value, "__dict__") else ()
    return sum(_bytes(each) for each in inner)


@pytest.mark.parametrize("draw", ["user", "root", "interaction", "weight"])
@pytest.mark.parametrize("loss", ["bpr", "softmax", "multinomial", "multinomial with a ratio"])
def test_what_batches_are_drawn_from_takes_at_most_what_is_planned(loss: str, draw: Draw, data: Dataset) -> None:
    """But for the last of each list of offsets, and the number of those who can be drawn."""
    name, _, more = loss.partition(" ")
    if (name, draw) == ("multinomial", "weight"):
        return  # is refused
    chosen = recipe("bpr", f"train.loss={name}", f"train.draw={draw}", *["loss.temperature_ratio=2"] * bool(more))
    train = replace(data.csr("train"), weights=np.ones(data.count("train"), dtype=np.float32))
    sampler = build_loss(name, chosen.loss).sampler(train, data.n_items, torch.device("cpu"), draw)
    sizes = Sizes.of(data)
    room = memory_plan(chosen, sizes).graph - plan_operator(sizes.nodes, sizes.edges, "cpu").nbytes
    assert room / 3 < _bytes(sampler) <= room + 3 * 8


def test_bytes_by_hand() -> None:
    """LightGCN on CUDA: offsets, neighbours, edge numbers and weights of 4 bytes; three numbers of 8 a segment."""
    plan = memory_plan(recipe("lightgcn"), Sizes(1000, 500, 51_200), "cuda")
    segments = 1500 + 2 * 51_200 // 512
    assert plan.graph == 1501 * 4 + 2 * 51_200 * 12 + 24 * segments + 24 * 1000 + 4 * 51_200
    assert plan.table == 3 * 1500 * 48 * 4
    assert plan.optimizer == 2 * 1500 * 48 * 4
    assert plan.total == plan.graph + plan.table + plan.optimizer + plan.activations + plan.ranking  # captured


def test_a_softmax_holds_a_block_and_not_the_whole_matrix() -> None:
    """On CUDA at most half a GB of scores at a time, however large a batch is: a row more is a row of a few tables."""
    sizes = Sizes(30_000, 41_000, 800_000)
    few, many = (
        memory_plan(recipe("lightgcn", "train.loss=softmax", f"train.batch_size={size}"), sizes, "cuda").activations
        for size in (16_384, 32_768)
    )
    assert few > 400 << 20
    assert many - few < 16_384 * 20 * 48 * 4 + (64 << 20)
    assert many < 32_768 * 41_000 * 2  # the whole matrix, in two bytes


def test_a_deterministic_step_copies_the_rows_of_its_batch() -> None:
    """On CUDA other steps read them where they lie: of every row, then, its factor and its e⁰ at the least."""
    plain = recipe("lightgcn", "train.batch_size=100_000")
    rows = 3 * 100_000 * 48 * 4
    sizes = Sizes(1000, 500, 20_000)
    more = memory_plan(plain.changed(["train.deterministic=true"]), sizes, "cuda").activations
    assert more >= memory_plan(plain, sizes, "cuda").activations + 2 * rows
    assert not torch.are_deterministic_algorithms_enabled()


def test_ranks_divide_the_columns_and_not_the_graph() -> None:
    chosen = recipe("lightgcn", "train.edge_dropout=0.0")
    alone, four = (memory_plan(chosen, LARGE, "cuda", Ranks(0, size)) for size in (1, 4))
    assert (four.graph, 4 * four.table, 4 * four.optimizer) == (alone.graph, alone.table, alone.optimizer)
    counts = 3 * 4 * LARGE.nodes  # how often the batch has each node, and where that is kept: on every rank
    assert 4 * (four.activations - counts) == pytest.approx(alone.activations - counts, rel=0.001)
    gated = [memory_plan(recipe("hmlet-end"), LARGE, "cuda", Ranks(0, size)).activations for size in (1, 4)]
    assert gated[1] < gated[0] / 2.5  # the gate is split by nodes; on one device its kernels keep less


def test_half_the_storage_takes_less() -> None:
    wide, narrow = (
        memory_plan(recipe("hmlet-end", f"train.precision={kind}"), LARGE, "cuda") for kind in ("float32", "bfloat16")
    )
    assert 0.45 * wide.activations < narrow.activations < 0.7 * wide.activations
    on_cpu = [
        memory_plan(recipe("lightgcn", f"train.precision={kind}"), LARGE).total for kind in ("float32", "bfloat16")
    ]
    assert on_cpu[0] == on_cpu[1]  # CPU stores float32


def test_a_ledger_counts_what_lives_together() -> None:
    with Ledger(torch.nn.Module()) as ledger:
        first = torch.empty(100, device="meta")
        second = first.view(10, 10) * 2.0  # a view is no new memory
        assert (ledger.live, ledger.peak) == (800, 800)
        del first
        assert ledger.live == 400
        second = second.bfloat16()
        assert (ledger.live, ledger.peak) == (200, 800)


def test_changes_are_the_mildest_that_fit() -> None:
    chosen, free = recipe("lightgcn", "model.embedding_size=64"), 50 * 10**9
    sizes = Sizes(20_000_000, 2_000_000, 10**8)
    assert not fits(memory_plan(chosen, sizes, "cuda").total, "cuda", 1, free)
    found = {change.what.partition("=")[0]: change for change in changes(chosen, sizes, "cuda", 1, free)}
    assert {"--set model.embedding_size", "--devices 2"} <= found.keys()
    assert all(change.total <= free for change in found.values())
    largest = int(found["--set model.embedding_size"].what.partition("=")[2])
    wider = chosen.changed([f"model.embedding_size={largest + 8}"])
    assert memory_plan(wider, sizes, "cuda").total > free
    assert found["--devices 2"].total == memory_plan(chosen, sizes, "cuda", Ranks(0, 2)).total


@pytest.mark.parametrize(("columns", "offered"), [(20, 16), (8, 7)])
def test_fewer_columns_are_a_multiple_of_eight_or_less_than_that(columns: int, offered: int) -> None:
    wide = recipe("lightgcn", f"model.embedding_size={columns}", "model.layers=1")
    free = memory_plan(wide.changed([f"model.embedding_size={offered}"]), LARGE, "cuda").total
    found = [change.what for change in changes(wide, LARGE, "cuda", 1, free)]
    assert f"--set model.embedding_size={offered}" in found


def test_changes_go_together_where_none_is_enough() -> None:
    """One column and one layer leave nothing to lower: only all savings at once take the least."""
    least = recipe("hmlet-end", "model.embedding_size=1", "model.layers=1", "model.gate_hidden=[512,1]")
    savings = ["train.optimizer_state=bfloat16", "train.precision=bfloat16"]
    needed = memory_plan(least.changed(savings), LARGE, "cuda").total
    (found,) = changes(least, LARGE, "cuda", 1, needed)
    assert (found.what, found.total) == (" ".join(f"--set {saving}" for saving in savings), needed)
    assert changes(least, LARGE, "cuda", 1, needed - 1) == []


def test_two_savings_together_may_be_enough() -> None:
    """Few edges, and a column for each of two ranks: neither saving is enough alone."""
    least = recipe("lightgcn", "model.embedding_size=2", "model.layers=1", "train.edge_dropout=0.0")
    sizes, both = Sizes(10**6, 10**6, 6), ["train.optimizer_state=bfloat16", "train.precision=bfloat16"]
    needed = memory_plan(least.changed(both), sizes, "cuda", Ranks(0, 2)).total
    (found,) = changes(least, sizes, "cuda", 2, needed)
    assert (found.what, found.total) == (f"--set {both[0]} --set {both[1]}", needed)


def test_gates_may_be_halved() -> None:
    chosen = recipe("hmlet-end", "model.embedding_size=1", "model.layers=1", "model.gate_hidden=[64,12]")
    halved = chosen.changed(["model.gate_hidden=[16,3]"])
    needed = memory_plan(halved, LARGE, "cuda").total
    assert [change.what for change in changes(chosen, LARGE, "cuda", 1, needed)] == ["--set model.gate_hidden=[16,3]"]


def test_layers_whose_types_were_given_are_left_alone() -> None:
    """Fewer layers are offered for the variant's own types, and not where each layer's type was said."""
    free = memory_plan(recipe("hmlet-end", "model.layers=2"), LARGE, "cuda").total
    types = 'model.gate_types=["linear", "linear", "gated", "gated"]'
    for settings, offered in (([], True), ([types], False)):
        found = [change.what for change in changes(recipe("hmlet-end", *settings), LARGE, "cuda", 1, free)]
        assert found
        assert any("model.layers" in what for what in found) == offered


def test_advice_for_too_little_memory_names_settings_of_the_model() -> None:
    """EASE is no smaller with fewer dimensions or layers: it has neither."""
    for name in MODELS:
        named = re.findall(r"model\.(\w+)", smaller_model(resolve(name).model))
        assert set(named) <= set(MODELS[name].Config.model_fields)
        assert named or name == "popularity"
    assert "inverts no matrix" in smaller_model(resolve("ease").model)


def test_lighter_settings_keep_fewer_weights_or_layers() -> None:
    assert lighter(resolve("ease").model) == [[f"model.neighbours={kept}" for kept in (500, 200, 100, 50)]]
    few = resolve("ease", overrides=["model.neighbours=200"]).model
    assert lighter(few) == [["model.neighbours=100", "model.neighbours=50"]]
    assert lighter(resolve("pinsage").model) == [["model.layers=1"]]  # its neighbours make nothing smaller
    assert lighter(resolve("lightgcn", overrides=["model.layers=3"]).model) == [["model.layers=2", "model.layers=1"]]
    assert lighter(resolve("bpr").model) == lighter(resolve("popularity").model) == []


def test_lighter_settings_halve_the_gates_until_one_is_left() -> None:
    gated = resolve("hmlet-end", overrides=["model.layers=3", "model.gate_hidden=[8,4]"]).model
    assert lighter(gated) == [
        ["model.layers=2", "model.layers=1"],
        ["model.gate_hidden=[4,2]", "model.gate_hidden=[2,1]"],
    ]
    typed = ["model.layers=2", 'model.gate_types=["gated", "linear"]', "model.gate_hidden=[]"]
    assert lighter(resolve("hmlet-end", overrides=typed).model) == [[]]


def test_ranks_on_cpu_share_its_memory() -> None:
    assert fits(100, "cpu", 4, 400)
    assert not fits(101, "cpu", 4, 400)
    assert fits(400, "cuda", 4, 400)


def test_a_batch_that_does_not_fit_is_to_be_halved_until_it_does() -> None:
    sizes, wide = Sizes(2000, 1000, 20_000), recipe("lightgcn", "train.batch_size=1048576")
    for batch in (524288, 262144):
        free = memory_plan(recipe("lightgcn", f"train.batch_size={batch}"), sizes).total
        found = changes(wide, sizes, "cpu", 1, free)
        assert (found[0].what, found[0].total) == (f"--set train.batch_size={batch}", free)


def test_a_dry_operator_is_as_large_as_a_real_one(data: Dataset) -> None:
    from hmlet.graph import training_graph

    graph = training_graph(data)
    for loops in (False, True):
        real = build_operator(graph.indptr, graph.neighbours, graph.edges, graph.scale(loops), self_loops=loops)
        assert plan_operator(graph.n_nodes, graph.n_edges, "cpu", self_loops=loops).nbytes == real.nbytes


@pytest.mark.parametrize("name", MODELS)
def test_a_training_that_plainly_fits_fits_by_far(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, device = Sizes(20_000, 15_000, 500_000), torch.device("cpu")
    chosen = resolve(name, shape=Shape(20_000, 15_000, 500_000), device="cpu")
    need = memory_plan(chosen, sizes).total
    monkeypatch.setattr(planning, "free_memory", lambda device: 5 * need)
    assert not plainly_fits(chosen, sizes, device)
    monkeypatch.setattr(planning, "free_memory", lambda device: 10**13)
    assert plainly_fits(chosen, sizes, device)


def test_a_training_leaves_much_free_if_it_takes_a_third_of_it_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, sizes, device = recipe("lightgcn"), Sizes(20_000, 15_000, 500_000), torch.device("cpu")
    for ranks in (Ranks(), Ranks(0, 2)):
        need = 3 * ranks.size * memory_plan(chosen, sizes, ranks=ranks).total
        for free, expected in ((need, True), (need - 1, False)):
            monkeypatch.setattr(planning, "free_memory", lambda device, free=free: free)
            assert not plainly_fits(chosen, sizes, device)
            assert leaves_much_free(chosen, sizes, device, ranks) is expected


def test_free_memory_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < free_memory(torch.device("cpu")) < 1 << 62
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3, 8))  # free, and in all
    assert free_memory(torch.device("cuda", 0)) == 3


def test_a_training_that_needs_all_memory_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = recipe("bpr")
    plan = memory_plan(chosen, Sizes(100, 80, 1000))
    monkeypatch.setattr(planning, "free_memory", lambda device: plan.total)
    require_memory(plan, torch.device("cpu"), chosen.model)
    monkeypatch.setattr(planning, "free_memory", lambda device: plan.total - 1)
    with pytest.raises(OutOfMemory, match="on cpu"):
        require_memory(plan, torch.device("cpu"), chosen.model)
