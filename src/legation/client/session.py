"""A session in hand, sync or async: all that can be done with one, without saying its id again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, overload

from legation.client import session_operations as operations
from legation.client.group import C, Call, CallOf, FollowedOf, Group, Listed, ListedOf, P, bound
from legation.client.operation import Operation
from legation.client.session_source import follow_session, follow_turn

if TYPE_CHECKING:
    from legation.client.async_caller import AsyncCaller
    from legation.client.caller import Caller


class Session(Group[C]):
    """Made by `sessions.create` and `sessions.get`. It holds no connection, and need not be closed."""

    info = CallOf(operations.read_session)
    send = CallOf(operations.send_message)
    turn = FollowedOf(follow_turn)
    events = FollowedOf(follow_session)
    recorded = ListedOf(operations.list_session_events)
    answer = CallOf(operations.answer_permission)
    reply = CallOf(operations.reply_question)
    reject = CallOf(operations.reject_question)
    steer = CallOf(operations.steer_turn)
    cancel = CallOf(operations.cancel_turn)
    change = CallOf(operations.change_session)
    terminate = CallOf(operations.terminate_session)
    delete = CallOf(operations.delete_session)

    def __init__(self, caller: C, id_: str) -> None:
        super().__init__(caller, (id_,))
        self.id = id_

    def __repr__(self) -> str:
        return f"<Session {self.id}>"


@dataclass(frozen=True)
class Opening(Generic[P]):
    """An operation whose answer is the id of a session, given as the session in hand."""

    make: Callable[P, Operation[str]]

    @overload
    def __get__(self, group: None, kind: type) -> Self: ...
    @overload
    def __get__(self, group: Group[Caller], kind: type) -> Callable[P, Session[Caller]]: ...
    @overload
    def __get__(
        self, group: Group[AsyncCaller], kind: type
    ) -> Callable[P, Awaitable[Session[AsyncCaller]]]: ...
    def __get__(self, group: Any, kind: type) -> Any:
        if group is None:
            return self
        in_hand = partial(Session, group.caller)
        return bound(self.make, group, partial(group.caller.send_for, make=in_hand))


class Sessions(Group[C]):
    list = Call(operations.list_sessions)
    pages = Listed(operations.page_sessions)
    create = Opening(operations.create_session)
    get = Opening(operations.open_session)
