"""Train our variants on a benchmark's public split and compare them with published numbers.

    python -m lab.board gowalla --variant ease --variant gf-cf --seeds 1
    python -m lab.board yelp2018 --selection --variants candidates.toml --minutes 9

Each variant trains on the whole training part, for a fixed number of epochs, and is tested on the published test set.
Choose between settings with --selection, which never reads that set. Call it again to continue.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from hmlet.reproduction.choosing import load_distinct, wanted_runs
from hmlet.reproduction.sheets import number
from hmlet.system.progress import shown
from lab.board.board import Board, board, plan_board, prepare_board, seconds_text
from lab.board.variants import load_variants
from lab.script import call, campaign_options, show, show_outcome, show_plan


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a named benchmark such as gowalla, or its prepared directory")
    parser.add_argument("--variant", action="append", default=[], help="run only this one; repeatable")
    parser.add_argument("--variants", type=Path, help="a TOML file with variants under [[DATA]]")
    parser.add_argument("--selection", action="store_true", help="score on a held-out tenth of the training part")
    parser.add_argument("--prepare", type=Path, help="only write both splits as prepared directories here")
    campaign_options(parser, "board")
    options = parser.parse_args(arguments)
    if options.prepare is not None:
        written = [str(path) for path in prepare_board(options.data, options.prepare, progress=shown)]
        print(json.dumps({"prepared": written}) if options.json else "\n".join(written))
    elif options.plan:
        name = load_distinct(options.data, shown).name
        chosen = load_variants(name, options.variants, options.variant)
        runs = wanted_runs(plan_board(name, chosen, selection=options.selection, seeds=options.seeds), options.out)
        if options.json:
            print(json.dumps({"runs": [run.as_json() for run in runs]}))
        else:
            show_plan(runs, options.out)
    else:
        result = board(
            options.data,
            variants=options.variant,
            file=options.variants,
            selection=options.selection,
            seeds=options.seeds,
            out=options.out,
            minutes=options.minutes,
            packed=options.pack,
            device=options.device,
            keep=options.keep,
        )
        if options.json:
            print(json.dumps(result.as_json()))
        else:
            _show(result, options.selection)


def _show(result: Board, selection: bool) -> None:
    where = "held-out tenth of the training part" if selection else "published test set"
    print(f"{result.dataset}: {where}, items of train left out")
    rows = [
        [
            row.variant.name,
            "–" if row.size is None else f"{row.size}",
            *(number(row.spread(metric, held_out=selection)) for metric in ("recall", "ndcg")),
            seconds_text(row.seconds(held_out=selection)),
        ]
        for row in result.rows
    ]
    rows += [
        [row.method, "–" if row.size is None else f"{row.size}", f"{row.recall:.4f}", f"{row.ndcg:.4f}", "published"]
        for row in ([] if selection else result.published)
    ]
    show(["method", "D", "Recall@20", "NDCG@20", "seconds"], rows)
    show_outcome(result.outcome)


if __name__ == "__main__":
    sys.exit(call(main))
