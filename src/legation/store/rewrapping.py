"""Rotation: every data key is wrapped anew under the current vault key; what it seals stays as it is.

INV-R1  May be stopped at any point and started again, and run beside another or beside puts and deletions: a row
        is changed only if it is still under the key it was read with.
INV-R2  One row that does not open holds up no other; it is counted and told at the end.

A server that still runs with the former key goes on sealing under it: rotate on all of them first, then re-wrap.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from legation.errors import StorageFailed
from legation.store.database.queries import Queries
from legation.store.database.transaction import Database, Row, Rows, Statement, Transaction
from legation.store.sealing import Sealer, WrappedKey

BATCH: Final = 100  # rows in one transaction: some milliseconds of work

_SQL: Final = Queries("rewrapping")


def vault_bound(workspace: str, owner: str, bundle_id: str) -> Sequence[str]:
    return ("vault", workspace, owner, bundle_id)


def content_bound(workspace: str, owner: str) -> Sequence[str]:
    return ("content", workspace, owner)


class Rewrapper:
    def __init__(self, database: Database, sealer: Sealer) -> None:
        self._database = database
        self._sealer = sealer
        self._current = sealer.current_key_id
        self._done = 0
        self._unopened = 0

    async def run(self, progress: Callable[[int], None]) -> int:
        """How many it re-wrapped; `progress` hears of it after every batch."""
        after = ""
        while rows := await self._database.read(_bundles, self._current, after):
            await self._write([*self._rewrapped(rows, self._bundle)], progress)
            after = rows[-1]["id"]
        place = ("", "")
        while rows := await self._database.read(_content_keys, self._current, place):
            await self._write([*self._rewrapped(rows, self._content_key)], progress)
            place = (rows[-1]["workspace_id"], rows[-1]["owner"])
        if self._unopened:
            raise StorageFailed(
                f"cannot re-wrap {self._unopened} sealed values, which were changed; {self._done} others are "
                "re-wrapped: restore the database from a backup, and keep the older keys until then"
            )
        return self._done

    async def _write(self, statements: list[Statement], progress: Callable[[int], None]) -> None:
        self._done += await self._database.transact(_changed, statements)
        progress(self._done)

    def _rewrapped(self, rows: Rows, rewrap: Callable[[Row], Statement]) -> Iterator[Statement]:
        for row in rows:
            try:
                yield rewrap(row)
            except StorageFailed:
                self._unopened += 1

    def _bundle(self, row: Row) -> Statement:
        bound = vault_bound(row["workspace_id"], row["owner"], row["id"])
        wrapped = self._sealer.rewrap_key(WrappedKey(row["key_id"], row["wrapped_key"]), bound)
        return _SQL.rewrap_bundle(
            id=row["id"],
            workspace=row["workspace_id"],
            former=row["key_id"],
            key_id=wrapped.key_id,
            wrapped_key=wrapped.wrapped_key,
        )

    def _content_key(self, row: Row) -> Statement:
        bound = content_bound(row["workspace_id"], row["owner"])
        wrapped = self._sealer.rewrap_key(WrappedKey(row["key_id"], row["wrapped_key"]), bound)
        return _SQL.rewrap_content_key(
            workspace=row["workspace_id"],
            owner=row["owner"],
            former=row["key_id"],
            key_id=wrapped.key_id,
            wrapped_key=wrapped.wrapped_key,
        )


def _bundles(current: str, after: str) -> Transaction[Rows]:
    return (yield _SQL.bundles(current=current, after=after, limit=BATCH))


def _content_keys(current: str, after: tuple[str, str]) -> Transaction[Rows]:
    workspace, owner = after
    return (yield _SQL.content_keys(current=current, workspace=workspace, owner=owner, limit=BATCH))


def _changed(statements: list[Statement]) -> Transaction[int]:
    changed = 0
    for statement in statements:
        changed += len((yield statement))
    return changed
