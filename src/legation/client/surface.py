"""The names users call, each declared once for the sync and the async client.

A group is generic in its caller. Its attributes are descriptors that pair an operation with a way to run it:
on a group with the sync caller they give plain methods, on one with the async caller the same methods to be
awaited; the type checker sees which by the overloads of `__get__`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, overload

from legation.client import operations
from legation.client.follow import Follow
from legation.client.operation import Operation
from legation.client.pages import AsyncPages, Pages
from legation.client.repeat import PATIENCE, Reconnects
from legation.client.source import ManyStreams, OneStream
from legation.wire.api.shape import Page
from legation.wire.events import Event

if TYPE_CHECKING:
    from legation.client.async_caller import AsyncCaller, AsyncFollowing
    from legation.client.caller import Caller, Following

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")  # Caller or AsyncCaller


class Group(Generic[C]):
    def __init__(self, caller: C) -> None:
        self.caller = caller


class Call(Generic[P, T]):
    """One operation, answered with one value."""

    def __init__(self, make: Callable[P, Operation[T]]) -> None:
        self._make = make

    @overload
    def __get__(self, group: None, kind: type) -> Self: ...
    @overload
    def __get__(self, group: Group[Caller], kind: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, group: Group[AsyncCaller], kind: type) -> Callable[P, Awaitable[T]]: ...
    def __get__(self, group: Any, kind: type) -> Any:
        return self if group is None else _bound(self._make, group.caller.send)


class Listed(Generic[P, T]):
    """A list that comes in pages: iterate it, or take one page."""

    def __init__(self, make: Callable[P, Operation[Page[T]]]) -> None:
        self._make = make

    @overload
    def __get__(self, group: None, kind: type) -> Self: ...
    @overload
    def __get__(self, group: Group[Caller], kind: type) -> Callable[P, Pages[T]]: ...
    @overload
    def __get__(self, group: Group[AsyncCaller], kind: type) -> Callable[P, AsyncPages[T]]: ...
    def __get__(self, group: Any, kind: type) -> Any:
        return self if group is None else _bound(self._make, group.caller.pages)


class Followed(Generic[P, T]):
    """A stream without an end of its own: iterate it."""

    def __init__(self, make: Callable[P, Follow[T]]) -> None:
        self._make = make

    @overload
    def __get__(self, group: None, kind: type) -> Self: ...
    @overload
    def __get__(self, group: Group[Caller], kind: type) -> Callable[P, Following[T]]: ...
    @overload
    def __get__(self, group: Group[AsyncCaller], kind: type) -> Callable[P, AsyncFollowing[T]]: ...
    def __get__(self, group: Any, kind: type) -> Any:
        return self if group is None else _bound(self._make, group.caller.follow)


def _bound(make: Callable[..., Any], run: Callable[[Any], Any]) -> Callable[..., Any]:
    @wraps(make)
    def method(*args: Any, **kwargs: Any) -> Any:
        return run(make(*args, **kwargs))

    return method


def follow(stream: str, after: int = 0, *, patience: float = PATIENCE) -> Follow[Event]:
    """Every event above `after`: all that happened, then all that happens, until the stream is closed.

    Connections come and go without a gap or a double. `patience`: seconds without a sign of the server.
    """
    return Follow(OneStream(stream, after), Reconnects(patience))


def follow_many(after: Mapping[str, int], *, patience: float = PATIENCE) -> Follow[tuple[str, Event]]:
    """Several streams over one connection: pairs of a stream's name and an event of it."""
    return Follow(ManyStreams(after), Reconnects(patience))


class Streams(Group[C]):
    list = Listed(operations.list_streams)
    events = Listed(operations.list_events)
    follow = Followed(follow)
    follow_many = Followed(follow_many)


class Tokens(Group[C]):
    list = Listed(operations.list_tokens)
    create = Call(operations.create_token)
    revoke = Call(operations.revoke_token)


class Users(Group[C]):
    list = Listed(operations.list_users)
    get = Call(operations.read_user)
    create = Call(operations.create_user)
    change = Call(operations.change_user)


class Workspaces(Group[C]):
    list = Listed(operations.list_workspaces)
    get = Call(operations.read_workspace)
    create = Call(operations.create_workspace)
    members = Listed(operations.list_members)
    set_role = Call(operations.set_role)
    remove = Call(operations.remove_member)


class Surface(Group[C]):
    health = Call(operations.health)
    ready = Call(operations.ready)
    info = Call(operations.info)
    stop = Call(operations.stop)
    rotate_keys = Call(operations.rotate_keys)
    me = Call(operations.me)
    sign_in_link = Call(operations.sign_in_link)
    audit = Listed(operations.list_audit)

    def __init__(self, caller: C) -> None:
        super().__init__(caller)
        self.streams: Streams[C] = Streams(caller)
        self.tokens: Tokens[C] = Tokens(caller)
        self.users: Users[C] = Users(caller)
        self.workspaces: Workspaces[C] = Workspaces(caller)
