"""Packs: events of runs that have ended, moved from pages of the database into sealed blobs.

INV-K1  A pack is whole pages in a row, the first of the run's that are in the database. It is in the manifest before its blob is put, under a
        name that follows from its numbers: begun again it has the same name and the same content.
INV-K2  Pages leave the database in the transaction that says where they are, and only when the blob was read back and opened.
INV-K3  A pack is compressed, then sealed with the content key of its run and bound to its name: without the key it is nothing.
INV-K4  A pack is bounded: to read one event opens one.
"""

from __future__ import annotations

import asyncio
import gzip
import zlib
from dataclasses import dataclass
from typing import Final

from legation.errors import NotFound, StorageFailed, TooLarge
from legation.runs.run import EVENTS, Run
from legation.settings import variable
from legation.store.blobs.base import Blobs, workspace_key
from legation.store.database.transaction import Database, Queries, Row, Rows, Transaction, only
from legation.store.secrets.vault import MAX_PAGE, MAX_READ_PAGES, ContentStore

PACK_BYTES: Final = 1024 * 1024  # plain bytes of a pack; one page that is longer is one alone
ENCODING: Final = "gzip"
_LEVEL: Final = 6
_MOST_SEALED: Final = 2 * MAX_PAGE  # bytes: no pack of ours is as long

SQL: Final = Queries("run_packs")


@dataclass(frozen=True, slots=True)
class Pack:
    run: Run
    first_seq: int
    last_seq: int
    attempt: int
    plain_bytes: int

    @property
    def blob(self) -> str:
        name = f"events-{self.first_seq}-{self.last_seq}"
        return workspace_key(self.run.workspace, "runs", self.run.id, name)


class EventPacks:
    """Packs of runs, to make and to read."""

    def __init__(self, database: Database, content: ContentStore, blobs: Blobs) -> None:
        self._database = database
        self._content = content
        self._blobs = blobs

    async def next(self, run: Run) -> Pack | None:
        """Find what is to be packed next: what was begun, else the first pages; None where all is packed."""
        row = await self._database.read(_next, run.workspace, run.id)
        return None if row is None else Pack(run, **row)

    def intend(self, pack: Pack, now_ms: int) -> Transaction[None]:
        yield SQL.intend(
            workspace=pack.run.workspace,
            run=pack.run.id,
            first_seq=pack.first_seq,
            last_seq=pack.last_seq,
            attempt=pack.attempt,
            plain_bytes=pack.plain_bytes,
            encoding=ENCODING,
            blob=pack.blob,
            now=now_ms,
        )

    async def put(self, pack: Pack) -> int:
        """Put its blob, and see that it opens; how many bytes it has."""
        workspace, run_id = pack.run.workspace, pack.run.id
        pages = await self._content.read(workspace, run_id, EVENTS, pack.first_seq - 1, pack.plain_bytes)
        plain = b"".join(page.plain for page in pages)
        numbers = (pages[0].first_seq, pages[-1].last_seq) if pages else (0, 0)
        if (*numbers, len(plain)) != (pack.first_seq, pack.last_seq, pack.plain_bytes):
            raise _changed(pack)
        packed = await asyncio.to_thread(gzip.compress, plain, _LEVEL, mtime=0)
        sealed = await self._content.seal_apart(workspace, run_id, pack.blob, packed)
        await self._blobs.put(pack.blob, sealed)
        if await self._open(workspace, run_id, pack.blob, len(plain)) != plain:
            raise StorageFailed(
                f"cannot pack events of {run_id}: blob {pack.blob} is not what was put; check where blobs are kept"
            )
        return len(sealed)

    def keep(self, pack: Pack, size: int, now_ms: int) -> Transaction[None]:
        """INV-K2; a part of a transaction under the run's lease."""
        place = {"workspace": pack.run.workspace, "run": pack.run.id, "last_seq": pack.last_seq}
        if not (yield SQL.note_packed(**place, bytes=size, now=now_ms)):
            return
        gone = yield from self._content.move_out(
            pack.run.workspace, pack.run.id, EVENTS, pack.first_seq, pack.last_seq
        )
        if gone != pack.plain_bytes:
            raise _changed(pack)

    async def read(self, workspace: str, run_id: str, after: int) -> bytes | None:
        """Read the pack with the next number above that; None where none has it, or where the run's content is deleted."""
        row = await self._database.read(_behind, workspace, run_id, after)
        return None if row is None else await self._open(workspace, run_id, row["blob"], row["plain_bytes"])

    async def _open(self, workspace: str, run_id: str, name: str, plain_bytes: int) -> bytes | None:
        try:
            sealed = await self._blobs.read(name, _MOST_SEALED)
        except (NotFound, TooLarge):
            raise unreadable(run_id, name, "missing, or another") from None
        try:
            packed = await self._content.open_apart(workspace, run_id, name, sealed)
        except NotFound:
            return None
        except StorageFailed:
            raise unreadable(run_id, name, "damaged") from None
        # No more is made of it than the manifest says, whatever it would become.
        return await asyncio.to_thread(zlib.decompressobj(wbits=31).decompress, packed, plain_bytes + 1)


def unreadable(run_id: str, name: str, how: str) -> StorageFailed:
    return StorageFailed(
        f"cannot read events of {run_id}: blob {name} is {how}; restore it from a backup, and with several servers keep blobs "
        f"where all of them find them ({variable('blobs')})"
    )


def _changed(pack: Pack) -> StorageFailed:
    return StorageFailed(
        f"cannot pack events {pack.first_seq} to {pack.last_seq} of {pack.run.id}: their pages are not what they were; "
        "restore them from a backup"
    )


def _next(workspace: str, run_id: str) -> Transaction[dict[str, int] | None]:
    place = {"workspace": workspace, "run": run_id}
    if (begun := only((yield SQL.begun(**place)))) is not None:
        return {name: begun[name] for name in ("first_seq", "last_seq", "attempt", "plain_bytes")}
    found = _fitting((yield SQL.unpacked(**place, limit=MAX_READ_PAGES)))
    if not found:
        return None
    return {
        "first_seq": found[0]["first_seq"],
        "last_seq": found[-1]["last_seq"],
        "attempt": found[0]["attempt"],
        "plain_bytes": sum(row["plain_bytes"] for row in found),
    }


def _fitting(pages: Rows) -> list[Row]:
    """Take pages of one attempt that are one pack together; at least the first."""
    taken, room = list[Row](), PACK_BYTES
    for page in pages:
        room -= page["plain_bytes"]
        if taken and (room < 0 or page["attempt"] != taken[0]["attempt"]):
            break
        taken.append(page)
    return taken


def _behind(workspace: str, run_id: str, after: int) -> Transaction[Row | None]:
    return only((yield SQL.pack_behind(workspace=workspace, run=run_id, after=after)))
