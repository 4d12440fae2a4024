"""Content of runs: prompts, output and raw events, in sealed pages under one content key for each owner.

INV-P1  A page's plain bytes are in no table; beside them stand only numbers and sizes.
INV-P2  The pages of a stream are dense from 1: no gap, no overlap, no two with the same number.
INV-P3  A page opens only in its place: workspace, owner, stream and numbers are bound into it.
INV-P4  With its key all content of an owner is gone, wherever a page may have been copied.

An open content key lives for the length of one call.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from legation.clock import Clock
from legation.errors import Conflict, InvalidParams, NotFound, TooLarge
from legation.store.database.queries import Queries
from legation.store.database.transaction import Dangling, Database, Row, Rows, Transaction, only
from legation.store.plain import must_be_plain
from legation.store.rewrapping import content_bound
from legation.store.sealing import DataKey, Sealer, WrappedKey

MAX_PAGE: Final = 8 * 1024 * 1024  # plain bytes: some milliseconds to seal, in the writer's thread
MAX_READ_PAGES: Final = 256  # in one answer

_SQL: Final = Queries("content")


@dataclass(frozen=True, slots=True, repr=False)
class Page:
    first_seq: int
    last_seq: int
    plain: bytes

    def __repr__(self) -> str:
        return f"<page {self.first_seq}-{self.last_seq}, {len(self.plain)} bytes>"


class Content:
    """`append`, `head` and `delete` are parts of a transaction of the caller's, or `transact(content.append, ...)`."""

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
        yield _SQL.append(
            workspace=workspace,
            owner=owner,
            stream=stream,
            first_seq=first_seq,
            last_seq=last_seq,
            plain_bytes=len(plain),
            body=key.seal_page(plain, bound),
        )

    def head(self, workspace: str, owner: str, stream: str) -> Transaction[int]:
        """The last number stored; 0 of a stream that has no page."""
        row = only((yield _SQL.head(workspace=workspace, owner=owner, stream=stream)))
        return 0 if row is None else row["last_seq"]

    def delete(self, workspace: str, owner: str) -> Transaction[bool]:
        """The key and every page; whether there was any."""
        return bool((yield _SQL.delete_key(workspace=workspace, owner=owner)))

    async def read(
        self, workspace: str, owner: str, stream: str, after: int = 0, up_to_bytes: int = MAX_PAGE
    ) -> list[Page]:
        """The next pages that hold numbers above `after`: at least one if there is any, else as many as fit.

        The first may begin before `after`. Nothing, and another's, is an empty list.
        """
        wrapped, rows = await self._database.read(_pages, workspace, owner, stream, after, up_to_bytes)
        if wrapped is None:
            return []
        key = self._sealer.open_data_key(wrapped, content_bound(workspace, owner))
        return [_opened(key, row, workspace, owner, stream) for row in rows]

    def _key(self, workspace: str, owner: str) -> Transaction[DataKey]:
        bound = content_bound(workspace, owner)
        if wrapped := (yield from _wrapped_key(workspace, owner)):
            return self._sealer.open_data_key(wrapped, bound)
        wrapped, key = self._sealer.new_data_key(bound)
        try:
            yield _SQL.add_key(
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
    if (yield _SQL.advance(**place, head=head, last_seq=last_seq)):
        return
    row = only((yield _SQL.head(**place)))
    if row is not None or head != 0:
        end = 0 if row is None else row["last_seq"]
        raise Conflict(
            f"cannot store a page that starts at {head + 1}: the stream ends at {end}; send what follows it",
            {"head": end},
        )
    yield _SQL.begin(**place, last_seq=last_seq)


def _wrapped_key(workspace: str, owner: str) -> Transaction[WrappedKey | None]:
    row = only((yield _SQL.find_key(workspace=workspace, owner=owner)))
    return None if row is None else WrappedKey(row["key_id"], row["wrapped_key"])


def _pages(
    workspace: str, owner: str, stream: str, after: int, up_to_bytes: int
) -> Transaction[tuple[WrappedKey | None, Rows]]:
    wrapped = yield from _wrapped_key(workspace, owner)
    place = {"workspace": workspace, "owner": owner, "stream": stream, "after": after}
    sizes = yield _SQL.sizes(**place, limit=MAX_READ_PAGES)
    last = max(_fitting(sizes, up_to_bytes), default=None)
    if wrapped is None or last is None:
        return None, []
    return wrapped, (yield _SQL.pages(**place, last=last))


def _fitting(sizes: Rows, up_to_bytes: int) -> Iterator[int]:
    for position, row in enumerate(sizes):
        up_to_bytes -= row["plain_bytes"]
        if position and up_to_bytes < 0:
            return
        yield row["last_seq"]


def _opened(key: DataKey, row: Row, workspace: str, owner: str, stream: str) -> Page:
    first, last = row["first_seq"], row["last_seq"]
    return Page(first, last, key.open_page(row["body"], _page_bound(workspace, owner, stream, first, last)))


def _page_bound(workspace: str, owner: str, stream: str, first_seq: int, last_seq: int) -> tuple[str, ...]:
    return ("page", workspace, owner, stream, str(first_seq), str(last_seq))
