"""Folds of sessions' logs into projected events, and checkpoints from which they can be read.

A checkpoint is a few hundred bytes: the state of a fold, without the text of the message that is being said, which is in
the log. It serves every schema, and whatever is known of the session besides its log.

INV-P1  A checkpoint changes no number: a reading from it gives what a reading from the beginning gives.
INV-P2  What is kept in memory does not grow with the sessions, nor with their logs: no more than `MOST_CHECKPOINTS`, of
        together no more than `MOST_HELD` bytes, and `MOST_BLOCKS` blocks of the log. A text is held by whoever reads it.
INV-P3  A reading never holds the loop for more than `STEP` events of the log, or one of them and those in `STEP_BYTES`
        before it, and never for more than it was asked for.
INV-P4  It shows one history: if that is replaced meanwhile, it begins again.
INV-P7  Those `APART` events from each other, or `APART_BYTES`, are also stored with the log, so that a reading folds no
        more than that, twice, also after a restart, whether the session was ever read or not. One that is lost, damaged
        or of another format costs a longer fold.
INV-P8  The text of a message is read again only for who is shown its end, having begun in the middle of it.
"""

from __future__ import annotations

import asyncio
import weakref
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

from legation.store.codec import WantedCheckpoint
from legation.store.stream import GROWTH_BYTES, GROWTH_EVENTS, GenerationRange, Stream
from legation.wire import snapshot
from legation.wire.events import Event
from legation.wire.snapshot import SnapshotFold
from legation.wire.universal.messages import MessageProjector
from legation.wire.universal.output import ProjectedRow, row, steps
from legation.wire.universal.projector import STATE_FORMAT, Projector, decode_state, encode_state
from legation.wire.universal.shapes import STRIDE, Schema, SessionFacts
from legation.wire.universal.text import RecalledText

APART: Final = GROWTH_EVENTS  # events of the log between two checkpoints of a reading that passes by
APART_BYTES: Final = GROWTH_BYTES  # of events, after which there is one all the same
MOST_CHECKPOINTS: Final = 4096
MOST_HELD: Final = 4 * 1024 * 1024  # bytes
POINT_BYTES: Final = 400  # that one takes besides its state
MOST_BLOCKS: Final = 8  # of at most half a megabyte of the log each, see `store.log.READ_BYTES`
# Bytes of a state with long calls in it: so that the store does not grow by them, only one of `RARE` is stored.
LARGE_STATE: Final = 16 * 1024
RARE: Final = 16
KIND: Final = "fold"
SNAPSHOT_KIND: Final = "snapshot"
MOST_SNAPSHOTS: Final = 16  # folds of sessions that are kept in memory, of at most half a megabyte each
SNAPSHOT_BYTES: Final = 64 * 1024  # of the log, or its own size, between two that are stored
BEYOND: Final = 2**62  # above all numbers
PASSED_AT_ONCE: Final = 8  # steps of which nothing is shown
STORED_AT_ONCE: Final = 20_000  # events that are passed while whoever reads that session waits
ROOMY: Final = 128 * 1024  # bytes of rows: more than a step makes that only goes on with a message
ALIGNED: Final = 16  # events: only every so many may have a checkpoint because of their bytes

Fold: TypeAlias = Projector | MessageProjector
FOLDS: Final[dict[Schema, type[Fold]]] = {"sandbox-agent": Projector, "universal": MessageProjector}


def projector_of(fold: Fold) -> Projector:
    return fold.items if isinstance(fold, MessageProjector) else fold


_seq = attrgetter("seq")
_log_seq = attrgetter("log_seq")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A fold after an event of the log."""

    log_seq: int
    fold: Fold

    @property
    def sequence(self) -> int:
        return self.fold.sequence


class Point(NamedTuple):
    """A checkpoint as bytes, and the last number in each schema."""

    log_seq: int
    sequence: int
    messages: int
    state: bytes


class Track:
    """The checkpoints of one history, by number. Sequences rise with the numbers of the log."""

    def __init__(self) -> None:
        self.folding = asyncio.Lock()  # whoever waits for a long reading finds its checkpoints
        self.points: list[Point] = []
        self.stored = 0  # up to that event of the log they were given to the store
        self.snapshot_folding = asyncio.Lock()

    def before(self, after: int, schema: Schema) -> Point | None:
        """Find the last one with no number above `after`."""
        at = bisect_right(self.points, after, key=attrgetter(_NUMBER[schema]))
        return self.points[at - 1] if at else None


_NUMBER: Final[dict[Schema, str]] = {"sandbox-agent": "sequence", "universal": "messages"}


class Checkpoints:
    """Checkpoints of all sessions. Belongs to one event loop."""

    def __init__(self, limit: int = MOST_CHECKPOINTS, apart: int = APART) -> None:
        self.apart = apart
        self._limit = limit
        # Tracks live as long as somebody reads them or a checkpoint of theirs is kept.
        self._tracks: weakref.WeakValueDictionary[str, Track] = weakref.WeakValueDictionary()
        self._used: OrderedDict[tuple[Track, int], int] = OrderedDict()  # with what each holds
        self._held = 0
        self._blocks: OrderedDict[str, list[Event]] = OrderedDict()
        self._snapshots: OrderedDict[str, tuple[int, SnapshotFold]] = OrderedDict()  # with the floor of each

    def __len__(self) -> int:
        return len(self._used)

    @property
    def held(self) -> int:
        """Bytes of all of them."""
        return self._held

    def track(self, key: str) -> Track:
        found = self._tracks.get(key)
        if found is None:
            found = self._tracks[key] = Track()
        return found

    def find(self, track: Track, after: int, floor: int, schema: Schema) -> Point | None:
        """Find where to begin to read what is above `after`."""
        if track.points and track.points[0].log_seq < floor:
            self._forget_below(track, floor)
        found = track.before(after, schema)
        if found is not None:
            self._used.move_to_end((track, found.log_seq))
        return found

    def has(self, track: Track, log_seq: int) -> bool:
        return (track, log_seq) in self._used

    def add(self, track: Track, point: Point) -> None:
        if (track, point.log_seq) in self._used:
            return
        insort(track.points, point, key=_log_seq)
        size = self._used[track, point.log_seq] = len(point.state) + POINT_BYTES
        self._held += size
        while len(self._used) > self._limit or (self._held > MOST_HELD and len(self._used) > 1):
            (other, oldest), held = self._used.popitem(last=False)
            self._held -= held
            del other.points[_index(other, oldest)]

    def _forget_below(self, track: Track, floor: int) -> None:
        # The history was replaced: what only led up to it leads nowhere.
        gone = bisect_right(track.points, floor - 1, key=_log_seq)
        for each in track.points[:gone]:
            self._held -= self._used.pop((track, each.log_seq))
        del track.points[:gone]

    # The log's own events that were read and not needed yet: whoever reads pages needs them next.

    def block(self, key: str, after: int, floor: int) -> Sequence[Event] | None:
        found = self._blocks.get(key)
        if found is None or not floor <= found[0].seq <= after + 1 <= found[-1].seq:
            return None
        self._blocks.move_to_end(key)
        return found[bisect_right(found, after, key=_seq) :]

    def keep_block(self, key: str, events: list[Event]) -> None:
        self._blocks[key] = events
        self._blocks.move_to_end(key)
        if len(self._blocks) > MOST_BLOCKS:
            self._blocks.popitem(last=False)

    # Snapshots: the last one of a session, to go on from.

    async def snapshot(self, stream: Stream, track: Track) -> tuple[int, bytes]:
        """Fold what a session has come to: the number of the last event in it, and the snapshot."""
        async with track.snapshot_folding:
            while True:
                floor, until = stream.floor, stream.visible
                fold = await self._snapshot_before(stream, floor, until)
                if await self._fold_snapshot(stream, fold, floor, until):
                    self._snapshots[stream.key] = floor, fold
                    self._snapshots.move_to_end(stream.key)
                    if len(self._snapshots) > MOST_SNAPSHOTS:
                        self._snapshots.popitem(last=False)
                    return fold.seq, fold.write()

    async def _snapshot_before(self, stream: Stream, floor: int, until: int) -> SnapshotFold:
        kept = self._snapshots.pop(stream.key, None)
        if kept is not None and kept[0] == floor and kept[1].seq <= until:
            return kept[1]
        stored = await stream.checkpoint(WantedCheckpoint(SNAPSHOT_KIND, snapshot.FORMAT, floor, until))
        fold = SnapshotFold.restored(stored.body) if stored is not None else None
        return fold or SnapshotFold()

    async def _fold_snapshot(self, stream: Stream, fold: SnapshotFold, floor: int, until: int) -> bool:
        """Go on to the event `until`; False where the history was replaced meanwhile."""
        passed, at = 0, max(fold.seq, floor - 1)
        while at < until:
            events = stream.since(at)
            if events is None:
                events = await stream.read_older(at)
            if stream.floor != floor or stream.deleted:
                return stream.deleted
            if not events:
                break
            for step in steps(events[: bisect_right(events, until, key=_seq)], PASSED_AT_ONCE):
                for event in step:
                    fold.take(event)
                    passed += len(event.brief)
                await asyncio.sleep(0)
            at = events[-1].seq
        if passed > SNAPSHOT_BYTES and (state := fold.state()) is not None and passed > len(state):
            stream.keep_checkpoint(SNAPSHOT_KIND, snapshot.FORMAT, floor, fold.seq, state, only=True)
        return True


def _index(track: Track, log_seq: int) -> int:
    return bisect_right(track.points, log_seq, key=_log_seq) - 1


class SessionCheckpoints:
    """Checkpoints of one history, in memory and in the store, for readings in one schema."""

    def __init__(
        self, kept: Checkpoints, stream: Stream | GenerationRange, schema: Schema, facts: SessionFacts
    ) -> None:
        self.apart = kept.apart
        self.track = kept.track(stream.key)
        self.schema: Schema = schema
        self._kept = kept
        self._range = stream
        self._stream = stream.stream if isinstance(stream, GenerationRange) else stream
        self._facts = facts

    async def find(self, after: int, floor: int) -> Checkpoint:
        """Find the last one with no number above `after`, of a reading from `floor` on; at worst its beginning."""
        upto = self._range.visible
        found = self._kept.find(self.track, after, floor, self.schema)
        if found is None or not self._is_close(found, after, upto):
            stored = await self._find_stored(after, floor, found.log_seq + 1 if found else 0, upto)
            if stored is not None:
                return stored
        restored = self._restored(found.state, found.log_seq) if found is not None else None
        return restored or Checkpoint(floor - 1, FOLDS[self.schema](self._facts))

    def _is_close(self, found: Point, after: int, upto: int) -> bool:
        """Whether the store can hardly have a better one."""
        return getattr(found, _NUMBER[self.schema]) == after or found.log_seq + self.apart > upto

    async def _find_stored(self, after: int, floor: int, above: int, upto: int) -> Checkpoint | None:
        while upto >= above:
            wanted = WantedCheckpoint(
                KIND, STATE_FORMAT, floor, upto, after, messages=self.schema == "universal"
            )
            stored = await self._stream.checkpoint(wanted)
            if stored is None or stored.seq < above:
                return None
            restored = self._restored(stored.body, stored.seq)
            if restored is not None:
                point = Point(stored.seq, stored.sequence, stored.messages, stored.body)
                self._kept.add(self.track, point)
                return restored
            upto = stored.seq - 1  # damaged
        return None

    def _restored(self, encoded: bytes, log_seq: int) -> Checkpoint | None:
        state = decode_state(encoded)
        if state is None:
            return None
        fold = Projector.restored(self._facts, state, log_seq)
        return Checkpoint(
            log_seq, fold if self.schema == "sandbox-agent" else MessageProjector(self._facts, fold)
        )

    def add(self, place: Checkpoint, floor: int, passed: int = 0) -> None:
        """Keep it; also for those who come after a restart where so many bytes were passed since the last of these."""
        if not passed and self._kept.has(self.track, place.log_seq):
            return
        fold = projector_of(place.fold)
        encoded = encode_state(fold.state())
        if encoded is None or place.log_seq < floor:
            return
        numbers = fold.sequence, fold.messages.sequence
        self._kept.add(self.track, Point(place.log_seq, *numbers, encoded))
        is_small = len(encoded) <= max(LARGE_STATE, passed // RARE)
        if passed and (is_small or not place.log_seq // self.apart % RARE):
            self._stream.keep_checkpoint(KIND, STATE_FORMAT, floor, place.log_seq, encoded, numbers)
            self.track.stored = max(self.track.stored, place.log_seq)


# Readings from a checkpoint on.


@dataclass(frozen=True, slots=True)
class WantedRows:
    """Rows to read: above the number `after`, from what the log has up to `until`. The event of the log at which there is
    no room left is the last one that is read, and its rows are all given."""

    after: int
    until: int
    rows: int
    room: int


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Rows that were read."""

    rows: list[ProjectedRow]
    end: Checkpoint | None = (
        None  # after the log was read to the end of what was wanted; else there may be more
    )


class Projection:
    """One session in one projection. It is made for a reader and thrown away: what lasts are the checkpoints."""

    def __init__(
        self,
        stream: Stream | GenerationRange,
        kept: Checkpoints,
        facts: SessionFacts,
        schema: Schema,
        *,
        include_raw: bool,
    ) -> None:
        self.stream = stream
        self.include_raw = include_raw
        self.checkpoints = SessionCheckpoints(kept, stream, schema, facts)
        self._blocks = kept
        # Where its last reading was cut, with the text that is being said: the next goes on there.
        self._cut: tuple[int, Checkpoint] | None = None

    async def read(self, wanted: WantedRows) -> FoundRows:
        async with self.checkpoints.track.folding:
            while True:
                floor = self.stream.floor
                start = self._take_cut(wanted.after, floor)
                if start is None:
                    start = await self.checkpoints.find(wanted.after, floor)
                found = await _LogWalk(self, start, wanted, floor).run()
                if self.stream.floor == floor:
                    return found

    def _take_cut(self, after: int, floor: int) -> Checkpoint | None:
        cut, self._cut = self._cut, None
        if cut is None or cut[0] != floor or not after - STRIDE <= cut[1].sequence <= after:
            return None
        return cut[1]

    def keep_cut(self, place: Checkpoint, floor: int) -> None:
        self._cut = floor, place

    async def end(self, after: int = BEYOND) -> int | None:
        """Find the last number there is; None if there is one above `after`."""
        found = await self.read(WantedRows(after, self.stream.visible, rows=0, room=0))
        return None if found.end is None else found.end.sequence

    async def snapshot(self) -> tuple[int, int, bytes]:
        """Read what the session has come to: the last event in it, by its number in the log and in this projection."""
        stream = self.stream.stream if isinstance(self.stream, GenerationRange) else self.stream
        while True:
            floor = stream.floor
            seq, text = await self._blocks.snapshot(stream, self.checkpoints.track)
            found = await self.read(WantedRows(BEYOND, seq, rows=0, room=0))
            if found.end is not None and stream.floor == floor:
                return seq, found.end.sequence, text

    async def store(self, upto: int) -> None:
        """Have checkpoints stored up to that event of the log; a long way in parts, so that readers have their turns."""
        track = self.checkpoints.track
        while track.stored < upto <= self.stream.visible:
            before = track.stored
            start = await self.checkpoints.find(BEYOND, self.stream.floor)
            if start.log_seq >= upto:
                return
            until = min(upto, start.log_seq + STORED_AT_ONCE)
            found = await self.read(WantedRows(BEYOND, until, rows=0, room=0))
            if found.end is None or (found.end.log_seq < until and track.stored == before):
                return

    async def events(self, after: int) -> Sequence[Event]:
        """Read events of the log; none at its end."""
        stream = self.stream
        found = stream.since(after)
        if found is not None:
            return found
        kept = self._blocks.block(stream.key, after, stream.floor)
        if kept:
            return kept
        found = await stream.read_older(after)
        if found and found[0].seq >= stream.floor:
            self._blocks.keep_block(stream.key, found)
        return found


class _LogWalk:
    """Walk from a checkpoint to what is wanted, adding others on the way. The fold that it begins with is its own."""

    def __init__(self, projection: Projection, start: Checkpoint, wanted: WantedRows, floor: int) -> None:
        self._projection = projection
        self._checkpoints = projection.checkpoints
        self._wanted = wanted
        self._floor = floor
        self._at, self._fold = start.log_seq, start.fold
        self._items = projector_of(start.fold)
        self._room = wanted.room
        self._rows: list[ProjectedRow] = []
        self._passed = 0  # bytes since the last checkpoint that was stored
        self._boundary: Checkpoint | None = None  # the last one behind which all rows can be had again

    async def run(self) -> FoundRows:
        passes = self._wanted.after == BEYOND
        while self._at < self._wanted.until:
            events = await self._projection.events(self._at)
            if self._projection.stream.floor != self._floor:
                return FoundRows([])  # of a history that is gone; nobody looks at it
            if not events:
                break
            for step in steps(events, PASSED_AT_ONCE if passes else 1):
                if passes:
                    self._pass_over(step)
                elif await self._is_full_after(step):
                    return self._cut()
                await asyncio.sleep(0)
        end = Checkpoint(self._at, self._fold)
        self._checkpoints.add(end, self._floor, self._passed if self._passed > APART_BYTES // 2 else 0)
        return FoundRows(self._rows, end)

    async def _is_full_after(self, events: Sequence[Event]) -> bool:
        at, full = self._take(events, 0)
        while at < len(events) and not full:
            await self._recall_text()
            at, full = self._take(events, at)
        return full

    def _take(self, events: Sequence[Event], start: int) -> tuple[int, bool]:
        """Feed them from there on. Return how far that went, and whether no more is wanted: an event that shows a text
        which is not here is not fed."""
        wanted, rows, fold = self._wanted, self._rows, self._fold
        after, limit, until = wanted.after, wanted.rows, wanted.until
        include_raw, apart = self._projection.include_raw, self._checkpoints.apart
        feed, feed_whole, near = fold.feed, fold.feed_whole, limit - STRIDE
        lacking = limit > 0 and self._items.missing_text is not None
        is_due = self._passed > APART_BYTES
        at, full = start, False
        while at < len(events) and not full:
            event = events[at]
            if event.seq > until:
                at = len(events)
                break
            # Before these no boundary is needed, nor is there an end.
            most = 1 + max(near - len(rows), after - STRIDE - fold.sequence)
            gone_on: Sequence[ProjectedRow] = ()
            if most > 1 and self._room > ROOMY and not include_raw:
                last = min(until, self._next_place(is_due=is_due))
                behind = bisect_right(events, last, at, min(at + most, len(events)), key=_seq)
                gone_on = fold.go_on(events[at:behind], 0, framed=False)
            if gone_on:
                self._show([each for each in gone_on if each.seq > after])
                at += len(gone_on)
            else:
                if near < len(rows) <= limit and fold.sequence > after - STRIDE:
                    self._boundary = Checkpoint(self._at, fold.copy())
                found = feed_whole(event) if lacking and fold.sequence >= after else feed(event)
                if found is None:
                    break
                self._show(
                    [row(each, event, include_raw=include_raw) for each in found if each.sequence > after]
                )
                at += 1
            self._at = events[at - 1].seq
            if not self._at % apart or (is_due and not self._at % ALIGNED):
                is_due = False
                self._store()
            full = len(rows) > limit or (self._room < 0 and len(rows) > 0)
        self._passed += sum([len(event.raw) for event in events[start:at]])
        return at, full

    def _next_place(self, *, is_due: bool) -> int:
        """The next event behind which there is a checkpoint."""
        unit, at = self._checkpoints.apart, self._at
        place = at + unit - at % unit
        return min(place, at + ALIGNED - at % ALIGNED) if is_due else place

    def _show(self, rows: Sequence[ProjectedRow]) -> None:
        self._rows += rows
        self._room -= sum([len(each.raw) + len(each.native) for each in rows])

    def _pass_over(self, events: Sequence[Event]) -> None:
        """Feed them for their numbers alone, up to the one that is wanted."""
        items, apart, at = self._items, self._checkpoints.apart, 0
        events = events[: bisect_right(events, self._wanted.until, key=_seq)]
        while at < len(events):
            next_place = self._at + apart - self._at % apart
            end = bisect_right(events, next_place, key=_seq)
            passed = items.pass_over(events[at:end], 0)
            if not passed:
                items.feed(events[at])
                items.drop_text(events[at].seq)
                passed = 1
            self._passed += sum([len(event.raw) for event in events[at : at + passed]])
            at += passed
            self._at = events[at - 1].seq
            if self._at >= next_place or self._passed > APART_BYTES:
                self._store()

    def _store(self) -> None:
        self._checkpoints.add(Checkpoint(self._at, self._fold), self._floor, max(1, self._passed))
        self._passed = 0

    async def _recall_text(self) -> None:
        """Read what was said before the checkpoint: the message that it was said in is about to be shown whole."""
        missing, text = self._items.missing_text, RecalledText()
        assert missing is not None
        at = missing.after
        while at < missing.last:
            events = await self._projection.events(at)
            if not events or self._projection.stream.floor != self._floor:
                break
            for step in steps(events[: bisect_right(events, missing.last, key=_seq)]):
                text.take(step)
                await asyncio.sleep(0)
            at = events[-1].seq
        self._items.fill_text(text)

    def _cut(self) -> FoundRows:
        # The next reading begins just where this one ends.
        place = Checkpoint(self._at, self._fold)
        if len(self._rows) > self._wanted.rows and self._boundary is not None:
            place = self._boundary
        if len(self._rows) <= self._wanted.rows or place is self._boundary:
            self._checkpoints.add(place, self._floor)
            self._projection.keep_cut(place, self._floor)
        return FoundRows(self._rows[: self._wanted.rows])
