"""A projected event as text."""

from collections.abc import Sequence
from typing import Final

from legation.wire.events import Event

FRAME: Final = b"id: %d\ndata: %b\n\n"  # how a live body shows a JSON text: one line of UTF-8 (INV-U5)
DELTA: Final = b'{"event_id":"evt_%d","sequence":%d,"time":%b,%b,"delta":'
DELTA_END: Final = b'},"raw":null}\n\n'
FRAME_START: Final = FRAME.split(b"%b")[0]
DELTA_FRAME: Final = FRAME_START + DELTA


class Row(Event, frozen=True, gc=False):
    """`seq` is its sequence, `type` its own, `raw` its JSON or its frame; `cause` is the event of the log. `native` is the
    text of a delta that is kept apart: its frame is `raw`, `native` and `DELTA_END`."""

    cause: int = 0


def framed(row: Row) -> Row:
    return Row(row.seq, row.at, row.type, FRAME % (row.seq, row.raw), b"", cause=row.cause)


def join_frames(rows: Sequence[Event]) -> bytes:
    """Of rows that have frames."""
    parts: list[bytes] = []
    for row in rows:
        if row.native:
            parts += (row.raw, row.native, DELTA_END)
        else:
            parts.append(row.raw)
    return b"".join(parts)
