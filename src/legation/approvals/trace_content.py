"""What was said in a step, sealed: arguments, results, errors, and the words of people and supervisors.

INV-T1  The plain bytes are in no table. A step holds a digest over a random salt and the bytes; the salt is sealed
        with them, so that the digest of purged content can be compared with no guess.
INV-T2  Content opens only in its place: workspace, owner, server, number and name are bound into it.
INV-T3  With the content key of an owner all its content is gone; the steps and their digests stay, and verify.

The owner is the day by default, or what the caller names: a run, whose content then goes with the run. The keys are
those of `store/content.py`, so that rotation and `Content.delete` see them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Final

import msgspec

from legation.approvals.trace import ContentName
from legation.errors import NotFound, StorageFailed, TooLarge
from legation.store.database.queries import Queries
from legation.store.database.transaction import Dangling, Row, Rows, Transaction, only
from legation.store.plain import must_be_plain
from legation.store.rewrapping import content_bound
from legation.store.sealing import DataKey, Sealer, WrappedKey
from legation.wire import jsontext

MAX_CONTENT: Final = 8 * 1024 * 1024  # bytes of one value: some milliseconds to seal, in the writer's thread
_SALT: Final = 16

_SQL: Final = Queries("traces")


@dataclass(frozen=True, slots=True, repr=False)
class Said:
    """One opened value; `salt` and `plain` are what its digest is over."""

    server: str
    seq: int
    name: str
    trace_id: str
    salt: bytes
    plain: bytes

    def __repr__(self) -> str:
        return f"<{self.name} of step {self.seq}, {len(self.plain)} bytes>"

    @property
    def value(self) -> object:
        return jsontext.read(self.plain)

    @property
    def digest(self) -> str:
        return commitment(self.salt, self.plain)


def commitment(salt: bytes, plain: bytes) -> str:
    return hashlib.sha256(salt + plain).hexdigest()


def day_owner(now_ms: int) -> str:
    return f"day-{datetime.fromtimestamp(now_ms / 1000, UTC).date().isoformat()}"


def encode(value: object) -> bytes:
    plain = jsontext.write(value)
    if len(plain) > MAX_CONTENT:
        raise TooLarge(f"cannot keep a value of more than {MAX_CONTENT} bytes: shorten it")
    return plain


@dataclass(frozen=True, slots=True)
class Seals:
    """Opens each key once for the length of one call."""

    sealer: Sealer
    workspace: str
    _keys: dict[str, DataKey] = field(default_factory=dict, init=False, repr=False)

    def ready(self, owner: str, now_ms: int) -> Transaction[None]:
        """Has the key of an owner, made if there is none: before the first `seal`."""
        if owner in self._keys:
            return
        must_be_plain(owner, "the owner of content")
        bound = content_bound(self.workspace, owner)
        if row := only((yield _SQL.find_key(workspace=self.workspace, owner=owner))):
            wrapped = WrappedKey(row["key_id"], row["wrapped_key"])
            self._keys[owner] = self.sealer.open_data_key(wrapped, bound)
            return
        wrapped, key = self.sealer.new_data_key(bound)
        try:
            added = yield _SQL.add_key(
                workspace=self.workspace,
                owner=owner,
                key_id=wrapped.key_id,
                wrapped_key=wrapped.wrapped_key,
                now=now_ms,
            )
        except Dangling:
            raise NotFound("cannot keep content there: there is no such workspace; create it first") from None
        if not added:
            raise StorageFailed("cannot make a content key: another appeared at the same time; try again")
        self._keys[owner] = key

    def seal(self, owner: str, server: str, seq: int, name: ContentName, value: object) -> tuple[str, bytes]:
        """The digest, and what is stored."""
        salt, plain = os.urandom(_SALT), encode(value)
        bound = _bound(self.workspace, owner, server, seq, name)
        return commitment(salt, plain), self._keys[owner].seal_page(salt + plain, bound)

    def open(self, row: Row) -> Said:
        owner, place = row["owner"], (row["server"], row["seq"], row["name"])
        key = self._keys.get(owner)
        if key is None:
            wrapped = WrappedKey(row["key_id"], row["wrapped_key"])
            key = self.sealer.open_data_key(wrapped, content_bound(self.workspace, owner))
            self._keys[owner] = key
        opened = key.open_page(row["body"], _bound(self.workspace, owner, *place))
        return Said(*place, row["trace_id"], opened[:_SALT], opened[_SALT:])


def contents_of(
    workspace: str, traces: Iterable[str], names: Iterable[str]
) -> Transaction[Rows]:  # opened outside the transaction, by `Seals.open`
    wanted = {"traces": traces, "names": names}
    lists = {name: msgspec.json.encode([*dict.fromkeys(each)]).decode() for name, each in wanted.items()}
    return (yield _SQL.contents_of(workspace=workspace, **lists))


def purge_days(workspace: str, before: date) -> Transaction[list[str]]:
    """Destroys what was said on the days before one. Afterwards `database.scrub()` leaves no byte of it on SQLite."""
    rows = yield _SQL.purge_days(workspace=workspace, before=f"day-{before.isoformat()}")
    return [row["owner"] for row in rows]


def _bound(workspace: str, owner: str, server: str, seq: int, name: str) -> tuple[str, ...]:
    return ("trace", workspace, owner, server, str(seq), name)
