"""Lists in parts: one row more than asked for tells whether there is another part."""

from collections.abc import Callable
from typing import TypeVar

from legation.store.database.transaction import Row, Rows
from legation.wire.api.shape import Page

T = TypeVar("T")


def page_of(rows: Rows, limit: int, read: Callable[[Row], T], key: Callable[[T], str]) -> Page[T]:
    """Of `limit + 1` rows that were asked for. `key` is what the rows are ordered by."""
    items = [read(row) for row in rows[:limit]]
    return Page(items=items, next=key(items[-1]) if len(rows) > limit else None)
