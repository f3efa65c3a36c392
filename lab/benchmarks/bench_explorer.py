"""The explorer in headless Chromium: frames per second while the map is moved, and the time to the first paint.

The map is panned and zoomed once per animation frame, with every node drawn. A page is opened in a fresh browser
context, so nothing is cached.

    python lab/benchmarks/bench_explorer.py --run RUN --json
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
from pathlib import Path
from typing import Any

import torch
from harness import hardware, parsed, publish
from playwright.sync_api import Browser, sync_playwright
from services import Service

TARGETS = {"frames_per_second": 30.0, "first_paint_seconds": 1.0}
SIZE = {"width": 1400, "height": 900}
FLAGS = ["--no-sandbox", "--disable-gpu"]
MOVE = """async (frames) => {
  const plane = document.querySelector("#plane").plane, times = [];
  const next = () => new Promise(requestAnimationFrame);
  let last = await next();
  for (let at = 0; at < frames; at++) {
    plane.moving = true;
    plane.pan(6 * Math.cos(at / 20), 6 * Math.sin(at / 20));
    plane.zoomAt(plane.width / 2, plane.height / 2, at % 120 < 60 ? 1.01 : 1 / 1.01);
    plane.draw();
    const now = await next();
    times.push(now - last);
    last = now;
  }
  plane.moving = false;
  return {times, points: plane.count, pixels: plane.canvas.width * plane.canvas.height};
}"""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000"
FILLED = "() => new Promise(requestAnimationFrame).then(() => performance.now() / 1000)"


def opened(browser: Browser, url: str, address: str, shown: str) -> tuple[Any, dict[str, float]]:
    """A page in a context of its own, its first paint, and when it shows what it is about."""
    page = browser.new_context(viewport=SIZE, base_url=url).new_page()
    page.goto(address)
    page.wait_for_selector(shown, timeout=120_000)
    return page, {"first_paint_seconds": page.evaluate(PAINT), "filled_seconds": page.evaluate(FILLED)}


def measure(browser: Browser, url: str, frames: int, repeats: int) -> dict[str, Any]:
    opened(browser, url, "/#/map", "#in-view button")  # the map is computed ahead
    loads: dict[str, dict[str, float]] = {}
    for name, address, shown in (("start", "/", ".thirds .row"), ("map", "/#/map", "#in-view button")):
        times = []
        for _ in range(repeats):
            page, seconds = opened(browser, url, address, shown)
            times.append(seconds)
            page.context.close()
        loads[name] = {key: statistics.median(each[key] for each in times) for key in times[0]}
    page, _ = opened(browser, url, "/#/map", "#in-view button")
    moved = page.evaluate(MOVE, frames)
    frame_ms = sorted(moved["times"])
    return {
        "loads": loads,
        "points": moved["points"],
        "pixels": moved["pixels"],
        "frames": frames,
        "frames_per_second": 1000 * frames / sum(frame_ms),
        "frame_ms_p95": frame_ms[int(0.95 * frames)],
        "first_paint_seconds": max(each["first_paint_seconds"] for each in loads.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="a finished run")
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=5)
    options = parsed(parser)
    with sync_playwright() as engine:
        service = Service.hmlet(options.run)
        browser = engine.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        try:
            found = measure(browser, service.url, options.frames, options.repeats)
        finally:
            browser.close()
            service.stop()
    met = {
        "frames_per_second": found["frames_per_second"] >= TARGETS["frames_per_second"],
        "first_paint_seconds": found["first_paint_seconds"] <= TARGETS["first_paint_seconds"],
    }
    where = {**hardware(torch.device("cpu")), "cores": os.cpu_count(), "window": SIZE}
    publish("explorer", {"hardware": where, **found, "targets": TARGETS, "met": met}, options.json, options.record)


if __name__ == "__main__":
    main()
