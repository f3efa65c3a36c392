"""Recipes: the order of resolution, round trips, refused keys and values, and that every field is documented."""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from hmlet.config import Preset, Recipe, TrainConfig, resolve
from hmlet.errors import ConfigError
from hmlet.losses import LOSSES
from hmlet.models import MODELS
from hmlet.models.hmlet import HmletConfig
from hmlet.system.section import Section

ELEVEN = {
    *("hmlet-end", "hmlet-middle", "hmlet-front", "hmlet-all"),
    *("lightgcn", "lr-gccf", "ngcf", "gc-mc", "pinsage", "bpr", "wrmf"),
}
CLOSED_FORMS = {"popularity", "itemknn", "ease", "gf-cf", "cheby-cf"}
PRESETS = [("hmlet", model) for model in sorted(CLOSED_FORMS)]
PRESETS += [(preset, model) for preset in ("hmlet", "gpu") for model in sorted(ELEVEN)] + [
    (preset, model) for preset in ("paper", "authors") for model in sorted(ELEVEN) if model.startswith("hmlet")
]


def message(call: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(ConfigError) as error:
        call(*arguments, **options)
    assert error.value.hint
    return str(error.value)


def write(path: Path, text: str | bytes) -> Path:
    file = path / "recipe.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_there_are_eleven_models_and_five_closed_forms() -> None:
    assert set(MODELS) == ELEVEN | CLOSED_FORMS


@pytest.mark.parametrize(("preset", "model"), PRESETS)
def test_every_preset_survives_toml(preset: str, model: str) -> None:
    recipe = resolve(model, preset)
    assert recipe.model.name == model
    assert Recipe.from_toml(recipe.to_toml()) == recipe


def test_unusual_values_survive_toml() -> None:
    overrides = [
        'model.gate_types=["linear", "non-linear", "gated"]',
        "model.layers=3",
        "model.gate_hidden=[]",
        "train.learning_rate=1e-30",
        "train.l2=0",
        "train.deterministic=true",
    ]
    recipe = resolve("hmlet-front", overrides=overrides, seed=2**62)
    assert recipe.model.types == ("linear", "non-linear", "gated")
    assert recipe.train.learning_rate == 1e-30
    assert Recipe.from_toml(recipe.to_toml()) == recipe


def test_later_steps_win(tmp_path: Path) -> None:
    """Defaults, then the preset, then the file, then --set, then --seed."""
    defaults = Recipe.from_toml('[model]\nname = "hmlet-end"')
    assert (defaults.train.edge_dropout, defaults.model.gate_warmup) == (0.0, 0)
    preset = resolve("hmlet-end", "paper")
    assert (preset.train.edge_dropout, preset.model.embedding_size, preset.seed) == (0.4, 512, 1)
    file = write(tmp_path, 'seed = 5\n[model]\nembedding_size = 32\nactivation = "tanh"\n[train]\nl2 = 0.5\n')
    with_file = resolve("hmlet-end", "paper", file)
    assert (with_file.model.embedding_size, with_file.model.activation, with_file.train.l2) == (32, "tanh", 0.5)
    assert (with_file.seed, with_file.train.edge_dropout) == (5, 0.4)
    overridden = resolve("hmlet-end", "paper", file, ["model.embedding_size=8", "train.l2=0.25", "seed=6"])
    assert (overridden.model.embedding_size, overridden.train.l2, overridden.seed) == (8, 0.25, 6)
    assert overridden.model.activation == "tanh"
    assert resolve("hmlet-end", "paper", file, ["seed=6"], seed=7).seed == 7
    assert resolve("bpr", overrides=["train.l2=1", "train.l2=2"]).train.l2 == 2.0


def test_a_data_set_may_have_its_own_recipe() -> None:
    """It lies over the preset and under the user's own values; a set without one, and a path, change nothing."""
    plain = resolve("hmlet-end")
    debian = resolve("hmlet-end", dataset="debian")
    assert (debian.train.epochs, debian.train.batch_size, debian.model.gate_warmup) == (30, 4096, 10)
    assert debian.train.edge_dropout == plain.train.edge_dropout == 0.4
    assert resolve("hmlet-end", overrides=["train.epochs=7"], dataset="debian").train.epochs == 7
    for name in ("nowhere", "data/debian", "../hmlet"):
        assert resolve("hmlet-end", dataset=name) == plain


def test_the_default_of_a_searched_data_set_is_what_the_search_found() -> None:
    for model in ("hmlet-end", "hmlet-all", "lightgcn"):
        for dataset in ("gowalla", "yelp2018", "amazon-book", "amazon-book-29k"):
            assert resolve(model, dataset=dataset) == resolve(model, "gpu", dataset=dataset) != resolve(model)
    assert resolve("hmlet-end", "paper", dataset="gowalla") == resolve("hmlet-end", "paper")
    assert resolve("bpr", dataset="amazon-book-29k") == resolve("bpr")  # it has not been searched there


def test_overrides_are_toml_or_plain_words() -> None:
    for spelling in ("model.readout=layerwise", 'model.readout="layerwise"', " model.readout = layerwise"):
        assert resolve("hmlet-end", overrides=[spelling]).model.readout == "layerwise"
    hidden = resolve("hmlet-end", overrides=["model.gate_hidden=[16, 8]"]).model.gate_hidden
    assert hidden == (16, 8)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.epoch=5", ["train.epoch", "train.epochs"]),
        ("model.embeding_size=5", ["model.embeding_size", "model.embedding_size"]),
        ("optimizer.lr=5", ["optimizer", "model.*, train.*, loss.*, seed"]),
        ("train.epochs=0", ["train.epochs", "0", "greater than 0"]),
        ("train.batch_size=2147483648", ["train.batch_size", "less than 2147483648"]),
        ("train.epochs=many", ["train.epochs", "'many'"]),
        ("train.edge_dropout=1.0", ["train.edge_dropout", "1.0", "less than 1"]),
        ("train.learning_rate=nan", ["train.learning_rate", "finite"]),
        ("train.learning_rate=-1", ["train.learning_rate", "-1", "greater than 0"]),
        ("train.precision=float16", ["train.precision", "float16", "bfloat16"]),
        ("model.activation=gelu", ["model.activation", "gelu", "leaky-relu"]),
        ("model.layers=0", ["model.layers", "0"]),
        ("model.layers=17", ["model.layers", "17"]),
        ('model.gate_types=["gated"]', ["1 entries for 4 layers", "give one per layer"]),
        ("seed=-1", ["seed", "-1"]),
        ("seed.x=2", ["seed.x=2", "model.*, train.*, loss.*, seed"]),
        ("epochs=5", ["epochs=5", "section.key=value", "train.epochs=20"]),
        ("train.epochs", ["train.epochs", "section.key=value"]),
        ("train.=5", ["train.=5", "section.key=value"]),
        ("", ["section.key=value"]),
        ("loss.temperature=0.2", ["no key loss.temperature", "leave it out, or set train.loss to softmax or multi"]),
        ("loss.heat=0.2", ["no key loss.heat: this loss has no settings; leave it out"]),
        ("model.name=bpr", ["bpr", "the model is 'hmlet-end'"]),
        (f"train.epochs={'[' * 3000}{']' * 3000}", ["train.epochs", "nested too deeply"]),
        ("train.epochs=3\nfoo=1", ["train.epochs='3\\nfoo=1'", "more than one value", "on its own"]),
        ("seed=3\n[train]\nepochs=1", ["seed=", "more than one value"]),
    ],
)
def test_a_wrong_override_is_named_with_its_fix(override: str, words: list[str]) -> None:
    text = message(resolve, "hmlet-end", overrides=[override])
    assert all(word in text for word in words), text


def test_a_section_is_refused_whatever_went_before_it(tmp_path: Path) -> None:
    assert "'seed.x=2'" in message(resolve, "bpr", overrides=["seed=1", "seed.x=2"])
    assert "'seed.x=2'" in message(resolve, "bpr", config=write(tmp_path, "seed = 3"), overrides=["seed.x=2"])
    assert "'seed.x=2'" in message(resolve("bpr").changed, ["seed.x=2"])


def test_a_key_of_another_model_is_refused() -> None:
    assert "model.gate_warmup" in message(resolve, "lightgcn", overrides=["model.gate_warmup=3"])
    assert "model.layers" in message(resolve, "gc-mc", overrides=["model.layers=2"])
    assert "model.layers" in message(resolve, "bpr", overrides=["model.layers=2"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[model]\nlayers = = 3", ["recipe.toml", "not TOML", "line 2"]),
        (b"[model]\nactivation = '\xff'\n", ["recipe.toml", "UTF-8"]),
        ('model = "hmlet-end"', ["recipe.toml", "model", "[model]"]),
        ("train = 5", ["recipe.toml", "train", "[train]"]),
        ('[model]\nname = "bpr"', ["bpr", "hmlet-end", "same"]),
        ("[train]\nepoch = 3", ["train.epoch", "train.epochs"]),
    ],
)
def test_a_wrong_file_is_named_with_its_fix(text: str | bytes, words: list[str], tmp_path: Path) -> None:
    found = message(resolve, "hmlet-end", config=write(tmp_path, text), overrides=["train.epochs=3"])
    assert all(word in found for word in words), found


def test_missing_things_are_named(tmp_path: Path) -> None:
    assert "nowhere.toml" in message(resolve, "bpr", config=tmp_path / "nowhere.toml")
    assert "lightgcn" in message(resolve, "lightgnc")
    unknown = message(resolve, "bpr", "faster")
    assert "'faster'" in unknown
    assert "use `preset` hmlet" in unknown
    assert "use `preset` hmlet" in message(resolve, "bpr", "authors")
    assert "'gpu/gowalla'" in message(resolve, "hmlet-end", "gpu/gowalla")  # a directory of recipes, and no preset
    assert "hmlet or gpu or fast or best or paper or authors" in message(resolve, "hmlet-end", "faster")
    assert "name" in message(Recipe.from_toml, "[model]\nlayers = 3")
    assert "model" in message(Recipe.from_toml, "seed = 3")


def test_recipes_are_frozen() -> None:
    recipe = resolve("hmlet-end")
    with pytest.raises(ValidationError):
        recipe.train.epochs = 3  # type: ignore[misc]
    with pytest.raises(ValidationError):
        recipe.model = HmletConfig()  # type: ignore[misc]


DECLARED = [each.Config for each in (*MODELS.values(), *LOSSES.values())]


@pytest.mark.parametrize("section", [*dict.fromkeys(DECLARED), TrainConfig], ids=lambda section: section.__name__)
def test_every_field_is_documented(section: Any) -> None:
    """`name` is documented by its class."""
    assert section.__doc__
    assert set(section.model_fields) - _documented(section) <= {"name"}


def _documented(section: type[Section]) -> set[str]:
    """The fields of a class and its bases that have a docstring under them."""
    found = set()
    for kind in section.__mro__:
        if issubclass(kind, Section):
            (body,) = (node.body for node in ast.parse(inspect.getsource(kind)).body if isinstance(node, ast.ClassDef))
            for above, below in pairwise(body):
                match above, below:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str())):
                        found.add(name)
    return found


def test_the_presets_say_what_the_paper_and_the_authors_did() -> None:
    """SPEC.md's table of open points, row by row."""
    paper, authors = resolve("hmlet-end", "paper"), resolve("hmlet-end", "authors")
    assert (paper.model.temperature, authors.model.temperature) == ("text", "authors")
    assert (paper.model.gate_training, authors.model.gate_training) == ("straight-through", "soft")
    assert (paper.model.gate_warmup, authors.model.gate_warmup) == (0, 300)
    assert (paper.model.gate_ranking, authors.model.gate_ranking) == ("argmax", "noisy")
    assert (paper.model.activation, authors.model.activation) == ("leaky-relu", "elu")
    assert (paper.model.leaky_slope, authors.model.leaky_slope) == (0.01, 0.1)
    assert (paper.model.readout, authors.model.readout) == ("layerwise", "mean")
    for recipe in (paper, authors):
        assert (recipe.model.embedding_size, recipe.model.layers, recipe.model.nonlinear_input) == (512, 4, "bypassed")
        assert (recipe.model.gate_hidden, recipe.model.gate_dropout) == ((512, 128, 64), 0.2)
        assert (recipe.train.batch_size, recipe.train.learning_rate) == (2048, 1e-3)
        assert (recipe.train.l2, recipe.train.edge_dropout) == (1e-4, 0.4)
    assert set(get_args(Preset)) == {"hmlet", "fitted", "gpu", "fast", "best", "paper", "authors"}
