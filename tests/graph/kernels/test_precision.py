"""Which processors multiply bfloat16."""

from __future__ import annotations

import pytest
import torch

from hmlet.graph.kernels import multiplies_bfloat16


@pytest.mark.parametrize(("amx", "bfloat16", "used"), [(False, True, True), (True, True, False), (False, False, False)])
def test_bfloat16_is_used_where_it_is_fast_and_safe(
    amx: bool, bfloat16: bool, used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a processor names AMX, a product in bfloat16 ended the process on a virtual machine."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bfloat16)
    assert multiplies_bfloat16(torch.device("cpu")) is used
    assert not multiplies_bfloat16(torch.device("meta"))
