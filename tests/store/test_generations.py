"""What is replaced stays: each generation can be read until the stream is deleted."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.store.backends import ALL, DURABLE, make_backend
from tests.store.old_log import take_back

from legation.errors import Conflict, NotFound, StorageFailed
from legation.store import codec, files
from legation.store.codec import MemoryBackend, Op, Replace
from legation.store.jsonl import JsonlBackend
from legation.store.log import EventLog
from legation.store.sqlite import SqliteBackend
from legation.store.stream import SLICE_EVENTS, TAIL_EVENTS, GenerationRange, Stream, Subscription
from legation.wire.events import Draft

Open = Callable[[], AbstractAsyncContextManager[EventLog]]
ROOT = Path(__file__).parents[2]
STEPS = 60  # more than any store takes for one generation


def drafts(first: int, last: int) -> list[Draft]:
    return [Draft("x", b"%d" % number) for number in range(first, last + 1)]


async def numbers(of: Stream | GenerationRange, after: int = 0) -> list[int]:
    found = [event async for event in of.subscribe(after, follow=False)]
    assert [event.raw for event in found] == [b"%d" % event.seq for event in found]
    return [event.seq for event in found]


async def three_generations(log: EventLog) -> Stream:
    stream = await log.stream("ses_a")
    await stream.append(drafts(1, 5))
    await stream.replace(drafts(6, 8))
    await stream.append(drafts(9, 9))
    await stream.replace(drafts(10, 10))
    return stream


async def test_a_long_history_is_numbered_in_turns_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    check = codec.check

    def checked(some: Sequence[Draft]) -> None:
        looked_at.append(len(some))
        check(some)

    async with EventLog(MemoryBackend()) as log:
        stream = await log.stream("ses_a")
        await stream.append(drafts(1, 5))
        monkeypatch.setattr(codec, "check", checked)
        replacing = asyncio.create_task(stream.replace(drafts(6, 20_000), meta=b"{}"))
        await asyncio.sleep(0)
        with pytest.raises(Conflict):  # its numbers are taken
            stream.append(drafts(6, 6))
        await stream.set_meta(b'{"meanwhile":1}')
        await replacing
        assert max(looked_at) <= SLICE_EVENTS
        assert await numbers(stream) == list(range(6, 20_001))
        replacing = asyncio.create_task(stream.replace(drafts(20_001, 30_000)))
        await asyncio.sleep(0)
        replacing.cancel()
        await asyncio.wait({replacing})
        await stream.append(drafts(20_001, 20_001))
        assert (await numbers(stream))[-1] == 20_001


@pytest.fixture(params=ALL)
def open_log(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    return lambda: EventLog(make_backend(request.param, tmp_path))


@pytest.fixture(params=DURABLE)
def open_durable(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    return lambda: EventLog(make_backend(request.param, tmp_path))


async def test_an_earlier_generation_stays_readable(open_log: Open) -> None:
    async with open_log() as log:
        stream = await three_generations(log)
        assert await numbers(stream) == [10]
        assert await numbers(stream.generation(1)) == [1, 2, 3, 4, 5]
        assert await numbers(stream.generation(2)) == [6, 7, 8, 9]
        assert await numbers(stream.generation(2), 7) == [8, 9]
        assert await numbers(stream.generation(3)) == [10]
        assert await numbers(stream.whole()) == list(range(1, 11))
        assert await numbers(stream.whole(), 4) == list(range(5, 11))
        assert stream.info().earlier == (1, 6)


async def test_an_earlier_generation_stays_readable_over_a_restart(open_durable: Open) -> None:
    async with open_durable() as log:
        await three_generations(log)
    async with open_durable() as log:
        stream = await log.stream("ses_a")
        assert stream.starts() == (1, 6, 10)
        assert await numbers(stream) == [10]
        assert await numbers(stream.generation(2)) == [6, 7, 8, 9]
        assert await numbers(stream.whole()) == list(range(1, 11))
        (listed,) = await log.streams()
        assert (listed.first_seq, listed.earlier) == (10, (1, 6))


@pytest.mark.parametrize("number", [-1, 0, 4])
async def test_a_generation_that_there_is_not_is_refused(open_log: Open, number: int) -> None:
    async with open_log() as log:
        stream = await three_generations(log)
        with pytest.raises(NotFound, match="there are 3, counted from 1"):
            stream.generation(number)


async def test_a_follower_of_the_newest_generation_by_its_number_ends_with_it(open_log: Open) -> None:
    async with open_log() as log:
        stream = await log.stream("ses_a")
        await stream.append(drafts(1, 2))
        following = asyncio.create_task(all_of(stream.generation(1)))
        everything = stream.whole().subscribe()
        await asyncio.sleep(0)
        await stream.replace(drafts(3, 4))
        assert await asyncio.wait_for(following, 30) == [1, 2]
        assert await first_of(everything, 4) == [1, 2, 3, 4]


async def all_of(span: GenerationRange) -> list[int]:
    return [event.seq async for event in span.subscribe()]


async def first_of(subscription: Subscription, count: int) -> list[int]:
    found: list[int] = []
    async for event in subscription:
        found.append(event.seq)
        if len(found) == count:
            break
    return found


async def test_one_who_stands_in_an_earlier_generation_goes_on_with_the_newest(open_durable: Open) -> None:
    async with open_durable() as log:
        stream = await three_generations(log)
        for after in range(10):
            assert await numbers(stream, after) == [10]


async def test_a_load_into_an_empty_stream_is_its_first_generation(open_log: Open) -> None:
    async with open_log() as log:
        stream = await log.stream("ses_a")
        await stream.replace(drafts(1, 2))
        assert stream.starts() == (1,)
        assert await numbers(stream.generation(1)) == [1, 2]


async def test_a_long_generation_is_read_from_the_store(open_durable: Open) -> None:
    count = TAIL_EVENTS + 100
    async with open_durable() as log:
        stream = await log.stream("ses_a")
        await stream.append(drafts(1, count))
        await stream.replace(drafts(count + 1, 2 * count))
        await stream.append(drafts(2 * count + 1, 2 * count + 1))
        assert await numbers(stream.generation(1)) == list(range(1, count + 1))
        assert await numbers(stream) == list(range(count + 1, 2 * count + 2))


async def test_metadata_of_a_generation_are_in_its_commit(open_durable: Open) -> None:
    async with open_durable() as log:
        stream = await log.stream("ses_a")
        await stream.append(drafts(1, 1))
        await stream.set_meta(b'{"n":1}')
        with pytest.raises(Conflict, match="meanwhile"):
            await stream.replace(drafts(2, 2), meta=b'{"n":2}', replaces=b'{"n":0}')
        await stream.replace(drafts(2, 2), meta=b'{"n":2}', replaces=b'{"n":1}')
        assert stream.meta == b'{"n":2}'
    async with open_durable() as log:
        assert (await log.stream("ses_a")).meta == b'{"n":2}'


async def test_a_closed_stream_is_reopened_behind_what_it_has(open_log: Open) -> None:
    async with open_log() as log:
        stream = await log.stream("ses_a")
        await stream.append(drafts(1, 2))
        await stream.close()
        await stream.reopen(meta=b'{"n":3}')
        await stream.append(drafts(3, 3))
        assert await numbers(stream) == [1, 2, 3]
        assert (stream.info().state, stream.meta, stream.starts()) == ("open", b'{"n":3}', (1,))


async def test_a_reopened_stream_is_open_after_a_restart(open_durable: Open) -> None:
    async with open_durable() as log:
        stream = await log.stream("ses_a")
        await stream.append(drafts(1, 2))
        await stream.close()
        await stream.reopen()
    async with open_durable() as log:
        stream = await log.stream("ses_a")
        assert (stream.info().state, stream.info().head, stream.starts()) == ("open", 2, (1,))


async def test_a_deleted_stream_has_no_generation_left(open_durable: Open, tmp_path: Path) -> None:
    async with open_durable() as log:
        stream = await three_generations(log)
        whole, first = stream.whole(), stream.generation(1)
        await stream.delete()
        assert await numbers(whole) == await numbers(first) == []
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.suffix == ".jsonl")
    assert stored == b""


# What was made before generations were kept.


async def test_a_history_that_was_replaced_by_an_earlier_release_stays_readable(tmp_path: Path) -> None:
    """Its file says neither where it begins nor that there was another: there is one generation."""
    (tmp_path / "ses_a.json").write_bytes(b'{"workspace":"local","state":"open","head":0,"meta":{"n":1}}\n')
    async with EventLog(JsonlBackend(tmp_path)) as log:
        stream = await log.stream("ses_a")
        await stream.append(drafts(1, 7))
    lines = (tmp_path / "ses_a.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "ses_a.jsonl").write_bytes(b"".join(lines[4:]))
    async with EventLog(JsonlBackend(tmp_path)) as log:
        stream = await log.stream("ses_a")
        assert await numbers(stream) == await numbers(stream.whole()) == [5, 6, 7]
        assert stream.starts() == (5,)
        await stream.replace(drafts(8, 8))
        assert await numbers(stream.generation(1)) == [5, 6, 7]
    async with EventLog(JsonlBackend(tmp_path)) as log:
        assert (await log.stream("ses_a")).starts() == (5, 8)


async def test_a_database_of_an_earlier_release_is_brought_up(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with EventLog(SqliteBackend(path)) as log:
        stream = await log.stream("ses_a")
        await stream.append(drafts(1, 4))
        await stream.append(drafts(5, 7))
    take_back(path)
    with closing(sqlite3.connect(path)) as old, old:
        old.execute("alter table stream drop column earlier")
        old.execute("delete from page where last_seq <= 4")
        old.execute("update stream set first_seq = 5")
        old.execute("pragma user_version = 1")
    old.close()
    async with EventLog(SqliteBackend(path)) as log:
        stream = await log.stream("ses_a")
        assert (stream.starts(), stream.info().head) == ((5,), 7)
        await stream.replace(drafts(8, 9))
        assert await numbers(stream.generation(1)) == [5, 6, 7]
        assert await numbers(stream) == [8, 9]


# One commit: all of it, or nothing.


@pytest.mark.heavy
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", DURABLE)
def test_a_kill_at_any_step_leaves_all_of_a_generation_or_nothing(kind: str, tmp_path: Path) -> None:
    outcomes: set[bool] = set()
    for number in range(1, STEPS):
        folder = tmp_path / str(number)
        folder.mkdir()
        ended = subprocess.run(
            [sys.executable, "-m", "tests.store.load_to_kill", kind, str(folder), str(number)],
            stdout=subprocess.PIPE,
            env={"PATH": os.environ["PATH"]},
            cwd=ROOT,
            check=False,
        )
        begun = ended.stdout == b"begun\n"
        there = asyncio.run(is_there(kind, folder))
        assert there or not begun
        outcomes.add(there)
        if begun:
            assert number > 2
            assert outcomes == {False, True}
            return
    raise AssertionError("it never got through")


async def is_there(kind: str, folder: Path) -> bool:
    async with EventLog(make_backend(kind, folder)) as log:
        stream = await log.stream("ses_a")
        meta = msgspec.json.decode(stream.meta)["n"]
        assert (meta, stream.starts(), await numbers(stream)) in (
            (1, (1,), [1, 2, 3]),
            (2, (1, 4), [4, 5, 6, 7, 8]),
        )
        assert await numbers(stream.generation(1)) == [1, 2, 3]
        await stream.append(drafts(stream.head + 1, stream.head + 1))  # it goes on from there
    return bool(meta == 2)


@pytest.mark.parametrize("step", ["write_all", "write_atomically", "sync_folder"])
async def test_a_generation_whose_writing_fails_is_there_or_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Nothing between the two, whichever of a folder's writes it is, and what comes next stands behind it."""
    for number in range(1, 5):
        folder = tmp_path / str(number)
        async with EventLog(JsonlBackend(folder)) as log:
            stream = await log.stream("ses_a")
            await stream.append(drafts(1, 3))
            await stream.set_meta(b'{"n":1}')
            refused = False
            with monkeypatch.context() as broken:
                broken.setattr(files, step, failing_at(number, getattr(files, step)))
                try:
                    await stream.replace(drafts(4, 8), meta=b'{"n":2}')
                except StorageFailed:
                    refused = True
            expected = ((1,), [1, 2, 3], b'{"n":1}') if refused else ((1, 4), [4, 5, 6, 7, 8], b'{"n":2}')
            assert (stream.starts(), await numbers(stream), stream.meta) == expected
            await stream.append(drafts(stream.head + 1, stream.head + 1))
            await stream.set_meta(b'{"n":3}')
        async with EventLog(JsonlBackend(folder)) as log:
            stream = await log.stream("ses_a")
            assert (stream.starts(), stream.meta) == (expected[0], b'{"n":3}')
            assert await numbers(stream) == [*expected[1], expected[1][-1] + 1]


def failing_at(number: int, real: Callable[..., object]) -> Callable[..., object]:
    left = iter(range(number, -1, -1))

    def write(*args: object, **kwargs: object) -> object:
        if next(left, 0) == 1:
            raise OSError(28, "No space left on device")
        return real(*args, **kwargs)

    return write


async def test_nobody_sees_a_generation_before_it_is_committed(tmp_path: Path) -> None:
    class Held(JsonlBackend):
        """Holds the writer back when the events of a generation are in the file."""

        def __init__(self, folder: Path) -> None:
            super().__init__(folder)
            self.loop = asyncio.get_running_loop()
            self.reached, self.go_on = asyncio.Event(), asyncio.Event()

        def commit(self, ops: Sequence[Op]) -> None:
            super().commit(ops)
            if any(isinstance(op, Replace) for op in ops):
                self.loop.call_soon_threadsafe(self.reached.set)
                asyncio.run_coroutine_threadsafe(self.go_on.wait(), self.loop).result()

    backend = Held(tmp_path)
    async with EventLog(backend) as log:
        count = TAIL_EVENTS + 1
        stream = await log.stream("ses_a")
        await stream.append(drafts(1, count))
        replacing = asyncio.create_task(stream.replace(drafts(count + 1, count + 2)))
        await asyncio.wait_for(backend.reached.wait(), 60)
        assert (await numbers(stream))[-1] == (await numbers(stream.whole()))[-1] == count
        backend.go_on.set()
        await replacing
        assert await numbers(stream) == [count + 1, count + 2]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=12), st.integers(0, 60))
def test_generations_are_a_partition_of_what_was_ever_written(
    steps: list[tuple[bool, int]], after: int
) -> None:
    async def check() -> None:
        async with EventLog(MemoryBackend()) as log:
            stream = await log.stream("ses_a")
            for replaces, count in steps:
                added = drafts(stream.head + 1, stream.head + count)
                await (stream.replace(added) if replaces else stream.append(added))
            spans = [stream.generation(number + 1) for number in range(len(stream.starts()))]
            parts = [await numbers(span) for span in spans]
            together = [each for part in parts for each in part]
            assert together == await numbers(stream.whole()) == list(range(1, stream.head + 1))
            assert parts[-1] == await numbers(stream)
            assert [span.finished for span in spans] == [True] * (len(spans) - 1) + [False]
            for span, part in zip(spans, parts, strict=True):
                assert await numbers(span, after) == [each for each in part if each > after]

    asyncio.run(check())
