"""Events as the API sends them, with `raw` byte for byte.

INV-C1  What the agent sent is never re-encoded, and whatever it holds is read: half characters (lone
surrogates), numbers of any size, any depth. msgspec reads nearly all; from the rest `raw` is cut out by its
brackets and quotes alone, and what remains is read.
"""

from __future__ import annotations

import re
from base64 import b64decode
from typing import Final

import msgspec

from legation.wire.api.shape import Page
from legation.wire.api.streams import EventLine
from legation.wire.events import WHOLE, Event, Span

_RAW: Final = b',"raw":'
_EVENT: Final = b',"event":'
_ITEMS: Final = b'{"items":['
# Strings and brackets: all that is needed to see where a JSON value ends.
_MARKS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{},]', re.DOTALL)
_OPENING: Final = (b"{", b"[")
_CLOSING: Final = (b"}", b"]")
_ENDING: Final = (b",", b"}", b"]")


class _Head(msgspec.Struct, gc=False):
    seq: int
    at: int
    type: str
    native: str = ""
    native64: str = ""
    update: Span = WHOLE


class _Tagged(msgspec.Struct, gc=False):
    stream: str
    event: msgspec.Raw


class _StreamName(msgspec.Struct, gc=False):
    stream: str = ""


_decode_line = msgspec.json.Decoder(EventLine).decode
_decode_head = msgspec.json.Decoder(_Head).decode
_decode_tagged = msgspec.json.Decoder(_Tagged).decode
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
    """Where the next `,`, `]` or `}` of the level outside stands."""
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
