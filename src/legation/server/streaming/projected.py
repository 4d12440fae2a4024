"""A session's log as a source of projected events, which the hub reads like a stream.

INV-P5  Readers at the end share one fold, which is fed with each event of the log once.
INV-P6  A source holds at most `TAIL_ROWS` rows and `TAIL_BYTES` bytes besides one step's; who is behind that reads from
        a checkpoint.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from legation.errors import Conflict, NotFound
from legation.server.streaming.channel import Source
from legation.server.streaming.hub import Hub
from legation.server.streaming.projected_checkpoints import Checkpoint
from legation.server.streaming.projected_fold import Row, Schema, row
from legation.server.streaming.projected_reading import BEYOND, STEP, Projection, Wanted
from legation.server.streaming.sse import CHUNK_BYTES, Frames
from legation.store.log import EventLog
from legation.store.stream import Stream
from legation.wire.events import Event
from legation.wire.universal.facts import STRIDE, SessionFacts

TAIL_ROWS: Final = 4096
TAIL_BYTES: Final = 2 * 1024 * 1024
AT_ONCE: Final = 2 * CHUNK_BYTES  # of a reader that is behind

_seq = attrgetter("seq")


async def project(
    hub: Hub, log: EventLog, workspace: str, facts: SessionFacts, schema: Schema, *, include_raw: bool
) -> Projected:
    """The session's own stream must be there: it is made with the session."""
    stream = await log.find(facts.session_id, workspace)
    if stream is None or stream.deleted:
        raise NotFound(f"cannot find session {facts.session_id}; check its id")
    track = hub.checkpoints.track(stream.key, schema, facts)
    key = "\n".join((stream.key, schema, "raw" if include_raw else "", facts.native_session_id or ""))
    return Projected(key, Projection(stream, hub.checkpoints, track, include_raw=include_raw))


def frames(rows: Sequence[Event]) -> Frames:
    """Their text is one line of UTF-8 (INV-U5), whatever the agent sent."""
    data = b"".join([b"id: %d\ndata: %b\n\n" % (each.seq, each.raw) for each in rows])
    return Frames(data, rows[-1].seq, len(rows))


class Projected(Source):
    """Nothing of it is made before somebody reads."""

    def __init__(self, key: str, projection: Projection) -> None:
        self.projection = projection
        self._key = key
        self._stream: Stream = projection.stream
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

    async def news(self) -> None:
        await self._stream.news()

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
        return list[Event](found.rows)

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
        if tip.sequence > seq or tip.log_seq >= self._stream.visible:
            return True
        events = self._stream.since(tip.log_seq)
        if events is None:
            return False
        self._trim()
        self._feed(tip, events[:STEP])
        return tip.fold.sequence > seq or len(events) <= STEP

    def _feed(self, tip: Checkpoint, events: Sequence[Event]) -> None:
        fold, tail, size = tip.fold, self._tail, 0
        include_raw, apart = self.projection.include_raw, self.projection.apart
        for event in events:
            for each in fold.feed(event):
                made = row(each, event, include_raw=include_raw)
                tail.append(made)
                size += len(made.raw)
            if not event.seq % apart:
                self.projection.lay(event.seq, fold)
        self._tail_bytes += size
        if events:
            self._tip = Checkpoint(events[-1].seq, fold)

    def _trim(self) -> None:
        """Before it grows, so that those who were rung for what came last still find it."""
        tail = self._tail
        if len(tail) <= TAIL_ROWS and self._tail_bytes <= TAIL_BYTES:
            return
        gone, size = 0, self._tail_bytes
        while gone < len(tail) and (len(tail) - gone > TAIL_ROWS // 2 or size > TAIL_BYTES // 2):
            size -= len(tail[gone].raw)
            gone += 1
        self._before_tail, self._tail_bytes = tail[gone - 1].seq, size
        del tail[:gone]
