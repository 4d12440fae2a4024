"""The vault: bundles of secrets, sealed for one owner (a run) of one workspace, opened only by naming both.

INV-V1  Only sealed bytes reach the database. A bundle's id, workspace and owner are bound into them: a row that is
        copied or moved elsewhere does not open there.
INV-V2  Another's bundle and none at all are the same `NotFound`.
INV-V3  After `destroy` no row, and on SQLite no byte, is left. docs/vault.md says what may outlive it on Postgres
        and in backups.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from legation.clock import Clock
from legation.errors import Conflict, NotFound, TooLarge
from legation.ids import new_id
from legation.secret import Secret
from legation.store.database.queries import Queries
from legation.store.database.transaction import Dangling, Database, Row, Transaction, only
from legation.store.plain import must_be_plain
from legation.store.rewrapping import Rewrapper, vault_bound
from legation.store.sealing import Sealed, Sealer

MAX_BUNDLE: Final = 1024 * 1024  # bytes; some dozens of keys are a few thousand

# The first byte of what is sealed says what the rest is.
_MAPPING: Final = b"m"
_BYTES: Final = b"b"

_SQL: Final = Queries("vault")

Bundle = Mapping[str, Secret] | bytes


class Vault:
    """`…_within` is a part of a transaction of the caller's: `id = yield from vault.put_within(...)`."""

    def __init__(self, database: Database, sealer: Sealer, clock: Clock) -> None:
        self._database = database
        self._sealer = sealer
        self._clock = clock

    async def put(self, workspace: str, owner: str, bundle: Bundle) -> str:
        return await self._database.transact(self.put_within, workspace, owner, bundle)

    def put_within(self, workspace: str, owner: str, bundle: Bundle) -> Transaction[str]:
        must_be_plain(owner, "the owner of a bundle")
        now_ms = self._clock.now_ms()
        bundle_id = new_id("vlt", now_ms=now_ms)
        sealed = self._sealer.seal(_encode(bundle), vault_bound(workspace, owner, bundle_id))
        try:
            yield _SQL.put(
                id=bundle_id,
                workspace=workspace,
                owner=owner,
                key_id=sealed.key_id,
                wrapped_key=sealed.wrapped_key,
                body=sealed.body,
                now=now_ms,
            )
        except Dangling:
            raise NotFound("cannot keep secrets there: there is no such workspace; create it first") from None
        return bundle_id

    async def open(self, workspace: str, owner: str, bundle_id: str) -> dict[str, Secret]:
        kind, plain = await self._open(workspace, owner, bundle_id)
        if kind != _MAPPING:
            raise Conflict(f"cannot open {bundle_id} as named secrets: it holds bytes; use open_bytes")
        return {name: Secret(value, name) for name, value in _decode(plain).items()}

    async def open_bytes(self, workspace: str, owner: str, bundle_id: str) -> bytes:
        """What was put as bytes."""
        kind, plain = await self._open(workspace, owner, bundle_id)
        if kind != _BYTES:
            raise Conflict(f"cannot open {bundle_id} as bytes: it holds named secrets; use open")
        return plain

    async def _open(self, workspace: str, owner: str, bundle_id: str) -> tuple[bytes, bytes]:
        row = await self._database.read(_find, workspace, owner, bundle_id)
        sealed = Sealed(row["key_id"], row["wrapped_key"], row["body"])
        plain = self._sealer.open(sealed, vault_bound(workspace, owner, bundle_id))
        return plain[:1], plain[1:]

    async def destroy(self, workspace: str, owner: str, bundle_id: str) -> None:
        await self._database.transact(self.destroy_within, workspace, owner, bundle_id)
        await self._database.scrub()

    def destroy_within(self, workspace: str, owner: str, bundle_id: str) -> Transaction[None]:
        if not (yield _SQL.destroy(id=bundle_id, workspace=workspace, owner=owner)):
            raise _absent(bundle_id)

    async def destroy_all(self, workspace: str, owner: str) -> int:
        """How many there were: none is no error, so that a cleanup can be repeated."""
        destroyed = await self._database.transact(self.destroy_all_within, workspace, owner)
        await self._database.scrub()
        return destroyed

    def destroy_all_within(self, workspace: str, owner: str) -> Transaction[int]:
        rows = yield _SQL.destroy_all(workspace=workspace, owner=owner)
        return len(rows)

    async def rewrap_all(self, progress: Callable[[int], None] = lambda _done: None) -> int:
        """Bundles and content keys, under the current vault key; see `rewrapping.py`."""
        return await Rewrapper(self._database, self._sealer).run(progress)


def keys_in_use() -> Transaction[dict[str, int]]:
    """How many bundles and content keys each vault key wraps, by the key's id."""
    rows = yield _SQL.keys_in_use()
    return {row["key_id"]: row["uses"] for row in rows}


def _find(workspace: str, owner: str, bundle_id: str) -> Transaction[Row]:
    row = only((yield _SQL.find(id=bundle_id, workspace=workspace, owner=owner)))
    if row is None:
        raise _absent(bundle_id)
    return row


def _absent(bundle_id: str) -> NotFound:
    return NotFound(f"cannot find vault bundle {bundle_id}: it is not there, or destroyed; check its id")


def _encode(bundle: Bundle) -> bytes:
    if isinstance(bundle, bytes):
        plain = _BYTES + bundle
    else:
        # Made anew under the names they will have, so that one that could not be opened is refused now.
        named = [Secret(secret.reveal(), name) for name, secret in bundle.items()]
        plain = _MAPPING + msgspec.json.encode({secret.name: secret.reveal() for secret in named})
    if len(plain) > MAX_BUNDLE:
        raise TooLarge(f"cannot keep secrets of more than {MAX_BUNDLE} bytes together: put them in parts")
    return plain


def _decode(plain: bytes) -> dict[str, str]:
    return msgspec.json.decode(plain, type=dict[str, str])
