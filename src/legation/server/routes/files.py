"""`/v1/fs`: files of this machine, as sandbox-agent has them, confined to the allowed folders (docs/fs.md).

`/v1/blobs`: a file to whoever has its signed link. The link is the credential.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Mapping
from contextlib import AsyncExitStack
from typing import Annotated, Final

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from legation.errors import Conflict, Forbidden, NotFound, RateLimited, StorageFailed, TooLarge, Unavailable
from legation.server.fs import operations
from legation.server.fs.operations import RegularFile, printable
from legation.server.fs.paths import Confinement
from legation.server.http.app import Confirmation
from legation.server.http.routes import OPEN, Alias, Call, Routes, needs
from legation.server.routes.rates import address_of
from legation.wire.api.fs import FilePath, FsDone, FsEntry, FsMove, FsMoved, FsStat, FsUploaded, FsWritten

OCTETS: Final = "application/octet-stream"
ACCESS: Final = needs("operate")  # to read any file is more than to look on

SessionId = Annotated[str | None, Alias("session_id")]

routes = Routes(tag="files", tolerant=True)
blob_routes = Routes(tag="blobs")


@routes.get("/v1/fs/entries", access=ACCESS, errors=(NotFound, Conflict, TooLarge, StorageFailed))
async def list_files(call: Call, path: FilePath = ".", session_id: SessionId = None) -> list[FsEntry]:
    """What stands in a folder, by name.

    A relative path begins at the session's folder, or at the first allowed one. What is neither file nor folder is
    listed as a `file`; links are not followed here."""
    return await call.services.files.run(operations.entries, await _where(call, session_id), path)


@routes.get("/v1/fs/stat", access=ACCESS, errors=(NotFound, Conflict, StorageFailed))
async def describe_file(call: Call, path: FilePath, session_id: SessionId = None) -> FsStat:
    """What a path is, how large, and when it was changed."""
    return await call.services.files.run(operations.describe, await _where(call, session_id), path)


@routes.get(
    "/v1/fs/file", access=ACCESS, media=OCTETS, errors=(NotFound, Conflict, Unavailable, StorageFailed)
)
async def read_file(call: Call, path: FilePath, session_id: SessionId = None) -> Response:
    """The bytes of a regular file, as they are."""
    files = call.services.files
    async with AsyncExitStack() as held:
        held.enter_context(files.transfers.begin(call.principal))
        file = await files.run(RegularFile, await _where(call, session_id), path)
        held.callback(file.close)
        headers = {"content-type": OCTETS, "content-length": str(file.size)}
        if call.request.method == "HEAD":
            return Response(headers=headers)
        return DownloadResponse(files.pieces(file), headers, held.pop_all())


@routes.put(
    "/v1/fs/file", access=ACCESS, takes=OCTETS, errors=(NotFound, Conflict, Unavailable, StorageFailed)
)
async def write_file(call: Call, path: FilePath, session_id: SessionId = None) -> FsWritten:
    """Write a file, whole or not at all; the folders above it are made.

    One that is there is replaced and hands on its permissions."""
    where = await _where(call, session_id)
    return await call.services.files.write(
        call.principal, where, path, call.request, Confirmation(call, ACCESS)
    )


@routes.delete("/v1/fs/entry", access=ACCESS, errors=(NotFound, Conflict, StorageFailed))
async def delete_file(
    call: Call, path: FilePath, *, recursive: bool = False, session_id: SessionId = None
) -> FsDone:
    """Delete a file, a link or an empty folder; with `recursive` a folder and everything in it."""
    where = await _where(call, session_id)
    removed = await call.services.files.run(operations.remove, where, path, recursive=recursive)
    return FsDone(path=printable(removed))


@routes.post("/v1/fs/mkdir", access=ACCESS, errors=(NotFound, Conflict, StorageFailed))
async def make_folder(call: Call, path: FilePath, session_id: SessionId = None) -> FsDone:
    """Make a folder and those above it; one that is there is fine."""
    made = await call.services.files.run(operations.make_folder, await _where(call, session_id), path)
    return FsDone(path=printable(made))


@routes.post("/v1/fs/move", access=ACCESS, errors=(NotFound, Conflict, StorageFailed))
async def move_file(call: Call, body: FsMove, session_id: SessionId = None) -> FsMoved:
    """Move or rename a file, a link or a folder; the folders above the new place are made.

    Without `overwrite` nothing is ever replaced."""
    where, overwrite = await _where(call, session_id), bool(body.overwrite)
    source, target = await call.services.files.run(
        operations.move, where, body.from_, body.to, overwrite=overwrite
    )
    return FsMoved(from_=printable(source), to=printable(target))


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
    where = await _where(call, session_id)
    return await call.services.files.unpack(
        call.principal, where, path, call.request, Confirmation(call, ACCESS)
    )


@blob_routes.get(
    "/v1/blobs",
    access=OPEN,
    media=OCTETS,
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
    async with AsyncExitStack() as held:
        held.enter_context(call.services.files.transfers.begin_for_address(address_of(call.request)))
        reading = await call.services.blobs.get(target.key)
        held.push_async_callback(reading.aclose)
        headers = {**target.headers(), "content-length": str(reading.info.size)}
        if call.request.method == "HEAD":
            return Response(headers=headers)
        return DownloadResponse(reading, headers, held.pop_all())


class DownloadResponse(StreamingResponse):
    """Send a file, and let go of what it `held` however that ends, also where nothing of it could be sent."""

    def __init__(
        self, content: AsyncIterable[bytes], headers: Mapping[str, str], held: AsyncExitStack
    ) -> None:
        super().__init__(content, headers=headers)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._held:
            await super().__call__(scope, receive, send)


async def _where(call: Call, session_id: str | None) -> Confinement:
    return await call.services.files.confinement(session_id, call.principal.workspace)
