"""Output of a projection: numbered, and encoded where it is wanted.

INV-U1  Numbers are dense and depend on the log alone.
INV-U2  Each event of the log stands as `raw` in at most one projected event.
INV-U3  From a reset on, numbers depend on the log from there alone: the history before it is gone, and whoever
        reads from the reset must see what one sees who read through it. So they jump to a number beyond all
        that the history can have used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeVar, cast

import msgspec

from legation.wire import jsontext
from legation.wire.events import UNREADABLE, WHOLE, Event
from legation.wire.universal.shapes import (
    Data,
    EventType,
    Item,
    ItemDelta,
    ItemEvent,
    ItemJson,
    ItemKind,
    Part,
    Role,
    SessionFacts,
    UniversalEvent,
    floor,
)

if TYPE_CHECKING:
    from legation.wire.universal.messages import ProjectedMessage

STEP: Final = 50  # events of the log: half a millisecond of a message, some more of tool calls
STEP_BYTES: Final = 32 * 1024  # of them: of small objects it is some milliseconds

# Bytes of the log inside another JSON text.
#
# INV-U5  Whatever the bytes are, what comes out is one line of JSON in UTF-8 that readers can read: an agent's text breaks
#         no answer and no SSE frame. What cannot be read is a JSON string of the text.

MAX_NESTING: Final = 100
"""Rust's readers stop at 128. And how deep our own can go depends on who calls: what one page can read and another
cannot would have other numbers there."""

# A text without an end is one to the end: looking for it again from every quote would take for ever.
_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_ONE_KIND: Final = bytes.maketrans(b"{}", b"[]")
_UNWRITABLE = (TypeError, ValueError, OverflowError, RecursionError)

_DEEP: Final = b"[" * (MAX_NESTING + 1)

_skim = msgspec.json.Decoder(msgspec.Raw).decode  # holds the text to the grammar, makes nothing of it


def nests_too_deep(raw: bytes) -> bool:
    if raw.find(b"{", MAX_NESTING) < 0 and raw.find(b"[", MAX_NESTING) < 0:
        return False  # so many bytes open no more than so many; nearly every text ends here
    if raw.count(b"[") + raw.count(b"{") <= MAX_NESTING:
        return False
    # All that is left are brackets; each pass takes out what is innermost, at the speed of a copy.
    marks = _STRINGS.sub(b"", raw).translate(_ONE_KIND, _NO_BRACKETS)
    for _ in range(MAX_NESTING):
        if _DEEP in marks:
            return True
        before, marks = len(marks), marks.replace(b"[]", b"")
        if len(marks) == before:
            return False  # nothing is left, or what is left is no JSON
    return b"[" in marks


def embedded(raw: bytes) -> msgspec.Raw:
    if nests_too_deep(raw):
        return msgspec.Raw(json_bytes(raw.decode("utf-8", "replace")))
    try:
        found = _skim(raw)
        raw.decode()
    except jsontext.READ_ERRORS:
        return msgspec.Raw(_rewritten(raw))
    return msgspec.Raw(_rewritten(raw)) if b"\n" in raw or b"\r" in raw else found


def _rewritten(raw: bytes) -> bytes:
    try:
        return json_bytes(jsontext.read_leniently(raw))
    except jsontext.READ_ERRORS:
        return json_bytes(raw.decode("utf-8", "replace"))


def json_bytes(value: object) -> bytes:
    """Compact JSON of anything that was JSON once; lone surrogates are written as escapes."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(value, enc_hook=_unwrapped)
        return json.dumps(plain, separators=(",", ":")).encode()


def json_text(value: object) -> str:
    """As `json_bytes`; nothing raises."""
    try:
        return json_bytes(value).decode()
    except _UNWRITABLE:
        return "null"


def json_value(value: object) -> msgspec.Raw:
    """Written here and now: what cannot be written is found here, and not in a reader's page."""
    return msgspec.Raw(json_text(value).encode())


def _unwrapped(value: object) -> object:
    if isinstance(value, msgspec.Raw):
        return jsontext.read(bytes(value))
    raise TypeError(type(value).__name__)


# A projected event as text.

FRAME: Final = b"id: %d\ndata: %b\n\n"  # how a live body shows a JSON text: one line of UTF-8 (INV-U5)
DELTA: Final = b'{"event_id":"evt_%d","sequence":%d,"time":%b,%b,"delta":'
DELTA_END_BARE: Final = b'},"raw":null}'
DELTA_END: Final = DELTA_END_BARE + b"\n\n"
FRAME_START, _FRAME_END = FRAME.split(b"%b")
DELTA_FRAME: Final = FRAME_START + DELTA


class ProjectedRow(Event, frozen=True, gc=False):
    """`seq` is its sequence, `type` its own, `raw` its JSON or its frame; `cause` is the event of the log. `native` is a
    text that is kept apart: of a short delta the frame is `raw`, `native` and `DELTA_END`. A long one is copied where the
    frames are joined, and nowhere before; what stands behind it, and may have others, is the `rest`."""

    cause: int = 0
    rest: tuple[bytes, ...] = ()

    @property
    def parts(self) -> tuple[bytes, ...]:
        """The parts that a long one, or one without a frame, is together."""
        return (self.raw, self.native, *self.rest) if self.rest else (self.raw,)


def row(emitted: ProjectedEvent | ProjectedMessage, cause: Event, *, include_raw: bool) -> ProjectedRow:
    """Make its row, with its JSON; `framed` makes one of a live body of it."""
    number, type_ = emitted.sequence, getattr(emitted, "type", "")
    parts = emitted.apart(include_raw)
    if parts:
        start, text, *rest = parts
        return ProjectedRow(number, cause.at, type_, start, text, cause=cause.seq, rest=tuple(rest))
    return ProjectedRow(number, cause.at, type_, emitted.encode(include_raw), cause=cause.seq)


def steps(events: Sequence[Event], times: int = 1) -> Iterator[Sequence[Event]]:
    """Divide events into as many at a time as hold up nobody (INV-P3 of readings)."""
    start = size = 0
    for end, event in enumerate(events, 1):
        size += len(event.raw)  # though it be its digest that is read: what is made of it has its text
        if size >= STEP_BYTES * times or end - start == STEP * times:
            yield events[start:end]
            start, size = end, 0
    if start < len(events):
        yield events[start:]


def framed(row: ProjectedRow) -> ProjectedRow:
    if row.rest:
        start, rest = FRAME_START % row.seq + row.raw, (*row.rest, _FRAME_END)
        return ProjectedRow(row.seq, row.at, row.type, start, row.native, cause=row.cause, rest=rest)
    return ProjectedRow(row.seq, row.at, row.type, FRAME % (row.seq, row.raw), b"", cause=row.cause)


def join_frames(rows: Sequence[Event]) -> bytes:
    """Join rows that have frames."""
    parts: list[bytes] = []
    for row in cast(Sequence[ProjectedRow], rows):
        if row.native:
            parts += row.parts if row.rest else (row.raw, row.native, DELTA_END)
        else:
            parts.append(row.raw)
    return b"".join(parts)


_NO_RAW: Final = b"null}"
_DELTA_HEAD: Final = (
    b'"session_id":%b,"native_session_id":%b,"synthetic":false,"source":"agent","type":"item.delta",'
    b'"data":{"item_id":%b,"native_item_id":%b'
)

_encode = msgspec.json.Encoder().encode
_from_timestamp = datetime.fromtimestamp

_S = TypeVar("_S", bound=msgspec.Struct)


_BARE: Final = 4096  # bytes around an update, above which there is more than a name


class LogRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """An event of the log, whole; `native` is the agent's own line where a driver translated it, `params` are those of
    an update that has more beside it than the session's name."""

    seq: int
    type: str
    payload: msgspec.Raw
    native: msgspec.Raw | None = None
    params: msgspec.Raw | None = None

    @classmethod
    def of(cls, event: Event) -> LogRow:
        if event.digest:
            return cls._of_long(event)
        native = embedded(event.native) if event.native else None
        params = embedded(event.raw) if _has_more(event) else None
        return cls(event.seq, event.type, embedded(event.payload), native, params)

    @classmethod
    def _of_long(cls, event: Event) -> LogRow:
        """As bytes, which are JSON and safe to embed, unless nobody could read them (INV-W5)."""
        if event.digest == UNREADABLE:
            return cls(event.seq, event.type, msgspec.Raw(event.digest))
        raw, (before, behind) = event.raw.replace(b"\r", b" "), event.span
        more = before + behind > _BARE or _has_more(event)
        update = memoryview(raw)[
            before : len(raw) - behind
        ]  # no copy, and without a carriage return `raw` is none
        native = msgspec.Raw(event.native.replace(b"\r", b" ")) if event.native else None
        return cls(event.seq, event.type, msgspec.Raw(update), native, msgspec.Raw(raw) if more else None)


LONG_TEXT: Final = 256 * 1024  # bytes of one that is JSON already, of which no copy is made without need
_HOLE: Final = msgspec.Raw(b"\0")  # in no JSON


def is_long(cause: Event) -> bool:
    """Whether there may be a long text in what shows it."""
    return len(cause.raw) + len(cause.native) > LONG_TEXT


def has_long(parts: Iterable[object]) -> bool:
    """Texts that were said, which are JSON already."""
    return any(
        type(text := getattr(part, "text", None) or getattr(part, "raw", None)) is msgspec.Raw
        and len(text) > LONG_TEXT
        for part in parts
    )


def _holed(value: object, texts: list[memoryview]) -> object:
    if type(value) is msgspec.Raw and len(value) > LONG_TEXT:
        texts.append(memoryview(value))
        return _HOLE
    if isinstance(value, tuple):
        return tuple([_holed(each, texts) for each in value])
    if isinstance(value, msgspec.Struct):
        found = {name: getattr(value, name) for name in value.__struct_fields__}
        holed = {name: _holed(each, texts) for name, each in found.items()}
        changed = {name: each for name, each in holed.items() if each is not found[name]}
        return msgspec.structs.replace(value, **changed) if changed else value
    return value


def filled(encode: Callable[[_S], bytes], value: _S) -> list[bytes]:
    """Encode in parts: long texts that are JSON already are every second one, and not copied. Nothing where that
    cannot be done."""
    texts: list[memoryview] = []
    holed = cast(_S, _holed(value, texts))
    try:
        around = encode(holed).split(bytes(_HOLE))
    except jsontext.READ_ERRORS:  # half of a character somewhere: what is written by other means has no holes
        return []
    if len(around) != len(texts) + 1:
        return []
    parts = [b""] * (len(around) + len(texts))
    parts[::2], parts[1::2] = around, cast(list[bytes], texts)
    return parts


class _BareParams(msgspec.Struct, forbid_unknown_fields=True):
    sessionId: msgspec.Raw  # noqa: N815 - spelt as on the wire
    update: None


_decode_bare = msgspec.json.Decoder(_BareParams).decode


def _has_more(event: Event) -> bool:
    if event.span == WHOLE:
        return False
    before, behind = event.span
    try:
        _decode_bare(event.raw[:before] + b"null" + event.raw[len(event.raw) - behind :])
    except jsontext.READ_ERRORS:
        return True
    return False


class ProjectedEvent(msgspec.Struct, frozen=True, gc=False):
    """`cause` is the event of the log that it comes from; it is shown as `raw` where `has_raw`."""

    sequence: int
    type: EventType
    data: Data
    synthetic: bool
    has_raw: bool
    cause: Event
    session: SessionFacts
    head: bytes = (
        b""  # of a delta that is written as the agent wrote its text: `Outbox.delta_head` of its item
    )
    literal: bytes = b""  # and that text, as JSON

    @property
    def source_seq(self) -> int:
        return self.cause.seq

    def apart(self, include_raw: bool = False) -> Sequence[bytes]:
        """See `Emitted`. A delta is written as the agent wrote its text."""
        raw = include_raw and self.has_raw
        if (
            len(self.literal) <= LONG_TEXT
            and (self.type != "item.completed" or not self._ends_long())
            and not (raw and is_long(self.cause))
        ):
            return ()
        parts = [*self._delta()] if len(self.literal) > LONG_TEXT else filled(self._encoded, self.data)
        if raw and parts:
            if not (row := filled(_encode, LogRow.of(self.cause))):
                return ()
            parts[-1] = parts[-1][: -len(_NO_RAW)] + row[0]
            parts += row[1:]
            parts[-1] += b"}"
        return parts if len(parts) > 1 else ()

    def _ends_long(self) -> bool:
        data = self.data
        return type(data) is ItemEvent and has_long(data.item.content)

    def _delta(self) -> tuple[bytes, bytes, bytes]:
        head = DELTA % (self.sequence, self.sequence, time_text(self.cause.at), self.head)
        return head, self.literal, DELTA_END_BARE

    def encode(self, include_raw: bool = False) -> bytes:
        if self.literal and not (include_raw and self.has_raw):
            return b"".join(self._delta())
        encoded = self._encoded(self.data)
        if include_raw and self.has_raw:
            return encoded[: -len(_NO_RAW)] + _encode(LogRow.of(self.cause)) + b"}"
        return encoded

    def _encoded(self, data: Data) -> bytes:
        event = UniversalEvent(
            f"evt_{self.sequence}",
            self.sequence,
            time_of(self.cause),
            self.session.session_id,
            self.session.native_session_id,
            self.synthetic,
            "daemon" if self.synthetic else "agent",
            self.type,
            data,
        )
        try:
            return _encode(event)
        except UnicodeEncodeError:  # lone surrogates
            return json_bytes(event)


@lru_cache(maxsize=16)  # a burst has few times
def time_text(at: int) -> bytes:
    return _encode(_from_timestamp(at / 1000, UTC))


def time_of(event: Event) -> datetime:
    return _from_timestamp(event.at / 1000, UTC)


class Outbox:
    """Collects what one event of the log, the `cause`, becomes. `sequence` is the last number that was given out."""

    __slots__ = ("_found", "_items", "cause", "sequence", "session")

    def __init__(self, session: SessionFacts, sequence: int = 0, items: int = 0) -> None:
        self.session = session
        self.sequence = sequence
        self._items = items
        self.cause: Event
        self._found: list[ProjectedEvent] = []

    def copy(self) -> Outbox:
        """Between two events."""
        return Outbox(self.session, self.sequence, self._items)

    @property
    def items(self) -> int:
        """The last number that an item was given."""
        return self._items

    def begin(self, cause: Event) -> list[ProjectedEvent]:
        """The list that fills from now on."""
        self.cause = cause
        self._found = []
        return self._found

    def jump(self) -> None:
        """INV-U3. Item ids too: they are never more than numbers."""
        self.sequence = self._items = floor(self.cause.seq)

    def emit(self, type_: EventType, data: Data, *, synthetic: bool = False, raw: bool = False) -> None:
        self.sequence += 1
        self._found.append(
            ProjectedEvent(self.sequence, type_, data, synthetic, raw, self.cause, self.session)
        )

    def delta(
        self,
        item_id: str,
        native_id: str | None,
        text: str,
        *,
        raw: bool = True,
        head: bytes = b"",
        literal: bytes = b"",
    ) -> None:
        self.sequence += 1
        data = ItemDelta(item_id, native_id, text)
        self._found.append(
            ProjectedEvent(
                self.sequence, "item.delta", data, not raw, raw, self.cause, self.session, head, literal
            )
        )

    def delta_head(self, item_id: str, native_id: str | None) -> bytes:
        """The beginning that all deltas of an item have in common: of a hundred events ninety-nine are deltas."""
        session = self.session
        names = (session.session_id, session.native_session_id, item_id, native_id)
        return _DELTA_HEAD % tuple(json_bytes(name) for name in names)  # lone surrogates too

    def new_item(self) -> str:
        self._items += 1
        return f"itm_{self._items}"

    def whole_item(
        self,
        kind: ItemKind,
        role: Role,
        content: tuple[Part, ...],
        *,
        native_id: str | None = None,
        parent_id: str | None = None,
        synthetic: bool = False,
    ) -> None:
        """One that comes all at once: its start is ours, its end is the event itself. What may be large, and is
        for programs, is not said twice."""
        short = tuple(part for part in content if type(part) is not ItemJson)
        item = Item(self.new_item(), native_id, parent_id, kind, role, short, "in_progress")
        self.emit("item.started", ItemEvent(item), synthetic=True)
        done = ItemEvent(msgspec.structs.replace(item, content=content, status="completed"))
        self.emit("item.completed", done, synthetic=synthetic, raw=True)
