"""Why an item is recommended to a user: the score taken apart, as numbers and as a sentence.

Two ways to add up to the same score:
- by layer: a readout is linear in the layers, so the user's factor is a sum of one part a layer, and the score is the
  sum of those parts' dot products with the item's factor;
- by item: what the score loses when one of the user's training items had not been there (exact, through fold-in), and
  the remainder, which is what the user's own embedding holds and what the items only have together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hmlet.data import Dataset, Vocabulary
from hmlet.recommend.foldin import FoldIn

MOST_NAMED = 3  # items that the sentence names


def explanation(fold: FoldIn, data: Dataset, user: int, item: int) -> dict[str, Any]:
    """The score of an item for a user (by index), split by layer and by the user's items, with the users' own ids."""
    parts = _by_layer(fold, user, item)
    carried, score = _by_item(fold, user, item)
    result: dict[str, Any] = {
        "user": data.users.id(user),
        "item": data.items.id(item),
        **({} if data.items.names is None else {"name": data.items.name(item)}),
        "score": score,
        "seen": bool(np.isin(item, fold.own_items(user))),
        "layers": [{"layer": layer, "contribution": part} for layer, part in enumerate(parts)],
        "gates": _gates(fold, user, item),
        "carried_by": [_carrier(data.items, at, part) for at, part in carried],
        "remainder": score - sum(part for _, part in carried),
    }
    return {**result, "sentence": sentence(result)}


def _by_layer(fold: FoldIn, user: int, item: int) -> list[float]:
    """Each of the user's layers' share of the score; their sum is the score."""
    layers_1D = [layer_ND[user][None] for layer_ND in fold.layers]
    item_F = fold.factor(fold.graph.n_users + item).double()
    parts = []
    for at in range(len(layers_1D)):
        alone = [layer if layer is layers_1D[at] else torch.zeros_like(layer) for layer in layers_1D]
        parts.append(float(fold.model.layers(alone).factors()[0].double() @ item_F))
    return parts


def _by_item(fold: FoldIn, user: int, item: int) -> tuple[list[tuple[int, float]], float]:
    """What each of the user's items brings to the score, the largest first, and the score."""
    own, item_F = fold.own_items(user), fold.factor(fold.graph.n_users + item).double()
    score = float(fold.factor(user).double() @ item_F)
    without_BF = fold.edited_user(user, [np.delete(own, at) for at in range(len(own))])
    lost = score - (without_BF.double() @ item_F).numpy()
    order = np.argsort(-lost, kind="stable")
    return [(int(own[at]), float(lost[at])) for at in order], score


def _gates(fold: FoldIn, user: int, item: int) -> list[dict[str, Any]]:
    """The branch that the gate of each gated layer chose for both nodes, with that branch's probability."""
    chosen = fold.gates
    if chosen is None:
        return []

    def choice(node: int, at: int) -> dict[str, Any]:
        p = float(chosen.probability_NL[node, at])
        branch, probability = ("non-linear", p) if chosen.nonlinear_NL[node, at] else ("linear", 1 - p)
        return {"branch": branch, "probability": probability}

    return [
        {"layer": layer, "user": choice(user, at), "item": choice(fold.graph.n_users + item, at)}
        for at, layer in enumerate(chosen.layers)
    ]


def _carrier(items: Vocabulary, index: int, contribution: float) -> dict[str, Any]:
    name = {} if items.names is None else {"name": items.name(index)}
    return {"item": items.id(index), **name, "contribution": contribution}


def sentence(parts: dict[str, Any]) -> str:
    """An explanation in words."""
    sign = 1 if parts["score"] > 0 else -1
    layer = max(parts["layers"], key=lambda each: sign * float(each["contribution"]))["layer"]
    owned = " (the user already has it)" if parts["seen"] else ""
    words = f"{_readable(parts)} scores {parts['score']:.3g} for {parts['user']}{owned}{_reason(parts, sign)}"
    if len(parts["layers"]) > 1:
        words += f"; layer {layer} carries the largest part"
    for gate in parts["gates"][-1:]:
        user, item = gate["user"], gate["item"]
        words += (
            f", and at layer {gate['layer']} the gate chose the {user['branch']} branch for the user"
            f" ({user['probability']:.0%}) and the {item['branch']} one for the item ({item['probability']:.0%})"
        )
    return words + "."


def _reason(parts: dict[str, Any], sign: int) -> str:
    """The items that speak most for a positive score, or against another one, and how much of it they are together."""
    if not parts["carried_by"]:
        return ", who has no training items, so that no item explains it"
    side, score = "for" if sign > 0 else "against", parts["score"]
    speaking = [each for each in parts["carried_by"][::sign] if sign * each["contribution"] > 0]
    if not speaking:
        return f", although none of the user's items speaks {side} it"
    named = speaking[:MOST_NAMED]
    listed = _joined([f"{_readable(each)} ({each['contribution']:+.3g})" for each in named])
    words = f": {listed} speak{'s' * (len(named) == 1)}{' most' * (len(speaking) > len(named))} {side} it"
    if score == 0:
        return words
    share = sum(each["contribution"] for each in named) / score
    others = "other items and " * (len(parts["carried_by"]) > len(named))
    balance = "the rest is" if share <= 1 else "balanced by"
    return (
        f"{words}, {share:.0%} of the score{' together' * (len(named) > 1)}, {balance} {others}the user's own embedding"
    )


def _readable(each: dict[str, Any]) -> str:
    """What a person calls an item: its id, or its name where the id is only a number."""
    return str(each["name"]) if isinstance(each["item"], int) and each.get("name") else str(each["item"])


def _joined(words: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
