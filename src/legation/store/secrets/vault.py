"""The vault: secrets, and content of runs, sealed for one owner of one workspace; rotation and check of their keys."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hmac import compare_digest
from typing import Final

import msgspec

from legation.clock import Clock, new_id
from legation.errors import ConfigInvalid, Conflict, InvalidParams, NotFound, StorageFailed, TooLarge
from legation.secret import Secret
from legation.settings import variable
from legation.store.database.transaction import (
    Dangling,
    Database,
    Queries,
    Row,
    Rows,
    Statement,
    Transaction,
    Value,
    conditional,
    only,
)
from legation.store.secrets.sealer import (
    DataKey,
    KeyRing,
    Keys,
    SealedValue,
    Sealer,
    WrappedKey,
    check_value,
    content_bound,
    derive,
    key_bytes,
    matches,
    must_be_plain,
)
from legation.tasks import Groups

MAX_BUNDLE: Final = 1024 * 1024  # bytes; some dozens of keys are a few thousand
MAX_PAGE: Final = 8 * 1024 * 1024  # plain bytes: some milliseconds to seal, in the writer's thread
MAX_READ_PAGES: Final = 256  # in one answer
MOST_AT_ONCE: Final = 64  # bundles that are put by one statement
BATCH: Final = 100  # rows that are wrapped anew in one transaction: some milliseconds of work

# The first byte of what is sealed says what the rest is.
_MAPPING: Final = b"m"
_BYTES: Final = b"b"

# What the database knows check values of.
VAULT: Final = "vault"
PEPPER: Final = "pepper"

_VAULT: Final = Queries("vault")
_CONTENT: Final = Queries("content")
_REWRAPPING: Final = Queries("rewrapping")
_KEY_CHECKS: Final = Queries("keychecks")

Bundle = Mapping[str, Secret] | bytes
_SealedRow = dict[str, Value]


@dataclass(frozen=True, slots=True, repr=False)
class SealedBundle:
    id: str
    row: _SealedRow


def vault_bound(workspace: str, owner: str, bundle_id: str) -> Sequence[str]:
    return ("vault", workspace, owner, bundle_id)


class Vault:
    """Bundles of secrets, sealed for one owner (a run) of one workspace, opened only by naming both.

    INV-V1  Only sealed bytes reach the database. A bundle's id, workspace and owner are bound into them: a row that is
            copied or moved elsewhere does not open there.
    INV-V2  Another's bundle and none at all are the same `NotFound`.
    INV-V3  After `destroy` no row, and on SQLite no byte, is left. docs/vault.md says what may outlive it on Postgres
            and in backups.

    `put_within` is a part of a transaction of the caller's: `id = yield from vault.put_within(...)`."""

    def __init__(self, database: Database, sealer: Sealer, clock: Clock) -> None:
        self._database = database
        self._sealer = sealer
        self._clock = clock
        self._puts = Groups("legation-vault", self._put_together, MOST_AT_ONCE)

    async def put(self, workspace: str, owner: str, bundle: Bundle) -> str:
        return await self._puts.add(workspace, self.sealed(workspace, owner, bundle))

    def put_within(self, workspace: str, owner: str, bundle: Bundle) -> Transaction[str]:
        (bundle_id,) = yield from put_bundles([self.sealed(workspace, owner, bundle)])
        return bundle_id

    async def _put_together(self, _workspace: str, bundles: list[SealedBundle]) -> list[str]:
        return await self._database.transact(put_bundles, bundles)

    def sealed(self, workspace: str, owner: str, bundle: Bundle) -> SealedBundle:
        """Seal it for `put_bundles`, which is a part of a transaction of the caller's."""
        must_be_plain(owner, "the owner of a bundle")
        now_ms = self._clock.now_ms()
        bundle_id = new_id("vlt", now_ms=now_ms)
        sealed = self._sealer.seal(_encode(bundle), vault_bound(workspace, owner, bundle_id))
        row: _SealedRow = {
            "id": bundle_id,
            "workspace": workspace,
            "owner": owner,
            "key_id": sealed.key_id,
            "wrapped_key": sealed.wrapped_key,
            "body": sealed.body,
            "now": now_ms,
        }
        return SealedBundle(bundle_id, row)

    async def open(self, workspace: str, owner: str, bundle_id: str) -> dict[str, Secret]:
        kind, plain = await self._open(workspace, owner, bundle_id)
        if kind != _MAPPING:
            raise Conflict(f"cannot open {bundle_id} as named secrets: it holds bytes; use open_bytes")
        return {name: Secret(value, name) for name, value in _decode(plain).items()}

    async def open_bytes(self, workspace: str, owner: str, bundle_id: str) -> bytes:
        """Open a bundle that was put as bytes."""
        kind, plain = await self._open(workspace, owner, bundle_id)
        if kind != _BYTES:
            raise Conflict(f"cannot open {bundle_id} as bytes: it holds named secrets; use open")
        return plain

    async def _open(self, workspace: str, owner: str, bundle_id: str) -> tuple[bytes, bytes]:
        row = await self._database.read(_find, workspace, owner, bundle_id)
        sealed = SealedValue(row["key_id"], row["wrapped_key"], row["body"])
        plain = self._sealer.open(sealed, vault_bound(workspace, owner, bundle_id))
        return plain[:1], plain[1:]

    async def destroy(self, workspace: str, owner: str, bundle_id: str) -> None:
        await self._database.transact(_destroy, workspace, owner, bundle_id)
        await self._database.scrub()

    async def destroy_all(self, workspace: str, owner: str) -> int:
        """Destroy all bundles of an owner; return how many there were. None is no error: a cleanup can be repeated."""
        destroyed = await self._database.transact(destroy_bundles, workspace, owner)
        await self._database.scrub()
        return destroyed

    async def rewrap_all(self, progress: Callable[[int], None] = lambda _done: None) -> int:
        """Bundles and content keys, under the current vault key."""
        return await Rewrapper(self._database, self._sealer).run(progress)


def keys_in_use() -> Transaction[dict[str, int]]:
    """The number of bundles and content keys that each vault key wraps, by the key's id."""
    rows = yield _VAULT.keys_in_use()
    return {row["key_id"]: row["uses"] for row in rows}


def keys_named() -> Transaction[set[str]]:
    """The ids of the vault keys that wrap anything; unlike `keys_in_use`, without going through all of it."""
    return {row["key_id"] for row in (yield _VAULT.keys_named())}


# Safe under read committed: it inserts rows under new random ids and goes by nothing that was read. That the workspace is
# there is for the foreign key to say, and it is the same for all of them.
@conditional
def put_bundles(bundles: Sequence[SealedBundle]) -> Transaction[list[str]]:
    """Keep what was sealed; as a part of another transaction, or alone."""
    if bundles:
        try:
            yield bundles_insertion(bundles)
        except Dangling:
            raise NotFound("cannot keep secrets there: there is no such workspace; create it first") from None
    return [each.id for each in bundles]


def bundles_insertion(bundles: Sequence[SealedBundle]) -> Statement:
    return _VAULT.each("put", [each.row for each in bundles])


def _find(workspace: str, owner: str, bundle_id: str) -> Transaction[Row]:
    row = only((yield _VAULT.find(id=bundle_id, workspace=workspace, owner=owner)))
    if row is None:
        raise _absent(bundle_id)
    return row


# Safe under read committed, this one and the next: one deletion. Of two at once the second waits for the first, and finds
# what is left.
@conditional
def _destroy(workspace: str, owner: str, bundle_id: str) -> Transaction[None]:
    if not (yield _VAULT.destroy(id=bundle_id, workspace=workspace, owner=owner)):
        raise _absent(bundle_id)


@conditional
def destroy_bundles(workspace: str, owner: str) -> Transaction[int]:
    """Destroy all of an owner; alone, or as a part of another transaction, to be followed by `scrub`."""
    return len((yield _VAULT.destroy_all(workspace=workspace, owner=owner)))


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


@dataclass(frozen=True, slots=True, repr=False)
class ContentPage:
    first_seq: int
    last_seq: int
    plain: bytes

    def __repr__(self) -> str:
        return f"<page {self.first_seq}-{self.last_seq}, {len(self.plain)} bytes>"


@dataclass(frozen=True, slots=True, repr=False)
class FirstPage:
    """First page of a new owner, sealed under a key of its own: rows of the key, the stream and the page."""

    key: _SealedRow
    stream: _SealedRow
    page: _SealedRow


class ContentStore:
    """Content of runs: prompts, output and raw events, in sealed pages under one content key for each owner.

    INV-P1  A page's plain bytes are in no table; beside them stand only numbers and sizes.
    INV-P2  The pages of a stream are dense from 1: no gap, no overlap, no two with the same number. The first of them may be kept
            elsewhere (`move_out`); nothing is given that stands behind a number which is not here.
    INV-P3  A page opens only in its place: workspace, owner, stream and numbers are bound into it.
    INV-P4  With its key all content of an owner is gone, wherever a page may have been copied.

    An open content key lives for the length of one call.

    `append`, `head` and `delete` are parts of a transaction of the caller's, or `transact(content.append, ...)`."""

    def __init__(self, database: Database, sealer: Sealer, clock: Clock) -> None:
        self._database = database
        self._sealer = sealer
        self._clock = clock

    def append(
        self, workspace: str, owner: str, stream: str, first_seq: int, last_seq: int, plain: bytes
    ) -> Transaction[None]:
        """The next page; `Conflict` with `data["head"]` if it is not the next."""
        if first_seq > last_seq:
            raise InvalidParams(f"cannot store a page from {first_seq} to {last_seq}: it holds nothing")
        if len(plain) > MAX_PAGE:
            raise TooLarge(f"cannot store a page of more than {MAX_PAGE} bytes: make it several")
        must_be_plain(owner, "the owner of content")
        must_be_plain(stream, "the stream of a page")
        key = yield from self._key(workspace, owner)
        yield from _advance(workspace, owner, stream, first_seq - 1, last_seq)
        bound = _page_bound(workspace, owner, stream, first_seq, last_seq)
        yield _CONTENT.append(
            workspace=workspace,
            owner=owner,
            stream=stream,
            first_seq=first_seq,
            last_seq=last_seq,
            plain_bytes=len(plain),
            body=key.seal_page(plain, bound),
        )

    def first_page(self, workspace: str, owner: str, stream: str, plain: bytes) -> FirstPage:
        """Seal the first of a new owner's, with number 1, for `first_insertions`."""
        must_be_plain(owner, "the owner of content")
        must_be_plain(stream, "the stream of a page")
        wrapped, key = self._sealer.new_data_key(content_bound(workspace, owner))
        place: _SealedRow = {"workspace": workspace, "owner": owner}
        numbers: _SealedRow = {**place, "stream": stream, "last_seq": 1}
        body = key.seal_page(plain, _page_bound(workspace, owner, stream, 1, 1))
        return FirstPage(
            {
                **place,
                "key_id": wrapped.key_id,
                "wrapped_key": wrapped.wrapped_key,
                "now": self._clock.now_ms(),
            },
            numbers,
            {**numbers, "first_seq": 1, "plain_bytes": len(plain), "body": body},
        )

    @staticmethod
    def first_insertions(pages: Sequence[FirstPage]) -> list[Statement]:
        """Write first pages, each of an owner of its own, as parts of a statement of the caller's. `Dangling`: the workspace is not
        there."""
        return [
            _CONTENT.each("add_key", [each.key for each in pages]),
            _CONTENT.each("begin", [each.stream for each in pages]),
            _CONTENT.each("append", [each.page for each in pages]),
        ]

    def head(self, workspace: str, owner: str, stream: str) -> Transaction[int]:
        """The last number stored; 0 of a stream that has no page."""
        row = only((yield _CONTENT.head(workspace=workspace, owner=owner, stream=stream)))
        return 0 if row is None else row["last_seq"]

    def move_out(
        self, workspace: str, owner: str, stream: str, first_seq: int, last_seq: int
    ) -> Transaction[int]:
        """Let pages go that are kept elsewhere by now, whole ones, the first of the stream; how many plain bytes they had. The numbers of the
        stream go on behind them."""
        place = {"workspace": workspace, "owner": owner, "stream": stream}
        gone = yield _CONTENT.move_out(**place, first_seq=first_seq, last_seq=last_seq)
        return sum(row["plain_bytes"] for row in gone)

    def delete(self, workspace: str, owner: str) -> Transaction[bool]:
        """The key and every page; whether there was any."""
        return bool((yield _CONTENT.delete_key(workspace=workspace, owner=owner)))

    async def read(
        self, workspace: str, owner: str, stream: str, after: int = 0, up_to_bytes: int = MAX_PAGE
    ) -> list[ContentPage]:
        """The next pages that hold numbers above `after`: at least one if there is any, else as many as fit.

        The first may begin before `after`. Nothing, another's, and what was moved out is an empty list.
        """
        wrapped, rows = await self._database.read(_pages, workspace, owner, stream, after, up_to_bytes)
        if wrapped is None:
            return []
        key = self._sealer.open_data_key(wrapped, content_bound(workspace, owner))
        return [_opened(key, row, workspace, owner, stream) for row in rows]

    # What is too long for a page is sealed under the same key and kept elsewhere; with the key, it is gone too (INV-P4).

    async def seal_apart(self, workspace: str, owner: str, name: str, plain: bytes) -> bytes:
        """Seal what is kept elsewhere under `name`, for an owner that has content already."""
        key = await self._open_key(workspace, owner)
        return await asyncio.to_thread(key.seal_page, plain, _apart_bound(workspace, owner, name))

    async def open_apart(self, workspace: str, owner: str, name: str, sealed: bytes) -> bytes:
        key = await self._open_key(workspace, owner)
        return await asyncio.to_thread(key.open_page, sealed, _apart_bound(workspace, owner, name))

    async def _open_key(self, workspace: str, owner: str) -> DataKey:
        wrapped = await self._database.read(_wrapped_key, workspace, owner)
        if wrapped is None:
            raise NotFound(f"cannot find the content of {owner}: it is not there, or deleted; check its id")
        return self._sealer.open_data_key(wrapped, content_bound(workspace, owner))

    def _key(self, workspace: str, owner: str) -> Transaction[DataKey]:
        bound = content_bound(workspace, owner)
        if wrapped := (yield from _wrapped_key(workspace, owner)):
            return self._sealer.open_data_key(wrapped, bound)
        wrapped, key = self._sealer.new_data_key(bound)
        try:
            yield _CONTENT.add_key(
                workspace=workspace,
                owner=owner,
                key_id=wrapped.key_id,
                wrapped_key=wrapped.wrapped_key,
                now=self._clock.now_ms(),
            )
        except Dangling:
            raise NotFound(
                "cannot store content there: there is no such workspace; create it first"
            ) from None
        return key


def _advance(workspace: str, owner: str, stream: str, head: int, last_seq: int) -> Transaction[None]:
    place = {"workspace": workspace, "owner": owner, "stream": stream}
    if (yield _CONTENT.advance(**place, head=head, last_seq=last_seq)):
        return
    row = only((yield _CONTENT.head(**place)))
    if row is not None or head != 0:
        end = 0 if row is None else row["last_seq"]
        raise Conflict(
            f"cannot store a page that starts at {head + 1}: the stream ends at {end}; send what follows it",
            {"head": end},
        )
    yield _CONTENT.begin(**place, last_seq=last_seq)


def _wrapped_key(workspace: str, owner: str) -> Transaction[WrappedKey | None]:
    row = only((yield _CONTENT.find_key(workspace=workspace, owner=owner)))
    return None if row is None else WrappedKey(row["key_id"], row["wrapped_key"])


def _pages(
    workspace: str, owner: str, stream: str, after: int, up_to_bytes: int
) -> Transaction[tuple[WrappedKey | None, Rows]]:
    wrapped = yield from _wrapped_key(workspace, owner)
    place = {"workspace": workspace, "owner": owner, "stream": stream, "after": after}
    sizes = yield _CONTENT.sizes(**place, limit=MAX_READ_PAGES)
    last = max(_fitting(sizes, up_to_bytes), default=None)
    if wrapped is None or last is None or sizes[0]["first_seq"] > after + 1:
        return None, []
    return wrapped, (yield _CONTENT.pages(**place, last=last))


def _fitting(sizes: Rows, up_to_bytes: int) -> Iterator[int]:
    for position, row in enumerate(sizes):
        up_to_bytes -= row["plain_bytes"]
        if position and up_to_bytes < 0:
            return
        yield row["last_seq"]


def _opened(key: DataKey, row: Row, workspace: str, owner: str, stream: str) -> ContentPage:
    first, last = row["first_seq"], row["last_seq"]
    return ContentPage(
        first, last, key.open_page(row["body"], _page_bound(workspace, owner, stream, first, last))
    )


def _page_bound(workspace: str, owner: str, stream: str, first_seq: int, last_seq: int) -> tuple[str, ...]:
    return ("page", workspace, owner, stream, str(first_seq), str(last_seq))


def _apart_bound(workspace: str, owner: str, name: str) -> tuple[str, ...]:
    return ("apart", workspace, owner, name)


class Rewrapper:
    """Rotation: every data key is wrapped anew under the current vault key; what it seals stays as it is.

    INV-R1  May be stopped at any point and started again, and run beside another or beside puts and deletions: a row
            is changed only if it is still under the key it was read with.
    INV-R2  One row that does not open holds up no other; it is counted and told at the end.

    A server that still runs with the former key goes on sealing under it: rotate on all of them first, then re-wrap."""

    def __init__(self, database: Database, sealer: Sealer) -> None:
        self._database = database
        self._sealer = sealer
        self._current = sealer.current_key_id
        self._done = 0
        self._unopened = 0

    async def run(self, progress: Callable[[int], None]) -> int:
        """Wrap all anew; return how many that were. `progress` hears of it after every batch."""
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
        place = {"id": row["id"], "workspace": row["workspace_id"]}
        return _REWRAPPING.rewrap_bundle(**place, **self._key_columns(row, bound))

    def _content_key(self, row: Row) -> Statement:
        place = {"workspace": row["workspace_id"], "owner": row["owner"]}
        return _REWRAPPING.rewrap_content_key(**place, **self._key_columns(row, content_bound(**place)))

    def _key_columns(self, row: Row, bound: Sequence[str]) -> dict[str, Value]:
        wrapped = self._sealer.rewrap_key(WrappedKey(row["key_id"], row["wrapped_key"]), bound)
        return {"former": row["key_id"], "key_id": wrapped.key_id, "wrapped_key": wrapped.wrapped_key}


def _bundles(current: str, after: str) -> Transaction[Rows]:
    return (yield _REWRAPPING.bundles(current=current, after=after, limit=BATCH))


def _content_keys(current: str, after: tuple[str, str]) -> Transaction[Rows]:
    workspace, owner = after
    return (yield _REWRAPPING.content_keys(current=current, workspace=workspace, owner=owner, limit=BATCH))


def _changed(statements: list[Statement]) -> Transaction[int]:
    changed = 0
    for statement in statements:
        changed += len((yield statement))
    return changed


async def check_keys(database: Database, keys: Keys, now_ms: int) -> None:
    """Notice a wrong key before anything is sealed or hashed with it: `ConfigInvalid` with every problem and the
    setting to correct.

    The database knows the check value of each key, from which the key does not follow. The first start records them.

    INV-C1  With a wrong vault key or pepper the server does not start, and nothing has changed.
    INV-C2  A vault key may go only when nothing is sealed with it any more."""
    await database.transact(_check, keys, now_ms)


def _check(keys: Keys, now_ms: int) -> Transaction[None]:
    problems = [
        *(yield from _vault_problems(keys.vault, now_ms)),
        *(yield from _pepper_problems(keys, now_ms)),
    ]
    if problems:
        lines = "".join(f"\n- {problem}" for problem in problems)
        raise ConfigInvalid(
            f"cannot use these keys with this database; correct this:{lines}", {"problems": problems}
        )


def verify_or_record(name: str, value: bytes, now_ms: int) -> Transaction[bool]:
    """Whether it is the value of the first time; this time may be the first."""
    yield _KEY_CHECKS.record(name=name, value=value, now=now_ms)
    (row,) = yield _KEY_CHECKS.find(name=name)
    return compare_digest(row["value"], value)


def _vault_problems(ring: KeyRing, now_ms: int) -> Transaction[list[str]]:
    setting = f"{variable('vault_key')} (or `vault` in keys.json)"
    if any(ring.find(key_id) is None for key_id in (yield from keys_named())):
        used = yield from keys_in_use()
        unknown = {key_id: count for key_id, count in used.items() if ring.find(key_id) is None}
        return [
            f"{setting} lacks key {key_id!r}, with which {count} values are sealed: put it back, after the current one"
            for key_id, count in sorted(unknown.items())
        ]
    if (yield from verify_or_record(VAULT, check_value(ring.current), now_ms)):
        return []
    (row,) = yield _KEY_CHECKS.find(name=VAULT)
    if not any(matches(key, row["value"]) for key in ring.older):
        return [
            f"{setting} is another key than this database knows: put the former one back, after the current one"
        ]
    yield _KEY_CHECKS.replace(name=VAULT, value=check_value(ring.current), now=now_ms)  # it was rotated
    return []


def _pepper_problems(keys: Keys, now_ms: int) -> Transaction[list[str]]:
    setting = f"{variable('token_pepper')} (or `pepper` in keys.json)"
    if (yield from verify_or_record(PEPPER, derive(key_bytes(keys.pepper), "pepper check"), now_ms)):
        return []
    return [f"{setting} is not the one that the tokens here were hashed with: put the former one back"]
