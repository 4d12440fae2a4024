"""A session's events as the sessions API sends them, each as its type.

INV-C7  What this version does not know is kept: an event of a new type, or one whose data has a new form, comes with
its data as JSON text (`Unknown`).
INV-C9  Half a character (a lone surrogate), which agents do write, is read as U+FFFD: it hides no event.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

import msgspec

from legation.wire.api.sessions import EventPage
from legation.wire.api.shape import Page
from legation.wire.universal import shapes
from legation.wire.universal.shapes import Data

_NULL: Final = msgspec.Raw(b"null")


class Unknown(msgspec.Struct, frozen=True):
    """`json` is the data as it came."""

    json: msgspec.Raw


AnyData: TypeAlias = Data | Unknown


class SessionEvent(msgspec.Struct, frozen=True):
    """Tell what happened by the type of `data`. Numbers go up, with gaps; keep `sequence` to go on from there."""

    event_id: str
    sequence: int
    time: datetime
    session_id: str
    native_session_id: str | None
    synthetic: bool
    source: str
    type: str
    data: AnyData
    raw: msgspec.Raw | None = None  # what the agent sent, where it was asked for


class _Line(msgspec.Struct):
    event_id: str
    sequence: int
    time: datetime
    session_id: str
    type: str
    data: msgspec.Raw
    native_session_id: str | None = None
    synthetic: bool = False
    source: str = ""
    raw: msgspec.Raw = _NULL


# Three shapes hold any value or null, which msgspec writes but cannot read: these are read instead, and made into them.


class _ReadTurn(msgspec.Struct):
    phase: Literal["started", "ended"]
    turn_id: str | None = None
    metadata: msgspec.Raw = _NULL

    def shape(self) -> shapes.Turn:
        return shapes.Turn(self.phase, self.turn_id, _kept(self.metadata))


class _ReadPermission(msgspec.Struct):
    permission_id: str
    action: str
    status: shapes.PermissionStatus
    metadata: msgspec.Raw = _NULL

    def shape(self) -> shapes.Permission:
        return shapes.Permission(self.permission_id, self.action, self.status, _kept(self.metadata))


class _ReadError(msgspec.Struct):
    message: str
    code: str | None = None
    details: msgspec.Raw = _NULL

    def shape(self) -> shapes.Error:
        return shapes.Error(self.message, self.code, _kept(self.details))


_KINDS: Final[dict[str, type[msgspec.Struct]]] = {
    "session.started": shapes.SessionStarted,
    "session.ended": shapes.SessionEnded,
    "turn.started": _ReadTurn,
    "turn.ended": _ReadTurn,
    "item.started": shapes.ItemEvent,
    "item.delta": shapes.ItemDelta,
    "item.completed": shapes.ItemEvent,
    "error": _ReadError,
    "permission.requested": _ReadPermission,
    "permission.resolved": _ReadPermission,
    "question.requested": shapes.Question,
    "question.resolved": shapes.Question,
    "agent.unparsed": shapes.Unparsed,
}
_READERS: Final[dict[str, msgspec.json.Decoder[Any]]] = {
    name: msgspec.json.Decoder(kind) for name, kind in _KINDS.items()
}

# Whole escapes, so that a backslash that is escaped itself begins none.
_ESCAPES: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[dD][89a-fA-F][0-9a-fA-F]{2}|.)",
    re.DOTALL,
)
_HALF: Final = len(rb"\ud83d")

_decode_line = msgspec.json.Decoder(_Line).decode
_decode_page = msgspec.json.Decoder(EventPage).decode


def read_session_event(text: bytes) -> SessionEvent:
    """Raises ValueError on what is no event."""
    try:
        return _event(_decode_line(text))
    except ValueError:
        return _event(_decode_line(_mended(text)))


def _event(line: _Line) -> SessionEvent:
    return SessionEvent(
        event_id=line.event_id,
        sequence=line.sequence,
        time=line.time,
        session_id=line.session_id,
        native_session_id=line.native_session_id,
        synthetic=line.synthetic,
        source=line.source,
        type=line.type,
        data=_data(line.type, line.data),
        raw=_kept(line.raw),
    )


def read_event_page(body: bytes) -> Page[SessionEvent]:
    try:
        page = _decode_page(body)
    except ValueError:
        page = _decode_page(_mended(body))
    events = [_event(_decode_line(each)) for each in page.events]
    if page.has_more and not events:
        raise ValueError("a page without events that says there are more")
    return Page(items=events, next=str(events[-1].sequence) if page.has_more else None)


def _mended(text: bytes) -> bytes:
    """Pairs are twice as long as halves; all other escapes are shorter, as this sees them."""
    return _ESCAPES.sub(lambda found: rb"\ufffd" if len(found[0]) == _HALF else found[0], text)


def _data(type_: str, data: msgspec.Raw) -> AnyData:
    reader = _READERS.get(type_)
    if reader is not None:
        try:
            found = reader.decode(data)
            known: Data = (
                found.shape() if isinstance(found, _ReadTurn | _ReadPermission | _ReadError) else found
            )
            return known
        except (ValueError, RecursionError):
            pass  # a newer server's
    return Unknown(data.copy())  # a copy: the rest of the answer need not stay for its sake


def _kept(value: msgspec.Raw) -> msgspec.Raw | None:
    return None if value == _NULL else value.copy()
