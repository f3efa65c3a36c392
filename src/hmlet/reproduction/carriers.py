"""What may carry the lead over the rival: the arms of the ablation that take it away or leave it alone."""

from __future__ import annotations

from hmlet.reproduction.cells import RIVAL, arm_label
from hmlet.reproduction.differences import Difference, differences
from hmlet.reproduction.tables import Tables

# In the words of docs/reproduction.md; each with its group and label.
CARRIERS = {
    "HMLET(End) as it is": ("gates", "trained"),
    "gates: every node non-linear": ("gates", "all non-linear"),
    "gates: layer 3 non-linear, layer 4 linear": ("gates", "layer 3 non-linear, layer 4 linear"),
    "gates: random and frozen": ("gates", "random and frozen"),
    "gates: every node linear": ("gates", "all linear"),
    "no shortcut to layer 0": ("input of the non-linear branch", "gated"),
    "no dropout, both": ("edge dropout", "0.0"),
    "spectral start, both": ("start", "spectral"),
    **{f"D = {size}, both": ("embedding size", f"{size}") for size in (64, 128, 256, 512)},
}


def leads(tables: Tables) -> dict[str, Difference]:
    """The lead over the rival that each arm leaves: over the rival with the same change, or as it is if it has none."""
    plain = tables.arms["edge dropout", arm_label("0.4", RIVAL)]
    pairs = [
        (tables.arms[group, label], tables.arms.get((group, arm_label(label, RIVAL)), plain))
        for group, label in CARRIERS.values()
    ]
    found = differences([(ours.by_seed(), rival.by_seed()) for ours, rival in pairs])
    return dict(zip(CARRIERS, found, strict=True))
