"""Folds of sessions' logs into projected events, and checkpoints from which they can be read.

INV-P1  A checkpoint changes no number: a reading from it gives what a reading from the beginning gives.
INV-P2  What is kept does not grow with the sessions, nor with their logs: `MOST_CHECKPOINTS` states, those that together
        hold no more than `MOST_HELD`, and `MOST_BLOCKS` blocks of the log.
"""

from __future__ import annotations

import asyncio
import weakref
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, Literal, TypeAlias

from legation.wire.events import Event
from legation.wire.universal.messages import MessageProjector
from legation.wire.universal.projector import Projector
from legation.wire.universal.shapes import SessionFacts

APART: Final = 1000  # events of the log between two checkpoints of a reading that passes by
MOST_CHECKPOINTS: Final = 4096  # about 1.5 kB each: of four million events
# Bytes of agents' text in them: as objects it may be thirty times as much.
MOST_HELD: Final = 16 * 1024 * 1024
MOST_BLOCKS: Final = 8  # of at most half a megabyte of the log each, see `store.log.READ_BYTES`

Schema = Literal["sandbox-agent", "universal"]
Fold: TypeAlias = Projector | MessageProjector
FOLDS: Final[dict[Schema, type[Fold]]] = {"sandbox-agent": Projector, "universal": MessageProjector}


_seq = attrgetter("seq")
_log_seq = attrgetter("log_seq")
_sequence = attrgetter("sequence")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state after an event of the log. The fold is copied, never fed."""

    log_seq: int
    fold: Fold

    @property
    def sequence(self) -> int:
        return self.fold.sequence


class Track:
    """The checkpoints of one session in one schema, by number. Sequences rise with the numbers of the log."""

    def __init__(self, schema: Schema, facts: SessionFacts) -> None:
        self.folding = asyncio.Lock()  # whoever waits for a long reading finds its checkpoints
        self.points: list[Checkpoint] = []
        self._make = FOLDS[schema]
        self._facts = facts

    def beginning(self, floor: int) -> Checkpoint:
        return Checkpoint(floor - 1, self._make(self._facts))

    def before(self, after: int) -> Checkpoint | None:
        """Find the last one with no number above `after`."""
        at = bisect_right(self.points, after, key=_sequence)
        return self.points[at - 1] if at else None


class Checkpoints:
    """Checkpoints of all sessions. Belongs to one event loop."""

    def __init__(self, limit: int = MOST_CHECKPOINTS, apart: int = APART) -> None:
        self.apart = apart
        self._limit = limit
        # Tracks live as long as somebody reads them or a checkpoint of theirs is kept.
        self._tracks: weakref.WeakValueDictionary[object, Track] = weakref.WeakValueDictionary()
        self._used: OrderedDict[tuple[Track, int], int] = OrderedDict()  # with what each holds
        self._held = 0
        self._blocks: OrderedDict[str, list[Event]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._used)

    def track(self, key: str, schema: Schema, facts: SessionFacts) -> Track:
        # By the facts too: what was read before the agent had named its session is not what is read now.
        name = (key, schema, facts)
        found = self._tracks.get(name)
        if found is None:
            found = self._tracks[name] = Track(schema, facts)
        return found

    def find(self, track: Track, after: int, floor: int) -> Checkpoint:
        """Find where to begin to read what is above `after`."""
        if track.points and track.points[0].log_seq < floor:
            self._forget_below(track, floor)
        found = track.before(after)
        if found is None:
            return track.beginning(floor)
        self._used.move_to_end((track, found.log_seq))
        return found

    def add(self, track: Track, log_seq: int, fold: Fold) -> None:
        if (track, log_seq) in self._used:
            return
        insort(track.points, Checkpoint(log_seq, fold.copy()), key=_log_seq)
        self._used[track, log_seq] = fold.held
        self._held += fold.held
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


def _index(track: Track, log_seq: int) -> int:
    return bisect_right(track.points, log_seq, key=_log_seq) - 1
