"""Names that users call: how one is declared of an operation, once for the sync and the async client.

A group is generic in its caller. Its attributes pair what makes an operation with the way to run it: on a group with the
sync caller they give plain methods, on one with the async caller the same methods to be awaited; the type checker sees
which by the overloads of `ApiMethod.__get__`.

A handle is a group that is about one thing: what `of` declares takes its id first, and the method on the handle does
without it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from importlib import import_module
from inspect import signature
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast, overload

import msgspec

from legation.client.follow import Follow
from legation.client.request import ApiRequest, FileDownload, PollRequest
from legation.wire.api.shape import Page

if TYPE_CHECKING:
    from legation.client.async_http import AsyncCaller, AsyncItemStream, AsyncPages
    from legation.client.http import Caller, ItemStream, Pages

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


class ApiMethod(msgspec.Struct, Generic[P, S, A], frozen=True, dict=True):
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
        if group is None:
            return self
        run = self.run(group.caller)

        @wraps(self.make)
        def method(*args: Any, **kwargs: Any) -> Any:
            return run(self.make(*group.of, *args, **kwargs))

        if group.of:
            whole = signature(self.make)
            left = tuple(whole.parameters.values())[len(group.of) :]
            method.__signature__ = whole.replace(parameters=left)  # type: ignore[attr-defined]  # as `help` reads it
        return method


class LateMethod:
    """A name that another group has, whose module loads when it is called."""

    def __init__(self, module: str, group: str, name: str) -> None:
        self._where = module, group, name

    def __get__(self, group: Any, kind: type) -> Any:
        module, owner, name = self._where
        method: ApiMethod[..., Any, Any] = vars(getattr(import_module(module), owner))[name]
        return method.__get__(group, kind)


def calls(make: Callable[P, ApiRequest[T]]) -> ApiMethod[P, T, Awaitable[T]]:
    """Declare an operation that is answered with one value."""
    return ApiMethod(make, attrgetter("send"))


def polls(make: Callable[P, PollRequest[T]]) -> ApiMethod[P, T, Awaitable[T]]:
    """Declare an operation that is asked again until what is waited for is so."""
    return ApiMethod(make, attrgetter("poll"))


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


def of(method: ApiMethod[Concatenate[str, P], S, A]) -> ApiMethod[P, S, A]:
    """Declare it of a handle, whose id comes first."""
    return cast("ApiMethod[P, S, A]", method)
