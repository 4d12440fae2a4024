"""A deleted stream goes in small commits, others' in between; and the space goes back to the disk."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from legation.errors import Conflict
from legation.store import sqlite
from legation.store.codec import Op, Part, SetState, Sweep
from legation.store.log import EventLog
from legation.store.sqlite import PAGE_BYTES, SqliteBackend
from legation.store.stream import Stream
from legation.wire.events import Draft

LONG = b'"' + b"x" * PAGE_BYTES + b'"'  # a page of its own


async def filled(log: EventLog, name: str, pages: int) -> Stream:
    stream = await log.stream(name)
    for _ in range(pages):
        await stream.append([Draft("x", LONG)])
    return stream


def count(log: EventLog, table: str) -> int:
    found = log._backend._reader.execute(f"select count(*) from {table}").fetchone()  # type: ignore[attr-defined]
    return int(found[0])


async def test_no_commit_takes_more_than_some_pages_and_others_come_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "SWEEP_PAGES", 3)
    backend = SqliteBackend(tmp_path / "log.db")
    async with asyncio.timeout(60), EventLog(backend) as log:
        stream, other = await filled(log, "a", 20), await filled(log, "b", 1)
        real, gone = backend.commit, [count(log, "page")]
        commit, saved = log.commit, list[int]()

        def counting(ops: Sequence[Op]) -> None:
            real(ops)
            if any(isinstance(op, SetState | Sweep) for op in ops):
                (pages,) = backend._writer.execute("select count(*) from page where stream = 1").fetchone()
                gone.append(pages + 1)

        async def beside(stream: Stream, op: Op) -> None:
            """What another stream is given meanwhile is on the disk before the rest goes."""
            receipt = other.append([Draft("x", b"1")])
            await commit(stream, op)
            await receipt
            saved.append(count(log, "page where stream = 1"))

        monkeypatch.setattr(backend, "commit", counting)
        monkeypatch.setattr(log, "commit", beside)
        await stream.delete()
        steps = [before - after for before, after in pairwise(gone)]
        assert (max(steps), sum(steps)) == (3, 20)
        assert saved == [17, 14, 11, 8, 5, 2, 0]
        assert count(log, "page where stream = 1") == count(log, "unswept") == 0
        assert [event async for event in stream.subscribe(follow=False)] == []


async def test_nothing_is_read_of_one_that_is_not_swept_yet_and_the_next_log_sweeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "SWEEP_PAGES", 3)
    async with EventLog(SqliteBackend(tmp_path / "log.db")) as log:
        stream = await filled(log, "a", 20)
        await stream._change(SetState(stream.key, "deleted"))  # as where it is killed then
        assert [info.name for info in await log.streams()] == []
        assert await log.deleted() == ["a"]
    async with EventLog(SqliteBackend(tmp_path / "log.db")) as log:
        assert count(log, "page") == 17
        assert await log.deleted() == ["a"]
        await log.sweep_all()
        assert count(log, "page") == count(log, "unswept") == 0
        await log.sweep_all()


async def test_a_sweep_takes_nothing_of_a_stream_that_is_there(tmp_path: Path) -> None:
    async with EventLog(SqliteBackend(tmp_path / "log.db")) as log:
        stream = await filled(log, "a", 3)
        await log.commit(stream, Sweep(stream.key))
        assert len([event async for event in stream.subscribe(follow=False)]) == 3


async def test_free_space_goes_back_to_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with EventLog(SqliteBackend(path)) as log:
        stream, other = await filled(log, "a", 100), await filled(log, "b", 1)
        size = await log.size()
        assert (await log.size("a")).used > 90 * PAGE_BYTES
        await stream.delete()
        await log.give_back(other)
        after = await log.size()
        assert (after.used < size.used // 10, after.free) == (True, 0)
    assert path.stat().st_size < 2**20


@pytest.mark.parametrize("what", ["sweeps", "parts"])
async def test_what_goes_commit_by_commit_is_refused_when_the_log_is_closed_meanwhile(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "SWEEP_PAGES", 3)
    monkeypatch.setattr("legation.store.log.PART_BYTES", 1000)
    kind: type[Sweep | Part] = Sweep if what == "sweeps" else Part
    async with asyncio.timeout(60):
        log = await EventLog(SqliteBackend(tmp_path / "log.db")).__aenter__()
        stream, commit = await filled(log, "a", 20), log.commit
        seen = list[Op]()

        async def closing(stream: Stream, op: Op) -> None:
            seen.append(op)
            if len([each for each in seen if isinstance(each, kind)]) == 2:
                await log.__aexit__()
            await commit(stream, op)

        monkeypatch.setattr(log, "commit", closing)
        with pytest.raises(Conflict, match="its log is closed"):
            await (stream.delete() if what == "sweeps" else stream.keep(Draft("x", LONG)))
        with pytest.raises(Conflict, match="the log is closed"):
            await log.sweep(stream)
        async with EventLog(SqliteBackend(tmp_path / "log.db")) as log:
            await log.sweep_all()
            assert count(log, "unswept") == 0
