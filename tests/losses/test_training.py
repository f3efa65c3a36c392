"""Every loss trains every model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from finished import NAMES, finished

from hmlet.losses import LOSSES

LEARNED = ["train.epochs=2", "train.validate_every=1", "train.draw=interaction"]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("model", [name for name in NAMES if name != "wrmf"])
def test_every_model_trains_with_every_loss(model: str, loss: str, tmp_path: Path) -> None:
    """The loss falls, and what is ranked by cosine has factors of length 1."""
    run = finished(model, tmp_path / "run", f"train.loss={loss}", *LEARNED)
    first, second = (row["loss"] for row in run.metrics)
    assert second < first
    lengths = torch.cat([side.norm(dim=1) for side in run.factors])
    assert ((lengths - 1).abs().max() < 1e-5) == (loss != "bpr")
