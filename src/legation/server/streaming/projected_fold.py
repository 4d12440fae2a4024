"""The folds that make a session's log into events of seed 002, and a row of what comes out of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol, Self

from legation.wire.events import Event
from legation.wire.universal.messages import MessageProjector
from legation.wire.universal.outbox import Row, framed
from legation.wire.universal.projector import Projector
from legation.wire.universal.shapes import SessionFacts

Schema = Literal["sandbox-agent", "universal"]


class Emitted(Protocol):
    """One event that a fold gave out."""

    @property
    def sequence(self) -> int: ...
    def encode(self, include_raw: bool = False) -> bytes: ...
    def apart(self, include_raw: bool = False) -> Sequence[bytes]:
        """The same where it has long texts, which are not copied: what stands before one, the text, and so on to what
        is behind the last. Nothing where it has none."""


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
    number, type_ = emitted.sequence, getattr(emitted, "type", "")
    parts = emitted.apart(include_raw)
    if parts:
        start, text, *rest = parts
        return Row(number, cause.at, type_, start, text, cause=cause.seq, rest=tuple(rest))
    return Row(number, cause.at, type_, emitted.encode(include_raw), cause=cause.seq)


def framed_row(emitted: Emitted, cause: Event, *, include_raw: bool) -> Row:
    return framed(row(emitted, cause, include_raw=include_raw))
