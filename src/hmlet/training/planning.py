"""What a training will need, computed before it starts, and what there is.

Nothing here is a formula for a model's activations. The step and the ranking themselves run once on tensors without
memory (PyTorch's meta device), and a ledger counts the bytes that are alive together: a model plans itself.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hmlet.config import Recipe
from hmlet.data import Csr
from hmlet.errors import ConfigError, OutOfMemory
from hmlet.graph import Graph, Sizes
from hmlet.graph.kernels import Operator, multiplies_bfloat16, plan_operator, standing_for
from hmlet.graph.spectral import EXTRA, spectral_embedding
from hmlet.losses import LOSSES, build_loss
from hmlet.losses.sampling import FUSED
from hmlet.models import NOISE_FREE, ItemWeighted, Model, ModelConfig, Scores, Solved, build
from hmlet.models.item_item import TRUNCATED_TO
from hmlet.ranking.evaluation import block_size, blocks_at_once
from hmlet.ranking.metrics import METRICS
from hmlet.ranking.top_k import CACHED
from hmlet.runs.loading import set_nodes
from hmlet.system.ranks import ALONE, Ranks
from hmlet.system.spelling import option, override
from hmlet.system.units import readable
from hmlet.training.steps import batch_loss, deterministic, keep_columns, starts_spectrally

META = torch.device("meta")
PLENTY = 200  # times e⁰, a batch and the edges is far more than any training takes
KEPT = 3  # times its plan is more than a training ever takes whose freed memory is kept
PLENTY_OF_PAIRS = 100  # bytes for each pair of items are more than any closed form takes besides


@dataclass(frozen=True, repr=False)
class MemoryPlan:
    """Bytes by purpose on each rank's device."""

    graph: int  # the operator, and what batches are drawn from
    table: int  # the parameters, their gradient, and the best model so far
    optimizer: int
    activations: int  # what a step holds at once beyond these
    ranking: int  # what an evaluation does
    start: int  # what a spectral start holds before there is an optimizer
    captured: bool  # whether the step is a CUDA graph, which keeps its memory

    def __repr__(self) -> str:
        names = ("graph", "table", "optimizer", "activations", "ranking")
        parts = ", ".join(f"{name} {readable(getattr(self, name))}" for name in names)
        return f"<MemoryPlan {readable(self.total)}: {parts}>"

    @property
    def total(self) -> int:
        """What has to be there. A step and an evaluation take turns, unless a captured step keeps its memory."""
        return self.tensors + (min(self.activations, self.ranking) if self.captured else 0)

    @property
    def tensors(self) -> int:
        """The most that lives at one moment, which is what torch.cuda.max_memory_allocated reports."""
        trained = self.table + self.optimizer + max(self.activations, self.ranking)
        return self.graph + max(trained, self.start)

    def as_json(self) -> dict[str, Any]:
        return {**self.__dict__, "total": self.total}


def memory_plan(recipe: Recipe, sizes: Sizes, device: str = "cpu", ranks: Ranks = ALONE) -> MemoryPlan:
    """The bytes that training a recipe takes on each rank's device ("cpu" or "cuda"), however large the graph."""
    with standing_for(device), deterministic(recipe.train.deterministic):
        return _plan(recipe, sizes, device, ranks)


@lru_cache(maxsize=8)
def remembered_plan(recipe: Recipe, sizes: Sizes, device: str, ranks: Ranks) -> MemoryPlan:
    """The same for those who ask again: whether a training fits, and whether it leaves memory free."""
    return memory_plan(recipe, sizes, device, ranks)


def _plan(recipe: Recipe, sizes: Sizes, device: str, ranks: Ranks) -> MemoryPlan:
    model, scores = _dry_model(recipe, sizes)
    keep_columns(model, ranks)
    both = nn.ModuleList([model, scores])
    storage = torch.bfloat16 if recipe.train.precision == "bfloat16" else None
    operator = plan_operator(sizes.nodes, sizes.edges, device, self_loops=model.self_loops, storage=storage)
    state = sum(tensor.nbytes for tensor in both.state_dict().values())
    trained = sum(parameter.nbytes for parameter in both.parameters() if parameter.requires_grad)
    return MemoryPlan(
        graph=operator.nbytes + _sampler_bytes(recipe, sizes, device),
        table=(1 if recipe.train.epochs == 1 else 2) * state + trained,
        optimizer=2 * trained // (2 if recipe.train.optimizer_state == "bfloat16" else 1),
        activations=max(0, _step_bytes(recipe, model, scores, operator, sizes, device, ranks) - trained),
        ranking=_ranking_bytes(model, scores, operator, sizes, device, ranks),
        start=_start_bytes(recipe, model, sizes, device, ranks),
        captured=device == "cuda" and ranks.size == 1 and not recipe.model.solved,
    )


def _sampler_bytes(recipe: Recipe, sizes: Sizes, device: str) -> int:
    """At most what batches are drawn from: three numbers of 8 bytes a user, an item an interaction, with a key unless
    the kernel for CUDA draws, and with two numbers of a weight; and where an entry is a user, a graph."""
    if recipe.model.solved:
        return 0
    draw = recipe.train.draw
    an_edge = 4 if device == "cuda" and draw in FUSED else 28 if draw == "weight" else 12
    drawn_from = 24 * sizes.users + an_edge * sizes.edges
    if LOSSES[recipe.train.loss].entries == "interactions":
        return drawn_from
    return drawn_from + plan_operator(sizes.nodes, sizes.edges, device).nbytes


def _dry_model(recipe: Recipe, sizes: Sizes) -> tuple[Model, Scores]:
    """A model of a graph of this size without its memory: built for one edge, then its per-node tensors replaced."""
    one = Graph.from_csr(Csr(np.array([0, 1]), np.array([0], dtype=np.int32)), 1)
    model = build(recipe.model, one, torch.Generator()).to(META)
    scores = Scores.start(recipe.scoring, one, recipe.train.precision).to(META)
    for part in (model, scores):
        state = part.state_dict()
        resized = {
            name: torch.empty(each.shape, dtype=state[name].dtype, device=META)
            for name, each in part.node_tensors(sizes.users, sizes.items).items()
        }
        set_nodes(part, resized)
    model.n_users, model.n_items = sizes.users, sizes.items
    return model, scores


def _step_bytes(
    recipe: Recipe, model: Model, scores: Scores, operator: Operator, sizes: Sizes, device: str, ranks: Ranks
) -> int:
    """The most that one step holds beyond parameters and optimizer, gradients included."""
    if isinstance(model, Solved):
        return model.peak_bytes(sizes.edges)
    loss = build_loss(recipe.train.loss, recipe.loss).to(META)
    batch = loss.blank(recipe.train.batch_size, sizes, device)
    temperature = torch.empty((), device=META)
    drawn = sum(each.nbytes for each in batch if isinstance(each, Tensor))
    both = nn.ModuleList([model, scores])
    with Ledger(both) as ledger:
        try:
            value = batch_loss(recipe, model, scores, loss, operator, batch, temperature, torch.Generator(), ranks)
            value.backward()  # type: ignore[no-untyped-call]
        except NotImplementedError as error:
            raise ConfigError(
                f"a step of {recipe.model.name} with the loss {recipe.train.loss} cannot be planned ({error})",
                "use operations whose results have the same size whatever the values are, in the model and the loss",
            ) from error
    for parameter in both.parameters():
        parameter.grad = None
    return int(drawn + ledger.peak)


def _ranking_bytes(model: Model, scores: Scores, operator: Operator, sizes: Sizes, device: str, ranks: Ranks) -> int:
    """The most that an evaluation holds: every layer, the factors, and a block of users; or every layer and a copy of
    the model that may be the best. An item-item model has no layers."""
    per_user = 8 * sizes.users * (1 + len(METRICS))  # how many items are held out, and every metric
    model.eval()
    if isinstance(model, ItemWeighted):
        # Scores from sparse weights are float64, and a sparse matrix of 12 bytes a score comes before them.
        return _scores_bytes(sizes, device, ranks, 20 if model.item_weights().sparse else 4) + per_user
    with torch.no_grad(), Ledger(model) as ledger:
        layers = scores(model.propagate(operator, replace(NOISE_FREE, ranks=ranks)))
        kept = ledger.live
        own_NF = layers.factors().float()
        items_IF = ranks.whole(own_NF[sizes.users :], model.embedding.shape[1])
        narrow = multiplies_bfloat16(torch.device(device))
        _prepared = items_IF.bfloat16() if narrow else None
    # In bfloat16, a part is in float32 too. On a GPU, which of the scores are candidates takes another byte.
    block = _scores_bytes(sizes, device, ranks, 2, CACHED) if narrow else _scores_bytes(sizes, device, ranks, 5)
    copy = sum(tensor.nbytes for each in (model, scores) for tensor in each.state_dict().values())
    return int(max(ledger.peak, ledger.live + block + per_user, kept + copy))


def _scores_bytes(sizes: Sizes, device: str, ranks: Ranks, each: int, part: int = 0) -> int:
    """Of the scores that are held at once, at some bytes each; of a block's, a part of at most so many bytes also is
    in float32."""
    size = block_size(sizes.items, device)
    scores = min(sizes.users, size) * sizes.items
    return blocks_at_once(sizes.users, size, device, ranks) * (each * scores + min(part, 4 * scores))


def _start_bytes(recipe: Recipe, model: Model, sizes: Sizes, device: str, ranks: Ranks) -> int:
    """The most that a spectral start holds beside the graph: the parameters, an operator of its own, and its blocks."""
    if not starts_spectrally(recipe.model):
        return 0
    operator = plan_operator(sizes.nodes, sizes.edges, device)
    own = operator.nbytes if model.self_loops or recipe.train.precision == "bfloat16" else 0
    with torch.no_grad(), Ledger(model) as ledger:
        spectral_embedding(operator.product, sizes.users, model.embedding, torch.Generator(), ranks)
    return own + model.embedding.nbytes + int(ledger.peak)


class Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of the tensors that operations inside it make, while they live; not those of the module it is given."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live: int = 0
        self.peak: int = 0
        self._known = {id(tensor.untyped_storage()) for tensor in [*module.parameters(), *module.buffers()]}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor):
                self._enter(tensor.untyped_storage())
        return result

    def _enter(self, storage: torch.UntypedStorage) -> None:
        if id(storage) in self._known:
            return
        self._known.add(id(storage))
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._leave, id(storage), storage.nbytes())

    def _leave(self, identity: int, count: int) -> None:
        self._known.discard(identity)
        self.live -= count


@dataclass(frozen=True)
class Change:
    """Something else to ask for, and the peak that a rank would then have."""

    what: str  # as a message names it
    total: int

    def as_json(self) -> dict[str, Any]:
        return dict(self.__dict__)


def changes(recipe: Recipe, sizes: Sizes, device: str, size: int, free: int) -> list[Change]:
    """What makes a training on `size` ranks fit that does not: each alone, the mildest value of its kind.

    Where no change alone is enough: more ranks or fewer columns, together with every saving that keeps the model.
    """
    columns = recipe.model.columns
    savings = ["train.optimizer_state=bfloat16", *(["train.precision=bfloat16"] if device == "cuda" else [])]
    smaller = [] if recipe.model.solved else [recipe.train.batch_size >> by for by in range(1, 31)]
    wider = [G for G in range(size + 1, columns + 1) if columns % G == 0 and not recipe.model.solved]
    narrower = [D for D in range(columns - 1, 0, -1) if D % size == 0 and (D % 8 == 0 or D < 8)]

    def plan(settings: Sequence[str], ranks: int) -> int:
        return memory_plan(recipe.changed(settings), sizes, device, Ranks(0, ranks)).total

    def mildest(attempts: Sequence[tuple[list[str], int]]) -> list[Change]:
        """The first attempt that fits; each takes less than the one before it, so halving finds it."""
        at = bisect_left(attempts, True, key=lambda attempt: fits(plan(*attempt), device, attempt[1], free))
        if at == len(attempts):
            return []
        settings, ranks = attempts[at]
        words = [override(*settings)] * bool(settings) + [option("devices", ranks)] * (ranks != size)
        return [Change(" ".join(words), plan(settings, ranks))]

    def together(settings: list[str]) -> list[Change]:
        fewer = [([*settings, f"model.embedding_size={D}"], size) for D in narrower]
        return [*mildest([(settings, ranks) for ranks in [size, *wider]]), *mildest(fewer)]

    alone = [
        *(change for saving in savings for change in mildest([([saving], size)])),
        *mildest([([f"train.batch_size={batch}"], size) for batch in smaller if batch]),
        *mildest([([], ranks) for ranks in wider]),
        *mildest([([f"model.embedding_size={D}"], size) for D in narrower]),
        *(change for kind in lighter(recipe.model) for change in mildest([([each], size) for each in kind])),
    ]
    return alone or together(savings)


def smaller_model(model: ModelConfig) -> str:
    """What to do about a model that is too large, in words."""
    keys = type(model).model_fields
    if "embedding_size" in keys:
        return "lower model.embedding_size or model.layers" if "layers" in keys else "lower model.embedding_size"
    if "neighbours" not in keys:
        return ""
    another = "use a model that inverts no matrix, or " if "regularization" in keys else ""
    return f"{another}keep fewer weights of each item with model.neighbours={TRUNCATED_TO}"


def lighter(model: ModelConfig) -> list[list[str]]:
    """Settings that take less memory, by kind, the mildest of each kind first; as `--set` takes them.

    Fewer layers, unless each has its own type; gates half as wide, a quarter, … until the narrowest is 1; fewer weights
    of an item.
    """
    found = []
    if (layers := getattr(model, "layers", 0)) > 0 and getattr(model, "gate_types", None) is None:
        found.append([f"model.layers={K}" for K in range(layers - 1, 0, -1)])
    if (hidden := getattr(model, "gate_hidden", None)) is not None:
        times = range(1, min(hidden, default=1).bit_length())
        narrower = [",".join(str(width >> by) for width in hidden) for by in times]
        found.append([f"model.gate_hidden=[{widths}]" for widths in narrower])
    if model.solved and (kept := getattr(model, "neighbours", None)) is not None:
        now = kept or TRUNCATED_TO + 1
        found.append([f"model.neighbours={T}" for T in (TRUNCATED_TO, 200, 100, 50) if now > T])
    return found


def _widest(model: ModelConfig) -> int:
    """How many columns the widest table over all nodes has that training makes."""
    vectors = getattr(model, "vectors", 0)
    return vectors + EXTRA if vectors else model.columns


def fits(total: int, device: str, size: int, free: int) -> bool:
    """Whether `size` ranks of this peak fit. On CPU they share one memory; on CUDA each has a device's."""
    return total * (size if device == "cpu" else 1) <= free


def free_memory(device: torch.device) -> int:
    """Free bytes on a device."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    available: int = psutil.virtual_memory().available
    return available


def plainly_fits(recipe: Recipe, sizes: Sizes, device: torch.device) -> bool:
    """Whether a training is so small compared with the free memory that it needs no plan.

    A plan takes a second or two, because PyTorch first has to load what works on tensors without memory.
    """
    tables = 4 * (sizes.nodes + recipe.train.batch_size) * _widest(recipe.model)
    pairs = sizes.items**2 if recipe.model.solved else 0
    return PLENTY * (tables + sizes.edges) + PLENTY_OF_PAIRS * pairs < free_memory(device)


def leaves_much_free(recipe: Recipe, sizes: Sizes, device: torch.device, ranks: Ranks = ALONE) -> bool:
    """Whether memory that a training frees can be kept for it: a plan does not count that the heap then grows."""
    if plainly_fits(recipe, sizes, device):
        return True
    return fits(
        KEPT * remembered_plan(recipe, sizes, device.type, ranks).total, device.type, ranks.size, free_memory(device)
    )


def require_memory(plan: MemoryPlan, device: torch.device, model: ModelConfig) -> None:
    """Refuse a training that cannot fit, before anything is written."""
    free = free_memory(device)
    if plan.total > free:
        raise OutOfMemory(
            f"training needs about {readable(plan.total)} on {device}, and {readable(free)} is free",
            ", or ".join(filter(None, [smaller_model(model), "use a device with more memory"]))
            + "; hmlet plan says what fits",
        )
