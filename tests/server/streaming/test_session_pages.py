"""The events of sessions in pages: the whole fold and nothing else (INV-P1 to P6)."""

import json
import random
from pathlib import Path

import pytest
from tests.server.streaming.events_server import (
    SCHEMAS,
    SESSION,
    Server,
    drafts,
    number_of,
    numbers,
    serving,
    turns,
    whole_fold,
)
from tests.wire.universal.logs import ACTIVE, chunk

from legation.clock import SystemClock
from legation.server.streaming import sse
from legation.server.streaming.checkpoints import Checkpoints
from legation.server.streaming.hub import Hub
from legation.store.codec import MemoryBackend
from legation.store.log import EventLog
from legation.store.sqlite import SqliteBackend
from legation.store.stream import Stream
from legation.wire.events import Event
from legation.wire.universal.output import ProjectedEvent
from legation.wire.universal.projector import Projector
from legation.wire.universal.shapes import Schema

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.usefixtures("short_tails")
async def test_pages_of_any_size_together_are_the_whole_fold(
    server: Server, stream: Stream, schema: Schema, raw: bool
) -> None:
    await stream.append(turns(12))
    whole = await whole_fold(stream, schema, include_raw=raw)
    server.hub.checkpoints.apart = 10
    for limit in (1, 3, 50, 10_000):
        offset, found = 0, []
        while True:
            query = f"?offset={offset}&limit={limit}&includeRaw={json.dumps(raw)}&schema={schema}"
            status, page = await server.page(query)
            assert status == 200
            assert len(page["events"]) == limit or not page["hasMore"]
            found += page["events"]
            if not page["hasMore"]:
                break
            offset = number_of(page["events"][-1])
        assert found == [json.loads(each) for _, each in whole]


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.usefixtures("short_tails")
async def test_a_page_is_the_same_whatever_was_read_before(
    server: Server, stream: Stream, schema: Schema
) -> None:
    await stream.append(turns(20))
    whole = [json.loads(each) for _, each in await whole_fold(stream, schema, include_raw=False)]
    server.hub.checkpoints.apart = 7
    chance = random.Random(6)
    for _ in range(60):
        offset, limit = chance.randrange(len(whole) + 2), chance.randrange(1, 40)
        _, page = await server.page(f"?offset={offset}&limit={limit}&schema={schema}")
        rest = [each for each in whole if number_of(each) > offset]
        assert (page["events"], page["hasMore"]) == (rest[:limit], len(rest) > limit)


async def test_a_page_without_a_limit_holds_everything_however_long(server: Server, stream: Stream) -> None:
    await stream.append(drafts(ACTIVE, *(chunk("x" * 1000) for _ in range(2000))))
    status, page = await server.page()
    assert status == 200
    assert len(json.dumps(page)) > 4 * sse.CHUNK_BYTES
    assert numbers(page["events"]) == [
        number for number, _ in await whole_fold(stream, "sandbox-agent", include_raw=False)
    ]
    assert page["hasMore"] is False


async def test_an_empty_session_has_an_empty_page(server: Server) -> None:
    assert await server.page() == (200, {"events": [], "hasMore": False})


async def test_a_page_beyond_the_end_is_empty_as_in_the_original(server: Server, stream: Stream) -> None:
    await stream.append(turns(1))
    assert await server.page("?offset=1000000") == (200, {"events": [], "hasMore": False})


async def test_both_spellings_of_a_parameter_are_understood(server: Server, stream: Stream) -> None:
    await stream.append(turns(1))
    camel, snake = await server.page("?includeRaw=true"), await server.page("?include_raw=true")
    assert camel == snake
    assert any(event["raw"] for event in camel[1]["events"])
    assert not any(event["raw"] for event in (await server.page())[1]["events"])


@pytest.mark.parametrize("query", ["?offset=-1", "?limit=0", "?schema=other", "?includeRaw=1", "?after=3"])
async def test_what_is_no_query_is_refused(server: Server, query: str) -> None:
    assert (await server.page(query))[0] == 400


async def test_pages_in_order_do_not_read_the_log_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with EventLog(SqliteBackend(tmp_path / "log.db")) as log:
        await (await log.stream(SESSION)).append(drafts(ACTIVE, *(chunk("x") for _ in range(5000))))
    fed = 0
    really = Projector.feed

    def counted(self: Projector, event: Event) -> list[ProjectedEvent]:
        nonlocal fed
        fed += 1
        return really(self, event)

    monkeypatch.setattr(Projector, "feed", counted)
    async with EventLog(SqliteBackend(tmp_path / "log.db")) as log, serving(log) as server:
        offset, pages, more = 0, 0, True
        while more:
            _, page = await server.page(f"?offset={offset}&limit=100")
            offset, pages, more = number_of(page["events"][-1]), pages + 1, page["hasMore"]
        assert offset == 5002
        assert fed <= 5001 + 2 * pages


async def test_checkpoints_are_bounded_over_all_sessions_and_change_nothing() -> None:
    async with EventLog(MemoryBackend()) as log, serving(log) as server:
        stream = await log.stream(SESSION)
        await stream.append(turns(20))
        server.hub.checkpoints = Checkpoints(limit=5, apart=3)
        whole = [json.loads(each) for _, each in await whole_fold(stream, "sandbox-agent", include_raw=False)]
        for offset in (0, 100, 17, 250, 3):
            assert (await server.page(f"?offset={offset}"))[1]["events"] == whole[offset:]
            assert len(server.hub.checkpoints) <= 5


async def test_readers_at_the_end_share_one_fold_and_their_frames(log: EventLog, stream: Stream) -> None:
    hub = Hub(log, SystemClock())
    async with serving(log, hub) as server:
        await stream.append(turns(1))
        bodies = [server.follow() for _ in range(5)]
        for body in bodies:
            await anext(body)
        assert hub.readers == 5
        kept = hub.cached_bytes
        assert kept <= 2 * len(
            b"".join(each for _, each in await whole_fold(stream, "sandbox-agent", include_raw=False))
        )
        for body in bodies:
            await body.aclose()
