"""Settings as keywords: typed for editors, checked by name and value, and the same recipe as overrides give."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest

import hmlet
from hmlet.config import Settings, TrainConfig
from hmlet.config.settings import ARGUMENTS, LOSS_PREFIX, SYNONYMS
from hmlet.errors import ConfigError
from hmlet.losses import LOSSES
from hmlet.models import MODELS


def plain(hint: Any) -> Any:
    """A type without its constraints; a tuple of any length, as models have it, is given as a sequence."""
    if get_origin(hint) is Literal:
        return {*get_args(hint)}
    arguments = get_args(hint)
    if hasattr(hint, "__metadata__"):
        return plain(arguments[0])
    if get_origin(hint) in (tuple, Sequence):
        return ["each", plain(arguments[0])]
    if len(arguments) == 2 and type(None) in arguments:
        return "maybe", plain(arguments[0])
    return hint


def declared() -> dict[str, list[Any]]:
    """The types of every setting in the models, in training and in the losses."""
    found: dict[str, list[Any]] = {}
    for name, field in TrainConfig.model_fields.items():
        found.setdefault(name, []).append(plain(field.annotation))
    for model in MODELS.values():
        for name, field in model.Config.model_fields.items():
            found.setdefault(name, []).append(plain(field.annotation))
    for loss in LOSSES.values():
        for name, field in loss.Config.model_fields.items():
            found.setdefault(LOSS_PREFIX + name, []).append(plain(field.annotation))
    del found["name"]
    return found


def test_type_checkers_know_every_setting_and_its_type() -> None:
    hints = get_type_hints(Settings)
    kinds = declared()
    assert set(hints) == set(kinds)
    for name, hint in hints.items():
        assert plain(hint) in kinds[name], name


def test_no_model_has_a_setting_of_training() -> None:
    training = set(TrainConfig.model_fields)
    assert all(training.isdisjoint(model.Config.model_fields) for model in MODELS.values())


def test_keywords_give_the_recipe_of_overrides() -> None:
    keywords = hmlet.resolve("hmlet-end", "debian", device="cpu", epochs=5, gate_hidden=[8], temperature="text")
    overrides = ["train.epochs=5", "model.gate_hidden=[8]", 'model.temperature="text"']
    assert keywords == hmlet.resolve("hmlet-end", "debian", device="cpu", overrides=overrides)
    tempered = hmlet.resolve("bpr", loss="softmax", loss_temperature=0.3)
    assert tempered == hmlet.resolve("bpr", overrides=["train.loss=softmax", "loss.temperature=0.3"])
    assert hmlet.resolve("bpr", epochs=np.int64(7)).train.epochs == 7  # what a grid search gives


def test_keywords_win_over_overrides_and_change_a_recipe() -> None:
    recipe = hmlet.resolve("lightgcn", overrides=["train.epochs=5"], epochs=6)
    assert recipe.train.epochs == 6
    assert recipe.changed(layers=2).model.depth == 2
    assert recipe.changed(loss="bsl", loss_positives=2).loss.model_dump()["positives"] == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epoch": 5}, "there is no setting `epoch`: did you mean `epochs`?"),
        ({"factors": 8}, "there is no setting `factors`: did you mean `embedding_size`?"),
        ({"random_state": 8}, "there is no setting `random_state`: did you mean `seed`?"),
        ({"minuts": 3}, "there is no setting `minuts`: did you mean `minutes`?"),
        (
            {"user": "id"},
            "`user` is no setting, but says how data is prepared: "
            "make a data set with it: Dataset.from_frame(…, user=…) or Dataset.from_file(…, user=…)",
        ),
        ({"epochs": 0}, "epochs=0: Input should be greater than 0: correct the value"),
        ({"schedule": "linear"}, "schedule='linear': Input should be 'constant' or 'cosine': correct the value"),
        (
            {"graph_memory": "host"},
            "graph_memory='host': a graph in host memory is no longer supported; "
            'use "device", or leave the key out: correct the value',
        ),
        ({"walks": 3}, "`walks` is no setting of lightgcn: leave it out, or use pinsage"),
        ({"loss_k": 3}, "`loss_k` is no setting with loss='bpr': leave it out, or use loss='softmax@k'"),
    ],
)
def test_a_wrong_setting_is_named_as_an_argument(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        hmlet.resolve("lightgcn", **settings)
    assert str(error.value) == message


def test_suggested_names_exist() -> None:
    assert set(SYNONYMS) <= {*Settings.__annotations__, *ARGUMENTS}
    functions = (hmlet.fit, hmlet.resolve)
    assert set(ARGUMENTS) <= {name for each in functions for name in inspect.signature(each).parameters}
