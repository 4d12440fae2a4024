"""`/v1/fs`: files of this machine, as sandbox-agent has them, confined to the allowed folders (docs/fs.md). `/v1/blobs`: a file to whoever has its signed link."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from legation.errors import Conflict, Forbidden, NotFound, RateLimited, StorageFailed, TooLarge, Unavailable
from legation.server.fs.files import FileDownload, Transfer
from legation.server.fs.paths import Confinement
from legation.server.http.app import BODY_TRUST
from legation.server.http.routes import OPEN, Alias, Call, Routes, needs
from legation.server.routes.rates import address_of
from legation.store.blobs import BlobReader
from legation.wire.api.fs import FilePath, FsDone, FsEntry, FsMove, FsMoved, FsStat, FsUploaded, FsWritten

# `/v1/fs`: files of this machine, as sandbox-agent has them, confined to the allowed folders. See docs/fs.md.

OCTETS: Final = "application/octet-stream"
ACCESS: Final = needs("operate")  # to read any file is more than to look on

SessionId = Annotated[str | None, Alias("session_id")]

routes = Routes(tag="files")


@routes.get("/v1/fs/entries", access=ACCESS, errors=(NotFound, Conflict, TooLarge, StorageFailed))
async def list_files(call: Call, path: FilePath = ".", session_id: SessionId = None) -> list[FsEntry]:
    """What stands in a folder, by name.

    A relative path begins at the session's folder, or at the first allowed one. What is neither file nor folder is
    listed as a `file`; links are not followed here."""
    return await call.services.files.entries(_where(call, session_id), path)


@routes.get("/v1/fs/stat", access=ACCESS, errors=(NotFound, Conflict, StorageFailed))
async def describe_file(call: Call, path: FilePath, session_id: SessionId = None) -> FsStat:
    """What a path is, how large, and when it was changed."""
    return await call.services.files.describe(_where(call, session_id), path)


@routes.get(
    "/v1/fs/file", access=ACCESS, media=OCTETS, errors=(NotFound, Conflict, Unavailable, StorageFailed)
)
async def read_file(call: Call, path: FilePath, session_id: SessionId = None) -> Response:
    """The bytes of a regular file, as they are."""
    reading = await call.services.files.open(call.principal, _where(call, session_id), path)
    if call.request.method == "HEAD":
        reading.close()
        return Response(media_type=OCTETS, headers={"content-length": str(reading.size)})
    return DownloadResponse(reading)


@routes.put(
    "/v1/fs/file", access=ACCESS, takes=OCTETS, errors=(NotFound, Conflict, Unavailable, StorageFailed)
)
async def write_file(call: Call, path: FilePath, session_id: SessionId = None) -> FsWritten:
    """Write a file, whole or not at all; the folders above it are made.

    One that is there is replaced and hands on its permissions."""
    where = _where(call, session_id)
    return await call.services.files.write(call.principal, where, path, call.request, Confirmation(call))


@routes.delete("/v1/fs/entry", access=ACCESS, errors=(NotFound, Conflict, StorageFailed))
async def delete_file(
    call: Call, path: FilePath, *, recursive: bool = False, session_id: SessionId = None
) -> FsDone:
    """Delete a file, a link or an empty folder; with `recursive` a folder and everything in it."""
    where = _where(call, session_id)
    return FsDone(path=await call.services.files.remove(where, path, recursive=recursive))


@routes.post("/v1/fs/mkdir", access=ACCESS, errors=(NotFound, Conflict, StorageFailed))
async def make_folder(call: Call, path: FilePath, session_id: SessionId = None) -> FsDone:
    """Make a folder and those above it; one that is there is fine."""
    return FsDone(path=await call.services.files.make_folder(_where(call, session_id), path))


@routes.post("/v1/fs/move", access=ACCESS, errors=(NotFound, Conflict, StorageFailed))
async def move_file(call: Call, body: FsMove, session_id: SessionId = None) -> FsMoved:
    """Move or rename a file, a link or a folder; the folders above the new place are made.

    Without `overwrite` nothing is ever replaced."""
    return await call.services.files.move(_where(call, session_id), body)


@routes.post(
    "/v1/fs/upload-batch",
    access=ACCESS,
    takes="application/x-tar",
    errors=(NotFound, Conflict, Unavailable, StorageFailed),
)
async def upload_files(call: Call, path: FilePath = ".", session_id: SessionId = None) -> FsUploaded:
    """Unpack a tar, plain or with gzip, into a folder, which is made.

    Files and folders only: an archive with a link, a device, an absolute name or `..` is refused where that begins,
    and what was unpacked before it stays."""
    where = _where(call, session_id)
    return await call.services.files.unpack(call.principal, where, path, call.request, Confirmation(call))


class DownloadResponse(StreamingResponse):
    """Closes its file however it ends, also where nothing of it could be sent."""

    def __init__(self, reading: FileDownload) -> None:
        super().__init__(reading.pieces(), media_type=OCTETS, headers={"content-length": str(reading.size)})
        self._reading = reading

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._reading.close()


class Confirmation:
    """Whoever sends a body slowly would otherwise outlive the end of their credential by as long."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._asked = call.services.clock.monotonic()

    async def __call__(self) -> None:
        now = self._call.services.clock.monotonic()
        if now - self._asked > BODY_TRUST:
            ACCESS.check(await self._call.authenticate(self._call.request))
            self._asked = now


def _where(call: Call, session_id: str | None) -> Confinement:
    return call.services.files.confinement(session_id, call.principal.workspace)


# `GET /v1/blobs`: a file to whoever has its signed link. The link is the credential.

blob_routes = Routes(tag="blobs")


@blob_routes.get(
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
        return BlobResponse(reading, headers, transfer)
    except BaseException:
        transfer.end()
        raise


class BlobResponse(StreamingResponse):
    """Closes its file however it ends, also where nothing of it could be sent."""

    def __init__(self, reading: BlobReader, headers: Mapping[str, str], transfer: Transfer) -> None:
        super().__init__(reading, headers=headers)
        self._reading, self._transfer = reading, transfer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._transfer.end()
            await self._reading.aclose()
