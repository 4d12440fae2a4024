"""A list that the server gives in pages: all of its items, or one page at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Generic, TypeVar

from legation.client.operation import Operation
from legation.errors import InternalError
from legation.wire.api.shape import Page

T = TypeVar("T")


class Pages(Generic[T]):
    """Iterate it for every item, fetched as they are needed; each iteration starts anew."""

    def __init__(self, first: Operation[Page[T]], send: Callable[[Operation[Page[T]]], Page[T]]) -> None:
        self._first = first
        self._send = send

    def page(self) -> Page[T]:
        """The first page alone; its `next` is the `after` of the one behind it."""
        return self._send(self._first)

    def all(self) -> list[T]:
        return list(self)

    def __iter__(self) -> Iterator[T]:
        operation: Operation[Page[T]] | None = self._first
        while operation is not None:
            page = self._send(operation)
            yield from page.items
            operation = _next(operation, page)


class AsyncPages(Generic[T]):
    """As Pages, awaited."""

    def __init__(
        self, first: Operation[Page[T]], send: Callable[[Operation[Page[T]]], Awaitable[Page[T]]]
    ) -> None:
        self._first = first
        self._send = send

    async def page(self) -> Page[T]:
        return await self._send(self._first)

    async def all(self) -> list[T]:
        return [item async for item in self]

    async def __aiter__(self) -> AsyncIterator[T]:
        operation: Operation[Page[T]] | None = self._first
        while operation is not None:
            page = await self._send(operation)
            for item in page.items:
                yield item
            operation = _next(operation, page)


def _next(operation: Operation[Page[T]], page: Page[T]) -> Operation[Page[T]] | None:
    if page.next is None:
        return None
    if (operation.cursor, page.next) in operation.query:
        raise InternalError("cannot read the list: the server gives one page for ever; bring it up to date")
    others = tuple(pair for pair in operation.query if pair[0] != operation.cursor)
    return replace(operation, query=(*others, (operation.cursor, page.next)))
