"""Projections of a session's log: read from a checkpoint on, followed by the hub like a stream, sent as pages.

INV-P5  Readers at the end share one fold, which is fed with each event of the log once.
INV-P6  A source holds at most `TAIL_ROWS` rows and `TAIL_BYTES` bytes besides one step's; who is behind that reads from
        a checkpoint.

The body of one turn (`TurnReader`) is what a session's log gets from a message on, up to the turn's end or the first question:

INV-T1  Nothing from before the message is sent, and nothing from after the end.
INV-T2  The end is the same in every schema: it is read from the events of sandbox-agent.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from operator import attrgetter
from typing import Final, Self, cast

from starlette.responses import Response, StreamingResponse

from legation.errors import Conflict, NotFound
from legation.server.streaming import sse
from legation.server.streaming.checkpoints import (
    APART_BYTES,
    BEYOND,
    Checkpoint,
    Projection,
    WantedRows,
)
from legation.server.streaming.hub import (
    Credential,
    DerivedSource,
    Hub,
    LiveReader,
    StreamChannel,
    farewell,
    of_generation,
)
from legation.server.streaming.sse import CHUNK_BYTES, Frames
from legation.store.log import EventLog
from legation.wire.events import Event
from legation.wire.universal.output import STEP, ProjectedRow, framed, join_frames, row, steps
from legation.wire.universal.shapes import STRIDE, Schema, SessionFacts

TAIL_ROWS: Final = 4096
TAIL_BYTES: Final = 2 * 1024 * 1024
LONG: Final = 64  # rows that go out before what comes next is looked at
AT_ONCE: Final = 2 * CHUNK_BYTES  # of a reader that is behind
# Bytes: what is made of a longer one is not made while readers wait for their turns.
LONG_EVENT: Final = 4 * 1024 * 1024
JSON: Final = "application/json"

_OPENING: Final = b'{"events":['
_ENDINGS: Final = {True: b'],"hasMore":true}', False: b'],"hasMore":false}'}


async def in_pieces(parts: Sequence[bytes], size: int) -> AsyncIterator[memoryview]:
    """Divide a long row into what can be copied at a time while others wait for their turn."""
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), size):
            yield view[start : start + size]
            await asyncio.sleep(0)


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
) -> ProjectedSource:
    """Make the source of a session in a schema. Its own stream must be there: it is made with the session."""
    found = await log.find(facts.session_id, workspace)
    if found is None or found.deleted:
        raise NotFound(f"cannot find session {facts.session_id}; check its id")
    stream = of_generation(found, generation)
    key = "\n".join((stream.key, schema, "raw" if include_raw else "", facts.native_session_id or ""))
    projection = Projection(stream, hub.checkpoints, facts, schema, include_raw=include_raw)
    return ProjectedSource(key, projection)


def frames(rows: Sequence[Event]) -> Frames:
    """Join the rows that a `ProjectedSource` gives."""
    is_joined = len(rows) == 1 and not rows[0].native  # no copy of a long one
    return Frames(rows[0].raw if is_joined else join_frames(rows), rows[-1].seq, len(rows))


async def _joined(row: ProjectedRow) -> ProjectedRow:
    # Put together bit by bit: to make room for all of it at once would take as long as to copy it.
    frame = bytearray()
    async for piece in in_pieces(row.parts, AT_ONCE):
        frame += piece
    return ProjectedRow(row.seq, row.at, row.type, cast(bytes, frame), b"", cause=row.cause)


class ProjectedSource(DerivedSource):
    """A session's log as a source of projected events, which the hub reads like a stream.

    Nothing of it is made before somebody reads. The rows that it gives have frames."""

    def __init__(self, key: str, projection: Projection) -> None:
        super().__init__(key, projection.stream)
        self.projection = projection
        self._floor = self._stream.floor
        self._tip: Checkpoint | None = None  # as far as the log was fed; this fold is our own
        self._tail: list[ProjectedRow] = []
        self._tail_bytes = 0
        self._before_tail = 0
        self._passed = 0  # bytes of rows since the last checkpoint that was stored

    @property
    def head(self) -> int:
        return self.visible

    @property
    def log_head(self) -> int:
        """The last number of the log that was given, on the way to the disk or on it."""
        return self._stream.head

    @property
    def visible(self) -> int:
        """Number above which none was given out. The last one itself would only be known by a reading to the end."""
        return self._stream.visible * STRIDE

    async def check_position(self, after: int) -> None:
        end = await self.projection.end(after)
        if end is not None and end < after:
            raise Conflict(
                f"cannot go on after {after} in session {self.name}: it ends at {end}, so it is not the log that"
                " this number is from, or was restored; read it again from 0",
                {"session": self.name, "head": end},
            )

    async def end(self) -> int:
        """Find the last number there is now."""
        return await self.projection.end(BEYOND) or 0

    def since(self, seq: int) -> list[Event] | None:
        if self._stream.floor != self._floor:
            self._replaced()
        if self._tip is None or not self._feed_until_above(seq) or seq < self._before_tail:
            return None
        return cast(list[Event], self._tail[bisect_right(self._tail, seq, key=_seq) :])

    async def read_older(self, after: int) -> list[Event]:
        wanted = WantedRows(after, self._stream.visible, rows=BEYOND, room=AT_ONCE)
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
        # Who followed to the end is told how what was open ends, and then the new history; others only that.
        self._floor = self._stream.floor
        if self._tip is not None and self._tip.log_seq == self._floor - 1:
            self._restart(self._tip)
        else:
            self._tip = None

    def _feed_until_above(self, seq: int) -> bool:
        """Feed the fold up to the first rows above that number, or to the end of the log. False: not at once."""
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
        """Feed all of them, or up to the end of a message: that repeats its text, and what came before goes out first.
        Return the number of the last one that was fed."""
        fold, at, reached = tip.fold, 0, tip.log_seq
        include_raw, apart = self.projection.include_raw, self.projection.checkpoints.apart
        while at < len(events):
            rows = [] if include_raw else fold.go_on(events, at)
            if rows:
                at += len(rows)
            else:
                event = events[at]
                found = fold.feed_whole(event)
                if found is None:
                    break  # whoever wants it reads it from a checkpoint
                rows = [framed(row(each, event, include_raw=include_raw)) for each in found]
                at += 1
            self._tail += rows
            size = sum([len(each.raw) + len(each.native) for each in rows])
            self._tail_bytes += size
            self._passed += size
            before, reached = reached, events[at - 1].seq
            if reached // apart > before // apart or self._passed > APART_BYTES:
                self.projection.checkpoints.add(Checkpoint(reached, fold), self._floor, max(1, self._passed))
                self._passed = 0
            if len(rows) >= LONG:
                break
        self._tip = Checkpoint(reached, fold)
        return reached

    def _trim(self) -> None:
        # Before it grows, so that those who were woken for what came last still find it.
        tail = self._tail
        count = max(0, len(tail) - TAIL_ROWS // 2)
        left = self._tail_bytes - sum([len(each.raw) + len(each.native) for each in tail[:count]])
        for each in tail[count:]:  # only what goes is looked at
            if left <= TAIL_BYTES // 2:
                break
            count += 1
            left -= len(each.raw) + len(each.native)
        self._before_tail, self._tail_bytes = tail[count - 1].seq, left
        del tail[:count]


async def page(projection: Projection, after: int, limit: int | None) -> Response:
    """Answer with a page, `{"events":[...],"hasMore":false}`: at most `limit` events above `after`.

    Without a limit it is the whole log, however long: sent as it is made, and held nowhere."""
    # The first part is made at once: what fails, fails before the answer.
    parts = _parts(projection, after, BEYOND if limit is None else limit)
    first = await anext(parts)
    second = await anext(parts, None)
    if second is None:
        return Response(first, media_type=JSON)
    return StreamingResponse(_rejoined(first, second, parts), media_type=JSON)


async def _rejoined(first: bytes, second: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    yield second
    async for each in rest:
        yield each


async def _parts(projection: Projection, after: int, left: int) -> AsyncIterator[bytes]:
    until = projection.stream.visible  # what comes meanwhile is of the next page
    opening = _OPENING
    while True:
        found = await projection.read(WantedRows(after, until, rows=left, room=CHUNK_BYTES))
        texts: list[bytes] = []  # with a comma between each two
        for each in found.rows:
            if each.rest:
                yield opening + b",".join([*texts, b""])
                async for piece in in_pieces(each.parts, CHUNK_BYTES):
                    yield bytes(piece)
                opening, texts = b"", [b""]
            else:
                texts.append(each.raw)
        part = opening + b",".join(texts)
        if found.rows:
            after, left, opening = found.rows[-1].seq, left - len(found.rows), b","
        if found.end is not None or not found.rows:
            yield part.removesuffix(b",") + _ENDINGS[found.end is None]
            return
        if left == 0:
            # It may have been the last one: only one more row tells.
            yield part + _ENDINGS[await projection.end(after) is None]
            return
        yield part


# One turn. Whoever reads it answers what it asks, and then reads the session's events. An error, and what cannot be parsed,
# ends nothing here: if the turn or the session ends of it, that is told.
ENDS: Final = frozenset(("turn.ended", "session.ended", "permission.requested", "question.requested"))
# In a `session.ended`, and in no text that stands in one: there these quotes are escaped.
_TERMINATED: Final = b'"data":{"reason":"terminated"'


# The message is taken: whoever is cut off goes on from here, and does not send it again.
ACCEPTED: Final = b"event: accepted\nid: %d\n\n"


class TurnCursor:
    """A place in one projection."""

    def __init__(self, source: ProjectedSource, after: int) -> None:
        self.source = source
        self.after = after
        self.channel: StreamChannel | None = None

    async def take(self) -> list[ProjectedRow]:
        assert self.channel is not None, "not entered"
        source = self.channel.source  # another reader's, if there is one
        found = source.since(self.after)
        if found is None:
            found = await source.read_older(self.after)
        taken = sse.first_chunk(found)
        if taken:
            self.after = taken[-1].seq
        return [cast(ProjectedRow, each) for each in taken]


class TurnReader(LiveReader):
    """`boundary` is the last event of the log before the message. A message that waits for others has a turn later:
    `begins` is the boundary then, and until it is known only the session's end is of interest. The end of an agent in
    another's turn is none of that: the next agent takes the message."""

    def __init__(
        self,
        hub: Hub,
        shown: TurnCursor,
        judged: TurnCursor,
        boundary: int,
        begins: asyncio.Future[int] | None,
        credential: Credential,
    ) -> None:
        super().__init__(hub, credential)
        self._greeted = False
        self._shown = shown
        self._judged = judged  # the same one, unless another schema is shown
        self._accepted = self._boundary = boundary
        self._begins = begins
        self._judged_upto = 0
        self._begun = False
        self._last: int | None = None  # the event of the log that ends it

    def __enter__(self) -> Self:
        for cursor in {self._shown, self._judged}:
            cursor.channel = self._hub.subscribe(cursor.source, self, frames)
        if self._begins is not None:
            self._begins.add_done_callback(self._wake)
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for cursor in {self._shown, self._judged}:
            if cursor.channel is not None:
                self._hub.unsubscribe(cursor.channel, self)
        if self._begins is not None:
            self._begins.remove_done_callback(self._wake)

    def _wake(self, _: asyncio.Future[int]) -> None:
        self.wakeup.set()

    async def _ready(self) -> bytes:
        if not self._greeted:
            self._greeted = True
            self.wakeup.set()
            return ACCEPTED % self._shown.after
        known = self._last is not None
        rows = await self._shown.take()
        if self._shown is self._judged:
            self._judge(rows)
        else:
            await self._judge_up_to(rows[-1].cause if rows else None)
        sent: list[Event] = [each for each in rows if self._belongs(each)]
        if self._is_over_with(rows, known):
            self._finish(b"")
        elif not rows and self._last is not None:
            self.wakeup.set()  # it ended after we had looked for what to show
        elif not rows and self._shown.source.ended:
            self._finish(farewell(self._shown.source))
        elif rows and not sent:
            self.wakeup.set()  # there may be more behind what was skipped
        self._hub.delivered += len(sent)
        return frames(sent).data if sent else b""

    def _waits(self) -> bool:
        # Asked when rows are there: the turn is known to begin before the log has any of it.
        begins = self._begins
        if begins is None or not begins.done():
            return begins is not None
        self._begins = None
        if not begins.cancelled():
            self._boundary = max(self._boundary, begins.result())
        return False

    def _is_over_with(self, rows: Sequence[ProjectedRow], known: bool) -> bool:
        """Say whether these rows are the last. `known`: they were taken when the end was there."""
        # What ends it is the last row of its cause; in another schema that cause may have more, behind this chunk.
        if self._last is None:
            return False
        return self._shown is self._judged or (rows[-1].cause > self._last if rows else known)

    def _belongs(self, row: ProjectedRow) -> bool:
        if row.cause == self._last:
            return True
        if self._begins is not None:
            return False  # of a turn before
        return row.cause > self._boundary and (self._last is None or row.cause < self._last)

    async def _judge_up_to(self, cause: int | None) -> None:
        """Judge up to what is shown, so that all of it has been judged; without anything to show, all there is."""
        while self._last is None and (cause is None or self._judged_upto < cause):
            rows = await self._judged.take()
            if not rows:
                return
            self._judge(rows)

    def _judge(self, rows: Sequence[ProjectedRow]) -> None:
        waits = self._waits()
        for each in rows:
            if self._last is None and self._is_end(each, waits):
                self._last = each.cause
            self._judged_upto = each.cause

    def _is_end(self, row: ProjectedRow, waits: bool) -> bool:
        # Where its session is closed just before the turn, that is said to begin behind the end, and nothing follows.
        if row.type == "session.ended" and _TERMINATED in row.raw and row.cause > self._accepted:
            return True
        if row.cause <= self._boundary:
            return False
        self._begun |= not waits and row.type == "turn.started"
        if row.type == "session.ended" and not self._begun:
            self._boundary = row.cause
            return False
        return row.type == "session.ended" or (not waits and row.type in ENDS)
