"""Large answers: what they hold while their client reads, and what they leave behind."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import AsyncIterator, Iterator

import pytest

from hmlet.serving.guard import Message
from hmlet.serving.replies import JsonObject, StreamedReply, listed


class Block(list[JsonObject]):
    """A list that can be watched."""


@pytest.mark.parametrize("warnings", [None, ["item 'x' is not in the data set"]])
def test_no_block_is_held_while_its_text_is_read(warnings: list[str] | None) -> None:
    made: list[weakref.ref[Block]] = []

    def block(number: int) -> Block:
        found = Block([{"user": number, "items": [{"item": "a", "score": 0.5}]}])
        made.append(weakref.ref(found))
        return found

    text = b""
    for part in listed("recommendations", warnings, (block(number) for number in range(3))):
        assert [each() for each in made] == [None] * len(made)
        text += part
    lists = [{"user": number, "items": [{"item": "a", "score": 0.5}]} for number in range(3)]
    expected = lists if warnings is None else {"recommendations": lists, "warnings": warnings}
    assert json.loads(text) == expected


def test_a_list_without_blocks_is_empty() -> None:
    nothing: Iterator[Block] = iter([])
    assert b"".join(listed("similar", None, nothing)) == b"[]"


def sent_to(client_leaves_after: int) -> tuple[list[Message], int]:
    """What a client receives who leaves after some messages, and the number of blocks that were asked for."""

    async def answer() -> tuple[list[Message], int]:
        sent, asked, gone = list[Message](), 0, asyncio.Event()

        async def blocks() -> AsyncIterator[bytes]:
            nonlocal asked
            for _ in range(5):
                asked += 1
                yield b"x"

        async def receive() -> Message:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)
            if len(sent) == client_leaves_after:
                gone.set()
            await asyncio.sleep(0)

        await StreamedReply(blocks())({"type": "http"}, receive, send)
        return sent, asked

    return asyncio.run(answer())


def test_an_answer_ends_when_its_client_has_gone() -> None:
    whole, asked = sent_to(client_leaves_after=100)
    assert [message.get("body") for message in whole] == [None, *[b"x"] * 5, b""]
    assert [message.get("more_body") for message in whole] == [None, *[True] * 5, False]
    assert asked == 5
    part, asked = sent_to(client_leaves_after=3)
    assert part == whole[:3]
    assert asked == 3


def test_an_answer_that_is_cut_off_leaves_no_cycle() -> None:
    """Collecting cycles stops every request, and a crowd is cut off by the hundred."""
    sent_to(client_leaves_after=2)
    gc.collect()
    sent_to(client_leaves_after=2)
    left = gc.collect()
    asyncio.run(asyncio.sleep(0))
    assert left <= gc.collect()  # an event loop leaves as many of its own
