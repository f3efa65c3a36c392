"""Ordinary clients on a fixed timetable, as a process of their own: nothing that others do delays their clock.

`python ordinary.py PORT RATE SECONDS < REQUEST` prints one JSON object: the status, the milliseconds and the refusal of
each request, and how late this process itself was. It imports nothing but asyncio, so it starts at once.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import suppress

TICK = 0.01


async def ask(port: int, request: bytes, planned: float) -> tuple[int, float, str]:
    """One request on a connection of its own: its status, the milliseconds since the planned moment, and a refusal."""
    status, refusal = 0, ""
    with suppress(OSError, asyncio.IncompleteReadError, ValueError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        writer.close()
        status = int(head[9:12])
        refusal = "" if status == 200 else body.decode()
    return status, 1000 * (time.perf_counter() - planned), refusal


async def tick(late: list[float]) -> None:
    """Note how many milliseconds late this event loop is, a hundred times a second."""
    while True:
        planned = time.perf_counter() + TICK
        await asyncio.sleep(TICK)
        late.append(1000 * (time.perf_counter() - planned))


async def main(port: int, rate: float, seconds: float, request: bytes) -> None:
    late: list[float] = []
    ticking = asyncio.create_task(tick(late))
    start, asked = time.perf_counter() + 0.1, []
    for at in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, start + at / rate - time.perf_counter()))
        asked.append(asyncio.create_task(ask(port, request, start + at / rate)))
    answers = await asyncio.gather(*asked)
    ticking.cancel()
    json.dump({"answers": answers, "late": late}, sys.stdout)


asyncio.run(main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), sys.stdin.buffer.read()))
