"""PageRank, betweenness and closeness of every node, for a whole block of sources at once.

Brandes' algorithm in matrix form: a block of B sources is an N × B matrix, a step of the breadth-first search is one
sparse product forward (how many shortest paths lead to a node) and one backward (how many of them lead on through it).
The graph is bipartite, so a level lies on one side alone, and a step multiplies with one half of the adjacency matrix.

Path counts grow exponentially with the distance. A block is computed in float32, where every operation adds or
multiplies positive numbers and so loses no digits; a block whose counts leave float32's range is computed again in
float64, each source's counts being divided by a power of two whenever they grow too large. What remains out of reach
is a level whose counts differ by a factor above 2^1900: the smaller ones are raised to the smallest that is told apart.

Shapes: N nodes, S nodes of the larger side, B sources of a block. Values are normalised as networkx does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from hmlet.errors import ConfigError
from hmlet.graph import Graph
from hmlet.graph.kernels import Operator, build_operator
from hmlet.system.progress import Advance, silent

Floats = npt.NDArray[np.float64]

DAMPING = 0.85
# The largest path count that is kept as it is; what it is multiplied with later (a degree, N) stays far in range.
LARGEST = {torch.float32: 2.0**96, torch.float64: 2.0**960}
SMALLEST = 2.0**-960
NOTHING = {torch.float32: 2.0**-120, torch.float64: 2.0**-1000}  # below every path count, above zero
# Per device: on a CPU a block's level should fit the cache, on a GPU a block should occupy the whole of it.
BLOCK = {"cpu": 32, "cuda": 1024}
# Beyond this many levels, one with few entries is kept as those: each node is in one level, so any graph fits memory.
DENSE = 16


@dataclass(frozen=True, eq=False)
class Centralities:
    """Per node: degree, PageRank, betweenness, closeness; standard errors where sources were sampled (else zeros).

    Closeness is NaN where no sampled source reaches the node; with all sources it is always a number.
    """

    degree: npt.NDArray[np.int64]
    pagerank: Floats
    betweenness: Floats
    closeness: Floats
    betweenness_error: Floats
    closeness_error: Floats
    sources: int

    @property
    def exact(self) -> bool:
        return self.sources == len(self.degree)


def centralities(
    graph: Graph,
    *,
    samples: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    block: int | None = None,
    advance: Advance = silent,
) -> Centralities:
    """All centralities of a graph: exact, or from `samples` sources drawn without replacement.

    `advance(done, total)` hears of the sources done so far.
    """
    sources = _draw(graph.n_nodes, samples, seed)
    sums = path_sums(graph, sources, device=device, block=block, advance=advance)
    betweenness, betweenness_error = _betweenness(sums, len(sources))
    closeness, closeness_error = _closeness(sums, component_sizes(graph), len(sources))
    return Centralities(
        graph.degree, pagerank(graph), betweenness, closeness, betweenness_error, closeness_error, len(sources)
    )


def _draw(n_nodes: int, samples: int | None, seed: int) -> npt.NDArray[np.int64]:
    if samples is None or samples >= n_nodes:
        return np.arange(n_nodes)
    if samples < 2:
        raise ConfigError(f"{samples} sampled sources give no error estimate", "sample at least 2, better hundreds")
    return np.sort(np.random.default_rng(seed).choice(n_nodes, samples, replace=False))


@dataclass(frozen=True, eq=False)
class PathSums:
    """Per node, over the sources s: Σ of dependencies δ_s, of distances, of the squares of both, and counts."""

    dependency: Floats
    dependency_squared: Floats
    distance: Floats
    distance_squared: Floats
    reached_by: Floats  # how many other sources reach the node


def path_sums(
    graph: Graph,
    sources: npt.NDArray[np.int64],
    *,
    device: torch.device | str = "cpu",
    block: int | None = None,
    advance: Advance = silent,
) -> PathSums:
    """What betweenness and closeness are made of, summed over the sources (ascending node numbers)."""
    device = torch.device(device)
    block = block or BLOCK.get(device.type, BLOCK["cpu"])
    sizes = component_sizes(graph)
    halves = {dtype: _halves(graph, device, dtype) for dtype in LARGEST}
    total = _Totals.zeros(halves[torch.float32].sides[0].n_nodes, device)
    split = int(np.searchsorted(sources, graph.n_users))
    done = 0
    for side, chosen in enumerate((sources[:split], sources[split:] - graph.n_users)):
        for start in range(0, len(chosen), block):
            roots = torch.from_numpy(chosen[start : start + block]).to(device)
            reach = int(sizes[chosen[start : start + block] + side * graph.n_users].sum())
            levels = _search(halves[torch.float32], side, roots, reach) or _search(
                halves[torch.float64], side, roots, reach
            )
            assert levels is not None
            total.add(halves[levels[0].counts.dtype], side, levels)
            done += len(roots)
            advance(done, len(sources))
    return total.collect(graph)


@dataclass(frozen=True)
class _Halves:
    """The adjacency matrix's halves: sides[s] sums, for each node of side s, over its neighbours on the other side."""

    sides: tuple[Operator, Operator]
    dtype: torch.dtype
    degree: int  # the largest: the most that a step multiplies a path count with


def _halves(graph: Graph, device: torch.device | str, dtype: torch.dtype) -> _Halves:
    """The halves of a graph, with weights of 1.

    The product is for square matrices, so the smaller side is filled up with nodes that have no edge.
    """
    n_users, n_edges, size = graph.n_users, graph.n_edges, max(graph.n_users, graph.n_items)

    def half(
        indptr: npt.NDArray[np.int64], neighbours: npt.NDArray[np.int32], edges: npt.NDArray[np.int32]
    ) -> Operator:
        filled = np.concatenate([indptr, np.full(size + 1 - len(indptr), n_edges)])
        ones = np.ones(size, dtype=np.float32)
        return build_operator(filled, neighbours, edges, ones, device, dtype=dtype)

    sides = (
        half(graph.indptr[: n_users + 1], graph.neighbours[:n_edges] - n_users, graph.edges[:n_edges]),
        half(graph.indptr[n_users:] - n_edges, graph.neighbours[n_edges:], graph.edges[n_edges:]),
    )
    return _Halves(sides, dtype, int(graph.degree.max()))


class _Level:
    """The path counts of the nodes at one distance from their sources (S × B, zero elsewhere), dense or as entries."""

    def __init__(self, counts_SB: Tensor, shift_B: Tensor | None, reached_S: Tensor, sparse: bool) -> None:
        self.shift_B = shift_B  # what this level's counts were divided by beyond the level before; None is 1
        self.reached_S = reached_S  # how many of the sources have the node at this distance
        self.shape = counts_SB.shape
        self.where = counts_SB.view(-1).nonzero().squeeze(1) if sparse else None
        self.counts = counts_SB if self.where is None else counts_SB.view(-1)[self.where]

    def dense(self) -> Tensor:
        if self.where is None:
            return self.counts
        counts = torch.zeros(self.shape.numel(), dtype=self.counts.dtype, device=self.counts.device)
        counts[self.where] = self.counts
        return counts.view(self.shape)


def _search(halves: _Halves, side: int, roots: Tensor, reach: int) -> list[_Level] | None:
    """The levels of a breadth-first search from B roots of one side; None where path counts leave the type's range.

    `reach` is the sum of the roots' component sizes: the search ends when all of their nodes are found.
    """
    dtype = halves.dtype
    # Minus the counts of all levels so far: zero is "not found yet".
    negative = [torch.zeros(half.n_nodes, len(roots), dtype=dtype, device=roots.device) for half in halves.sides]
    ones_B = torch.ones(len(roots), dtype=dtype, device=roots.device)
    counts_SB = torch.zeros_like(negative[side])
    counts_SB[roots, torch.arange(len(roots), device=roots.device)] = 1.0
    levels: list[_Level] = []
    largest, shift_B = 1.0, None
    while True:
        negative[side] -= counts_SB
        reached_S = torch.sign(counts_SB) @ ones_B
        reached = int(reached_S.sum(dtype=torch.float64))
        reach -= reached
        levels.append(_Level(counts_SB, shift_B, reached_S, len(levels) >= DENSE and reached < counts_SB.numel() / 16))
        if not reach:
            return levels
        side = 1 - side
        counts_SB = _keep(halves.sides[side].product(counts_SB), negative[side], -NOTHING[dtype])
        largest, shift_B = largest * halves.degree, None
        if largest > LARGEST[dtype]:  # by the bound; now by the numbers
            largest = float(counts_SB.max())
            if largest > LARGEST[dtype]:
                if dtype is torch.float32:
                    return None
                shift_B = _rescale(counts_SB)
                largest = 2.0


def _keep(values: Tensor, where: Tensor, above: float) -> Tensor:
    """The values where `where` > `above`, else zeros: one fused pass, which PyTorch has as ReLU's backward."""
    kept: Tensor = torch.ops.aten.threshold_backward(values, where, above)
    return kept


def _rescale(counts_SB: Tensor) -> Tensor:
    """The powers of two that bring each source's largest count below 2; the counts are divided by them in place."""
    positive = counts_SB > 0
    shift_B = torch.exp2(torch.floor(torch.log2(counts_SB.amax(0).clamp_min(1.0))))
    counts_SB /= shift_B
    counts_SB.clamp_min_(SMALLEST).masked_fill_(~positive, 0.0)
    return shift_B


@dataclass
class _Totals:
    """Running sums per side, in float64: [users, items] of each."""

    dependency: list[Tensor]
    dependency_squared: list[Tensor]
    distance: list[Tensor]
    distance_squared: list[Tensor]
    reached_by: list[Tensor]

    @classmethod
    def zeros(cls, size: int, device: torch.device) -> _Totals:
        def pair() -> list[Tensor]:
            return [torch.zeros(size, dtype=torch.float64, device=device) for _ in range(2)]

        return cls(pair(), pair(), pair(), pair(), pair())

    def add(self, halves: _Halves, side: int, levels: list[_Level]) -> None:
        """Add one block, from its farthest level inwards: δ_v = σ_v Σ (1 + δ_w) / σ_w over v's successors w."""
        ones_B = torch.ones(levels[0].shape[1], dtype=levels[0].counts.dtype, device=levels[0].counts.device)
        lead_SB: Tensor | None = None  # (1 + δ_w) / σ_w of the level beyond: what each of w's predecessors gets a path
        for depth in range(len(levels) - 1, 0, -1):
            level, at = levels[depth], (side + depth) % 2
            counts_SB = level.dense()
            own_SB = counts_SB.reciprocal()  # infinite off the level, where nothing is kept
            if lead_SB is not None:
                through_SB = halves.sides[at].product(lead_SB)
                dependency_SB = through_SB * counts_SB
                self.dependency[at] += dependency_SB @ ones_B
                self.dependency_squared[at] += dependency_SB.square_() @ ones_B
                own_SB += through_SB
            lead_SB = _keep(own_SB, counts_SB, 0.0)
            if level.shift_B is not None:
                lead_SB /= level.shift_B
            self.reached_by[at] += level.reached_S
            self.distance[at] += depth * level.reached_S
            self.distance_squared[at] += depth * depth * level.reached_S

    def collect(self, graph: Graph) -> PathSums:
        """The sums of all nodes, users first, without those that only filled a side up."""
        parts = (self.dependency, self.dependency_squared, self.distance, self.distance_squared, self.reached_by)
        return PathSums(
            *(torch.cat([users[: graph.n_users], items[: graph.n_items]]).cpu().numpy() for users, items in parts)
        )


def component_sizes(graph: Graph) -> npt.NDArray[np.int64]:
    """For each node, how many nodes its connected component has, itself included."""
    ones = np.ones(len(graph.neighbours), dtype=np.int8)
    matrix = csr_array((ones, graph.neighbours, graph.indptr), shape=(graph.n_nodes, graph.n_nodes))
    _, label = connected_components(matrix, directed=False)
    sizes: npt.NDArray[np.int64] = np.bincount(label)[label]
    return sizes


def _betweenness(sums: PathSums, n_sources: int) -> tuple[Floats, Floats]:
    """Σ_s δ_s(v) / ((N - 1)(N - 2)), scaled up from the sample, and the standard error of that.

    A node is never its own source's intermediary, so δ over a sample is a sample of N values, one of them zero.
    """
    n = len(sums.dependency)
    scale = n / n_sources / max((n - 1) * (n - 2), 1)
    spread = _variance(sums.dependency, sums.dependency_squared, np.full(n, float(n_sources)))
    error = scale * np.sqrt(n_sources * spread * (1 - n_sources / n))
    return sums.dependency * scale, error


def _closeness(sums: PathSums, sizes: npt.NDArray[np.int64], n_sources: int) -> tuple[Floats, Floats]:
    """(c - 1) / (N - 1) / (mean distance to the other c - 1 nodes of the component), and the standard error of that."""
    n, heard = len(sizes), sums.reached_by
    others = sizes - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = sums.distance / heard
        closeness = np.where(others > 0, others / max(n - 1, 1) / mean, 0.0)
        sampled = np.clip(1 - heard / others, 0, None)
        spread = _variance(sums.distance, sums.distance_squared, heard)
        relative = np.sqrt(spread * sampled / heard) / mean
        error = np.where(others > 0, closeness * relative, 0.0)
    return closeness, (np.zeros(n) if n_sources == n else error)


def _variance(total: Floats, squared: Floats, count: Floats) -> Floats:
    """The unbiased variance from Σx, Σx² and the number of x; one value alone has none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.clip((squared - total * total / count) / (count - 1), 0, None)


def pagerank(graph: Graph, *, damping: float = DAMPING, tolerance: float = 1e-12, limit: int = 1000) -> Floats:
    """The stationary visits of a walker who follows a random edge with probability `damping` and restarts otherwise.

    A walker on a node without edges restarts too. The sum is 1.
    """
    n = graph.n_nodes
    walk = _halves(graph, "cpu", torch.float64).sides
    degree = torch.from_numpy(graph.degree).double()
    share = torch.where(degree > 0, degree.clamp_min(1.0).reciprocal(), 0.0)
    rank = torch.full((n,), 1 / n, dtype=torch.float64)
    for _ in range(limit):
        leaving = (rank * share)[:, None]
        to_users, to_items = leaving[graph.n_users :], leaving[: graph.n_users]
        followed = torch.cat(
            [walk[0].product(to_users)[: graph.n_users], walk[1].product(to_items)[: graph.n_items]]
        ).squeeze(1)
        dangling = rank[degree == 0].sum()
        after = damping * (followed + dangling / n) + (1 - damping) / n
        change = float((after - rank).abs().sum())
        rank = after
        if change < tolerance:
            break
    return np.asarray(rank.numpy(), dtype=np.float64)
