"""Which devices multiply bfloat16."""

from __future__ import annotations

import torch


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether a device is a CPU with instructions for bfloat16. Without them it is far slower than float32.

    A processor that also names AMX is left out: some virtual machines end a process that uses it (docs/log.md).
    """
    if device.type != "cpu":
        return False
    named = [getattr(torch.cpu, f"_is_{each}_supported", lambda: True)() for each in ("amx_tile", "avx512_bf16")]
    return named == [False, True]
