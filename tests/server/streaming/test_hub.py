"""The hub without HTTP: exact suffixes (INV-H1), bounded memory (INV-H2), nothing for unread streams (INV-H3)."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legation.clock import SystemClock
from legation.errors import Conflict, NotFound, StorageFailed
from legation.server.streaming import sse
from legation.server.streaming.hub import KEEP_ALIVE, RECHECK, Credential, Hub, LiveStreamReader, StreamSource
from legation.store import stream as stream_module
from legation.store.codec import MemoryBackend
from legation.store.log import EventLog
from legation.store.sqlite import SqliteBackend
from legation.store.stream import GenerationRange, Stream
from legation.testing.clock import FakeClock
from legation.wire.events import Draft, Event

pytestmark = pytest.mark.heavy

LIMIT = 20.0  # seconds for anything a test waits for


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[EventLog]:
    async with EventLog(SqliteBackend(tmp_path / "log.db")) as log:
        yield log


@pytest.fixture
def hub(log: EventLog) -> Hub:
    return Hub(log, SystemClock())


def drafts(count: int, size: int = 1) -> list[Draft]:
    return [Draft("x", b'"%b"' % (b"y" * size)) for _ in range(count)]


def ids(data: bytes) -> list[int]:
    return [int(number) for number in re.findall(rb"(?m)^id: (\d+)$", data)]


async def read_until(reader: LiveStreamReader, seq: int) -> list[int]:
    found: list[int] = []
    async with asyncio.timeout(LIMIT):
        while reader.seq < seq:
            found += ids(await reader.next())
    return found


async def test_readers_at_the_same_place_share_one_chunk(log: EventLog, hub: Hub) -> None:
    stream = await log.stream("ses_1")
    readers = [await hub.reader("ses_1", "local", 0) for _ in range(3)]
    await stream.append(drafts(5))
    with readers[0], readers[1], readers[2]:
        found = [await reader.next() for reader in readers]
    assert found[0] is found[1] is found[2]
    assert ids(found[0]) == [1, 2, 3, 4, 5]
    assert hub.delivered == 15


async def test_who_is_behind_catches_up_in_long_strides(log: EventLog, hub: Hub) -> None:
    stream = await log.stream("ses_1")
    keeping_up, behind = await hub.reader("ses_1", "local", 0), await hub.reader("ses_1", "local", 0)
    with keeping_up, behind:
        for _ in range(10):
            await stream.append(drafts(1))
            await keeping_up.next()
        assert ids(await behind.next()) == list(range(1, 11))


async def test_a_stream_that_nobody_reads_holds_nothing(log: EventLog, hub: Hub) -> None:
    stream = await log.stream("ses_1")
    await stream.append(drafts(5))
    tasks = asyncio.all_tasks()
    with await hub.reader("ses_1", "local", 0) as reader:
        await reader.next()
        assert hub.cached_bytes > 0
        assert hub.readers == 1
    await asyncio.sleep(0)
    assert (hub.cached_bytes, hub.readers) == (0, 0)
    assert asyncio.all_tasks() == tasks


async def test_the_cache_is_bounded_over_all_streams(log: EventLog) -> None:
    hub = Hub(log, SystemClock(), cache_bytes=100_000)
    for name in ("a", "b", "c"):
        stream = await log.stream(name)
        with await hub.reader(name, "local", 0) as reader, await hub.reader(name, "local", 0) as other:
            for _ in range(30):
                await stream.append(drafts(1, size=10_000))
                await reader.next()
                assert hub.cached_bytes <= 100_000
            assert await read_until(other, 30) == list(range(1, 31))


async def test_one_event_beyond_all_bounds_still_arrives(log: EventLog) -> None:
    hub = Hub(log, SystemClock(), cache_bytes=1000)
    stream = await log.stream("ses_1")
    await stream.append(drafts(2, size=1_000_000))
    with await hub.reader("ses_1", "local", 0) as reader:
        assert await read_until(reader, 2) == [1, 2]
    assert hub.cached_bytes == 0


async def test_readers_who_come_back_together_share_the_read_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with EventLog(SqliteBackend(tmp_path / "log.db")) as log:
        await (await log.stream("ses_1")).append(drafts(100))
    reads = 0
    really = Stream.read_older

    async def counted(self: Stream, after: int) -> list[Event]:
        nonlocal reads
        reads += 1
        return await really(self, after)

    monkeypatch.setattr(Stream, "read_older", counted)
    async with EventLog(SqliteBackend(tmp_path / "log.db")) as log:
        hub = Hub(log, SystemClock())
        readers = [await hub.reader("ses_1", "local", 0) for _ in range(20)]

        async def first(reader: LiveStreamReader) -> list[int]:
            with reader:
                return await read_until(reader, 100)

        found = await asyncio.gather(*[first(reader) for reader in readers])
        assert found == [list(range(1, 101))] * 20
    assert reads == 1


async def test_what_was_replaced_is_not_shown_again(log: EventLog, hub: Hub) -> None:
    stream = await log.stream("ses_1")
    await stream.append(drafts(3))
    with await hub.reader("ses_1", "local", 0) as first, await hub.reader("ses_1", "local", 0) as second:
        assert ids(await first.next()) == [1, 2, 3]
        await stream.replace(drafts(2))
        assert ids(await second.next()) == [4, 5]
        assert ids(await first.next()) == [4, 5]


async def test_a_reader_may_wait_for_a_number_that_is_given_but_not_yet_written(
    log: EventLog, hub: Hub
) -> None:
    stream = await log.stream("ses_1")
    receipt = stream.append(drafts(3))
    with await hub.reader("ses_1", "local", 3) as reader:
        await receipt
        await stream.append(drafts(1))
        assert ids(await reader.next()) == [4]
    with pytest.raises(Conflict) as refused:
        await hub.reader("ses_1", "local", 5)
    assert refused.value.data == {"stream": "ses_1", "head": 4}


async def test_an_absent_a_deleted_and_a_foreign_stream_are_not_found(log: EventLog, hub: Hub) -> None:
    await log.stream("theirs", "another")
    deleted = await log.stream("deleted")
    await deleted.delete()
    for name in ("absent", "theirs", "deleted", "", "x" * 1000):
        with pytest.raises(NotFound):
            await hub.reader(name, "local", 0)


async def test_silence_is_broken_after_a_while_and_again_after_that() -> None:
    clock = FakeClock()
    async with EventLog(MemoryBackend()) as log:
        stream = await log.stream("ses_1")
        hub = Hub(log, clock)
        with await hub.reader("ses_1", "local", 0) as reader:
            for _ in range(2):
                waiting = asyncio.create_task(reader.next())
                await asyncio.sleep(0)  # it rests from now on
                await clock.until_sleeping()
                clock.advance(KEEP_ALIVE - 0.1)
                await clock.until_sleeping()
                assert not waiting.done()
                clock.advance(0.2)
                async with asyncio.timeout(LIMIT):
                    assert await waiting == sse.PING
            stream.append(drafts(1))
            assert ids(await reader.next()) == [1]


async def test_close_ends_every_body_and_those_opened_later(log: EventLog, hub: Hub) -> None:
    await log.stream("ses_1")
    with await hub.reader("ses_1", "local", 0) as reader:
        waiting = asyncio.create_task(reader.next())
        await asyncio.sleep(0)
        hub.close()
        async with asyncio.timeout(LIMIT):
            assert await waiting == sse.bye("shutdown")
        assert await reader.next() == b""
    with await hub.reader("ses_1", "local", 0) as late:
        assert [await late.next(), await late.next()] == [sse.bye("shutdown"), b""]


async def test_a_closed_log_says_bye_and_not_end(tmp_path: Path) -> None:
    async with EventLog(SqliteBackend(tmp_path / "log.db")) as log:
        await log.stream("ses_1")
        reader = await Hub(log, SystemClock()).reader("ses_1", "local", 0)
        reader.__enter__()
        waiting = asyncio.create_task(reader.next())
        await asyncio.sleep(0)
    assert await waiting == sse.bye("shutdown")
    reader.__exit__()


class Standing:
    """Credentials that can be taken away, and how often they were asked about."""

    def __init__(self, *good: str) -> None:
        self.good = {*good}
        self.asked: list[str] = []

    def credential(self, key: str) -> Credential:
        async def holds() -> bool:
            self.asked.append(key)
            return key in self.good

        return Credential(key, holds)


async def test_a_revoked_credential_ends_its_own_bodies_only(log: EventLog, hub: Hub) -> None:
    stream, standing = await log.stream("ses_1"), Standing("tok_1", "tok_2")
    readers = [
        await hub.reader("ses_1", "local", 0, standing.credential(key)) for key in ("tok_1", "tok_1", "tok_2")
    ]
    with readers[0], readers[1], readers[2]:
        standing.good.remove("tok_1")
        hub.recheck()
        async with asyncio.timeout(LIMIT):
            assert [await reader.next() for reader in readers[:2]] == [sse.bye("credential")] * 2
        assert sorted(standing.asked) == ["tok_1", "tok_2"]  # once for each, however many bodies it has
        stream.append(drafts(1))
        assert ids(await readers[2].next()) == [1]


async def test_a_credential_that_just_expires_ends_its_body_in_time(log: EventLog) -> None:
    clock, standing = FakeClock(), Standing()
    await log.stream("ses_1")
    hub = Hub(log, clock)
    with await hub.reader("ses_1", "local", 0, standing.credential("tok_1")) as reader:
        waiting = asyncio.create_task(reader.next())
        async with asyncio.timeout(LIMIT):
            while not waiting.done():
                await asyncio.sleep(0)
                clock.advance(RECHECK / 2)
            assert waiting.result() in (sse.bye("credential"), sse.PING)
            while waiting.result() == sse.PING:
                waiting = asyncio.create_task(reader.next())
                await waiting
        assert waiting.result() == sse.bye("credential")


async def test_a_store_that_cannot_be_read_ends_the_body_with_bye(log: EventLog, hub: Hub) -> None:
    class Broken(Stream):
        def since(self, seq: int, floor: int | None = None) -> list[Event] | None:  # noqa: ARG002
            return None

        async def read_older(self, after: int, floor: int | None = None) -> list[Event]:  # noqa: ARG002
            raise StorageFailed("cannot read the disk")

    stream = await log.stream("ses_1")
    with LiveStreamReader(hub, Broken(log, stream.info(), keep_all=False), 0) as reader:
        assert await reader.next() == sse.bye("unavailable")
        assert await reader.next() == b""


async def test_a_source_that_fails_to_tell_its_news_asks_its_readers_to_come_again(
    log: EventLog, hub: Hub
) -> None:
    class Deaf(Stream):
        def __getattribute__(self, name: str) -> object:
            if name == "news":
                raise ConnectionError("gone")
            return super().__getattribute__(name)

    stream = await log.stream("ses_1")
    with LiveStreamReader(hub, Deaf(log, stream.info(), keep_all=False), 0) as reader:
        async with asyncio.timeout(LIMIT):
            assert await reader.next() == sse.bye("unavailable")


async def test_other_kinds_of_streams_can_be_plugged_in(log: EventLog) -> None:
    runs = EventLog(MemoryBackend())
    async with runs:
        await (await runs.stream("run_1")).append(drafts(2))

        async def find(name: str, workspace: str) -> StreamSource | None:
            return await runs.stream(name, workspace) if name.startswith("run_") else None

        hub = Hub(log, SystemClock(), finders=[find])
        with await hub.reader("run_1", "local", 0) as reader:
            assert ids(await reader.next()) == [1, 2]
        with pytest.raises(NotFound):
            await hub.reader("ses_1", "local", 0)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 40), st.sampled_from([1, 300, 40_000])),
        st.tuples(st.just("read"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("again"), st.integers(0, 3), st.just(0)),
    ),
    min_size=5,
    max_size=60,
)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@settings(max_examples=25, deadline=None)
@given(steps=steps)
def test_every_reader_gets_the_exact_suffix_whatever_its_pace(
    kind: str, steps: list[tuple[str, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Readers of different paces, some of which connect again, on a stream whose tail is short."""
    folder = tmp_path_factory.mktemp("log")
    backend = MemoryBackend() if kind == "memory" else SqliteBackend(folder / "log.db")

    async def run() -> None:
        async with EventLog(backend) as log:
            stream = await log.stream("ses_1")
            hub = Hub(log, SystemClock(), cache_bytes=300_000)
            readers = [await hub.reader("ses_1", "local", 0) for _ in range(4)]
            seen: list[list[int]] = [[], [], [], []]
            for reader in readers:
                reader.__enter__()
            for step, number, size in steps:
                if step == "append":
                    await stream.append(drafts(number, size))
                elif step == "again":
                    readers[number].__exit__()
                    readers[number] = await hub.reader("ses_1", "local", len(seen[number]))
                    readers[number].__enter__()
                elif len(seen[number]) < stream.visible:
                    seen[number] += ids(await readers[number].next())
            for reader, found in zip(readers, seen, strict=True):
                found += await read_until(reader, stream.visible)
                assert found == list(range(1, stream.visible + 1))
                reader.__exit__()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_module, "TAIL_EVENTS", 50)
        patch.setattr(stream_module, "TAIL_BYTES", 200_000)
        asyncio.run(run())


async def test_a_watch_that_is_given_up_as_news_comes_is_no_error() -> None:
    async with EventLog(MemoryBackend()) as log:
        stream = await log.stream("ses_1")
        watch = asyncio.create_task(stream.news.wait())
        await asyncio.sleep(0)
        watch.cancel()
        stream.append(drafts(1))
        with pytest.raises(asyncio.CancelledError):
            await watch


async def test_what_comes_while_many_readers_are_given_a_rest_still_arrives(log: EventLog) -> None:
    hub = Hub(log, FakeClock())  # so that no ping wakes them
    stream = await log.stream("ses_1")
    readers = [await hub.reader("ses_1", "local", 0) for _ in range(100)]

    async def follow(reader: LiveStreamReader) -> tuple[list[int], bytes]:
        with reader:
            found = await read_until(reader, 20)
            return found, await reader.next()

    async with asyncio.timeout(LIMIT):
        following = [asyncio.create_task(follow(reader)) for reader in readers]
        for _ in range(20):
            await stream.append(drafts(1))
            while hub.delivered < stream.visible:
                await asyncio.sleep(0)
        while not all(reader.seq == 20 for reader in readers):
            await asyncio.sleep(0)
        await stream.delete()  # within the rest after the last event
        found = await asyncio.gather(*following)
    assert found == [(list(range(1, 21)), sse.end("deleted"))] * 100


async def test_streams_do_not_mix(log: EventLog, hub: Hub) -> None:
    await (await log.stream("a")).append(drafts(1))
    await (await log.stream("b")).append(drafts(2))
    with await hub.reader("a", "local", 0) as first, await hub.reader("b", "local", 0) as second:
        assert ids(await first.next()) == [1]
        assert ids(await second.next()) == [1, 2]


async def test_others_have_a_turn_between_the_reading_of_a_long_event_and_its_frame(
    log: EventLog, hub: Hub
) -> None:
    order: list[str] = []

    class Watched(GenerationRange):
        async def read_older(self, after: int) -> list[Event]:
            found = await super().read_older(after)
            asyncio.get_running_loop().call_soon(order.append, "others")
            return found

    def framed(events: Sequence[Event]) -> sse.Frames:
        order.append("framed")
        return sse.frames(events)

    stream = await log.stream("ses_1")
    await stream.append(drafts(1, sse.LONG_CHUNK + 1))
    await stream.append(
        drafts(2, stream_module.TAIL_BYTES // 2)
    )  # so that the first must be read from the store
    while stream.since(0) is not None:
        await asyncio.sleep(0)
    with LiveStreamReader(hub, Watched(stream, 1, None), 0, None, framed) as reader:
        assert ids(await reader.next()) == [1]
    assert order[:2] == ["others", "framed"]
