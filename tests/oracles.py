"""The right answers: every model, metric and ranking once more, slowly, in float64 NumPy and plain loops.

Nothing of `hmlet` is imported. Models are dense matrix products that read as their papers' formulas, and take their
parameters as the arrays of a state dictionary.

Legend: N nodes, D embedding size, U users, I items, F factor size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from fractions import Fraction

import numpy as np

Array = np.ndarray
Parameters = Mapping[str, Array]
Pairs = Sequence[tuple[int, int]]
Choose = Callable[[Array], Array]  # a gate's logits (N × 2) -> the weights of its branches (N × 2)


# The graph


def adjacency(pairs: Pairs, n_users: int, n_items: int) -> Array:
    """A of the bipartite graph, users first: N × N."""
    dense_NN = np.zeros((n_users + n_items, n_users + n_items))
    for user, item in pairs:
        dense_NN[user, n_users + item] = dense_NN[n_users + item, user] = 1.0
    return dense_NN


def normalised(dense_NN: Array, self_loops: bool = False) -> Array:
    """D^-1/2 A D^-1/2, entry by entry; with self-loops of A + I. A node without edges has an empty row."""
    dense_NN = dense_NN + np.eye(len(dense_NN)) if self_loops else dense_NN
    degree_N = dense_NN.sum(axis=1)
    result_NN = np.zeros_like(dense_NN)
    for row, column in np.argwhere(dense_NN):
        result_NN[row, column] = 1.0 / math.sqrt(degree_N[row] * degree_N[column])
    return result_NN


# The models: every layer's embeddings, e⁰ first


def activation(name: str, slope: float) -> Callable[[Array], Array]:
    return {
        "elu": lambda x: np.where(x > 0, x, np.exp(np.minimum(x, 0)) - 1),
        "leaky-relu": lambda x: np.where(x > 0, x, slope * x),
        "relu": lambda x: np.maximum(x, 0),
        "tanh": np.tanh,
    }[name]


def softmax(logits_N2: Array, temperature: float = 1.0) -> Array:
    powers_N2 = np.exp((logits_N2 - logits_N2.max(axis=1, keepdims=True)) / temperature)
    return powers_N2 / powers_N2.sum(axis=1, keepdims=True)


def argmax(logits_N2: Array) -> Array:
    """One-hot rows; a tie goes to the linear branch, which is column 0."""
    return np.array([[0.0, 1.0] if nonlinear > linear else [1.0, 0.0] for linear, nonlinear in logits_N2])


def gate_logits(parameters: Parameters, layer: int, linear_ND: Array, nonlinear_ND: Array, batch_norm: bool) -> Array:
    """The MLP on eᴸ ‖ eᴺ: N × 2. `batch_norm` takes the batch's own statistics, else the running ones."""
    at = f"gates.{layer}"
    x = np.concatenate([linear_ND, nonlinear_ND], axis=1)
    depth = sum(name.startswith(f"{at}.dense.") for name in parameters)
    for step in range(depth):
        x = x @ parameters[f"{at}.dense.{step}"]
        if step == depth - 1:
            return x + parameters[f"{at}.bias"]
        mean = x.mean(axis=0) if batch_norm else parameters[f"{at}.norm.{step}.running_mean"]
        variance = x.var(axis=0) if batch_norm else parameters[f"{at}.norm.{step}.running_var"]
        x = (x - mean) / np.sqrt(variance + 1e-5)
        x = np.maximum(x * parameters[f"{at}.norm.{step}.weight"] + parameters[f"{at}.norm.{step}.bias"], 0)
    raise AssertionError("a gate has a layer")


def hmlet(
    parameters: Parameters,
    operator_NN: Array,
    types: Sequence[str],
    phi: Callable[[Array], Array],
    nonlinear_input: str,
    choose: Choose,
    batch_norm: bool = False,
) -> tuple[list[Array], dict[int, Array]]:
    """The layers eᴳ and each gate's logits. The non-linear stream is bypassed until a layer uses it."""
    gated_ND = parameters["embedding"]
    layers, logits = [gated_ND], {}
    bypassed = nonlinear_input == "bypassed"
    for layer, kind in enumerate(types, 1):
        linear_ND = operator_NN @ gated_ND
        if kind == "linear":
            gated_ND = linear_ND
        else:
            nonlinear_ND = phi(operator_NN @ (parameters["embedding"] if bypassed else gated_ND))
            bypassed = False
            if kind == "gated":
                logits[layer] = gate_logits(parameters, layer, linear_ND, nonlinear_ND, batch_norm)
                weight_N2 = choose(logits[layer])
                gated_ND = weight_N2[:, :1] * linear_ND + weight_N2[:, 1:] * nonlinear_ND
            else:
                gated_ND = nonlinear_ND
        layers.append(gated_ND)
    return layers, logits


def lightgcn(parameters: Parameters, operator_NN: Array, depth: int) -> list[Array]:
    return [np.linalg.matrix_power(operator_NN, layer) @ parameters["embedding"] for layer in range(depth + 1)]


def lrgccf(parameters: Parameters, operator_NN: Array, depth: int, transform: bool) -> list[Array]:
    layers = [parameters["embedding"]]
    for layer in range(depth):
        matrix_DD = parameters[f"transforms.{layer}"] if transform else np.eye(layers[0].shape[1])
        layers.append(operator_NN @ layers[-1] @ matrix_DD)
    return layers


def ngcf(parameters: Parameters, dense_NN: Array, depth: int, slope: float) -> list[Array]:
    """Messages one edge at a time, as the paper has them; then the sum, LeakyReLU and the length of one."""
    degree_N = dense_NN.sum(axis=1)
    hidden_ND = parameters["embedding"]
    layers = [hidden_ND]
    for layer in range(depth):
        by_sum, by_product = parameters[f"sums.{layer}"], parameters[f"products.{layer}"]
        bias = parameters[f"biases.{layer}"].sum(axis=0)
        message_ND = hidden_ND @ by_sum + bias
        for node, other in np.argwhere(dense_NN):
            both_D = hidden_ND[other] @ by_sum + (hidden_ND[other] * hidden_ND[node]) @ by_product
            message_ND[node] += both_D / math.sqrt(degree_N[node] * degree_N[other])
        hidden_ND = np.where(message_ND > 0, message_ND, slope * message_ND)
        layers.append(unit_rows(hidden_ND))
    return layers


def gcmc(parameters: Parameters, operator_NN: Array) -> Array:
    """The factors: N × F."""
    return np.maximum(operator_NN @ parameters["embedding"] @ parameters["convolution"], 0) @ parameters["dense"]


def pinsage(parameters: Parameters, depth: int) -> Array:
    """The factors, neighbour by neighbour: N × F."""
    hidden_ND = parameters["embedding"]
    for layer in range(depth):
        pooled_ND = np.zeros_like(hidden_ND)
        for node in range(len(hidden_ND)):
            for other, share in zip(parameters["neighbours_NT"][node], parameters["importance_NT"][node], strict=True):
                message_D = hidden_ND[other] @ parameters[f"near.{layer}"] + parameters[f"near_bias.{layer}"]
                pooled_ND[node] += share * np.maximum(message_D, 0)
        joined_ND = np.concatenate([hidden_ND, pooled_ND], axis=1) @ parameters[f"join.{layer}"]
        hidden_ND = unit_rows(np.maximum(joined_ND + parameters[f"join_bias.{layer}"], 0))
    return np.maximum(hidden_ND @ parameters["final.0"] + parameters["final_bias"], 0) @ parameters["final.1"]


def unit_rows(x_ND: Array) -> Array:
    """Each row at length one; a row of zeros stays."""
    return np.array([row / math.sqrt((row**2).sum()) if row.any() else row for row in x_ND])


def layerwise_scores(layers: Sequence[Array], n_users: int, beta: float) -> Array:
    """β Σ_i e_i,u · e_i,v by the double loop: U × I."""
    n_items = len(layers[0]) - n_users
    scores_UI = np.zeros((n_users, n_items))
    for user in range(n_users):
        for item in range(n_items):
            scores_UI[user, item] = beta * sum(float(layer[user] @ layer[n_users + item]) for layer in layers)
    return scores_UI


def mean_scores(layers: Sequence[Array], n_users: int) -> Array:
    """The dot product of averaged layers, as the double sum over pairs of layers: U × I."""
    scores_UI = np.zeros((n_users, len(layers[0]) - n_users))
    for of_user in layers:
        for of_item in layers:
            scores_UI += of_user[:n_users] @ of_item[n_users:].T / len(layers) ** 2
    return scores_UI


# WRMF


def wrmf_side(liked: Sequence[Sequence[int]], others_XD: Array, alpha: float, penalty: float) -> Array:
    """The least-squares factors of one side given the other's: the weighted normal equations, row by row."""
    solved = []
    for mine in liked:
        confidence_X = np.ones(len(others_XD))
        wanted_X = np.zeros(len(others_XD))
        confidence_X[list(mine)] = 1.0 + alpha
        wanted_X[list(mine)] = 1.0
        left_DD = others_XD.T @ np.diag(confidence_X) @ others_XD + penalty * np.eye(others_XD.shape[1])
        solved.append(np.linalg.solve(left_DD, others_XD.T @ (confidence_X * wanted_X)))
    return np.array(solved)


def wrmf_objective(pairs: Pairs, users_UD: Array, items_ID: Array, alpha: float, penalty: float) -> float:
    """Σ c (p - x · y)² + λ (‖X‖² + ‖Y‖²), cell by cell."""
    liked = set(pairs)
    total = penalty * float((users_UD**2).sum() + (items_ID**2).sum())
    for user, x_D in enumerate(users_UD):
        for item, y_D in enumerate(items_ID):
            known = (user, item) in liked
            total += (1.0 + alpha * known) * (float(known) - float(x_D @ y_D)) ** 2
    return total


# Ranking and metrics


def ranking(user_F: Array, items_IF: Array, k: int, hidden: Set[int] = frozenset()) -> list[int]:
    """The k best items by rational arithmetic, ties to the smaller item."""
    user = [Fraction(float(value)) for value in user_F]
    score = {
        item: sum((mine * Fraction(float(value)) for mine, value in zip(user, row, strict=True)), Fraction(0))
        for item, row in enumerate(items_IF)
        if item not in hidden
    }
    return sorted(score, key=lambda item: (-score[item], item))[:k]


def metrics(ranked: Sequence[int], relevant: Set[int], k: int) -> dict[str, float]:
    """Every metric of one user at k, rank by rank."""
    gain = precision_sum = first = found = 0.0
    for rank, item in enumerate(ranked[:k], 1):
        if item in relevant:
            found += 1
            gain += 1 / math.log2(rank + 1)
            precision_sum += found / rank
            first = first or 1 / rank
    reachable = min(k, len(relevant))
    return {
        "ndcg": gain / sum(1 / math.log2(rank + 1) for rank in range(1, reachable + 1)),
        "recall": found / len(relevant),
        "precision": found / k,
        "map": precision_sum / reachable,
        "mrr": first,
        "hit_rate": float(found > 0),
    }


# Edge dropout


def edge_hash(value: int) -> int:
    """The 32-bit mixing function in Python's own integers."""
    for shift, factor in ((16, 0x21F0AAAD), (15, 0xD35A2D97)):
        value = (value ^ (value >> shift)) * factor % 2**32
    return value ^ (value >> 15)


def hashed(number: int, key: int) -> int:
    """32 bits from a number and a key."""
    return edge_hash(number ^ edge_hash((key * 0x9E3779B9 + (key >> 32)) % 2**32))


def keeps(edge: int, rate: float, key: int) -> bool:
    return hashed(edge, key) >= min(round(rate * 2**32), 2**32 - 1)


# The closed forms: W of the binary interactions R (U × I), so that scores are R W


def item_knn(dense_UI: Array, neighbours: int, shrinkage: float) -> Array:
    """Shrunk cosines, of which each column keeps its largest."""
    shared_II = dense_UI.T @ dense_UI
    weights_II = np.zeros_like(shared_II)
    for j in range(len(shared_II)):
        cosine_I = np.zeros(len(shared_II))
        for i in range(len(shared_II)):
            if i != j and shared_II[i, j]:
                cosine_I[i] = shared_II[i, j] / (math.sqrt(shared_II[i, i] * shared_II[j, j]) + shrinkage)
        for i in np.argsort(-cosine_I, kind="stable")[:neighbours]:
            weights_II[i, j] = cosine_I[i]
    return weights_II


def ease(dense_UI: Array, penalty: float) -> Array:
    precision_II = np.linalg.inv(dense_UI.T @ dense_UI + penalty * np.eye(dense_UI.shape[1]))
    weights_II = -precision_II / np.diag(precision_II)[None, :]
    np.fill_diagonal(weights_II, 0.0)
    return weights_II


def _scaled(dense_UI: Array) -> Array:
    """R̃."""
    user_U, item_I = dense_UI.sum(axis=1), dense_UI.sum(axis=0)
    with np.errstate(divide="ignore"):
        user_U, item_I = (np.where(each > 0, each**-0.5, 0.0) for each in (user_U, item_I))
    return user_U[:, None] * dense_UI * item_I[None, :]


def _low_pass(scaled_UI: Array, vectors: int) -> Array:
    """V Vᵀ."""
    _, sigma, right = np.linalg.svd(scaled_UI)
    kept = right[: min(vectors, int((sigma > 1e-9).sum()))]
    return kept.T @ kept


def gf_cf(dense_UI: Array, vectors: int, alpha: float) -> Array:
    scaled_UI, degree_I = _scaled(dense_UI), dense_UI.sum(axis=0)
    root_I = np.sqrt(degree_I)
    inverse_I = np.where(degree_I > 0, 1.0 / np.where(degree_I > 0, root_I, 1.0), 0.0)
    return scaled_UI.T @ scaled_UI + alpha * inverse_I[:, None] * _low_pass(scaled_UI, vectors) * root_I[None, :]


def cheby_cf(dense_UI: Array, order: int, flatness: float, vectors: int, alpha: float, power: float) -> Array:
    """Through the eigenvectors of R̃ᵀR̃, and the polynomial through K + 1 points as a Lagrange interpolation."""
    scaled_UI, degree_I = _scaled(dense_UI), dense_UI.sum(axis=0)
    values_I, vectors_II = np.linalg.eigh(scaled_UI.T @ scaled_UI)
    nodes = [-math.cos((at + 0.5) / (order + 1) * math.pi) for at in range(order + 1)]
    wanted = []
    for at in range(order + 1):
        place = -math.cos(at / order * math.pi)
        wanted.append(0.5 + 0.5 * abs(place) ** flatness * (1 if place < 0 else -1))
    response_I = np.zeros(len(values_I))
    for at, value in enumerate(wanted):
        others = [node for index, node in enumerate(nodes) if index != at]
        response_I += value * np.prod([(1 - 2 * values_I - node) / (nodes[at] - node) for node in others], axis=0)
    filter_II = vectors_II @ np.diag(response_I) @ vectors_II.T + alpha * _low_pass(scaled_UI, vectors)
    known_I, degree_I = degree_I > 0, np.maximum(degree_I, 1.0)
    return np.outer(known_I * degree_I**-power, known_I * degree_I**power) * filter_II
