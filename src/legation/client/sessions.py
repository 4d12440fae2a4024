"""Sessions: the operations on them, their events followed, and a session in hand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from legation.client.decode import Frame
from legation.client.follow import Broken, Follow, FollowSource
from legation.client.method import ApiMethod, C, Group, P, calls, follows, lists, of
from legation.client.request import (
    ASK_AGENT_READ,
    INSTALL_READ,
    PATIENCE,
    ApiRequest,
    ApiResponse,
    AsJson,
    Query,
    Read,
    Reconnects,
    encoded,
    get,
    nothing,
    of_body,
    query_of,
    segment,
    sending,
)
from legation.client.session_event import AnyData, SessionEvent, read_event_page, read_session_event
from legation.clock import new_id
from legation.errors import AgentError, InvalidParams
from legation.wire.api.sessions import (
    Attachment,
    LocalMcp,
    NewMessage,
    NewSession,
    PermissionAnswer,
    PermissionMode,
    PermissionReplyWord,
    QuestionAnswers,
    RemoteMcp,
    SessionChange,
    SessionCreated,
    SessionInfo,
    SessionList,
    SessionSnapshot,
    Skills,
    Words,
)
from legation.wire.api.shape import Page
from legation.wire.universal.shapes import ItemEvent, ItemText, Permission, Question, SessionEnded, Turn

if TYPE_CHECKING:
    from legation.client.async_http import AsyncCaller
    from legation.client.http import Caller


# Operations on sessions: what an agent is told, asked and answered.

PAGE = 1000  # events at a time, where nobody says how many


def session_path(session: str) -> str:
    return f"/v1/sessions/{segment(session)}"


def list_sessions() -> ApiRequest[list[SessionInfo]]:
    """The newest first."""
    return ApiRequest("GET", "/v1/sessions", lambda answered: _listed(answered).sessions)


def page_sessions(limit: int = 100) -> ApiRequest[Page[SessionInfo]]:
    """The newest first, fetched as they are needed, so many at a time."""
    return ApiRequest("GET", "/v1/sessions", _page, query_of({"limit": limit}), cursor="cursor")


def create_session(
    agent: str,
    *,
    session_id: str | None = None,
    directory: str | None = None,
    agent_mode: str | None = None,
    permission_mode: PermissionMode | None = None,
    model: str | None = None,
    variant: str | None = None,
    agent_version: str | None = None,
    title: str | None = None,
    mcp: Mapping[str, LocalMcp | RemoteMcp] | None = None,
    skills: Skills | None = None,
    fork: str | None = None,
    continues: str | None = None,
) -> ApiRequest[str]:
    """A session with an agent, which is installed if it has to be. Without a `session_id` one is made.

    `directory` is where the agent works, on the server's machine; without it, a folder of the session's own. `fork` is
    a session of the same agent that it begins with: what was said there is known to the agent, and read there.
    `continues` is a session that cannot be taken up again: its agent is told the transcript with the first message."""
    chosen = new_id("ses") if session_id is None else session_id
    body = NewSession(
        agent=agent,
        directory=directory,
        agent_mode=agent_mode,
        permission_mode=permission_mode,
        model=model,
        variant=variant,
        agent_version=agent_version,
        title=title,
        mcp=mcp,
        skills=skills,
        fork=fork,
        continues=continues,
    )
    return ApiRequest(
        "POST", session_path(chosen), _id_if_healthy(chosen), body=encoded(body), wait=INSTALL_READ
    )


def open_session(session: str) -> ApiRequest[str]:
    """One that there is, by its id."""
    return ApiRequest("GET", session_path(session), lambda answered: _info(answered).session_id)


def read_session(session: str) -> ApiRequest[SessionInfo]:
    """Read what it is now."""
    return get(session_path(session), SessionInfo)


def change_session(
    session: str,
    *,
    model: str | None = None,
    agent_mode: str | None = None,
    permission_mode: PermissionMode | None = None,
    variant: str | None = None,
    title: str | None = None,
) -> ApiRequest[SessionInfo]:
    """Change what is given, and nothing else."""
    body = SessionChange(
        model=model, agent_mode=agent_mode, permission_mode=permission_mode, variant=variant, title=title
    )
    return replace(sending("PATCH", session_path(session), body, SessionInfo), wait=ASK_AGENT_READ)


def send_message(
    session: str, text: str, attachments: Iterable[Attachment | str] = (), *, message_id: str | None = None
) -> ApiRequest[None]:
    """Returns when the server has it; `events` tells what becomes of it. An attachment is a path on the server. The
    `prompt-started` in the session's stream has the `message_id`."""
    path = f"{session_path(session)}/messages"
    return _told(path, new_message(text, attachments, message_id), ASK_AGENT_READ)


def steer_turn(session: str, text: str, attachments: Iterable[Attachment | str] = ()) -> ApiRequest[None]:
    """Say something to the turn that runs; a `Conflict` where none does. Claude Code and Codex take it, others may not."""
    body = Words(message=text, attachments=_files(attachments))
    return _told(f"{session_path(session)}/steer", body, ASK_AGENT_READ)


def list_session_events(
    session: str,
    after: int = 0,
    *,
    limit: int = PAGE,
    raw: bool = False,
    generation: int | Literal["all"] | None = None,
) -> ApiRequest[Page[SessionEvent]]:
    """List what is recorded above the number `after`, to its end; `events` also gives what comes. What was recorded before
    the agent told the history anew is an earlier `generation`, counted from 1."""
    query = query_of(
        {
            "offset": after,
            "limit": limit,
            "includeRaw": "true" if raw else None,
            "generation": generation,
        }
    )
    path = f"{session_path(session)}/events"
    return ApiRequest("GET", path, of_body(read_event_page), query, cursor="offset")


def read_snapshot(session: str) -> ApiRequest[SessionSnapshot]:
    """Read what was said so far, summed up. `events(snapshot.offset)` gives what follows, and nothing twice."""
    return get(f"{session_path(session)}/snapshot", SessionSnapshot)


def answer_permission(
    session: str, permission: str | Permission, reply: PermissionReplyWord
) -> ApiRequest[None]:
    """`always`: also what it asks for of the same kind later in this session. The first answer stands."""
    id_ = permission if isinstance(permission, str) else permission.permission_id
    path = f"{session_path(session)}/permissions/{segment(id_)}/reply"
    return _told(path, PermissionAnswer(reply=reply))


def reply_question(
    session: str, question: str | Question, answers: str | Sequence[str | Sequence[str]]
) -> ApiRequest[None]:
    """One answer for each thing that was asked at once: a word, or a list of them where several may be chosen."""
    each = [answers] if isinstance(answers, str) else answers
    body = QuestionAnswers(answers=[[one] if isinstance(one, str) else [*one] for one in each])
    return _told(f"{_question(session, question)}/reply", body)


def reject_question(session: str, question: str | Question) -> ApiRequest[None]:
    """The agent is told that it will not be answered."""
    return ApiRequest("POST", f"{_question(session, question)}/reject", nothing)


def cancel_turn(session: str) -> ApiRequest[None]:
    """The turn that runs, if one does; the session goes on."""
    return ApiRequest("POST", f"{session_path(session)}/cancel", nothing, wait=ASK_AGENT_READ)


def terminate_session(session: str) -> ApiRequest[None]:
    """Its agent is stopped with all that it started; what happened can still be read."""
    return ApiRequest("POST", f"{session_path(session)}/terminate", nothing, wait=ASK_AGENT_READ)


def delete_session(session: str) -> ApiRequest[None]:
    """Delete it for good: nothing of it is left but its name, which is not used again. A `Conflict` while a turn runs."""
    return ApiRequest("DELETE", session_path(session), nothing, wait=ASK_AGENT_READ)


def new_message(
    text: str, attachments: Iterable[Attachment | str], message_id: str | None = None
) -> NewMessage:
    return NewMessage(message=text, attachments=_files(attachments), message_id=message_id)


def _files(attachments: Iterable[Attachment | str]) -> tuple[Attachment, ...]:
    return tuple(Attachment(path=each) if isinstance(each, str) else each for each in attachments)


def _told(path: str, body: msgspec.Struct, wait: float | None = None) -> ApiRequest[None]:
    return ApiRequest("POST", path, nothing, body=encoded(body), wait=wait)


def _question(session: str, question: str | Question) -> str:
    id_ = question if isinstance(question, str) else question.question_id
    return f"{session_path(session)}/questions/{segment(id_)}"


def _id_if_healthy(session: str) -> Read[str]:
    created = AsJson(SessionCreated)

    def read(answered: ApiResponse) -> str:
        found = created(answered)
        if found.error is not None or not found.healthy:
            why = found.error.message if found.error else "its agent is not well"
            raise AgentError(f"cannot work in session {session}: {why}; see `legation agents doctor`")
        return session

    return read


def _page(answered: ApiResponse) -> Page[SessionInfo]:
    found = _listed(answered)
    return Page(items=found.sessions, next=found.next or None)


_listed = AsJson(SessionList)
_info = AsJson(SessionInfo)


# The events of one session, and of one turn in it, followed.
#
# INV-C8  Numbers go up; they have gaps, so that none can be missed by its number: within a connection the server leaves
# nothing out, and the next one goes on behind the last number that was given.


class SessionEvents(FollowSource[SessionEvent]):
    def __init__(self, session: str, after: int, *, raw: bool) -> None:
        if after < 0:
            raise InvalidParams("cannot follow a session from a negative number: 0 is its beginning")
        self.path = f"{session_path(session)}/events/sse"
        self._after = after
        self._raw = raw_query(raw)

    def begin_after(self, sequence: int) -> None:
        self._after = sequence

    def connect(self) -> tuple[Query, dict[str, str]]:
        after = str(self._after)
        return (("offset", after), *self._raw), self._again(after)

    def read(self, frame: Frame) -> tuple[SessionEvent, ...]:
        try:
            event = read_session_event(frame.data)
        except (ValueError, RecursionError) as error:
            raise Broken(f"what is no event: {error}") from error
        if event.sequence <= self._after:
            return ()
        self._after = event.sequence
        return (event,)


class TurnEvents(FollowSource[SessionEvent]):
    """The first connection takes the message there; those after it go on in the session's own stream.

    Messages wait for each other, so turns of others may come before: ours is the one that begins with our text."""

    def __init__(self, session: str, message: NewMessage, *, raw: bool) -> None:
        self.path = f"{session_path(session)}/messages/stream"
        self.body = encoded(message)
        self._text = ItemText(message.message)
        self._rest = SessionEvents(session, 0, raw=raw)
        self._query = raw_query(raw)
        self._begun: SessionEvent | None = None  # a turn of which it is not known yet whether it is ours
        self._ours: str | None = None

    def connect(self) -> tuple[Query, dict[str, str]]:
        if not self._connected_before:
            self._connected_before = True
            return self._query, {}
        self.path, self.body = self._rest.path, None
        return self._rest.connect()

    def read(self, frame: Frame) -> tuple[SessionEvent, ...]:
        if frame.event == "accepted":
            self._rest.begin_after(_number(frame.id))
            return ()
        return tuple(each for event in self._rest.read(frame) for each in self._of_ours(event))

    def ends(self, frame: Frame) -> bool:
        """A turn's own stream may end before the turn does: when the agent asks for something."""
        return self.body is None and self._rest.ends(frame)

    def _of_ours(self, event: SessionEvent) -> tuple[SessionEvent, ...]:
        data = event.data
        if self._ours is not None:
            self.over = _is_end(data, self._ours)
            return (event,)
        if isinstance(data, SessionEnded):
            self.over = data.reason == "terminated"  # else the next message, ours, starts an agent again
            return (event,) if self.over else ()
        if isinstance(data, Turn):
            self._begun = event if data.phase == "started" else None
        elif self._begun is not None and self._says_ours(data):
            begun, self._ours = self._begun, _turn_of(self._begun)
            return (begun, event)
        return ()

    def _says_ours(self, data: AnyData) -> bool:
        return isinstance(data, ItemEvent) and data.item.role == "user" and self._text in data.item.content


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise Broken("what is no number of an event")
    return int(text)


def _is_end(data: AnyData, turn: str) -> bool:
    return isinstance(data, SessionEnded) or (
        isinstance(data, Turn) and data.phase == "ended" and (data.turn_id or "") == turn
    )


def _turn_of(begun: SessionEvent) -> str:
    return (begun.data.turn_id or "") if isinstance(begun.data, Turn) else ""


def follow_session(
    session: str, after: int = 0, *, raw: bool = False, patience: float = PATIENCE
) -> Follow[SessionEvent]:
    """Every event above the number `after`: all that happened, then all that happens, until the session is deleted.

    Connections come and go without a gap or a double. `raw`: with what the agent sent.
    `patience`: seconds without a sign of the server."""
    return Follow(SessionEvents(session, after, raw=raw), Reconnects(patience))


def follow_turn(
    session: str,
    text: str,
    attachments: tuple[Attachment | str, ...] = (),
    *,
    raw: bool = False,
    patience: float = PATIENCE,
) -> Follow[SessionEvent]:
    """Sends a message when the iteration begins, and gives the events of its turn, to its end.

    A cut connection is made anew; the message is never sent twice. Who stops iterating does not stop the turn."""
    return Follow(TurnEvents(session, new_message(text, attachments), raw=raw), Reconnects(patience))


def raw_query(raw: bool) -> Query:
    return (("includeRaw", "true"),) if raw else ()


# A session in hand, sync or async: all that can be done with one, without saying its id again.


class ClientSession(Group[C]):
    """A session in hand, made by `sessions.create` and `sessions.get`. It holds no connection, and need not be closed."""

    info = of(calls(read_session))
    send = of(calls(send_message))
    turn = of(follows(follow_turn))
    events = of(follows(follow_session))
    recorded = of(lists(list_session_events))
    snapshot = of(calls(read_snapshot))
    answer = of(calls(answer_permission))
    reply = of(calls(reply_question))
    reject = of(calls(reject_question))
    steer = of(calls(steer_turn))
    cancel = of(calls(cancel_turn))
    change = of(calls(change_session))
    terminate = of(calls(terminate_session))
    delete = of(calls(delete_session))

    def __init__(self, caller: C, id_: str) -> None:
        super().__init__(caller, (id_,))
        self.id = id_

    def __repr__(self) -> str:
        return f"<Session {self.id}>"


def opens(
    make: Callable[P, ApiRequest[str]],
) -> ApiMethod[P, ClientSession[Caller], Awaitable[ClientSession[AsyncCaller]]]:
    """Declare an operation whose answer is the id of a session, given as the session in hand."""
    return ApiMethod(make, lambda caller: partial(caller.send_for, make=partial(ClientSession, caller)))


class SessionsApi(Group[C]):
    list = calls(list_sessions)
    pages = lists(page_sessions)
    create = opens(create_session)
    get = opens(open_session)
