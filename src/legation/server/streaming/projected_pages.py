"""A page of projected events as it goes over the wire: `{"events":[...],"hasMore":false}`.

A page without a limit is the whole log, however long: it is sent as it is made, and held nowhere.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from starlette.responses import Response, StreamingResponse

from legation.server.streaming.projected_reading import BEYOND, Projection, Wanted, in_pieces
from legation.server.streaming.sse import CHUNK_BYTES

JSON: Final = "application/json"

_OPENING: Final = b'{"events":['
_ENDINGS: Final = {True: b'],"hasMore":true}', False: b'],"hasMore":false}'}


async def page(projection: Projection, after: int, limit: int | None) -> Response:
    """At most `limit` events above `after`. The first part is made at once: what fails, fails before the answer."""
    parts = _parts(projection, after, BEYOND if limit is None else limit)
    first = await anext(parts)
    second = await anext(parts, None)
    if second is None:
        return Response(first, media_type=JSON)
    return StreamingResponse(_joined(first, second, parts), media_type=JSON)


async def _joined(first: bytes, second: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    yield second
    async for each in rest:
        yield each


async def _parts(projection: Projection, after: int, left: int) -> AsyncIterator[bytes]:
    until = projection.stream.visible  # what comes meanwhile is of the next page
    opening = _OPENING
    while True:
        found = await projection.read(Wanted(after, until, rows=left, room=CHUNK_BYTES))
        texts = [opening]
        for at, row in enumerate(found.rows):
            texts += (b",",) if at else ()
            if row.rest:
                yield b"".join(texts)
                texts = []
                async for piece in in_pieces(row.parts, CHUNK_BYTES):
                    yield bytes(piece)
            else:
                texts.append(row.raw)
        part = b"".join(texts)
        if found.rows:
            after, left, opening = found.rows[-1].seq, left - len(found.rows), b","
        if found.end is not None or not found.rows:
            yield part.removesuffix(b",") + _ENDINGS[found.end is None]
            return
        if left == 0:
            # It may have been the last one: only one more row tells.
            yield part + _ENDINGS[await projection.end(after) is None]
            return
        yield part
