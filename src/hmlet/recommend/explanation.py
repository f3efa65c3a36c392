"""Why an item is recommended to a user: the score taken apart, as numbers and in words.

Two ways to add up to the same score:
- by layer: a readout is linear in the layers, so the user's factor is a sum of one part per layer, and the score is the
  sum of those parts' dot products with the item's factor;
- by item: what the score loses without one of the user's training items (exact, through fold-in), and the remainder,
  which is what the user's own embedding holds and what the items only bring together.
What an item's popularity adds to its scores, if a loss asks for that, is a part of its own both ways.
An item-item model has one layer, and its items' parts are weights that add up to the score without a remainder.
"""

from __future__ import annotations

from typing import Literal, TypedDict

import numpy as np

from hmlet.data import Dataset
from hmlet.data.interactions import Id
from hmlet.recommend.foldin import FoldIn
from hmlet.recommend.histories import HistoryFold
from hmlet.recommend.naming import NamedItem, named_item
from hmlet.system.spelling import enumerated

MOST_NAMED = 3  # items that the sentence names


class Carrier(NamedItem):
    """One of the user's items, and what the score loses without it."""

    contribution: float


class LayerPart(TypedDict):
    """One layer's part of the score."""

    layer: int
    contribution: float


class BranchChoice(TypedDict):
    """The branch that a gate chose for a node, with that branch's probability."""

    branch: Literal["linear", "non-linear"]
    probability: float


class GateChoices(TypedDict):
    """What the gate of one layer chose for both nodes."""

    layer: int
    user: BranchChoice
    item: BranchChoice


class Parts(NamedItem):
    """The score of an item for a user, taken apart."""

    user: Id
    score: float
    seen: bool  # the user already has the item
    layers: list[LayerPart]
    gates: list[GateChoices]
    from_popularity: float  # what the item's popularity adds, for every user alike
    carried_by: list[Carrier]  # the largest contribution first, whatever its sign
    remainder: float


class Explanation(Parts):
    """The parts of a score and the sentence that sums them up; `hmlet explain --json` prints it as it is."""

    sentence: str


def explanation(fold: FoldIn | HistoryFold, data: Dataset, user: int, item: int) -> Explanation:
    """The score of an item for a user (by index), split by layer and by the user's items, with the users' own ids."""
    if isinstance(fold, HistoryFold):
        carried, score, remainder = fold.by_item(user, item), fold.score(user, item), 0.0
        layers: list[LayerPart] = [{"layer": 0, "contribution": score}]
        gates: list[GateChoices] = []
        added = 0.0
    else:
        carried, score = _by_item(fold, user, item)
        added = fold.scores.scoring.from_popularity(fold.factor(fold.graph.n_users + item))
        remainder = score - added - sum(part for _, part in carried)
        layers, gates = _by_layer(fold, user, item), _gates(fold, user, item)
    parts: Parts = {
        "user": data.users.id(user),
        **named_item(data.items, item),
        "score": score,
        "seen": bool(np.isin(item, fold.own_items(user))),
        "layers": layers,
        "gates": gates,
        "from_popularity": added,
        "carried_by": [{**named_item(data.items, at), "contribution": part} for at, part in carried],
        "remainder": remainder,
    }
    return {**parts, "sentence": sentence(parts)}


def _by_layer(fold: FoldIn, user: int, item: int) -> list[LayerPart]:
    """Each of the user's layers' part of the score; their sum is the score without what popularity adds."""
    item_F = fold.factor(fold.graph.n_users + item).double()
    shares = fold.scores(fold.model.readout([layer_ND[user][None] for layer_ND in fold.layers])).parts()
    parts = [float(share_1D[0].double() @ item_F[: share_1D.shape[1]]) for share_1D in shares]
    return [{"layer": at, "contribution": part} for at, part in enumerate(parts)]


def _by_item(fold: FoldIn, user: int, item: int) -> tuple[list[tuple[int, float]], float]:
    """What each of the user's items brings to the score, the largest first, whatever its sign; and the score."""
    own, item_F = fold.own_items(user), fold.factor(fold.graph.n_users + item).double()
    score = float(fold.factor(user).double() @ item_F)
    without_BF = fold.edited_user(user, [np.delete(own, at) for at in range(len(own))])
    lost = score - (without_BF.double() @ item_F).numpy()
    order = np.argsort(-np.abs(lost), kind="stable")
    return [(int(own[at]), float(lost[at])) for at in order], score


def _gates(fold: FoldIn, user: int, item: int) -> list[GateChoices]:
    """What the gate of each gated layer chose for both nodes."""
    chosen = fold.gates
    if chosen is None:
        return []

    def choice(node: int, at: int) -> BranchChoice:
        p = float(chosen.probability_NL[node, at])
        if chosen.nonlinear_NL[node, at]:
            return {"branch": "non-linear", "probability": p}
        return {"branch": "linear", "probability": 1 - p}

    return [
        {"layer": layer, "user": choice(user, at), "item": choice(fold.graph.n_users + item, at)}
        for at, layer in enumerate(chosen.layers)
    ]


def sentence(parts: Parts) -> str:
    """An explanation in a few plain sentences."""
    sign = 1 if parts["score"] > 0 else -1
    owned = " (the user already has it)" if parts["seen"] else ""
    said = [f"{_readable(parts)} scores {parts['score']:.3g} for {parts['user']}{owned}", *_reasons(parts, sign)]
    if len(parts["layers"]) > 1:
        layer = max(parts["layers"], key=lambda each: sign * each["contribution"])["layer"]
        said.append(f"Layer {layer} contributes most")
    for gate in parts["gates"][-1:]:
        user, item = gate["user"], gate["item"]
        said.append(
            f"At layer {gate['layer']} the gate chose the {user['branch']} branch for the user"
            f" ({user['probability']:.0%}) and the {item['branch']} one for the item ({item['probability']:.0%})"
        )
    return ". ".join(said) + "."


def _reasons(parts: Parts, sign: int) -> list[str]:
    """Which of the user's items raise a positive score most, or lower another one, their share of it, and the rest."""
    if not parts["carried_by"]:
        return ["The user has no training items that could explain it"]
    verb, score = "raise" if sign > 0 else "lower", parts["score"]
    moving = [each for each in parts["carried_by"] if sign * each["contribution"] > 0]
    if not moving:
        return [f"None of the user's items {verb}s the score"]
    named = moving[:MOST_NAMED]
    listed = enumerated([f"{_readable(each)} ({each['contribution']:+.3g})" for each in named])
    if len(moving) == 1:
        words = f"Of the user's items only {listed} {verb}s it"
    else:
        most = " most" if len(moving) > len(named) else ""
        words = f"The user's items that {verb} it{most} are {listed}"
    if score == 0:
        return [words]
    share = sum(each["contribution"] for each in named) / score
    amount = f"{share:.0%} of the score" if len(named) == 1 else f"together {share:.0%} of the score"
    rest = ["other items"] if len(parts["carried_by"]) > len(named) else []
    if parts["remainder"]:
        rest.append("the user's own embedding")
    if parts["from_popularity"]:
        rest.append("how popular the item is")
    if not rest or f"{share:.0%}" == "100%":
        return [f"{words}, {amount}"]
    balance = "The rest comes from" if share <= 1 else "The difference comes from"
    return [f"{words}, {amount}", f"{balance} {enumerated(rest)}"]


def _readable(each: NamedItem) -> str:
    """What a person calls an item: its id, or its name if the id is only a number."""
    name = each.get("name")
    return name if isinstance(each["item"], int) and name else str(each["item"])
