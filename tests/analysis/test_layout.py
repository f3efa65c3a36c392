"""The map of the embeddings: planted groups stay together, and odd input has a place too."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hmlet.analysis import cached, layout
from hmlet.analysis.layout import principal_components


def planted(per_group: int = 60, groups: int = 4, size: int = 16) -> torch.Tensor:
    """Rows around `groups` directions at right angles, group by group, of very different lengths."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.eye(size)[:groups].repeat_interleave(per_group, dim=0)
    rows = rows + 0.08 * torch.randn(rows.shape, generator=generator)
    return rows * (0.01 + 10 * torch.rand(len(rows), 1, generator=generator))


def test_planted_groups_stay_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "LANDMARKS", 160)  # a third of the nodes is placed among landmarks
    monkeypatch.setattr(layout, "CLUSTERS", 4)
    group_N = np.repeat(np.arange(4), 60)
    found = layout.layout(planted())
    for one in range(4):
        (own,) = set(found.cluster_N[group_N == one].tolist())
        assert (found.cluster_N == own).sum() == 60
    far_NN = np.linalg.norm(found.place_N2[:, None] - found.place_N2[None], axis=2)
    far_NN[np.arange(240), np.arange(240)] = np.inf
    assert (group_N[far_NN.argmin(axis=1)] == group_N).mean() > 0.97
    assert np.abs(found.place_N2).max() == pytest.approx(1)
    again = layout.layout(planted())
    assert np.array_equal(found.place_N2, again.place_N2)


def test_the_principal_components_are_those_of_a_singular_value_decomposition() -> None:
    x = torch.randn(50, 6, generator=torch.Generator().manual_seed(0)) * torch.tensor([9.0, 1, 4, 1, 1, 1])
    left, values, _ = np.linalg.svd((x - x.mean(dim=0)).double().numpy(), full_matrices=False)
    found = principal_components(x).numpy()
    for axis in range(2):
        expected = left[:, axis] * values[axis]
        assert np.abs(found[:, axis]) == pytest.approx(np.abs(expected), abs=1e-3)


@pytest.mark.parametrize("factors", [torch.ones(1, 3), torch.ones(30, 3), torch.zeros(5, 2), torch.randn(7, 1)])
def test_factors_without_any_structure_have_finite_places(factors: torch.Tensor) -> None:
    found = layout.layout(factors)
    assert np.isfinite(found.place_N2).all()
    assert found.cluster_N.min() >= 0


def test_a_layout_is_computed_once_and_a_damaged_one_again(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HMLET_CACHE", str(tmp_path))
    monkeypatch.setattr(layout, "STEPS", 3)
    made: list[int] = []
    monkeypatch.setattr(cached, "layout", lambda *given: made.append(1) or layout.layout(*given))
    first, second = (cached.cached_layout(planted(5), "abc") for _ in range(2))
    assert np.array_equal(first.place_N2, second.place_N2)
    assert len(made) == 1
    (path,) = (cached.cache_directory() / "layout").iterdir()
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    third = cached.cached_layout(planted(5), "abc")
    assert np.array_equal(first.place_N2, third.place_N2)
    assert len(made) == 2
