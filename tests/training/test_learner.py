"""What a learner makes of its recipe: where e⁰ starts, which pass ranks, and whether there is something to rank."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from planted import checkerboard, dataset

from hmlet.config import resolve
from hmlet.graph import propagator
from hmlet.graph.spectral import spectral_embedding
from hmlet.models import Pass
from hmlet.system.ranks import Ranks
from hmlet.training import learner as module
from hmlet.training.learner import Learner

CPU = torch.device("cpu")


def learner(model: str, *overrides: str, seed: int = 3) -> Learner:
    return Learner(checkerboard(), resolve(model, overrides=["model.embedding_size=8", *overrides], seed=seed), CPU)


@pytest.mark.parametrize("model", ["lightgcn", "lr-gccf"])
def test_a_spectral_start_is_found_without_self_loops_and_from_the_seed(model: str) -> None:
    made = learner(model, "model.start=spectral")
    random = made.model.embedding.detach().clone()
    plain = propagator(made.graph, CPU)
    expected = spectral_embedding(plain.product, made.graph.n_users, random, torch.Generator().manual_seed(3))
    made.start()
    torch.testing.assert_close(made.model.embedding.detach(), expected)
    assert not torch.equal(expected, random)


def test_a_random_start_stays() -> None:
    made = learner("lightgcn")
    before = made.model.embedding.detach().clone()
    made.start()
    assert torch.equal(made.model.embedding, before)


def test_the_model_after_an_epoch_ranks_at_that_epochs_temperature() -> None:
    """Epochs count from 1 here and from 0 in a schedule."""
    made = learner("hmlet-end", "model.gate_ranking=soft", "model.gate_hidden=[4]")
    made.model.eval()
    for epoch, schedule in ((1, 0), (40, 39)):
        how = Pass(temperature=made.model.temperature(schedule), hard=False)
        expected = made.model.propagate(made.operator, how).factors()
        assert torch.equal(made.finished(epoch).factors(), expected)
    assert not torch.equal(made.finished(1).factors(), made.finished(40).factors())


def test_evaluating_leaves_a_model_in_training() -> None:
    made = learner("hmlet-end", "model.gate_hidden=[4]")
    made.model.train()
    before = {name: tensor.clone() for name, tensor in made.model.state_dict().items()}
    evaluation, _ = made.evaluate(1)
    assert made.model.training
    assert (evaluation.split, evaluation.mask, evaluation.k) == ("valid", "train", 20)
    assert all(torch.equal(tensor, before[name]) for name, tensor in made.model.state_dict().items())


def test_one_withheld_interaction_is_enough_to_validate() -> None:
    pairs = [(0, 0), (1, 1), (1, 0)]
    for valid, expected in (([(0, 1)], True), ([], False)):
        assert Learner(dataset(2, 3, train=pairs, valid=valid), resolve("lightgcn"), CPU).validates is expected


def test_what_a_run_learned_is_the_start_of_its_users_and_items() -> None:
    pairs = [(0, 0), (1, 1), (1, 0)]
    settings = resolve("lightgcn", overrides=["model.embedding_size=8"])
    old = Learner(dataset(2, 3, train=pairs), settings, CPU).model.state_dict()
    new = Learner(dataset(3, 5, train=[*pairs, (2, 3), (2, 0)]), settings.model_copy(update={"seed": 9}), CPU)
    new.start_from(SimpleNamespace(nodes=(2, 3), weights=lambda: old))  # type: ignore[arg-type]
    assert torch.equal(new.model.embedding[[0, 1, 3, 4, 5]], old["embedding"])


def test_noise_of_a_ranking_has_a_seed_of_its_own() -> None:
    made = learner("hmlet-end", seed=3)
    assert torch.equal(made.ranking_noise.get_state(), torch.Generator().manual_seed(4).get_state())


def test_a_rank_has_its_own_columns_of_the_same_start() -> None:
    whole = learner("lightgcn")
    second = Learner(whole.data, whole.recipe, CPU, ranks=Ranks(rank=1, size=2))
    assert (whole.width, second.width) == (8, 4)
    assert torch.equal(second.model.embedding, whole.model.embedding[:, 4:])


@pytest.mark.parametrize("model", ["lightgcn", "hmlet-end", "bpr", "wrmf"])
def test_users_without_training_items_get_the_mean_of_the_others(model: str) -> None:
    data = dataset(4, 3, train=[(0, 0), (0, 1), (2, 1), (2, 2)], valid=[(1, 0), (3, 2)])
    made = Learner(data, resolve(model, overrides=["model.embedding_size=4"]), CPU)
    before = made.model.embedding.detach().clone()
    layers = made.finished(1)
    users = made.model.embedding.detach()[:4]
    torch.testing.assert_close(users[[1, 3]], before[[0, 2]].mean(dim=0).expand(2, 4))
    assert torch.equal(users[[0, 2]], before[[0, 2]])
    assert torch.equal(made.model.embedding.detach()[4:], before[4:])
    assert torch.equal(layers.initial_ND[:4], users)
    again = made.finished(2).initial_ND
    assert torch.equal(again[:4], users)


@pytest.mark.parametrize("much", [True, False])
def test_freed_memory_is_kept_where_much_is_free(much: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[None] = []
    monkeypatch.setattr(module, "leaves_much_free", lambda *needed: much)
    monkeypatch.setattr(module, "keep_freed_memory", lambda: kept.append(None))
    learner("lightgcn")
    assert len(kept) == much
