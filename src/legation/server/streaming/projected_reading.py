"""One reading of a session's log from a number on, in any of its projections: pages, and readers who are behind.

INV-P3  A reading never holds the loop for more than `STEP` events of the log, or one of them and those in `STEP_BYTES`
        before it, and never for more than it was asked for.
INV-P4  It shows one history: if that is replaced meanwhile, it begins again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from legation.server.streaming.projected_checkpoints import Checkpoint, Checkpoints, Track
from legation.server.streaming.projected_fold import Fold, row
from legation.store.stream import Span, Stream
from legation.wire.events import Event
from legation.wire.universal.outbox import Row
from legation.wire.universal.shapes import STRIDE

BEYOND: Final = 2**62  # above all numbers
STEP: Final = 50  # events of the log: half a millisecond of a message, some more of tool calls
STEP_BYTES: Final = 32 * 1024  # of them: of small objects it is some milliseconds


@dataclass(frozen=True, slots=True)
class Wanted:
    """Rows above the number `after`, from what the log has up to `until`. The event of the log at which there is no
    room left is the last one that is read, and its rows are all given."""

    after: int
    until: int
    rows: int
    room: int


@dataclass(frozen=True, slots=True)
class Found:
    """`end` is where it stands, if the log was read to the end of what was wanted; else there is more, or may be."""

    rows: list[Row]
    end: Checkpoint | None = None


def steps(events: Sequence[Event]) -> Iterator[Sequence[Event]]:
    """INV-P3: as many at a time as hold up nobody."""
    start = size = 0
    for end, event in enumerate(events, 1):
        size += len(event.raw)  # though it be its digest that is read: what is made of it has its text
        if size >= STEP_BYTES or end - start == STEP:
            yield events[start:end]
            start, size = end, 0
    if start < len(events):
        yield events[start:]


async def in_pieces(parts: Sequence[bytes], size: int) -> AsyncIterator[memoryview]:
    """Of a long row: as much at a time as can be copied while others wait for their turn."""
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), size):
            yield view[start : start + size]
            await asyncio.sleep(0)


class Projection:
    """One session in one projection. It is made for a reader and thrown away: what lasts are the checkpoints."""

    def __init__(
        self, stream: Stream | Span, checkpoints: Checkpoints, track: Track, *, include_raw: bool
    ) -> None:
        self.stream = stream
        self.include_raw = include_raw
        self.apart = checkpoints.apart
        self._checkpoints = checkpoints
        self._track = track

    async def read(self, wanted: Wanted) -> Found:
        async with self._track.folding:
            while True:
                floor = self.stream.floor
                start = self._checkpoints.find(self._track, wanted.after, floor)
                found = await _Walk(self, start, wanted).run()
                if self.stream.floor == floor:
                    return found

    async def end(self, after: int = BEYOND) -> int | None:
        """The last number there is; None if there is one above `after`."""
        found = await self.read(Wanted(after, self.stream.visible, rows=0, room=0))
        return None if found.end is None else found.end.sequence

    def lay(self, log_seq: int, fold: Fold) -> None:
        self._checkpoints.lay(self._track, log_seq, fold)

    async def events(self, after: int) -> Sequence[Event]:
        """Of the log; none at its end."""
        stream = self.stream
        found = stream.since(after)
        if found is not None:
            return found
        kept = self._checkpoints.block(stream.key, after, stream.floor)
        if kept:
            return kept
        found = await stream.read_older(after)
        if found and found[0].seq >= stream.floor:
            self._checkpoints.keep_block(stream.key, found)
        return found


class _Walk:
    """From a checkpoint to what is wanted, laying others on the way."""

    def __init__(self, projection: Projection, start: Checkpoint, wanted: Wanted) -> None:
        self._projection = projection
        self._wanted = wanted
        self._floor = projection.stream.floor
        self._at, self._fold = start.log_seq, start.fold.copy()
        self._room = wanted.room
        self._rows: list[Row] = []
        self._boundary: Checkpoint | None = None  # the last one behind which all rows can be had again

    async def run(self) -> Found:
        while self._at < self._wanted.until:
            events = await self._projection.events(self._at)
            if self._projection.stream.floor != self._floor:
                return Found([])  # of a history that is gone; nobody looks at it
            if not events:
                break
            for step in steps(events):
                if self._is_full_after(step):
                    return self._cut()
                await asyncio.sleep(0)
        self._projection.lay(self._at, self._fold)
        return Found(self._rows, Checkpoint(self._at, self._fold))

    def _is_full_after(self, events: Sequence[Event]) -> bool:
        wanted, rows, fold = self._wanted, self._rows, self._fold
        after, limit = wanted.after, wanted.rows
        include_raw, apart = self._projection.include_raw, self._projection.apart
        for event in events:
            if event.seq > wanted.until:
                break
            if limit - STRIDE < len(rows) <= limit and fold.sequence > after - STRIDE:
                self._boundary = Checkpoint(self._at, fold.copy())
            for each in fold.feed(event):
                if each.sequence > after:
                    made = row(each, event, include_raw=include_raw)
                    rows.append(made)
                    self._room -= len(made.raw) + len(made.native)
            self._at = event.seq
            if not event.seq % apart:
                self._projection.lay(event.seq, fold)
            if len(rows) > limit or (self._room < 0 and rows):
                return True
        return False

    def _cut(self) -> Found:
        """The next reading begins just where this one ends."""
        if len(self._rows) <= self._wanted.rows:
            self._projection.lay(self._at, self._fold)
        elif self._boundary is not None:
            self._projection.lay(self._boundary.log_seq, self._boundary.fold)
        return Found(self._rows[: self._wanted.rows])
