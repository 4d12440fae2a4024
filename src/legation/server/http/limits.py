"""Reading bodies within limits of size and time.

INV: no body takes more memory than the limit, however its length is announced, and none is waited for longer
than `BODY_SECONDS` and a tick.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from starlette.types import Message, Receive

from legation.errors import Cancelled, InvalidParams, TooLarge

BODY_SECONDS: Final = 60.0  # the caller's time to send a whole body, over a slow line
TICKS: Final = 6  # looks at who is late, in that time

_MOST_DIGITS: Final = 15  # of a length; Python refuses to read numbers of thousands of digits


class BodyReader:
    """Reads the bodies of one application. One timer serves them all: a timer each would cost more than decoding."""

    def __init__(self, seconds: float = BODY_SECONDS) -> None:
        self._seconds = seconds
        self._since: dict[asyncio.Task[object], float] = {}
        self._late: set[asyncio.Task[object]] = set()
        self._ticking: asyncio.AbstractEventLoop | None = None

    async def read(self, headers: Mapping[bytes, bytes], receive: Receive, limit: int) -> bytes:
        length = headers.get(b"content-length")
        if length is not None and (len(length) > _MOST_DIGITS or int(length) > limit):
            raise _too_large(limit)
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._since[task] = loop.time()
        if self._ticking is not loop:
            self._tick(loop)
        try:
            message = await receive()
            if message.get("more_body") or message["type"] != "http.request":
                return await _collect(message, receive, limit)
            whole: bytes = message.get("body", b"")
            if len(whole) > limit:
                raise _too_large(limit)
            return whole
        except asyncio.CancelledError:
            if task not in self._late or task.uncancel() > 0:
                raise
            raise InvalidParams(
                f"cannot read the body: it did not arrive within {self._seconds:g} s; send it again"
            ) from None
        finally:
            self._since.pop(task, None)
            self._late.discard(task)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        for task, since in list(self._since.items()):
            if loop.time() - since >= self._seconds:
                self._late.add(task)
                del self._since[task]
                task.cancel()
        self._ticking = loop if self._since else None
        if self._since:
            loop.call_later(self._seconds / TICKS, self._tick, loop)


async def _collect(message: Message, receive: Receive, limit: int) -> bytes:
    parts = bytearray()
    while message["type"] == "http.request":
        parts += message.get("body", b"")
        if len(parts) > limit:
            raise _too_large(limit)
        if not message.get("more_body"):
            return bytes(parts)
        message = await receive()
    raise Cancelled("cannot read the body: the caller closed the connection")


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"cannot take a body of more than {limit} bytes; send less", {"limit": limit})
