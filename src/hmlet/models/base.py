"""The contract of a model. Everything that other packages need to know about a model is declared here.

A model scores in one of two ways (decision 0012): by the dot product of a user's and an item's factor, which its layers
become, or by item-item weights, which the items of a user's history add up.

What can be said before there is a graph, its config says: how deep it is, whether it is solved. What needs tensors, its
module says: how it propagates, which tensors have one row per node, how fold-in works.

Legend: U users, I items, N = U + I nodes, D embedding size, S neighbours of a new node, F factor size.
Models take tensors and return tensors. They know no file, no epoch count and no global device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from hmlet.data import Csr
from hmlet.graph import Graph
from hmlet.graph.kernels import Product as Product
from hmlet.graph.layers import Joined as Joined
from hmlet.graph.layers import Layers as Layers
from hmlet.system.ranks import ALONE, Ranks
from hmlet.system.section import Depth, Section

Side = Literal["user", "item"]


class Defaults(NamedTuple):
    """What a model tells the default rule."""

    step_share: float = 0.25  # of the rule's step size: dense layers and narrow sums bear less
    losses: tuple[str, ...] = ()  # that training compares on validation before it takes one


class ModelConfig(Section):
    """What every model has, and what is known of it before there is a graph."""

    family: ClassVar[str]  # the name of its files among the recipes
    solved: ClassVar[bool] = False  # an epoch is one `Solved.solve`, in one process, instead of steps on a loss
    defaults: ClassVar[Defaults] = Defaults()

    if TYPE_CHECKING:  # each model declares its own names, last among its fields
        name: str

    @property
    def columns(self) -> int:
        """How many columns the embeddings have, which ranks may share."""
        return 1

    @property
    def depth(self) -> int:
        """How many layers follow e⁰."""
        return 0


class EmbeddingConfig(ModelConfig):
    """What every model that learns an embedding for each node has."""

    embedding_size: PositiveInt = 64
    """D, the length of a node's embedding."""
    initial_deviation: PositiveFloat = 0.1
    """Standard deviation of the embeddings before training: 0.1 in the authors' program."""
    start: Literal["random", "spectral"] = "random"
    """e⁰ before training: random numbers, or the leading singular vectors of the normalised interactions."""

    @property
    def columns(self) -> int:
        return self.embedding_size


class GraphModelConfig(EmbeddingConfig):
    """What every model that propagates over the graph has."""

    layers: Depth = 4
    """K, how many times embeddings are propagated."""

    @property
    def depth(self) -> int:
        return self.layers


@dataclass(frozen=True)
class Pass:
    """What one forward pass may depend on beside the parameters.

    A finished model passes without noise and without dropout.
    """

    noise: torch.Generator | None = None  # Gumbel noise on the gates' logits is drawn from this
    dropout: torch.Generator | None = None
    temperature: float | Tensor = 1.0
    hard: bool = True  # one-hot gates with soft gradients, or soft gates
    ranks: Ranks = ALONE  # who has the other columns of every N × D matrix


NOISE_FREE = Pass()
"""The pass of a finished model."""


class FoldInRule(NamedTuple):
    """How the factor of a new node follows from those of its neighbours alone."""

    solve: Callable[[Tensor], Tensor]  # the neighbours' factors, S × D in float64 -> the new node's, D
    rescaled: bool = False  # whether the result is scaled to the length that training gives
    nobody: float = 0.0  # every number of the factor of someone without neighbours


class NodeTensor(NamedTuple):
    """A tensor with rows of their own for nodes."""

    shape: tuple[int, ...]
    rows: Literal["nodes", "users", "items"] = "nodes"
    redrawn: bool = False  # whether another graph makes it anew, and nothing of it is learned


class ItemWeights(NamedTuple):
    """W of an item-item model: item j scores Σ W_ij over the items i of a user's history."""

    values: Tensor  # float32: W itself, I × I, or its non-zero entries row by row
    items: Tensor  # int32: the item j of each of these entries; empty where W is whole
    offsets: Tensor  # int64: where each row begins among them, and where the last one ends; empty where W is whole

    @property
    def sparse(self) -> bool:
        return len(self.offsets) > 0


class Views(NamedTuple):
    """What an auxiliary term of the loss may look at."""

    layers: Layers
    another: Callable[..., Layers]  # one more pass, over a graph that is thinned anew: by a rate, or as for this step
    nodes: Callable[[], Tensor]  # the batch's rows among all nodes, with repetitions


class Model(nn.Module, ABC):
    """A recommender whose every score is the dot product of a user's and an item's factor, or a sum of item weights.

    What only some models have is a capability: `Gated`, `Solved`, `ItemWeighted`.
    """

    Config: ClassVar[type[ModelConfig]]
    self_loops: ClassVar[bool] = False  # whether Â is normalised with self-loops
    propagated: ClassVar[Literal["layers", "hidden"] | None] = "layers"
    """What its i-th product with Â multiplies: the i-th layer that is read out, something else, or nothing."""
    joined: Joined = Joined("mean")  # how the layers become a factor

    def __init__(self, config: EmbeddingConfig, graph: Graph, generator: torch.Generator) -> None:
        super().__init__()
        self.config: ModelConfig = config
        self.n_users, self.n_items = graph.n_users, graph.n_items
        initial_ND = torch.empty(graph.n_nodes, config.embedding_size)
        initial_ND.normal_(0.0, config.initial_deviation, generator=generator)
        self.embedding: Tensor = nn.Parameter(initial_ND)

    @abstractmethod
    def propagate(self, product: Product, how: Pass) -> Layers:
        """Every layer's embeddings, e⁰ first, joined as this model joins them: `return self.readout(layers, how)`."""

    def readout(
        self, layers: Sequence[Tensor], how: Pass = NOISE_FREE, gates: Mapping[int, Tensor] | None = None
    ) -> Layers:
        """The layers with how they are joined, and what the gates chose: the probability of the non-linear branch."""
        return Layers(layers, self.embedding, self.n_users, gates or {}, self.joined, how.ranks)

    def auxiliary(self, views: Views, how: Pass) -> Tensor | None:
        """A further term of the loss, weighted as it should count: the agreement of two views, say.

        Of several ranks each returns the whole term, which `how.ranks` helps to add up.
        """
        return None

    def node_tensors(self, n_users: int, n_items: int) -> dict[str, NodeTensor]:
        """The tensors of the state that have rows of their own for nodes, by name, as so many nodes would have them."""
        return {"embedding": NodeTensor((n_users + n_items, self.embedding.shape[1]))}

    def fold_in(self, side: Side, others_ND: Tensor) -> FoldInRule | None:
        """How a node of a side that was not trained gets its factor from its neighbours', given all nodes of theirs.

        None: e⁰ by ridge regression from what the neighbours send, and then the model's own propagation.
        """
        return None


# -- capabilities -----------------------------------------------------------------------------------------------------


class GatedConfig(ABC):
    """What the settings of a model that may have gates say of them."""

    @property
    @abstractmethod
    def gated(self) -> bool:
        """Whether nodes choose a branch, so that a run has gates to analyse."""

    @property
    @abstractmethod
    def warmup(self) -> int:
        """Epochs at the start in which every parameter but e⁰ rests."""

    @abstractmethod
    def over(self, share: float) -> Self:
        """These settings for training of `share` as many epochs: what follows epochs follows the new number."""

    @abstractmethod
    def continued(self, epochs: int) -> Self:
        """These settings for training that continues after so many epochs."""


class Gated(ABC):
    """A model whose nodes choose between two branches, by gates with a temperature; its config is a `GatedConfig`."""

    @abstractmethod
    def temperature(self, epoch: int) -> float:
        """τ of a training epoch."""

    @abstractmethod
    def training_pass(self, temperature: float | Tensor, generator: torch.Generator) -> Pass:
        """The pass of a training step."""

    @abstractmethod
    def ranking_pass(self, epoch: int, generator: torch.Generator) -> Pass:
        """The pass that makes the factors of the model as it is in an epoch; noise only if the recipe asks for it."""

    def noisy_pass(self, epoch: int, generator: torch.Generator) -> Pass:
        """The authors' way to rank: a hard choice under fresh noise, at an epoch's temperature."""
        return Pass(noise=generator, temperature=self.temperature(epoch))


def resting_epochs(config: ModelConfig) -> int:
    """Epochs at the start in which every parameter but e⁰ rests."""
    return config.warmup if isinstance(config, GatedConfig) else 0


def temperature(model: Model, epoch: int) -> float:
    """τ of a training epoch; 1 for a model without gates."""
    return model.temperature(epoch) if isinstance(model, Gated) else 1.0


def training_pass(model: Model, temperature: float | Tensor, generator: torch.Generator) -> Pass:
    """The pass of a training step."""
    return model.training_pass(temperature, generator) if isinstance(model, Gated) else Pass(dropout=generator)


def ranking_pass(model: Model, epoch: int, generator: torch.Generator) -> Pass:
    """The pass that makes the factors of the model as it is in an epoch."""
    return model.ranking_pass(epoch, generator) if isinstance(model, Gated) else NOISE_FREE


class Solved(ABC):
    """A model that is solved, one solution an epoch; its config says so (`ModelConfig.solved`)."""

    @abstractmethod
    def solve(self, train: Csr) -> float:
        """One epoch; returns its loss, or 0 if it has none."""

    def peak_bytes(self, n_edges: int) -> int:
        """What `solve` holds at once beyond the parameters."""
        return 0


class ItemWeighted(ABC):
    """A model whose scores are sums of item-item weights instead of dot products of factors."""

    @abstractmethod
    def item_weights(self) -> ItemWeights:
        """W."""


# -- layers -----------------------------------------------------------------------------------------------------------


def by_rows(dense: Callable[[Tensor], Tensor], x_ND: Tensor, how: Pass) -> Tensor:
    """A dense layer, which needs all columns of a row, of embeddings whose columns ranks may share."""
    return how.ranks.columns(dense(how.ranks.rows(x_ND)), len(x_ND))


def dropout(x_MD: Tensor, rate: float, how: Pass, n_nodes: int) -> Tensor:
    """x with each entry zeroed with probability `rate` and the rest scaled up; x itself where the pass has no dropout.

    The draws are those of all nodes, whichever of them are the rank's own.
    """
    if how.dropout is None or rate == 0.0:
        return x_MD
    # Comparing uniform numbers is three times as fast on CPU as drawing Bernoulli ones.
    kept_ND = torch.rand(n_nodes, x_MD.shape[1], generator=how.dropout, device=x_MD.device) >= rate
    return x_MD * kept_ND[how.ranks.own_rows(n_nodes)] * (1.0 / (1.0 - rate))


def glorot(rows: int, columns: int, generator: torch.Generator) -> nn.Parameter:
    """A weight matrix, uniform in ± sqrt(6 / (rows + columns))."""
    bound = (6.0 / (rows + columns)) ** 0.5
    return nn.Parameter(torch.empty(rows, columns).uniform_(-bound, bound, generator=generator))
