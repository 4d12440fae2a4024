"""The folds that make a session's log into events of seed 002, and a row of what comes out of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol, Self

from legation.wire.events import Event
from legation.wire.universal.facts import SessionFacts
from legation.wire.universal.messages import MessageProjector
from legation.wire.universal.outbox import Projected
from legation.wire.universal.projector import Projector
from legation.wire.universal.rows import FRAME_START, Row, framed

Schema = Literal["sandbox-agent", "universal"]


class Emitted(Protocol):
    """One event that a fold gave out."""

    @property
    def sequence(self) -> int: ...
    def encode(self, include_raw: bool = False) -> bytes: ...


class Fold(Protocol):
    """Fed with a log in order. Its numbers are those of the whole fold, wherever its state was copied."""

    @property
    def sequence(self) -> int:
        """The last one that was given out."""

    @property
    def held(self) -> int:
        """Bytes, about, of what it remembers besides its numbers."""

    def copy(self) -> Self: ...
    def feed(self, event: Event) -> Sequence[Emitted]: ...
    def go_on(self, events: Sequence[Event], start: int) -> list[Row]:
        """The frames of the events from there on, one each, as far as that is all they come to; the rest is for
        `feed`."""


FOLDS: Final[dict[Schema, Callable[[SessionFacts], Fold]]] = {
    "sandbox-agent": Projector,
    "universal": MessageProjector,
}


def row(emitted: Emitted, cause: Event, *, include_raw: bool) -> Row:
    """Its JSON; `framed_row` is for a live body."""
    return Row(
        emitted.sequence,
        cause.at,
        getattr(emitted, "type", ""),
        emitted.encode(include_raw),
        cause=cause.seq,
    )


def framed_row(emitted: Emitted, cause: Event, *, include_raw: bool) -> Row:
    """With a frame. A text that is long is kept apart, as the agent wrote it, and copied where the frames are joined."""
    apart = emitted.apart(include_raw) if isinstance(emitted, Projected) and cause.digest else None
    if apart is None:
        return framed(row(emitted, cause, include_raw=include_raw))
    start, literal = apart
    return Row(
        emitted.sequence,
        cause.at,
        "item.delta",
        FRAME_START % emitted.sequence + start,
        literal,
        cause=cause.seq,
    )
