"""What every benchmark shares: medians of repeated runs, the hardware's name, and one way to record a result."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The command line, with the options that every benchmark has."""
    parser.add_argument("--threads", type=int, help="PyTorch's, on the CPU")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--record", type=Path, help="also write that object to a file")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    return options


def median_seconds(work: Callable[[], object], device: torch.device, repeats: int = 20, warm_up: int = 3) -> float:
    """The median wall time of one call; on CUDA between events, with everything before it finished."""
    for _ in range(warm_up):
        work()
    times = []
    for _ in range(repeats):
        if device.type == "cuda":
            torch.cuda.synchronize()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            work()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) / 1e3)
        else:
            began = time.perf_counter()
            work()
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def hardware(device: torch.device) -> dict[str, Any]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {"device": device.type, "name": name, "threads": torch.get_num_threads(), "torch": str(torch.__version__)}


def commit(tree: Path) -> str:
    """The commit of a checkout, with a mark if it was changed since."""
    command = ["git", "-C", str(tree), "describe", "--always", "--exclude=*", "--abbrev=7", "--dirty"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def relative_error(result: torch.Tensor, exact: torch.Tensor) -> float:
    """‖result − exact‖ / ‖exact‖, in float64."""
    return float((result.double() - exact).norm() / exact.norm())


def written(what: str, result: dict[str, Any], record: Path | None) -> dict[str, Any]:
    """Write a result down where asked; returns it with the benchmark's name and the date."""
    result = {"benchmark": what, "date": date.today().isoformat(), **result}
    if record is not None:
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return result


def publish(what: str, result: dict[str, Any], as_json: bool, record: Path | None) -> None:
    """Print a result, as JSON or a line a value, and write it down where asked."""
    result = written(what, result, record)
    if as_json:
        sys.stdout.write(json.dumps(result) + "\n")
        return
    for name, value in result.items():
        print(f"{name:34} {json.dumps(value) if isinstance(value, dict | list) else value}")
