"""A projected event as text."""

from collections.abc import Sequence
from typing import Final, cast

from legation.wire.events import Event

FRAME: Final = b"id: %d\ndata: %b\n\n"  # how a live body shows a JSON text: one line of UTF-8 (INV-U5)
DELTA: Final = b'{"event_id":"evt_%d","sequence":%d,"time":%b,%b,"delta":'
DELTA_END: Final = b'},"raw":null}\n\n'
FRAME_START, _FRAME_END = FRAME.split(b"%b")
DELTA_FRAME: Final = FRAME_START + DELTA


class Row(Event, frozen=True, gc=False):
    """`seq` is its sequence, `type` its own, `raw` its JSON or its frame; `cause` is the event of the log. `native` is a
    text that is kept apart: of a short delta the frame is `raw`, `native` and `DELTA_END`. A long one is copied where the
    frames are joined, and nowhere before; what stands behind it, and may have others, is the `rest`."""

    cause: int = 0
    rest: tuple[bytes, ...] = ()

    @property
    def parts(self) -> tuple[bytes, ...]:
        """Of a long one, or of one without a frame: what it is together."""
        return (self.raw, self.native, *self.rest) if self.rest else (self.raw,)


def framed(row: Row) -> Row:
    if row.rest:
        start, rest = FRAME_START % row.seq + row.raw, (*row.rest, _FRAME_END)
        return Row(row.seq, row.at, row.type, start, row.native, cause=row.cause, rest=rest)
    return Row(row.seq, row.at, row.type, FRAME % (row.seq, row.raw), b"", cause=row.cause)


def join_frames(rows: Sequence[Event]) -> bytes:
    """Of rows that have frames."""
    parts: list[bytes] = []
    for row in cast(Sequence[Row], rows):
        if row.native:
            parts += row.parts if row.rest else (row.raw, row.native, DELTA_END)
        else:
            parts.append(row.raw)
    return b"".join(parts)
