"""`GET /v1/blobs`: a file to whoever has its signed link. The link is the credential."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from starlette.responses import Response, StreamingResponse

from legation.errors import Forbidden, NotFound
from legation.server.http.access import OPEN
from legation.server.http.call import Call
from legation.server.http.routes import Routes
from legation.store.blobs import Reading

routes = Routes(tag="blobs")


@routes.get("/v1/blobs", access=OPEN, media="application/octet-stream", errors=(Forbidden, NotFound))
async def download(
    call: Call,
    key: str,
    expires: int,
    signature: str,
    filename: str | None = None,
    type: str | None = None,  # noqa: A002 - as the link spells it
) -> Response:
    """Download the file that a signed link names, until the link expires. Always as a download, never as a page."""
    del key, expires, signature, filename, type  # signed as they were sent: only the whole query counts
    target = call.services.links.verify(call.request.url.query)
    reading = await call.services.blobs.get(target.key)
    headers = {**target.headers(), "content-length": str(reading.info.size)}
    return StreamingResponse(_pieces(reading), headers=headers)


async def _pieces(reading: Reading) -> AsyncIterator[bytes]:
    async with aclosing(reading):  # also when the caller goes away
        async for piece in reading:
            yield piece
