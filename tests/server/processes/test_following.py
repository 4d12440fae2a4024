"""Logs as server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.server.processes.process_rig import LIMIT, ProcessRig, text
from tests.server.stream_client import frames, get

from legation.server.processes.output import LogFollower, ProcessLog
from legation.server.streaming.hub import RECHECK
from legation.testing.clock import FakeClock

pytestmark = pytest.mark.heavy


async def follow(
    bench: ProcessRig, process: str, query: str = "", **headers: str
) -> AsyncIterator[dict[str, Any]]:
    path = f"/v1/processes/{process}/logs?follow=true{query}"
    async with (
        asyncio.timeout(LIMIT),
        bench.client.stream("GET", path, headers=headers) as answer,
    ):
        assert answer.headers["content-type"] == "text/event-stream"
        frame: dict[str, Any] = {}
        async for line in answer.aiter_lines():
            name, _, value = line.partition(": ")
            if name in ("event", "id", "data"):
                frame[name] = value
            elif not line and frame:
                yield frame
                frame = {}


async def test_what_was_and_what_comes_then_the_end(bench: ProcessRig) -> None:
    began = await bench.sh("echo one; read x; echo two >&2; read x; echo three")
    await bench.shown(began["id"], b"one\n")
    entries, events = [], []
    async for frame in follow(bench, began["id"]):
        events.append(frame["event"])
        if frame["event"] == "log":
            entries.append(json.loads(frame["data"]))
            assert frame["id"] == str(entries[-1]["sequence"])
            if len(entries) < 3:
                await bench.post(f"/{began['id']}/input", {"data": "\n", "encoding": "text"})
    assert [each["sequence"] for each in entries] == [1, 2, 3]
    assert text(entries) == b"one\ntwo\nthree\n"
    assert [each["stream"] for each in entries] == ["stdout", "stderr", "stdout"]
    assert events == ["log", "log", "log", "end"]


async def test_it_goes_on_after_the_last_event_id_and_honours_the_filters(bench: ProcessRig) -> None:
    process = bench.process((await bench.start("cat"))["id"])
    for number in range(6):
        process.log.add("stdout" if number % 2 else "stderr", str(number).encode(), 0)
    await process.kill(LIMIT)

    async def numbers(query: str = "", **headers: str) -> list[str]:
        return [each["id"] async for each in follow(bench, process.id, query, **headers) if "id" in each]

    assert await numbers() == ["1", "2", "3", "4", "5", "6"]
    assert await numbers(**{"last-event-id": "4"}) == ["5", "6"]
    assert await numbers("&since=1", **{"last-event-id": "4"}) == ["5", "6"]
    assert await numbers("&since=3") == ["4", "5", "6"]
    assert await numbers("&stream=stdout") == ["2", "4", "6"]
    assert await numbers("&tail=2") == ["5", "6"]
    assert (
        await bench.get(f"/{process.id}/logs?follow=true", headers={"last-event-id": "x"})
    ).status_code == 400


async def test_a_slow_reader_loses_nothing_that_is_kept(bench: ProcessRig) -> None:
    """It stops reading while 8 MB come, more than the connection holds, and reads on."""
    began = await bench.sh("read x; head -c 8000000 /dev/zero | tr '\\0' x; echo; echo end")
    path, headers = f"/v1/processes/{began['id']}/logs?follow=true", {**bench.ada, "host": "127.0.0.1"}
    reader, writer, status, _ = await get(bench.port, path, headers)
    assert status == 200
    await bench.post(f"/{began['id']}/input", {"data": "\n", "encoding": "text"})
    await bench.ended(began["id"])
    async with asyncio.timeout(LIMIT):
        found = [each async for each in frames(reader)]
    writer.close()
    entries = [json.loads(each["data"]) for each in found if each.get("event") == "log"]
    assert [each["sequence"] for each in entries] == list(range(1, len(entries) + 1))
    assert text(entries) == b"x" * 8_000_000 + b"\nend\n"
    assert {each.get("event") for each in found} == {None, "log", "end"}  # None: the comment at its beginning


async def allowed() -> bool:
    return True


async def test_what_was_dropped_meanwhile_is_told() -> None:
    log, clock = ProcessLog(3000), FakeClock()
    body = LogFollower(log, "combined", 0, allowed, clock)
    log.add("stdout", b"a" * 1000, 0)
    assert (await body.next()).count(b"event: log") == 1
    for _ in range(10):
        log.add("stdout", b"b" * 1000, 0)
    told = await body.next()
    assert told.startswith(b'event: truncated\ndata: {"firstSequence":10,"droppedBytes":9000}\n\n')
    assert told.count(b"event: log") == 2
    log.close()
    assert (await body.next()).startswith(b"event: end")
    assert await body.next() == b""


async def test_it_ends_with_the_credential_and_with_the_reader() -> None:
    log, clock, asked = ProcessLog(3000), FakeClock(), list[int]()

    async def revoked() -> bool:
        asked.append(1)
        return False

    body = LogFollower(log, "combined", 0, revoked, clock)
    log.add("stdout", b"a", 0)
    assert await body.next() != b""
    assert asked == []
    clock.advance(RECHECK + 1)
    log.add("stdout", b"b", 0)
    assert await body.next() == b""
    leaving = LogFollower(log, "combined", 2, allowed, clock)
    waiting = asyncio.create_task(leaving.next())
    await asyncio.sleep(0)
    leaving.leave()
    assert await waiting == b""
