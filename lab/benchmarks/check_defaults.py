"""Does the default rule depend on any one data set? Its constants chosen anew with each set left out, and tried on it.

Reads lines of search_defaults.py. Those made with `--preset fitted` are points around the rule: for each set left out,
the factor on the step size, λ and dropout are chosen that do best at worst on the other sets, by validation. The choice
is then compared with the best that any line has for the set left out, searched recipes included.

    python lab/benchmarks/check_defaults.py lab/results/defaults/*.jsonl
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

CONSTANTS = ("rate_factor", "train.l2", "train.edge_dropout")


def main() -> None:
    lines = [line for name in sys.argv[1:] for line in Path(name).read_text(encoding="utf-8").splitlines()]
    rows = [row for row in map(json.loads, lines) if row["model"] == "hmlet-end" and "valid" in row]
    rows = [row for row in rows if row["point"].get("train.loss", "bpr") == "bpr"]  # the rule does not choose the loss
    best: dict[str, float] = defaultdict(float)
    tried: dict[tuple[float, ...], dict[str, float]] = defaultdict(dict)  # constants -> data set -> validation NDCG@20
    for row in rows:
        best[row["data"]] = max(best[row["data"]], row["valid"])
        if "rate_factor" in row["point"]:
            tried[tuple(row["point"][key] for key in CONSTANTS)][row["data"]] = row["valid"]
    sets = sorted(set.union(*({*found} for found in tried.values())))
    whole = {point: found for point, found in tried.items() if set(found) == set(sets)}
    share = {point: {data: found[data] / best[data] for data in sets} for point, found in whole.items()}
    print(f"{len(share)} points tried on all of {', '.join(sets)}")
    for left_out in sets:
        others = [data for data in sets if data != left_out]
        chosen = max(share, key=lambda point: min(share[point][data] for data in others))
        settings = ", ".join(f"{key} {value:g}" for key, value in zip(CONSTANTS, chosen, strict=True))
        print(f"without {left_out:<16} {settings}: {share[chosen][left_out]:.3f} of the best on it")


if __name__ == "__main__":
    main()
