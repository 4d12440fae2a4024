"""Any reading of any log, in any order, gives what the whole fold gives (INV-P1, INV-P4)."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.server.streaming.events_server import FACTS, drafts, whole_fold
from tests.wire.universal.logs import ACTIVE, Entry, asked, block, call, change, chunk, output, turn

from legation.clock import SystemClock
from legation.server.streaming.checkpoints import (
    FOLDS,
    MOST_HELD,
    Checkpoints,
    WantedRows,
)
from legation.server.streaming.hub import Hub
from legation.server.streaming.projection import ProjectedSource, _parts, frames, project
from legation.server.streaming.sse import CHUNK_BYTES
from legation.store.codec import MemoryBackend
from legation.store.log import EventLog
from legation.store.stream import Stream
from legation.wire.event_types import PermissionAnswered, SessionReset, SessionStatus
from legation.wire.events import Draft, Event, update_type
from legation.wire.universal.output import (
    FRAME,
    STEP,
    STEP_BYTES,
    ProjectedRow,
    framed,
    join_frames,
    row,
    steps,
)
from legation.wire.universal.shapes import Schema

ENTRIES: list[Entry] = [
    ACTIVE,
    *turn(
        chunk("a"),
        chunk("c"),
        chunk("b", "m2"),
        chunk("d", "m2"),
        call(),
        change(status="in_progress", content=output("x")),
    ),
    change(status="completed", content=output("x", "y")),
    asked(),
    PermissionAnswered(id="apr_1", outcome="approved", by="policy"),
    SessionStatus(status="disconnected", reason="crashed: exit code 3"),
    b'{"sessionUpdate": torn',
]


@dataclass(frozen=True)
class Append:
    entries: tuple[int, ...]


@dataclass(frozen=True)
class Replace:
    entries: tuple[int, ...]


@dataclass(frozen=True)
class Read:
    part: float  # of the numbers there are
    rows: int
    room: int


class Follow:
    """The follower takes what there is."""


class Restart:
    """All that is kept is forgotten."""


_some = st.lists(st.integers(0, len(ENTRIES) - 1), max_size=12).map(tuple)
_steps = st.one_of(
    st.builds(Append, _some),
    st.builds(Replace, _some),
    st.builds(Read, st.floats(0, 1.1), st.integers(1, 30), st.sampled_from([0, 500, 10**9])),
    st.builds(Follow),
    st.builds(Restart),
)


def of(entries: tuple[int, ...]) -> list[Entry]:
    return [ENTRIES[index] for index in entries]


class Reading:
    def __init__(self, log: EventLog, stream: Stream, schema: Schema, *, include_raw: bool = True) -> None:
        self.log, self.stream, self.schema, self.include_raw = log, stream, schema, include_raw
        self.after = 0

    async def forget(self) -> None:
        hub = Hub(self.log, SystemClock())
        hub.checkpoints = Checkpoints(limit=6, apart=3)
        self.source: ProjectedSource = await project(
            hub, self.log, "local", FACTS, self.schema, include_raw=self.include_raw
        )

    async def take(self, step: object) -> None:
        match step:
            case Append(entries=entries):
                await self.stream.append(drafts(*of(entries)))
            case Replace(entries=entries):
                await self.stream.replace(drafts(SessionReset(reason="loaded"), *of(entries)))
            case Read():
                await self._read(step)
            case Follow():
                await self._follow()
            case Restart():
                await self.forget()

    async def _read(self, step: Read) -> None:
        whole = await whole_fold(self.stream, self.schema, include_raw=self.include_raw)
        after = int(step.part * whole[-1][0]) if whole else 0
        wanted = WantedRows(after, self.stream.visible, rows=step.rows, room=step.room)
        found = await self.source.projection.read(wanted)
        rest = [each for each in whole if each[0] > after]
        rows = [(row.seq, row.raw) for row in found.rows]
        assert rows == rest[: len(rows)]
        assert rows or not rest
        assert len(rows) <= step.rows
        assert (found.end is None) == (len(rows) < len(rest)) or found.end is None
        if step.room == 10**9:
            assert len(rows) == min(step.rows, len(rest))

    async def _follow(self) -> None:
        """In order, each number once, and from the floor on exactly what is there."""
        whole = dict(await whole_fold(self.stream, self.schema, include_raw=self.include_raw))
        first = min(whole, default=0)
        while True:
            found = self.source.since(self.after)
            if found is None:
                found = await self.source.read_older(self.after)
            if not found:
                break
            for each in found:
                assert each.seq > self.after
                if each.seq >= first:
                    missed = [number for number in whole if self.after < number < each.seq]
                    assert missed == []
                    assert join_frames([each]) == FRAME % (each.seq, whole[each.seq])
                self.after = each.seq
        assert not whole or self.after >= max(whole)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(["sandbox-agent", "universal"]), st.booleans(), st.lists(_steps, max_size=14))
def test_every_reading_is_a_part_of_the_whole_fold(
    schema: Schema, include_raw: bool, steps: list[object]
) -> None:
    async def run() -> None:
        async with EventLog(MemoryBackend()) as log:
            reading = Reading(log, await log.stream(FACTS.session_id), schema, include_raw=include_raw)
            await reading.forget()
            for step in [*steps, Follow()]:
                await reading.take(step)

    asyncio.run(run())


async def test_who_is_behind_when_the_history_is_replaced_sees_only_the_new_one() -> None:
    async with EventLog(MemoryBackend()) as log:
        stream = await log.stream(FACTS.session_id)
        await stream.append(drafts(*ENTRIES))
        reading = Reading(log, stream, "sandbox-agent")
        await reading.forget()
        await reading.take(Follow())
        await stream.append(drafts(chunk("more")))
        assert reading.source.since(reading.after)  # what others were shown is at hand
        behind = reading.after
        await stream.replace(drafts(SessionReset(reason="loaded"), chunk("anew")))
        first = (await whole_fold(stream, "sandbox-agent", include_raw=True))[0]
        found = reading.source.since(behind)
        if found is None:
            found = await reading.source.read_older(behind)
        assert join_frames(found[:1]) == FRAME % first


@given(st.lists(st.integers(1, 3 * STEP_BYTES), max_size=300))
def test_a_reading_has_few_events_at_a_time_or_few_bytes(sizes: list[int]) -> None:
    """INV-P3: one that is long is the last of its step."""
    events = [Event(seq, 0, "plan", b"x" * size) for seq, size in enumerate(sizes, 1)]
    found = list(steps(events))
    assert [event for step in found for event in step] == events
    for step in found:
        assert 0 < len(step) <= STEP
        assert sum(len(event.raw) for event in step[:-1]) < STEP_BYTES


@pytest.mark.heavy
@pytest.mark.parametrize("schema", ["sandbox-agent", "universal"])
async def test_checkpoints_do_not_keep_all_that_calls_said(schema: Schema) -> None:
    """INV-P2: each would keep those that were open when it was laid."""
    calls = [call(f"c{number}", rawInput={"content": "x" * 100_000}) for number in range(400)]
    async with EventLog(MemoryBackend()) as log:
        stream = await log.stream("demo")
        await stream.append(drafts(ACTIVE, *turn(*calls)))
        checkpoints = Checkpoints(apart=1)
        hub = Hub(log, SystemClock())
        hub.checkpoints = checkpoints
        source = await project(hub, log, "local", FACTS, schema, include_raw=False)
        whole = await whole_fold(stream, schema, include_raw=False)
        found = await source.projection.read(WantedRows(0, stream.visible, rows=10_000, room=10**9))
        assert [(row.seq, row.raw) for row in found.rows] == whole
        assert sum(checkpoints._used.values()) <= MOST_HELD
        assert 0 < len(checkpoints) < 100


LONG = "a long text\n" * 100_000


def written(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def heavy(update: dict[str, Any], digest: dict[str, Any]) -> Draft:
    """One that came with a digest."""
    raw = b'{"sessionId":"s","update":%b}' % written(update)
    return Draft(update_type(written(digest)), raw, b"", (26, 1), written(digest))


def long_chunk(name: str | None = None, kind: str = "agent_message") -> Draft:
    return heavy(chunk(LONG, name, kind), chunk("a long text... [cut]", name, kind))


LONG_CALL = heavy(call(rawInput={"x": LONG}), call(rawInput={"x": "cut"}, _cut=["rawInput"]))
PICTURE = block(type="image", data="AAAA", mimeType="image/png")
LONG_LOGS: dict[str, tuple[Entry, ...]] = {
    "alone": turn(long_chunk()),
    "among others": turn(chunk("a"), long_chunk(), chunk("b")),
    "a picture between two": turn(long_chunk(), PICTURE, long_chunk()),
    "not so long": turn(chunk("x" * 500_000), chunk("\n" * 500_000)),
    "half a character": turn(long_chunk("\ud83d"), chunk("b", "\ud83d")),
    "a thought": turn(long_chunk(kind="agent_thought")),
    "a call": turn(LONG_CALL),
}


@pytest.mark.parametrize("include_raw", [False, True])
@pytest.mark.parametrize("schema", ["sandbox-agent", "universal"])
@pytest.mark.parametrize("told", LONG_LOGS.values(), ids=LONG_LOGS.keys())
async def test_a_long_text_that_is_kept_apart_is_told_as_every_other(
    told: tuple[Entry, ...], schema: Schema, include_raw: bool
) -> None:
    async with EventLog(MemoryBackend()) as log:
        stream = await log.stream("demo")
        await stream.append(drafts(ACTIVE, *told))
        whole = await whole_fold(stream, schema, include_raw=include_raw)
        source = await project(Hub(log, SystemClock()), log, "local", FACTS, schema, include_raw=include_raw)
        page = b"".join([part async for part in _parts(source.projection, 0, 10_000)])
        assert page == b'{"events":[%b],"hasMore":false}' % b",".join([text for _, text in whole])
        framed_ones = [FRAME % row for row in whole]
        behind: list[bytes] = []
        after = 0
        while rows := await source.read_older(after):
            behind += [bytes(frames([each]).data) for each in rows]
            after = rows[-1].seq
        assert behind == framed_ones
        live = Reading(log, stream, schema, include_raw=include_raw)
        await live.forget()
        await live.take(Follow())
        fold = FOLDS[schema](FACTS)
        rows_at_once = [
            framed(row(each, event, include_raw=include_raw))
            for event in stream.since(0) or ()
            for each in fold.feed(event)
        ]
        assert [join_frames([each]) for each in rows_at_once] == framed_ones


async def test_of_a_long_text_nothing_is_copied_before_its_frame() -> None:
    """Each copy of a long one takes a while, in which nobody else has a turn."""
    async with EventLog(MemoryBackend()) as log:
        stream = await log.stream("demo")
        await stream.append(drafts(ACTIVE, *turn(long_chunk())))
        fold = FOLDS["sandbox-agent"](FACTS)
        rows = [
            row(each, event, include_raw=True) for event in stream.since(0) or () for each in fold.feed(event)
        ]
    long_ones = [each for each in rows if sum(map(len, each.parts)) > len(LONG)]
    assert [each.type for each in long_ones] == ["item.delta", "item.completed"]
    for each in long_ones:
        copied = [part for part in cast(tuple[object, ...], each.parts) if isinstance(part, bytes)]
        assert sum(map(len, copied)) < 2_000
    assert (
        len([part for part in cast(tuple[object, ...], long_ones[0].parts) if isinstance(part, memoryview)])
        == 2
    )  # its raw, too


async def test_a_page_with_a_long_text_comes_in_pieces() -> None:
    async with EventLog(MemoryBackend()) as log:
        stream = await log.stream("demo")
        await stream.append(drafts(ACTIVE, *turn(long_chunk())))
        source = await project(
            Hub(log, SystemClock()), log, "local", FACTS, "sandbox-agent", include_raw=True
        )
        pieces = [len(part) async for part in _parts(source.projection, 0, 10_000)]
    assert sum(pieces) > 3 * len(LONG)
    assert max(pieces) <= CHUNK_BYTES


async def test_what_is_very_long_is_not_made_while_readers_wait_for_their_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("legation.server.streaming.projection.LONG_EVENT", 1_000_000)
    async with EventLog(MemoryBackend()) as log:
        stream = await log.stream("demo")
        await stream.append(drafts(ACTIVE))
        source = await project(
            Hub(log, SystemClock()), log, "local", FACTS, "sandbox-agent", include_raw=False
        )
        after = (await source.read_older(0))[-1].seq
        assert source.since(after) == []
        await stream.append(drafts(long_chunk()))
        assert source.since(after) is None
        assert [cast(ProjectedRow, each).type for each in await source.read_older(after)][-1] == "item.delta"
        after = (await source.read_older(after))[-1].seq
        assert await source.read_older(after) == []
        assert source.since(after) == []


def test_a_long_event_is_the_last_of_its_step_though_its_digest_be_short() -> None:
    events = [
        Event(1, 0, "plan", b"x" * 2_000_000, digest=b"{}"),
        Event(2, 0, "plan", b"x" * 2_000_000, digest=b"{}"),
        Event(3, 0, "plan", b"{}"),
    ]
    assert [len(step) for step in steps(events)] == [1, 1, 1]
