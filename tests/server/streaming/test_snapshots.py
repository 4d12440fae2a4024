"""Snapshots of sessions' logs: what reading one costs, now and after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.server.streaming.events_server import drafts, turns
from tests.server.streaming.test_checkpoints import grow, long_message, source_of, started
from tests.wire.naive_snapshot import assert_same, naive_of
from tests.wire.universal.logs import chunk

from legation.store.log import EventLog
from legation.wire.event_types import SessionReset
from legation.wire.snapshot import SnapshotFold

pytestmark = pytest.mark.heavy  # tens of thousands of events


class CountedFold:
    """Counts the events that snapshots are made of."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken = 0
        take = SnapshotFold.take

        def counted(fold: SnapshotFold, event: object) -> None:
            self.taken += 1
            take(fold, event)  # type: ignore[arg-type]

        monkeypatch.setattr(SnapshotFold, "take", counted)


async def naive_snapshot_of(log: EventLog, text: bytes) -> list[str]:
    stream = await log.stream("demo")
    return assert_same(text, naive_of([each async for each in stream.subscribe(follow=False)]))


async def test_a_second_reading_and_one_after_a_restart_go_on_from_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = CountedFold(monkeypatch)
    async with started(tmp_path) as (_, log, hub, keeper):
        stream = await grow(log, keeper, long_message(20_000))
        source = await source_of(hub, log)
        seq, offset, text = await source.projection.snapshot()
        assert seq == stream.visible == counted.taken
        assert offset == await source.end()
        assert await naive_snapshot_of(log, text) == ["messages"]
        counted.taken = 0
        assert await source.projection.snapshot() == (seq, offset, text)
        assert counted.taken == 0
        await stream.append(drafts(chunk("more ")))
        later, _, text = await source.projection.snapshot()
        assert (later, counted.taken) == (seq + 1, 1)
        assert b'more "}' in text
    counted.taken = 0
    async with started(tmp_path) as (_, log, hub, _):
        source = await source_of(hub, log)
        assert (await source.projection.snapshot())[::2] == (later, text)
        assert counted.taken <= 1


async def test_a_history_that_was_replaced_is_not_in_it(tmp_path: Path) -> None:
    async with started(tmp_path) as (_, log, hub, keeper):
        stream = await grow(log, keeper, turns(50))
        source = await source_of(hub, log)
        await source.projection.snapshot()
        await stream.replace(drafts(SessionReset(reason="loaded"), chunk("anew")))
        seq, _, text = await source.projection.snapshot()
        assert seq == stream.visible
        assert await naive_snapshot_of(log, text) == []
        assert text.count(b'"text":') == 1


async def test_a_snapshot_and_what_follows_is_what_all_of_it_is(tmp_path: Path) -> None:
    """At many places of a session: who begins there hears each event once."""
    async with started(tmp_path) as (_, log, hub, keeper):
        entries = turns(12)
        places = []
        stream = await log.stream("demo")
        for at in range(0, len(entries), 7):
            await stream.append(entries[at : at + 7])
            source = await source_of(hub, log)
            seq, offset, text = await source.projection.snapshot()
            await naive_snapshot_of(log, text)
            places.append((seq, offset))
        await keeper.settle()
        source = await source_of(hub, log)
        rows = await source.read_older(0)
        for seq, offset in places:
            behind = await source.read_older(offset)
            assert [row.raw for row in behind] == [row.raw for row in rows if row.seq > offset]
            assert all(row.cause > seq for row in behind)  # type: ignore[attr-defined]
