"""Declarations of the names that users call, once for the sync and the async client.

A group is generic in its caller. Its attributes pair what makes an operation with the way to run it: on a group with the
sync caller they give plain methods, on one with the async caller the same methods to be awaited; the type checker sees
which by the overloads of `ApiMethod.__get__`.

A handle is a group that is about one thing: what the functions `…_of` declare takes its id first, and the method on the
handle does without it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from functools import wraps
from inspect import signature
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from legation.client.follow import Follow
from legation.client.request import ApiRequest, FileDownload
from legation.errors import InternalError
from legation.wire.api.shape import Page

if TYPE_CHECKING:
    from legation.client.async_http import AsyncCaller, AsyncItemStream
    from legation.client.http import Caller, ItemStream

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")  # Caller or AsyncCaller
S = TypeVar("S")  # what a method gives with the one,
A = TypeVar("A")  # and with the other


class Group(Generic[C]):
    def __init__(self, caller: C, of: tuple[str, ...] = ()) -> None:
        """`of`: the ids that every operation of a handle begins with."""
        self.caller = caller
        self.of = of


@dataclass(frozen=True)
class ApiMethod(Generic[P, S, A]):
    """A name that users call: what `make` makes of the arguments, run by what `run` gets of the caller."""

    make: Callable[..., Any]
    run: Callable[[Any], Callable[[Any], Any]]

    @overload
    def __get__(self, group: None, kind: type) -> Self: ...
    @overload
    def __get__(self, group: Group[Caller], kind: type) -> Callable[P, S]: ...
    @overload
    def __get__(self, group: Group[AsyncCaller], kind: type) -> Callable[P, A]: ...
    def __get__(self, group: Any, kind: type) -> Any:
        return self if group is None else _bound(self.make, group, self.run(group.caller))


def _bound(make: Callable[..., Any], group: Group[Any], run: Callable[[Any], Any]) -> Callable[..., Any]:
    @wraps(make)
    def method(*args: Any, **kwargs: Any) -> Any:
        return run(make(*group.of, *args, **kwargs))

    if group.of:
        whole = signature(make)
        left = tuple(whole.parameters.values())[len(group.of) :]
        method.__signature__ = whole.replace(parameters=left)  # type: ignore[attr-defined]  # as `help` reads it
    return method


def calls(make: Callable[P, ApiRequest[T]]) -> ApiMethod[P, T, Awaitable[T]]:
    """Declare an operation that is answered with one value."""
    return ApiMethod(make, attrgetter("send"))


def lists(make: Callable[P, ApiRequest[Page[T]]]) -> ApiMethod[P, Pages[T], AsyncPages[T]]:
    """Declare a list that comes in pages: iterate it, or take one page."""
    return ApiMethod(make, attrgetter("pages"))


def follows(make: Callable[P, Follow[T]]) -> ApiMethod[P, ItemStream[T], AsyncItemStream[T]]:
    """Declare a stream without an end of its own: iterate it."""
    return ApiMethod(make, attrgetter("follow"))


def reads_lines(
    make: Callable[P, ApiRequest[None]],
) -> ApiMethod[P, ItemStream[bytes], AsyncItemStream[bytes]]:
    """Declare a long answer that is read line by line: iterate it."""
    return ApiMethod(make, attrgetter("lines"))


def saves(make: Callable[P, FileDownload]) -> ApiMethod[P, None, Awaitable[None]]:
    """Declare a long answer that is written into a file."""
    return ApiMethod(make, attrgetter("download"))


def calls_of(make: Callable[Concatenate[str, P], ApiRequest[T]]) -> ApiMethod[P, T, Awaitable[T]]:
    return ApiMethod(make, attrgetter("send"))


def lists_of(
    make: Callable[Concatenate[str, P], ApiRequest[Page[T]]],
) -> ApiMethod[P, Pages[T], AsyncPages[T]]:
    return ApiMethod(make, attrgetter("pages"))


def follows_of(
    make: Callable[Concatenate[str, P], Follow[T]],
) -> ApiMethod[P, ItemStream[T], AsyncItemStream[T]]:
    return ApiMethod(make, attrgetter("follow"))


class Pages(Generic[T]):
    """A list that the server gives in pages. Iterate it for every item, fetched as they are needed; each iteration starts
    anew."""

    def __init__(self, first: ApiRequest[Page[T]], send: Callable[[ApiRequest[Page[T]]], Page[T]]) -> None:
        self._first = first
        self._send = send

    def page(self) -> Page[T]:
        """The first page alone; its `next` is the `after` of the one behind it."""
        return self._send(self._first)

    def all(self) -> list[T]:
        return list(self)

    def __iter__(self) -> Iterator[T]:
        operation: ApiRequest[Page[T]] | None = self._first
        while operation is not None:
            page = self._send(operation)
            yield from page.items
            operation = _next(operation, page)


class AsyncPages(Generic[T]):
    """A list that the server gives in pages, awaited."""

    def __init__(
        self, first: ApiRequest[Page[T]], send: Callable[[ApiRequest[Page[T]]], Awaitable[Page[T]]]
    ) -> None:
        self._first = first
        self._send = send

    async def page(self) -> Page[T]:
        return await self._send(self._first)

    async def all(self) -> list[T]:
        return [item async for item in self]

    async def __aiter__(self) -> AsyncIterator[T]:
        operation: ApiRequest[Page[T]] | None = self._first
        while operation is not None:
            page = await self._send(operation)
            for item in page.items:
                yield item
            operation = _next(operation, page)


def _next(operation: ApiRequest[Page[T]], page: Page[T]) -> ApiRequest[Page[T]] | None:
    if page.next is None:
        return None
    if (operation.cursor, page.next) in operation.query:
        raise InternalError("cannot read the list: the server gives one page for ever; bring it up to date")
    others = tuple(pair for pair in operation.query if pair[0] != operation.cursor)
    return replace(operation, query=(*others, (operation.cursor, page.next)))
