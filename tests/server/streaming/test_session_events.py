"""The events of sessions as they come: the whole fold and nothing else (INV-P1 to P6)."""

import asyncio
import json
import random
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from tests.server.stream_client import LIMIT, frames, get
from tests.server.streaming.events_server import (
    SCHEMAS,
    SESSION,
    Server,
    ask,
    drafts,
    number_of,
    numbers,
    serving,
    turns,
    whole_fold,
)
from tests.wire.universal.logs import ACTIVE, Entry, chunk

from legation.store.log import EventLog
from legation.store.sqlite import SqliteBackend
from legation.store.stream import Stream
from legation.wire.acp.updates import Text
from legation.wire.event_types import PromptStarted, SessionReset
from legation.wire.universal.shapes import Schema

pytestmark = pytest.mark.heavy


async def take(server: Server, count: int, query: str = "", **headers: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    async with asyncio.timeout(LIMIT), aclosing(server.follow(query, **headers)) as body:
        async for frame in body:
            found.append(frame)
            if len(found) == count:
                break
    return found


@pytest.mark.parametrize("schema", SCHEMAS)
async def test_stored_events_and_those_to_come_are_one_body(
    server: Server, stream: Stream, schema: Schema
) -> None:
    await stream.append(turns(2))
    stored = len(await whole_fold(stream, schema, include_raw=True))
    reading = asyncio.create_task(take(server, 2 * stored - 1, f"?schema={schema}&includeRaw=true"))
    for each in turns(2)[1:]:
        await stream.append([each])
    whole = await whole_fold(stream, schema, include_raw=True)
    assert [(int(frame["id"]), frame["data"].encode()) for frame in await reading] == whole[: 2 * stored - 1]


@pytest.mark.usefixtures("short_tails")
async def test_readers_from_anywhere_miss_and_double_nothing_while_it_grows(
    server: Server, stream: Stream
) -> None:
    whole_at_end = 8 * 42
    chance = random.Random(5)

    async def read(offset: int) -> list[int]:
        found: list[int] = []
        async with asyncio.timeout(LIMIT), aclosing(server.follow(f"?offset={offset}")) as body:
            async for frame in body:
                found.append(int(frame["id"]))
                assert json.loads(frame["data"])["sequence"] == found[-1]
                if found[-1] >= whole_at_end:
                    break
        return found

    await stream.append(turns(2))
    readers = [asyncio.create_task(read(chance.randrange(20))) for _ in range(10)]
    for each in turns(30)[1:]:
        receipt = stream.append([each])
        if chance.random() < 0.3:
            await receipt
        if chance.random() < 0.02:
            readers.append(asyncio.create_task(read(chance.randrange(20))))
    for found in await asyncio.gather(*readers):
        assert found == list(range(found[0], found[-1] + 1))
        assert found[0] <= 20


async def test_the_limit_that_a_client_has_for_pages_does_not_end_a_live_body(
    server: Server, stream: Stream
) -> None:
    await stream.append(turns(2))
    found = await take(server, 5, "?offset=1&limit=2&includeRaw=false")
    assert [int(frame["id"]) for frame in found] == [2, 3, 4, 5, 6]


async def test_the_last_event_id_of_a_browser_wins(server: Server, stream: Stream) -> None:
    await stream.append(turns(1))
    (frame,) = await take(server, 1, "?offset=1", **{"last-event-id": "5"})
    assert frame["id"] == "6"
    target = f"/v1/sessions/{SESSION}/events/sse"
    assert (await ask(server.port, target, {"last-event-id": "x"}))[0] == 400


async def test_to_follow_from_beyond_the_end_is_a_conflict_that_names_the_end(
    server: Server, stream: Stream
) -> None:
    await stream.append(turns(1))
    end = len(await whole_fold(stream, "sandbox-agent", include_raw=False))
    target = f"/v1/sessions/{SESSION}/events/sse?offset="
    status, problem = await ask(server.port, f"{target}{end + 1}")
    assert (status, problem["data"]["head"]) == (409, end)
    _, writer, status, _ = await get(server.port, f"{target}{end}")
    assert status == 200
    writer.close()


async def test_the_first_bytes_come_before_the_first_event(server: Server) -> None:
    reader, writer, _, fields = await get(server.port, f"/v1/sessions/{SESSION}/events/sse")
    assert fields["content-type"] == "text/event-stream"
    async with asyncio.timeout(LIMIT):
        assert await reader.readuntil(b"\n\n")
    writer.close()


async def test_sessions_of_another_workspace_do_not_exist(server: Server, log: EventLog) -> None:
    await log.stream(SESSION, "theirs")
    for target in ("events", "events/sse"):
        for token, session in (("theirs", SESSION), ("local", "absent")):
            given = {"authorization": f"Bearer {token}"}
            status, problem = await ask(server.port, f"/v1/sessions/{session}/{target}", given)
            assert (status, problem["code"]) == (404, "legation/not-found")


async def test_a_body_ends_with_its_credential(server: Server, stream: Stream) -> None:
    await stream.append(turns(1))
    async with asyncio.timeout(LIMIT), aclosing(server.follow()) as body:
        await anext(body)
        server.doors.shut.add("local")
        server.hub.recheck()
        last = [frame async for frame in body][-1]
    assert (last["event"], json.loads(last["data"])) == ("bye", {"reason": "credential"})


async def test_numbers_and_bytes_are_the_same_after_a_restart(tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        async with EventLog(SqliteBackend(tmp_path / "log.db")) as log, serving(log) as server:
            stream = await log.stream(SESSION)
            if not stream.head:
                await stream.append(turns(5))
            count = len(await whole_fold(stream, "sandbox-agent", include_raw=True))
            found.append((await server.page(), await take(server, count, "?includeRaw=true")))
    assert found[0] == found[1]


async def test_who_follows_a_replaced_history_is_told_and_goes_on(server: Server, stream: Stream) -> None:
    open_turn: list[Entry] = [ACTIVE, PromptStarted(turn="trn_1", prompt=(Text(text="go"),)), chunk("half")]
    await stream.append(drafts(*open_turn))
    before = len(await whole_fold(stream, "sandbox-agent", include_raw=False))
    async with asyncio.timeout(LIMIT), aclosing(server.follow()) as body:
        for _ in range(before):
            await anext(body)
        await stream.replace(drafts(SessionReset(reason="loaded"), chunk("again")))
        followed: list[dict[str, Any]] = []
        while not followed or followed[-1]["type"] != "item.delta":
            followed.append(json.loads((await anext(body))["data"]))
    kinds = [event["type"] for event in followed]
    assert kinds[:3] == ["item.completed", "turn.ended", "session.started"]
    assert numbers(followed[:2]) == [before + 1, before + 2]
    anew = [json.loads(each) for _, each in await whole_fold(stream, "sandbox-agent", include_raw=False)]
    assert followed[2:] == anew[: len(followed) - 2]
    # Every offset that anybody holds is still good, and all of them see the same.
    for offset in range(before + 3):
        assert (await server.page(f"?offset={offset}"))[1]["events"] == anew
        assert int((await take(server, 1, f"?offset={offset}"))[0]["id"]) == number_of(anew[0])


@pytest.mark.usefixtures("short_tails")
async def test_a_slow_reader_is_left_behind_and_loses_nothing(server: Server, stream: Stream) -> None:
    """200 readers, 20 of which stall until everybody else has read it all."""
    count, size = 600, 2000
    await stream.append(drafts(ACTIVE))
    whole = count + 2  # the session's start and the item's

    async def read(go: asyncio.Event) -> int:
        reader, writer, _, _ = await get(server.port, f"/v1/sessions/{SESSION}/events/sse")
        connected.release()
        await go.wait()
        expected = 0
        async for frame in frames(reader):
            if "id" in frame:
                expected += 1
                assert int(frame["id"]) == expected
                if expected == whole:
                    break
        writer.close()
        return expected

    connected, now, later = asyncio.Semaphore(0), asyncio.Event(), asyncio.Event()
    now.set()
    async with asyncio.timeout(LIMIT):
        stalled = [asyncio.create_task(read(later)) for _ in range(20)]
        quick = [asyncio.create_task(read(now)) for _ in range(180)]
        for _ in range(200):
            await connected.acquire()
        for _ in range(count // 20):
            stream.append(drafts(*(chunk("x" * size) for _ in range(20))))
            await asyncio.sleep(0)
        assert set(await asyncio.gather(*quick)) == {whole}
        later.set()
        assert set(await asyncio.gather(*stalled)) == {whole}
