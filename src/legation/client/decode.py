"""Decoders of what the server sends: server-sent events, lines, events with `raw` byte for byte. No I/O."""

from __future__ import annotations

import re
from base64 import b64decode
from typing import Final, NamedTuple

import msgspec

from legation.errors import InternalError
from legation.wire.api.shape import Page
from legation.wire.api.streams import EventLine
from legation.wire.events import WHOLE, Event, Span

# Server-sent events, sans I/O: bytes in, frames out.
#
# INV-C2  However the bytes are cut into chunks, the frames are the same.
#
# Two deviations from the standard, both harmless to others' servers: a frame with an event name but no data is
# given too, and data stays bytes, so that what is no UTF-8 is not mangled on the way.

MAX_FRAME_BYTES: Final = 64 * 2**20
_RETRY_DIGITS: Final = 10  # milliseconds of a dozen days; what is longer is no wish but an accident
_BOM: Final = b"\xef\xbb\xbf"


class Frame(NamedTuple):
    event: str
    data: bytes
    id: str


class Parser:
    __slots__ = (
        "_at_start",
        "_data",
        "_event",
        "_held",
        "_held_size",
        "_id",
        "_limit",
        "_named",
        "_size",
        "_skip_lf",
        "retry",
    )

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self.retry: float | None = None  # seconds, as the server last asked for
        self._limit = limit
        self._held: list[bytes] = []  # pieces of a line whose end has not come
        self._held_size = 0
        self._size = 0  # of the data of the frame that is not complete yet
        self._at_start = True
        self._skip_lf = False
        self._data: list[bytes] = []
        self._event = ""
        self._id = ""
        self._named = False

    def feed(self, chunk: bytes) -> list[Frame]:
        """The frames that this chunk completes. Raises InternalError on one beyond the limit."""
        chunk = self._without_bom(chunk)
        if not chunk:
            return []
        if self._skip_lf:  # the second half of a CRLF whose CR ended the chunk before
            chunk = chunk.removeprefix(b"\n")
        self._skip_lf = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return self._lines(chunk)

    def _without_bom(self, chunk: bytes) -> bytes:
        if not self._at_start:
            return chunk
        chunk = b"".join(self._held) + chunk
        self._held.clear()
        if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
            self._held = [chunk] if chunk else []
            return b""
        self._at_start = False
        return chunk.removeprefix(_BOM)

    def _lines(self, chunk: bytes) -> list[Frame]:
        *lines, rest = chunk.split(b"\n")
        frames: list[Frame] = []
        if lines and self._held:
            lines[0] = b"".join([*self._held, lines[0]])
            self._held.clear()
            self._held_size = 0
        for line in lines:
            if line:
                self._field(line)
            elif self._data or self._named:
                frames.append(self._complete())
        if rest:
            self._held.append(rest)
            self._held_size += len(rest)
            self._check(self._size + self._held_size)
        return frames

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._size += len(value)
            self._check(self._size)
            self._data.append(value)
        elif name == b"event":
            self._event, self._named = value.decode("utf-8", "replace"), bool(value)
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit() and len(value) < _RETRY_DIGITS:
            self.retry = int(value) / 1000

    def _complete(self) -> Frame:
        frame = Frame(self._event, b"\n".join(self._data), self._id)
        self._data, self._event, self._named, self._size = [], "", False, 0
        return frame

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise InternalError(
                f"cannot read the stream: one event is longer than {self._limit} bytes; read it by pages instead"
            )


# Lines out of the chunks of a body. No I/O.
#
# INV-C6  A line is given only when its end has come: what is given was written so, whole.


class LineBuffer:
    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that end in this chunk, each with its newline."""
        if b"\n" not in chunk:
            self._pieces.append(chunk)
            return []
        whole, _, rest = b"".join((*self._pieces, chunk)).rpartition(b"\n")
        self._pieces = [rest] if rest else []
        return [line + b"\n" for line in whole.split(b"\n")]

    @property
    def torn(self) -> bool:
        """A line has begun and not ended."""
        return any(self._pieces)


# Events as the API sends them, with `raw` byte for byte.
#
# INV-C1  What the agent sent is never re-encoded, and whatever it holds is read: half characters (lone
# surrogates), numbers of any size, any depth. msgspec reads nearly all; from the rest `raw` is cut out by its
# brackets and quotes alone, and what remains is read.

_RAW: Final = b',"raw":'
_EVENT: Final = b',"event":'
_ITEMS: Final = b'{"items":['
# Strings and brackets: all that is needed to see where a JSON value ends.
_MARKS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{},]', re.DOTALL)
_OPENING: Final = (b"{", b"[")
_CLOSING: Final = (b"}", b"]")
_ENDING: Final = (b",", b"}", b"]")


class _EventHead(msgspec.Struct, gc=False):
    seq: int
    at: int
    type: str
    native: str = ""
    native64: str = ""
    update: Span = WHOLE


class _TaggedEvent(msgspec.Struct, gc=False):
    stream: str
    event: msgspec.Raw


class _StreamName(msgspec.Struct, gc=False):
    stream: str = ""


_decode_line = msgspec.json.Decoder(EventLine).decode
_decode_head = msgspec.json.Decoder(_EventHead).decode
_decode_tagged = msgspec.json.Decoder(_TaggedEvent).decode
_decode_name = msgspec.json.Decoder(_StreamName).decode


def read_event(line: bytes) -> Event:
    """Raises ValueError on what is no event."""
    try:
        return _event(_decode_line(line))
    except (ValueError, RecursionError):
        head, raw = _cut(line, _RAW)
        read = _decode_head(head)
        return _whole(
            Event(read.seq, read.at, read.type, raw, _native(read.native, read.native64), read.update)
        )


def read_tagged(text: bytes) -> tuple[str, Event]:
    """An event of a multiplexed stream, with the name of its stream."""
    try:
        tagged = _decode_tagged(text)
        return tagged.stream, read_event(bytes(tagged.event))
    except (ValueError, RecursionError):
        head, line = _cut(text, _EVENT)
        return _decode_name(head).stream, read_event(line)


def read_stream_name(text: bytes) -> str | None:
    """The stream that a control frame is about; None: about all of them."""
    try:
        return _decode_name(text).stream or None
    except ValueError:
        return None


def read_page(body: bytes) -> Page[Event]:
    try:
        page = msgspec.json.decode(body, type=Page[EventLine])
        return Page(items=[_event(line) for line in page.items], next=page.next)
    except (ValueError, RecursionError):
        return _read_page_by_cutting(body)


def _event(line: EventLine) -> Event:
    native = _native(line.native, line.native64) if line.native or line.native64 else b""
    return _whole(Event(line.seq, line.at, line.type, bytes(line.raw), native, line.update))


def _whole(event: Event) -> Event:
    before, behind = event.span
    if (before or behind) and not (before > 0 < behind < len(event.raw) - before):
        raise ValueError("not an event: its update is not in it")
    return event


def _native(text: str, coded: str) -> bytes:
    return text.encode() if text else b64decode(coded)


def _read_page_by_cutting(body: bytes) -> Page[Event]:
    if not body.startswith(_ITEMS):
        raise ValueError("not a page of events")
    events: list[Event] = []
    at = len(_ITEMS)
    while body[at : at + 1] == b"{":
        end = _end_of_value(body, at)
        events.append(read_event(body[at:end]))
        at = end + (body[end : end + 1] == b",")
    rest = msgspec.json.decode(_ITEMS + body[at:], type=Page[EventLine])
    return Page(items=events, next=rest.next)


def _cut(text: bytes, name: bytes) -> tuple[bytes, bytes]:
    """An object without a member, and that member. `name` cannot occur before it: a string's quotes are escaped."""
    at = text.find(name)
    if at < 0:
        raise ValueError("not an event")
    end = _end_of_value(text, at + len(name))
    return text[:at] + text[end:], text[at + len(name) : end]


def _end_of_value(text: bytes, start: int) -> int:
    """Find where the next `,`, `]` or `}` of the level outside stands."""
    depth = 0
    for mark in _MARKS.finditer(text, start):
        token = mark.group()
        if token in _OPENING:
            depth += 1
        elif depth == 0 and token in _ENDING:
            return mark.start()
        elif token in _CLOSING:
            depth -= 1
    raise ValueError("not JSON: it ends too early")
