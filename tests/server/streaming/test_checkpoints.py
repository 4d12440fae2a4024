"""Checkpoints that are stored with the log: what a reading costs after a restart, and that nobody can tell otherwise."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.server.streaming.events_server import A_TURN, FACTS, SCHEMAS, drafts, turns, whole_fold
from tests.wire.universal.logs import ACTIVE, Entry, asked, call, change, chunk, output, turn
from tests.wire.universal.logs import log as log_of

from legation.clock import SystemClock
from legation.server.streaming.checkpoints import (
    BEYOND,
    MOST_HELD,
    Checkpoints,
    Projection,
    WantedRows,
)
from legation.server.streaming.hub import CheckpointKeeper, Hub
from legation.server.streaming.projection import ProjectedSource, _parts, project
from legation.store.digest import digest
from legation.store.log import EventLog
from legation.store.sqlite import SqliteBackend
from legation.store.stream import Stream
from legation.wire.event_types import PermissionAnswered, SessionReset
from legation.wire.events import Draft, Event
from legation.wire.universal.projector import STATE_FORMAT, Projector, encode_state
from legation.wire.universal.shapes import Schema

pytestmark = pytest.mark.heavy  # tens of thousands of events

ROOT = Path(__file__).parents[3]
MANY = 20_000  # events
# Events of which few are too many: two growths that were not stored yet, and one read of the store beyond each end.
FEW = 9_000
EVERYTHING = WantedRows(0, BEYOND, rows=10**9, room=10**12)


class CountingBackend(SqliteBackend):
    """Counts the events that are read, and decoded."""

    decoded = 0

    def read(self, stream: str, after: int, up_to_bytes: int) -> list[Event]:
        found = super().read(stream, after, up_to_bytes)
        self.decoded += len(found)
        return found


@asynccontextmanager
async def started(folder: Path) -> AsyncIterator[tuple[CountingBackend, EventLog, Hub, CheckpointKeeper]]:
    """As a server has them, from its start to its end."""
    backend = CountingBackend(folder / "log.db")
    async with EventLog(backend) as log:
        hub = Hub(log, SystemClock())
        async with CheckpointKeeper(log, hub, lambda _, name: name == "demo") as keeper:
            yield backend, log, hub, keeper


async def grow(log: EventLog, keeper: CheckpointKeeper, entries: list[Draft]) -> Stream:
    """As an agent would: little by little."""
    stream = await log.stream("demo")
    for at in range(0, len(entries), 500):
        await stream.append(entries[at : at + 500])
        await keeper.settle()
    return stream


def long_message(events: int, text: str = "some words ") -> list[Draft]:
    return drafts(ACTIVE, *turn(*[chunk(f"{text}{number} ") for number in range(events)]))


SESSIONS = {
    "turns": lambda: turns(MANY // 10),
    "one message": lambda: long_message(MANY),
    "a message that has not ended": lambda: long_message(MANY)[:-2],
    "many calls": lambda: drafts(
        ACTIVE,
        *turn(
            *[
                each
                for number in range(MANY // 2)
                for each in (
                    call(f"c{number}", status="in_progress"),
                    change(f"c{number}", status="completed"),
                )
            ]
        ),
    ),
}


async def source_of(hub: Hub, log: EventLog, schema: Schema = "sandbox-agent") -> ProjectedSource:
    return await project(hub, log, "local", FACTS, schema, include_raw=False)


@pytest.mark.parametrize("schema", ["sandbox-agent", "universal"])
@pytest.mark.parametrize("session", SESSIONS.values(), ids=SESSIONS.keys())
async def test_the_first_tail_after_a_restart_reads_little_of_a_session_that_nobody_read(
    session: object, schema: Schema, tmp_path: Path
) -> None:
    async with started(tmp_path) as (_, log, _, keeper):
        await grow(log, keeper, session())  # type: ignore[operator]
    async with started(tmp_path) as (backend, log, hub, _):
        source = await source_of(hub, log, schema)
        end = await source.end()
        await source.check_position(end)
        assert await source.read_older(end) == []
        assert 0 < backend.decoded <= FEW
        stream = await log.stream("demo")
        assert end == (await whole_fold(stream, schema, include_raw=False))[-1][0]


async def test_a_page_deep_inside_is_read_from_a_checkpoint_near_it(tmp_path: Path) -> None:
    async with started(tmp_path) as (_, log, _, keeper):
        await grow(log, keeper, turns(MANY // 10))
    async with started(tmp_path) as (backend, log, hub, _):
        source = await source_of(hub, log)
        whole = await whole_fold(await log.stream("demo"), "sandbox-agent", include_raw=False)
        backend.decoded = 0
        for at in (len(whole) // 3, len(whole) // 2, len(whole) - 100):
            wanted = WantedRows(whole[at][0], BEYOND, rows=10, room=10**9)
            found = await (await source_of(hub, log)).projection.read(wanted)
            assert [(each.seq, each.raw) for each in found.rows] == whole[at + 1 : at + 11]
        assert source.projection.checkpoints.track.points
        assert 0 < backend.decoded <= 3 * FEW // 2


async def test_what_a_turn_left_open_is_found_by_a_short_reading(tmp_path: Path) -> None:
    asks = drafts(asked("apr_1"), asked("apr_2"), PermissionAnswered(id="apr_2", outcome="denied", by="me"))
    async with started(tmp_path) as (_, log, _, keeper):
        await grow(log, keeper, [*long_message(MANY)[:-2], *asks, *long_message(5_000)[2:-2]])
    async with started(tmp_path) as (backend, log, _, _):
        found = await digest(await log.stream("demo"))
        assert [(name, each.kind) for name, each in found.open.items()] == [
            ("trn_1", "turn"),
            ("apr_1", "permission"),
        ]
        assert 0 < backend.decoded <= FEW


async def test_a_log_from_before_there_were_digests_is_read_once(tmp_path: Path) -> None:
    async with EventLog(SqliteBackend(tmp_path / "log.db")) as log:
        await (await log.stream("demo")).append(turns(MANY // 10))
    counts = []
    for _ in range(2):
        async with started(tmp_path) as (backend, log, _, _):
            await digest(await log.stream("demo"))
            counts.append(backend.decoded)
    assert counts[0] >= MANY // 10 > counts[1]


async def test_what_grows_when_the_keeper_has_just_ended_is_kept_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tmp_path) as (_, log, _, keeper):
        stream = await log.stream("demo")
        await stream.append(drafts(ACTIVE))
        seen = list[int]()

        async def last(stream: Stream) -> None:
            seen.append(stream.head)
            if len(seen) == 1:  # before its task is known to have ended
                asyncio.get_running_loop().call_soon(keeper._grew, stream, 1)

        monkeypatch.setattr("legation.server.streaming.hub.digest", last)
        keeper._grew(stream, 1)
        await keeper.settle()
        assert len(seen) == 2


async def test_checkpoints_hold_no_text_however_long_a_message_is(tmp_path: Path) -> None:
    """INV-P2, in bytes: after a whole reading, and with a live reader."""
    kept: dict[int, int] = {}
    for events in (2_000, 40_000):
        folder = tmp_path / str(events)
        folder.mkdir()
        async with started(folder) as (_, log, _, keeper):
            await grow(log, keeper, long_message(events, "x" * 100)[:-2])
        async with started(folder) as (_, log, hub, _):
            source = await source_of(hub, log)
            tracemalloc.start()
            async for part in _parts(source.projection, 0, 10**9):
                del part
            del source
            gc.collect()
            kept[events], _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert 0 < hub.checkpoints.held <= MOST_HELD
            assert len(hub.checkpoints) > events // 2_000
    assert kept[40_000] - kept[2_000] < 1_500_000  # of four megabytes of text


_texts = st.sampled_from(["", "a", "b\n", "é\u2028", "\ud83d", "x" * 50])
_entries: st.SearchStrategy[Entry] = st.one_of(
    st.builds(chunk, _texts, st.sampled_from([None, None, None, "m1"])),
    st.builds(chunk, _texts, st.none(), st.sampled_from(["agent_thought", "user_message"])),
    st.builds(
        lambda name, status, text: change(name, status=status, content=output(text)),
        st.sampled_from(["c1", "c2"]),
        st.sampled_from(["pending", "in_progress", "completed", "failed"]),
        st.sampled_from(["a", "ab", "c"]),
    ),
    st.sampled_from(
        [
            call("c1", rawInput={"n": 2**70, "f": 1.5}),
            call("c2", title="t"),
            *turn()[:1],
            *turn()[-2:],
            asked("apr_1"),
            PermissionAnswered(id="apr_1", outcome="approved", by="me"),
            SessionReset(reason="loaded"),
            ACTIVE,
            b'{"sessionUpdate":"usage_update","used":1,"size":2}',
            b"[1]",
        ]
    ),
)
_logs = st.lists(
    st.one_of(_entries, st.integers(1, 12).map(lambda n: chunk("z" * n))), min_size=1, max_size=40
)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(_logs, st.integers(1, 5), st.sampled_from(["whole", "damaged", "older", "some lost"]), st.booleans())
async def test_a_reading_from_any_stored_checkpoint_gives_what_one_from_the_beginning_gives(
    entries: list[Entry], apart: int, fate: str, anew: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "log.db"
        async with EventLog(SqliteBackend(path)) as log:
            stream = await log.stream("demo")
            await stream.append(drafts(*entries))
            if anew:
                await stream.replace(drafts(SessionReset(reason="loaded"), *entries))
            for schema in SCHEMAS:
                await rows_of(log, stream, schema, 0, apart)
        spoil(path, fate)
        async with EventLog(SqliteBackend(path)) as log:
            stream = await log.stream("demo")
            for schema in SCHEMAS:
                whole = await whole_fold(stream, schema, include_raw=False)
                for after in {0, *(number for number, _ in whole)}:
                    expected = [each for each in whole if each[0] > after]
                    assert await rows_of(log, stream, schema, after, apart) == expected
                    assert await rows_of(log, stream, schema, after, 10**6) == expected  # adds none


async def rows_of(
    log: EventLog, stream: Stream, schema: Schema, after: int, apart: int
) -> list[tuple[int, bytes]]:
    """By a server that was just started."""
    kept = Checkpoints(apart=apart)
    projection = Projection(stream, kept, FACTS, schema, include_raw=False)
    found = await projection.read(WantedRows(after, stream.visible, rows=10**9, room=10**12))
    await stream.durable(stream.head)
    return [(each.seq, b"".join(each.parts)) for each in found.rows]


def spoil(path: Path, fate: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        if fate == "damaged":
            connection.execute(
                "update checkpoint set body = cast(substr(body, 1, 20) || x'00' || substr(body, 22) as blob)"
            )
        elif fate == "older":
            connection.execute("update checkpoint set format = 0, body = x'00'")
        elif fate == "some lost":
            connection.execute("delete from checkpoint where id % 2 = 0")


def test_a_killed_server_leaves_checkpoints_that_fit_its_log(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "tests.server.streaming.checkpoints_to_kill", str(tmp_path)]
    for turns_seen in (3, 8, 5):
        with subprocess.Popen(
            program, stdout=subprocess.PIPE, env={"PATH": os.environ["PATH"]}, cwd=ROOT
        ) as child:
            assert child.stdout is not None
            for _ in range(turns_seen):
                assert child.stdout.readline()
            child.send_signal(signal.SIGKILL)
    asyncio.run(_check_killed(tmp_path))


async def _check_killed(folder: Path) -> None:
    async with started(folder) as (backend, log, hub, _):
        stream = await log.stream("demo")
        source = await source_of(hub, log)
        end = await source.end()
        assert stream.head > 3_000
        assert 0 < backend.decoded < stream.head
        assert hub.checkpoints.track(stream.key).points[0].log_seq > 1_000
        assert end == (await whole_fold(stream, "sandbox-agent", include_raw=False))[-1][0]
        events = [event async for event in stream.subscribe(0, follow=False)]
        (point, *_) = hub.checkpoints.track(stream.key).points
        *_, state = _states(events[: point.log_seq])
        assert point.state == state


def _states(events: list[Event]) -> Iterator[bytes]:
    fold = Projector(FACTS)
    for event in events:
        fold.feed(event)
        yield encode_state(fold.state()) or b""


def test_a_state_that_looks_otherwise_has_another_format() -> None:
    """Whoever changes the fold raises `STATE_FORMAT`, and this digest: checkpoints that are stored are of the old one."""
    open_ends = call("c9", rawInput={"a": 1}), asked("apr_1", "c9"), chunk("open"), chunk(" end")
    found = hashlib.sha256(b"".join(_states(log_of(ACTIVE, *A_TURN, *A_TURN, *open_ends)))).hexdigest()
    assert (STATE_FORMAT, found[:16]) == (2, "9a604a1586d9a24e")
