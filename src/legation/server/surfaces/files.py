"""`GET /v1/blobs`: a file to whoever has its signed link. The link is the credential."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from legation.errors import Forbidden, NotFound, RateLimited, Unavailable
from legation.server.fs.transfers import Transfer
from legation.server.http.access import OPEN
from legation.server.http.call import Call
from legation.server.http.routes import Routes
from legation.server.identity.rates import address_of
from legation.store.blobs import Reading

routes = Routes(tag="blobs")


@routes.get(
    "/v1/blobs",
    access=OPEN,
    media="application/octet-stream",
    errors=(Forbidden, NotFound, RateLimited, Unavailable),
)
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
    # Whoever has a link is nobody we know: they are told apart by where they are.
    transfer = call.services.files.transfers.begin_for_address(address_of(call.request))
    try:
        reading = await call.services.blobs.get(target.key)
        headers = {**target.headers(), "content-length": str(reading.info.size)}
        if call.request.method == "HEAD":
            await reading.aclose()
            transfer.end()
            return Response(headers=headers)
        return BlobDownload(reading, headers, transfer)
    except BaseException:
        transfer.end()
        raise


class BlobDownload(StreamingResponse):
    """Closes its file however it ends, also where nothing of it could be sent."""

    def __init__(self, reading: Reading, headers: Mapping[str, str], transfer: Transfer) -> None:
        super().__init__(reading, headers=headers)
        self._reading, self._transfer = reading, transfer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._transfer.end()
            await self._reading.aclose()
