"""The one SSE body: how events look in it, and the response that sends it; docs/streams.md is the contract.

INV-S1  A frame is `id`, one `data` line, an empty line, whatever bytes an agent sent: a carriage return would
        end the line for a browser and may only stand between the tokens of JSON, so it becomes a space.
INV-S2  Nothing is made for a reader before it has taken what it was given last: a paused one holds one chunk.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from msgspec.structs import replace
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from legation.server.http.app import StampedSend
from legation.server.http.request import until_disconnected
from legation.store import codec
from legation.wire.events import Event

HELLO: Final = b": legation\nretry: 1000\n\n"  # at once, so that a reader knows that it is through
PING: Final = b": ping\n\n"
# Of one write; a single event may be longer. Twice what is taken of an agent's flood in one turn of the loop: else those
# who follow it fall behind, and read it from the store.
CHUNK_BYTES: Final = 512 * 1024
LONG_CHUNK: Final = 4 * 1024 * 1024  # an event may be as long as an agent's line, and is sent in pieces then
_AROUND: Final = 96  # bytes of a frame besides the agent's own: number, time, type

_LAST: Final = {"type": "http.response.body", "body": b"", "more_body": False}
_HEADERS: Final = {
    "content-type": "text/event-stream",
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # nginx would hold events back until its buffer is full
}


class Frames(NamedTuple):
    """Whole frames of one stream that follow each other; `upto` is the number of the last."""

    data: bytes
    upto: int
    events: int


NOTHING: Final = Frames(b"", 0, 0)


def frames(events: Sequence[Event]) -> Frames:
    if len(events) == 1 and events[0].digest:
        return _long_frame(events[0])
    events = [_shown(event) if event.digest else event for event in events]
    lines = codec.encode(events).split(b"\n")
    data = b"".join(
        [b"id: %d\ndata: %b\n\n" % (event.seq, line) for event, line in zip(events, lines, strict=False)]
    )
    return Frames(as_text(data), events[-1].seq, len(events))


def _shown(event: Event) -> Event:
    """Leave out what is the store's own."""
    return replace(event, digest=b"", blob="")


def _long_frame(event: Event) -> Frames:
    """Frame one long event with as few copies as can be. That it is UTF-8 is known (INV-W5)."""
    parts = [part.replace(b"\r", b" ") if b"\r" in part else part for part in codec.long_parts(_shown(event))]
    return Frames(b"".join((b"id: %d\ndata: " % event.seq, *parts, b"\n\n")), event.seq, 1)


def as_text(data: bytes) -> bytes:
    """Replace what a browser would take for a line's end or refuse as text. Mostly there is nothing of it."""
    if b"\r" in data:
        data = data.replace(b"\r", b" ")
    return data if data.isascii() else as_utf8(data)


def as_utf8(data: bytes) -> bytes:
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode(errors="replace").encode()
    return data


def first_chunk(events: Sequence[Event], limit: int = CHUNK_BYTES) -> Sequence[Event]:
    """Take as many of the first as fit into one write, and at least one."""
    size = 0
    for count, event in enumerate(events):
        size += len(event.raw) + len(event.native) + _AROUND
        if size > limit and count:
            return events[:count]
    return events


def chunks(
    events: Sequence[Event], framing: Callable[[Sequence[Event]], Frames] = frames
) -> Iterator[Frames]:
    while events:
        chunk = first_chunk(events)
        yield framing(chunk)
        events = events[len(chunk) :]


def bye(reason: str) -> bytes:
    """Make the last frame of a body that a reader should ask for again."""
    return _notice("bye", {"reason": reason})


def end(reason: str, stream: str | None = None) -> bytes:
    """Make the last frame of a stream: no more will come of it, ever."""
    return _notice("end", {"reason": reason} if stream is None else {"stream": stream, "reason": reason})


def _notice(event: str, data: dict[str, str]) -> bytes:
    return f"event: {event}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


class SseBody(Protocol):
    """A body to send, a chunk at a time. It counts as a reader while it is entered."""

    def __enter__(self) -> SseBody: ...
    def __exit__(self, *_: object) -> None: ...
    async def next(self) -> bytes:
        """Wait for the next whole frames; empty when the body is over."""

    def leave(self) -> None:
        """The reader has gone: `next` returns at once."""


class EventStream(Response):
    """Send a body until it is over or its reader has gone. Bare ASGI: one task that writes, none per event.

    The request's own task listens: chunks wake the writer alone, and nobody through whom the request came."""

    def __init__(self, body: SseBody) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(_HEADERS)
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if isinstance(send, StampedSend):
            send = send.send  # the headers are out: what follows is nobody's to look at
        if scope["method"] == "HEAD":
            await send(_LAST)
            return
        try:
            with self._body as body:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(_write(body, send))
                    # Also when the last of the body was sent. An idle reader's end is heard at once, not at the next event.
                    await until_disconnected(receive)
                    body.leave()
        except BaseExceptionGroup as failed:  # of the one task
            raise failed.exceptions[0] from None


async def _write(body: SseBody, send: Send) -> None:
    chunk = HELLO
    while chunk:
        if len(chunk) > LONG_CHUNK:
            await _send_in_pieces(chunk, send)
        else:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        chunk = await body.next()
    await send(_LAST)


async def _send_in_pieces(chunk: bytes, send: Send) -> None:
    for start in range(0, len(chunk), CHUNK_BYTES):
        piece = chunk[start : start + CHUNK_BYTES]
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        await asyncio.sleep(0)  # what is copied for it must hold up nobody
