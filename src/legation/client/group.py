"""How a name that users call is declared, once for the sync and the async client.

A group is generic in its caller. Its attributes are descriptors that pair an operation with a way to run it:
on a group with the sync caller they give plain methods, on one with the async caller the same methods to be
awaited; the type checker sees which by the overloads of `__get__`.

A handle is a group that is about one thing: what `CallOf`, `ListedOf` and `FollowedOf` declare takes its id first, and
the method on the handle does without it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from legation.client.follow import Follow
from legation.client.request import Operation
from legation.errors import InternalError
from legation.wire.api.shape import Page

if TYPE_CHECKING:
    from legation.client.async_http import AsyncCaller, AsyncItemStream
    from legation.client.http import Caller, ItemStream


P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")  # Caller or AsyncCaller


class Group(Generic[C]):
    def __init__(self, caller: C, of: tuple[str, ...] = ()) -> None:
        """`of`: the ids that every operation of a handle begins with."""
        self.caller = caller
        self.of = of


@dataclass(frozen=True)
class Call(Generic[P, T]):
    """One operation, answered with one value."""

    make: Callable[P, Operation[T]]

    @overload
    def __get__(self, group: None, kind: type) -> Self: ...
    @overload
    def __get__(self, group: Group[Caller], kind: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, group: Group[AsyncCaller], kind: type) -> Callable[P, Awaitable[T]]: ...
    def __get__(self, group: Any, kind: type) -> Any:
        return self if group is None else bound(self.make, group, group.caller.send)


@dataclass(frozen=True)
class Listed(Generic[P, T]):
    """A list that comes in pages: iterate it, or take one page."""

    make: Callable[P, Operation[Page[T]]]

    @overload
    def __get__(self, group: None, kind: type) -> Self: ...
    @overload
    def __get__(self, group: Group[Caller], kind: type) -> Callable[P, Pages[T]]: ...
    @overload
    def __get__(self, group: Group[AsyncCaller], kind: type) -> Callable[P, AsyncPages[T]]: ...
    def __get__(self, group: Any, kind: type) -> Any:
        return self if group is None else bound(self.make, group, group.caller.pages)


@dataclass(frozen=True)
class Followed(Generic[P, T]):
    """A stream without an end of its own: iterate it."""

    make: Callable[P, Follow[T]]

    @overload
    def __get__(self, group: None, kind: type) -> Self: ...
    @overload
    def __get__(self, group: Group[Caller], kind: type) -> Callable[P, ItemStream[T]]: ...
    @overload
    def __get__(self, group: Group[AsyncCaller], kind: type) -> Callable[P, AsyncItemStream[T]]: ...
    def __get__(self, group: Any, kind: type) -> Any:
        return self if group is None else bound(self.make, group, group.caller.follow)


@dataclass(frozen=True)
class ByLine(Generic[P]):
    """A long answer that is read line by line: iterate it."""

    make: Callable[P, Operation[None]]

    @overload
    def __get__(self, group: None, kind: type) -> Self: ...
    @overload
    def __get__(self, group: Group[Caller], kind: type) -> Callable[P, ItemStream[bytes]]: ...
    @overload
    def __get__(self, group: Group[AsyncCaller], kind: type) -> Callable[P, AsyncItemStream[bytes]]: ...
    def __get__(self, group: Any, kind: type) -> Any:
        return self if group is None else bound(self.make, group, group.caller.lines)


class CallOf(Call[P, T]):
    if TYPE_CHECKING:

        def __init__(self, make: Callable[Concatenate[str, P], Operation[T]]) -> None: ...


class ListedOf(Listed[P, T]):
    if TYPE_CHECKING:

        def __init__(self, make: Callable[Concatenate[str, P], Operation[Page[T]]]) -> None: ...


class FollowedOf(Followed[P, T]):
    if TYPE_CHECKING:

        def __init__(self, make: Callable[Concatenate[str, P], Follow[T]]) -> None: ...


def bound(make: Callable[..., Any], group: Group[Any], run: Callable[[Any], Any]) -> Callable[..., Any]:
    """The method: what `make` makes, run."""

    @wraps(make)
    def method(*args: Any, **kwargs: Any) -> Any:
        return run(make(*group.of, *args, **kwargs))

    if group.of:
        whole = signature(make)
        left = tuple(whole.parameters.values())[len(group.of) :]
        method.__signature__ = whole.replace(parameters=left)  # type: ignore[attr-defined]  # as `help` reads it
    return method


# A list that the server gives in pages: all of its items, or one page at a time.


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
