"""Operations on sessions: what an agent is told, asked and answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import msgspec

from legation.client.operation import (
    Answered,
    AsJson,
    Operation,
    Read,
    encoded,
    get,
    nothing,
    of_body,
    query_of,
    sending,
)
from legation.client.session_event import SessionEvent, read_event_page
from legation.client.target import segment
from legation.client.timeouts import ASK_AGENT_READ, INSTALL_READ
from legation.errors import AgentError
from legation.ids import new_id
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
    Skills,
    Words,
)
from legation.wire.api.shape import Page
from legation.wire.universal.shapes import Permission, Question

PAGE = 1000  # events at a time, where nobody says how many


def session_path(session: str) -> str:
    return f"/v1/sessions/{segment(session)}"


def list_sessions() -> Operation[list[SessionInfo]]:
    """The newest first."""
    return Operation("GET", "/v1/sessions", lambda answered: _listed(answered).sessions)


def page_sessions(limit: int = 100) -> Operation[Page[SessionInfo]]:
    """The newest first, fetched as they are needed, so many at a time."""
    return Operation("GET", "/v1/sessions", _page, query_of({"limit": limit}), cursor="cursor")


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
) -> Operation[str]:
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
    return Operation(
        "POST", session_path(chosen), _id_if_healthy(chosen), body=encoded(body), wait=INSTALL_READ
    )


def open_session(session: str) -> Operation[str]:
    """One that there is, by its id."""
    return Operation("GET", session_path(session), lambda answered: _info(answered).session_id)


def read_session(session: str) -> Operation[SessionInfo]:
    """What it is now."""
    return get(session_path(session), SessionInfo)


def change_session(
    session: str,
    *,
    model: str | None = None,
    agent_mode: str | None = None,
    permission_mode: PermissionMode | None = None,
    variant: str | None = None,
    title: str | None = None,
) -> Operation[SessionInfo]:
    """Only what is given changes."""
    body = SessionChange(
        model=model, agent_mode=agent_mode, permission_mode=permission_mode, variant=variant, title=title
    )
    return replace(sending("PATCH", session_path(session), body, SessionInfo), wait=ASK_AGENT_READ)


def send_message(
    session: str, text: str, attachments: Iterable[Attachment | str] = (), *, message_id: str | None = None
) -> Operation[None]:
    """Returns when the server has it; `events` tells what becomes of it. An attachment is a path on the server. The
    `prompt-started` in the session's stream has the `message_id`."""
    path = f"{session_path(session)}/messages"
    return _told(path, new_message(text, attachments, message_id), ASK_AGENT_READ)


def steer_turn(session: str, text: str, attachments: Iterable[Attachment | str] = ()) -> Operation[None]:
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
) -> Operation[Page[SessionEvent]]:
    """What is recorded above the number `after`, to its end; `events` also gives what comes. What was recorded before
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
    return Operation("GET", path, of_body(read_event_page), query, cursor="offset")


def answer_permission(
    session: str, permission: str | Permission, reply: PermissionReplyWord
) -> Operation[None]:
    """`always`: also what it asks for of the same kind later in this session. The first answer stands."""
    id_ = permission if isinstance(permission, str) else permission.permission_id
    path = f"{session_path(session)}/permissions/{segment(id_)}/reply"
    return _told(path, PermissionAnswer(reply=reply))


def reply_question(
    session: str, question: str | Question, answers: str | Sequence[str | Sequence[str]]
) -> Operation[None]:
    """One answer for each thing that was asked at once: a word, or a list of them where several may be chosen."""
    each = [answers] if isinstance(answers, str) else answers
    body = QuestionAnswers(answers=[[one] if isinstance(one, str) else [*one] for one in each])
    return _told(f"{_question(session, question)}/reply", body)


def reject_question(session: str, question: str | Question) -> Operation[None]:
    """The agent is told that it will not be answered."""
    return Operation("POST", f"{_question(session, question)}/reject", nothing)


def cancel_turn(session: str) -> Operation[None]:
    """The turn that runs, if one does; the session goes on."""
    return Operation("POST", f"{session_path(session)}/cancel", nothing, wait=ASK_AGENT_READ)


def terminate_session(session: str) -> Operation[None]:
    """Its agent is stopped with all that it started; what happened can still be read."""
    return Operation("POST", f"{session_path(session)}/terminate", nothing, wait=ASK_AGENT_READ)


def delete_session(session: str) -> Operation[None]:
    """For good: nothing of it is left but its name, which is not used again. A `Conflict` while a turn runs."""
    return Operation("DELETE", session_path(session), nothing, wait=ASK_AGENT_READ)


def new_message(
    text: str, attachments: Iterable[Attachment | str], message_id: str | None = None
) -> NewMessage:
    return NewMessage(message=text, attachments=_files(attachments), message_id=message_id)


def _files(attachments: Iterable[Attachment | str]) -> tuple[Attachment, ...]:
    return tuple(Attachment(path=each) if isinstance(each, str) else each for each in attachments)


def _told(path: str, body: msgspec.Struct, wait: float | None = None) -> Operation[None]:
    return Operation("POST", path, nothing, body=encoded(body), wait=wait)


def _question(session: str, question: str | Question) -> str:
    id_ = question if isinstance(question, str) else question.question_id
    return f"{session_path(session)}/questions/{segment(id_)}"


def _id_if_healthy(session: str) -> Read[str]:
    created = AsJson(SessionCreated)

    def read(answered: Answered) -> str:
        found = created(answered)
        if found.error is not None or not found.healthy:
            why = found.error.message if found.error else "its agent is not well"
            raise AgentError(f"cannot work in session {session}: {why}; see `legation agents doctor`")
        return session

    return read


def _page(answered: Answered) -> Page[SessionInfo]:
    found = _listed(answered)
    return Page(items=found.sessions, next=found.next or None)


_listed = AsJson(SessionList)
_info = AsJson(SessionInfo)
