"""Search the settings of every model with the same number of trials, on validation only.

    python -m lab.search gowalla --model hmlet-end --model lightgcn --trials 8 --out lab/results/search

Each search is `hmlet tune`; call it again to continue. OUT/<data set>/<model>.json keeps what was tried, and
`python -m lab.documents recipes` makes presets of it. The run directories in OUT/<data set>/<model>/ are not kept.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import hmlet
from hmlet.data.catalog import load
from hmlet.models import MODELS
from hmlet.reproduction.cells import CAMPAIGN, OURS, is_ours, preset
from hmlet.reproduction.plan import folder
from hmlet.runs.directory import RunDirectory
from hmlet.tuning.space import as_json, load_space
from hmlet.tuning.study import Sampler
from hmlet.tuning.trial import TrialRecord
from lab.script import call
from lab.search_file import SearchFile, Trial


def searched_models(models: Sequence[str] = ()) -> list[str]:
    """One model of each family that is chosen: HMLET's variants share settings, which End is searched for."""
    return list({MODELS[name]: OURS if is_ours(name) else name for name in models or tuple(CAMPAIGN.titles)}.values())


def search(
    data: hmlet.Dataset,
    out: Path,
    trials: int,
    *,
    models: Sequence[str] = (),
    start: str | None = None,
    space: Path | None = None,
    sampler: Sampler = "grid",
    overrides: Sequence[str] = (),
    device: str = "auto",
) -> list[Path]:
    """Try `trials` points for each model around the preset `start`; the files of these searches.

    `space` is a TOML file for all of them, instead of each family's own.
    """
    start, files = start or preset(data.name), []
    for model in searched_models(models):
        base = hmlet.resolve(model, data, preset=start, overrides=[*overrides, "train.save_layers=false"])
        searched = load_space(space, model, start, base.train.loss)
        place = out / folder(data.name) / model
        found = hmlet.tune(
            data,
            base,
            place,
            space=searched,
            trials=trials,
            sampler=sampler,
            pruning="none",
            device=device,
        )
        runs = [None if each.run is None else RunDirectory.open(place / each.run).record for each in found.trials]
        record = SearchFile(
            model,
            start,
            {"name": data.name, "fingerprint": data.fingerprint},
            base.to_toml(),
            as_json(searched),
            next((run.hardware.model_dump() for run in runs if run is not None), {}),
            trials=tuple(_trial(each, place) for each in found.trials),
        )
        path = place.with_suffix(".json")
        record.write(path)
        files.append(path)
    return files


def _trial(trial: TrialRecord, place: Path) -> Trial:
    if trial.state != "complete" or trial.run is None:
        return Trial(trial.params, trial.seconds, error=trial.error or trial.state)
    record = RunDirectory.open(place / trial.run).record
    return Trial(trial.params, trial.seconds, record.valid, record.best_epoch)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a named data set or a prepared directory")
    parser.add_argument("--model", action="append", default=[], help="repeatable; by default one of each family")
    parser.add_argument("--trials", type=int, default=8, help="of each model")
    parser.add_argument("--sampler", default="grid", help="grid, random or tpe")
    parser.add_argument("--preset", help="where each search starts")
    parser.add_argument("--space", type=Path, help="a TOML file with a [space] table")
    parser.add_argument("--set", action="append", default=[], help="section.key=value for every model, repeatable")
    parser.add_argument("--out", type=Path, default=Path("search"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    files = search(
        load(options.data), options.out, options.trials, models=options.model, start=options.preset,
        space=options.space, sampler=options.sampler, overrides=options.set, device=options.device,
    )  # fmt: skip
    print(json.dumps({"searches": [str(path) for path in files]}) if options.json else "\n".join(map(str, files)))


if __name__ == "__main__":
    sys.exit(call(main))
