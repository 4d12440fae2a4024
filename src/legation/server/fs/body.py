"""A body as it arrives, in pieces that are worth a trip to a thread: never all of it in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from starlette.requests import Request

from legation.errors import Cancelled, InvalidParams, TooLarge, UnsupportedMedia

PIECE: Final = 256 * 1024  # bytes; about as much is in memory for each body
SILENCE: Final = 60.0  # seconds: the caller's time to send the next bytes
LONGEST: Final = 3600.0  # seconds: the caller's time for the whole

_MOST_DIGITS: Final = 15  # of a length


def pieces(
    request: Request, limit: int, *, silence: float = SILENCE, longest: float = LONGEST
) -> AsyncGenerator[bytes]:
    """What is too large by its own words is refused now, before anything is done for it."""
    _check_head(request, limit)
    return _arriving(request, limit, silence, longest)


async def _arriving(request: Request, limit: int, silence: float, longest: float) -> AsyncGenerator[bytes]:
    loop = asyncio.get_running_loop()
    deadline, total = loop.time() + longest, 0
    gathered = bytearray()
    more = True
    while more:
        try:
            async with asyncio.timeout_at(min(loop.time() + silence, deadline)):
                message = await request.receive()
        except TimeoutError:
            raise InvalidParams(
                "cannot read the body: it did not arrive in time; send it again, faster"
            ) from None
        if message["type"] != "http.request":
            raise Cancelled("cannot read the body: the caller closed the connection")
        gathered += message.get("body", b"")
        total, more = total + len(message.get("body", b"")), message.get("more_body", False)
        if total > limit:
            raise _too_large(limit)
        if gathered and (len(gathered) >= PIECE or not more):
            yield bytes(gathered)
            gathered.clear()


def _check_head(request: Request, limit: int) -> None:
    if request.headers.get("content-encoding", "identity") != "identity":
        raise UnsupportedMedia("cannot read a compressed body; send it as it is")
    length = request.headers.get("content-length")
    if length is not None and (len(length) > _MOST_DIGITS or int(length) > limit):
        raise _too_large(limit)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"cannot take more than {limit} bytes; send it in parts", {"limit": limit})
