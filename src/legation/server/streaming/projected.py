"""A session's log as a source of projected events, which the hub reads like a stream.

INV-P5  Readers at the end share one fold, which is fed with each event of the log once.
INV-P6  A source holds at most `TAIL_ROWS` rows and `TAIL_BYTES` bytes besides one step's; who is behind that reads from
        a checkpoint.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import Final, cast

from legation.errors import Conflict, NotFound
from legation.server.streaming.channel import Source
from legation.server.streaming.hub import Hub, of_generation
from legation.server.streaming.projected_checkpoints import Checkpoint
from legation.server.streaming.projected_fold import Schema, framed_row
from legation.server.streaming.projected_reading import BEYOND, STEP, Projection, Wanted, in_pieces, steps
from legation.server.streaming.sse import CHUNK_BYTES, Frames
from legation.store.log import EventLog
from legation.store.stream import Span, Stream
from legation.wire.events import Event
from legation.wire.universal.outbox import Row, framed, join_frames
from legation.wire.universal.shapes import STRIDE, SessionFacts

TAIL_ROWS: Final = 4096
TAIL_BYTES: Final = 2 * 1024 * 1024
LONG: Final = 64  # rows that go out before what comes next is looked at
AT_ONCE: Final = 2 * CHUNK_BYTES  # of a reader that is behind
LONG_EVENT: Final = (
    4 * 1024 * 1024
)  # bytes: what is made of a longer one is not made while readers wait for their turns

_seq = attrgetter("seq")


async def project(
    hub: Hub,
    log: EventLog,
    workspace: str,
    facts: SessionFacts,
    schema: Schema,
    *,
    include_raw: bool,
    generation: str | None = None,
) -> Projected:
    """The session's own stream must be there: it is made with the session."""
    found = await log.find(facts.session_id, workspace)
    if found is None or found.deleted:
        raise NotFound(f"cannot find session {facts.session_id}; check its id")
    stream = of_generation(found, generation)
    track = hub.checkpoints.track(stream.key, schema, facts)
    key = "\n".join((stream.key, schema, "raw" if include_raw else "", facts.native_session_id or ""))
    return Projected(key, Projection(stream, hub.checkpoints, track, include_raw=include_raw))


def frames(rows: Sequence[Event]) -> Frames:
    """Of the rows that a `Projected` gives."""
    is_joined = len(rows) == 1 and not rows[0].native  # no copy of a long one
    return Frames(rows[0].raw if is_joined else join_frames(rows), rows[-1].seq, len(rows))


async def _joined(row: Row) -> Row:
    """A long one, put together bit by bit: to make room for all of it at once would take as long as to copy it."""
    frame = bytearray()
    async for piece in in_pieces(row.parts, AT_ONCE):
        frame += piece
    return Row(row.seq, row.at, row.type, cast(bytes, frame), b"", cause=row.cause)


class Projected(Source):
    """Nothing of it is made before somebody reads. The rows that it gives have frames."""

    def __init__(self, key: str, projection: Projection) -> None:
        self.projection = projection
        self._key = key
        self._stream: Stream | Span = projection.stream
        self._floor = self._stream.floor
        self._tip: Checkpoint | None = None  # as far as the log was fed; this fold is our own
        self._tail: list[Row] = []
        self._tail_bytes = 0
        self._before_tail = 0

    @property
    def key(self) -> str:
        return self._key

    @property
    def name(self) -> str:
        return self._stream.name

    @property
    def head(self) -> int:
        return self.visible

    @property
    def log_head(self) -> int:
        """The last number of the log that was given, on the way to the disk or on it."""
        return self._stream.head

    @property
    def visible(self) -> int:
        """No number above it was given out. What the last one is would only be known by a reading to the end."""
        return self._stream.visible * STRIDE

    @property
    def floor(self) -> int:
        return self._stream.floor

    @property
    def ended(self) -> bool:
        return self._stream.ended

    @property
    def deleted(self) -> bool:
        return self._stream.deleted

    @property
    def finished(self) -> bool:
        return self._stream.finished

    @property
    def news(self) -> asyncio.Event:
        return self._stream.news

    async def check_position(self, after: int) -> None:
        end = await self.projection.end(after)
        if end is not None and end < after:
            raise Conflict(
                f"cannot go on after {after} in session {self.name}: it ends at {end}, so it is not the log that"
                " this number is from, or was restored; read it again from 0",
                {"session": self.name, "head": end},
            )

    async def end(self) -> int:
        """The last number there is now."""
        return await self.projection.end(BEYOND) or 0

    def since(self, seq: int) -> list[Event] | None:
        if self._stream.floor != self._floor:
            self._replaced()
        if self._tip is None or not self._feed_until_above(seq) or seq < self._before_tail:
            return None
        return list[Event](self._tail[bisect_right(self._tail, seq, key=_seq) :])

    async def read_older(self, after: int) -> list[Event]:
        wanted = Wanted(after, self._stream.visible, rows=BEYOND, room=AT_ONCE)
        found = await self.projection.read(wanted)
        end = found.end
        if end is not None and (self._tip is None or self._tip.log_seq < end.log_seq):
            self._floor = self._stream.floor
            self._restart(end)
        return [await _joined(framed(each)) if each.rest else framed(each) for each in found.rows]

    def _restart(self, tip: Checkpoint) -> None:
        self._tip = tip
        self._tail, self._tail_bytes, self._before_tail = [], 0, tip.sequence

    def _replaced(self) -> None:
        """Who followed to the end is told how what was open ends, and then the new history; others only that."""
        self._floor = self._stream.floor
        if self._tip is not None and self._tip.log_seq == self._floor - 1:
            self._restart(self._tip)
        else:
            self._tip = None

    def _feed_until_above(self, seq: int) -> bool:
        """Up to the first rows above that number, or to the end of the log. False: not at once."""
        tip = self._tip
        if tip is None:
            return False
        if tip.fold.sequence > seq or tip.log_seq >= self._stream.visible:
            return True
        events = self._stream.since(tip.log_seq)
        if events is None or (events and len(events[0].raw) > LONG_EVENT):
            return False
        if len(self._tail) > TAIL_ROWS or self._tail_bytes > TAIL_BYTES:
            self._trim()
        reached = self._feed(tip, next(steps(events[:STEP]), ()))
        return tip.fold.sequence > seq or reached >= self._stream.visible

    def _feed(self, tip: Checkpoint, events: Sequence[Event]) -> int:
        """All of them, or up to the end of a message: that repeats its text, and what came before goes out first.
        The number of the last one that was fed."""
        fold, at, reached = tip.fold, 0, tip.log_seq
        include_raw, apart = self.projection.include_raw, self.projection.apart
        while at < len(events):
            rows = [] if include_raw else fold.go_on(events, at)
            if rows:
                at += len(rows)
            else:
                event = events[at]
                rows = [framed_row(each, event, include_raw=include_raw) for each in fold.feed(event)]
                at += 1
            self._tail += rows
            self._tail_bytes += sum([len(each.raw) + len(each.native) for each in rows])
            before, reached = reached, events[at - 1].seq
            if reached // apart > before // apart:
                self.projection.lay(reached, fold)
            if len(rows) >= LONG:
                break
        self._tip = Checkpoint(reached, fold)
        return reached

    def _trim(self) -> None:
        """Before it grows, so that those who were rung for what came last still find it."""
        tail, count, left = self._tail, 0, self._tail_bytes
        for each in tail:  # only what goes is looked at
            if len(tail) - count <= TAIL_ROWS // 2 and left <= TAIL_BYTES // 2:
                break
            count += 1
            left -= len(each.raw) + len(each.native)
        self._before_tail, self._tail_bytes = tail[count - 1].seq, left
        del tail[:count]
