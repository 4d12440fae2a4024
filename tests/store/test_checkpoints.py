"""Checkpoints of readings, in every store: found again, gone with their stream, and never in an event's way."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.store.backends import ALL, DURABLE, make_backend

from legation.errors import StorageFailed
from legation.store.codec import KeepCheckpoint, Op, WantedCheckpoint
from legation.store.digest import digest
from legation.store.log import EventLog
from legation.store.sqlite import VERSION, SqliteBackend
from legation.store.stream import GROWTH_EVENTS, Stream
from legation.wire.event_types import PromptFinished, PromptStarted, draft
from legation.wire.events import Draft


def events(count: int) -> list[Draft]:
    return [Draft("x", b"%d" % number) for number in range(count)]


def wanted(
    upto: int = 100, number: int = 2**62, *, messages: bool = False, format_: int = 1, first: int = 1
) -> WantedCheckpoint:
    return WantedCheckpoint("fold", format_, first, upto, number, messages)


def lay(stream: Stream, seq: int, body: bytes, numbers: tuple[int, int], format_: int = 1) -> None:
    stream.keep_checkpoint("fold", format_, stream.floor, seq, body, numbers)


async def filled(log: EventLog) -> Stream:
    stream = await log.stream("ses_a")
    await stream.append(events(30))
    for seq in (10, 20, 30):
        lay(stream, seq, b"at %d" % seq, (seq * 2, seq // 10))
    await stream.append(events(1))  # behind them
    return stream


async def body(stream: Stream, which: WantedCheckpoint) -> bytes | None:
    found = await stream.checkpoint(which)
    return None if found is None else found.body


@pytest.mark.parametrize("kind", DURABLE)
async def test_the_last_one_that_fits_is_found_also_after_a_restart(kind: str, tmp_path: Path) -> None:
    async with EventLog(make_backend(kind, tmp_path)) as log:
        await filled(log)
    async with EventLog(make_backend(kind, tmp_path)) as log:
        stream = await log.stream("ses_a")
        assert await body(stream, wanted()) == b"at 30"
        assert await body(stream, wanted(upto=29)) == b"at 20"
        assert await body(stream, wanted(number=59)) == b"at 20"
        assert await body(stream, wanted(number=2, messages=True)) == b"at 20"
        assert await body(stream, wanted(number=19)) is None
        assert await body(stream, wanted(format_=2)) is None
        assert await body(stream, wanted(first=2)) is None


@pytest.mark.parametrize("kind", DURABLE)
async def test_nothing_of_them_is_left_of_a_stream_that_is_deleted(kind: str, tmp_path: Path) -> None:
    async with EventLog(make_backend(kind, tmp_path)) as log:
        stream = await filled(log)
        await stream.delete()
        lay(stream, 20, b"too late", (1, 1))
        assert await body(stream, wanted()) is None
        await (await log.stream("ses_b")).append(events(1))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if b"at 20" in path.read_bytes() or b"too late" in path.read_bytes()]


@pytest.mark.parametrize("kind", ALL)
async def test_one_of_a_generation_is_none_of_another(kind: str, tmp_path: Path) -> None:
    async with EventLog(make_backend(kind, tmp_path)) as log:
        stream = await filled(log)
        await stream.replace(events(5))
        assert await body(stream, wanted(first=stream.floor)) is None
        assert await body(stream, wanted()) == (None if kind == "memory" else b"at 30")


async def test_one_of_another_format_or_that_is_damaged_gives_way(tmp_path: Path) -> None:
    async with EventLog(SqliteBackend(tmp_path / "log.db")) as log:
        stream = await filled(log)
        lay(stream, 30, b"at 30 anew", (61, 4), format_=2)
        await stream.append(events(1))
        assert await body(stream, wanted(format_=2)) == b"at 30 anew"
        assert await body(stream, wanted()) == b"at 20"


class RefusingBackend(SqliteBackend):
    """A store that has no room for one."""

    def _apply(self, op: Op) -> None:
        if isinstance(op, KeepCheckpoint):
            raise StorageFailed("cannot write: no room")
        super()._apply(op)


async def test_one_that_cannot_be_stored_keeps_no_event_from_the_disk(tmp_path: Path) -> None:
    async with EventLog(RefusingBackend(tmp_path / "log.db")) as log:
        stream = await filled(log)
        assert await body(stream, wanted()) is None
        assert log.healthy
    async with EventLog(SqliteBackend(tmp_path / "log.db")) as log:
        assert (await log.stream("ses_a")).head == 31


async def test_a_log_of_the_landed_schema_gets_them(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with EventLog(SqliteBackend(path)) as log:
        await (await log.stream("ses_a")).append(events(30))
    with closing(sqlite3.connect(path)) as old, old:
        old.execute("drop table checkpoint")
        old.execute("pragma user_version = 5")
    async with EventLog(SqliteBackend(path)) as log:
        stream = await filled(log)
        assert await body(stream, wanted()) == b"at 30"
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("pragma user_version").fetchone() == (VERSION,)


def test_they_are_found_by_an_index(tmp_path: Path) -> None:
    from legation.store.sqlite import _CHECKPOINT_BY

    backend = SqliteBackend(tmp_path / "log.db")
    backend.open(lambda _: None)
    for query in _CHECKPOINT_BY.values():
        plan = backend._reader.execute(f"explain query plan {query}", ("s", "fold", 1, 1, 9, 9)).fetchall()
        words = " ".join(str(row[3]) for row in plan)
        assert "SCAN" not in words
        assert "checkpoint_by_" in words
    backend.close()


@pytest.mark.parametrize("kind", DURABLE)
async def test_only_the_last_digest_is_kept(kind: str, tmp_path: Path) -> None:
    async with EventLog(make_backend(kind, tmp_path)) as log:
        stream = await log.stream("ses_a")
        for number in range(3):
            await stream.append([draft(PromptStarted(turn=f"trn_{number}", prompt=()))])
            await stream.append(events(GROWTH_EVENTS))
            found = await digest(stream)
            await stream.append([draft(PromptFinished(turn=f"trn_{number}", stop_reason="end_turn"))])
            assert [*found.open] == [f"trn_{number}"]
        await stream.durable(stream.head)
        assert (await digest(stream)).open == {}
    async with EventLog(make_backend(kind, tmp_path)) as log:
        stream = await log.stream("ses_a")
        first = WantedCheckpoint("digest", 1, 1, 2 * GROWTH_EVENTS)
        assert await stream.checkpoint(first) is None
        assert await stream.checkpoint(first._replace(upto=stream.head)) is not None
        assert (await digest(stream)).open == {}
