"""What an agent's load replaced, over HTTP: `generation=N` and `generation=all`, as pages and live."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from tests.server.stream_client import LIMIT, ask, frames, get
from tests.server.stream_server import serving
from tests.server.streaming.events_server import SCHEMAS, SESSION, Server, drafts
from tests.wire.universal.logs import ACTIVE, chunk

from legation.clock import SystemClock
from legation.server.streaming.hub import Hub
from legation.store.log import EventLog
from legation.store.stream import Stream
from legation.wire.event_types import SessionReset
from legation.wire.universal.shapes import Schema

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("short_tails")]

RESET = SessionReset(reason="loaded")


@pytest.fixture
async def port(log: EventLog, stream: Stream) -> AsyncIterator[int]:
    await stream.append(drafts(ACTIVE, *[chunk(f"old {number}") for number in range(20)]))  # 1 to 21
    await stream.replace(drafts(RESET, chunk("new")))  # 22, 23
    async with serving(log, Hub(log, SystemClock())) as port:
        yield port


async def page(port: int, query: str) -> tuple[int, Any]:
    status, body = await ask(port, f"/v1/streams/{SESSION}/events?limit=1000&{query}")
    return status, json.loads(body)


def seqs(found: Any) -> list[int]:
    return [each["seq"] for each in found["items"]]


async def test_each_generation_of_a_stream_is_read_by_its_number(port: int) -> None:
    assert seqs((await page(port, ""))[1]) == seqs((await page(port, "generation=2"))[1]) == [22, 23]
    assert seqs((await page(port, "generation=1"))[1]) == list(range(1, 22))
    assert seqs((await page(port, "generation=1&after=20"))[1]) == [21]
    assert seqs((await page(port, "generation=all&after=20"))[1]) == [21, 22, 23]


async def test_pages_of_a_generation_end_with_it(port: int) -> None:
    status, body = await ask(port, f"/v1/streams/{SESSION}/events?limit=15&generation=1")
    first = json.loads(body)
    assert (status, len(first["items"]), first["next"]) == (200, 15, "15")
    last = (await page(port, "generation=1&after=15"))[1]
    assert (seqs(last), last["next"]) == (list(range(16, 22)), None)


@pytest.mark.parametrize(("given", "status"), [("3", 404), ("0", 400), ("-1", 400), ("x", 400), ("", 400)])
async def test_a_generation_that_there_is_not_is_a_problem(port: int, given: str, status: int) -> None:
    for path in ("events", "sse"):
        found, body = await ask(port, f"/v1/streams/{SESSION}/{path}?generation={given}")
        assert found == status
        if status == 404:
            problem = json.loads(body)
            assert "there are 2, counted from 1" in problem["detail"]


async def test_how_many_generations_there_are_is_in_the_list(port: int) -> None:
    _, body = await ask(port, "/v1/streams")
    (found,) = json.loads(body)["items"]
    assert (found["firstSeq"], found["head"], found["generations"]) == (22, 23, 2)


async def test_the_body_of_an_earlier_generation_ends_with_it(port: int) -> None:
    async with asyncio.timeout(LIMIT):
        reader, writer, status, _ = await get(port, f"/v1/streams/{SESSION}/sse?generation=1")
        assert status == 200
        found = [frame async for frame in frames(reader)][1:]
        writer.close()
    assert [frame.get("id") for frame in found] == [*map(str, range(1, 22)), None]
    assert (found[-1]["event"], json.loads(found[-1]["data"])) == ("end", {"reason": "replaced"})


async def test_a_reader_of_an_earlier_generation_that_comes_again_sees_the_reset_and_goes_on(
    port: int, stream: Stream
) -> None:
    async with asyncio.timeout(LIMIT):
        reader, writer, _, _ = await get(port, f"/v1/streams/{SESSION}/sse", {"Last-Event-ID": "7"})
        body = frames(reader)
        await anext(body)
        found = [json.loads((await anext(body))["data"]) for _ in range(2)]
        await stream.append(drafts(chunk("live")))
        found.append(json.loads((await anext(body))["data"]))
        writer.close()
    assert [each["seq"] for each in found] == [22, 23, 24]
    assert found[0]["type"] == "session-reset"


@pytest.mark.parametrize("schema", SCHEMAS)
async def test_events_of_an_earlier_generation_are_those_that_were_shown_then(
    server: Server, stream: Stream, schema: Schema
) -> None:
    await stream.append(drafts(ACTIVE, *[chunk(f"old {number}") for number in range(20)]))
    _, before = await server.page(f"?schema={schema}")
    await stream.replace(drafts(RESET, chunk("new")))
    _, newest = await server.page(f"?schema={schema}")
    assert (await server.page(f"?schema={schema}&generation=1"))[1] == before
    assert (await server.page(f"?schema={schema}&generation=2"))[1] == newest != before
    everything = (await server.page(f"?schema={schema}&generation=all"))[1]["events"]
    shown = len(before["events"])
    assert everything[:shown] == before["events"]
    assert everything[-len(newest["events"]) :] == newest["events"]
    assert (await server.page(f"?schema={schema}&generation=3"))[0] == 404


async def test_a_session_is_followed_in_one_generation_to_its_end(server: Server, stream: Stream) -> None:
    await stream.append(drafts(ACTIVE, chunk("old")))
    async with asyncio.timeout(LIMIT), aclosing(server.follow("?generation=1")) as body:
        shown = [await anext(body) for _ in (await server.page())[1]["events"]]
        await stream.replace(drafts(RESET, chunk("new")))
        last = await anext(body)
    assert all("id" in each for each in shown)
    assert (last["event"], json.loads(last["data"])) == ("end", {"reason": "replaced"})
