"""Sessions as seed 002 has them over HTTP: camelCase; events are in `wire/universal`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from legation.wire.api.approvals import Value
from legation.wire.api.shape import RequestBody, ResponseBody

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Where = Annotated[str, Meta(min_length=1, max_length=4096)]
AgentMode = Annotated[str, Meta(min_length=1, max_length=64)]  # build, plan, or one that the agent names
MessageId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,128}$(?!\n)")]
PermissionMode = Literal["default", "plan", "bypass", "acceptEdits"]
PermissionReplyWord = Literal["once", "always", "reject"]
ALWAYS: Final = "allowed for the rest of the session"  # what an agent hears whose call was answered so


class LocalMcp(RequestBody, tag_field="type", tag="local", kw_only=True):
    """A program that speaks MCP on its standard streams."""

    command: str | list[str]
    args: tuple[str, ...] = ()
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    enabled: bool | None = None
    timeout_ms: int | None = None


class RemoteMcp(RequestBody, tag_field="type", tag="remote", kw_only=True):
    """An MCP server at an address. The last three are sandbox-agent's: none may say anything."""

    url: str
    transport: Literal["http", "sse"] | None = None
    headers: Mapping[str, str] | None = None
    enabled: bool | None = None
    timeout_ms: int | None = None
    bearer_token_env_var: str | None = None
    env_headers: Mapping[str, str] | None = None
    oauth: bool | Mapping[str, Value] | None = None


class SkillSource(RequestBody, kw_only=True):
    type: str
    source: str
    skills: list[str] | None = None
    ref: str | None = None
    subpath: str | None = None


class Skills(RequestBody, kw_only=True):
    sources: list[SkillSource]


class NewSession(RequestBody, kw_only=True):
    """`directory`: where the agent works; without it a folder of the session's own, or that of the session it forks or
    continues.

    `fork`: a session of the same agent, with whose history it begins; that one goes on as it is. `continues`: a session,
    of whatever agent, that cannot be taken up again: its transcript is told to the agent with the first message."""

    agent: Name
    agent_mode: AgentMode | None = None
    permission_mode: PermissionMode | None = None
    model: Name | None = None
    variant: Name | None = None
    agent_version: Name | None = None
    directory: Where | None = None
    title: Annotated[str, Meta(max_length=512)] | None = None
    mcp: Mapping[str, LocalMcp | RemoteMcp] | None = None
    skills: Skills | None = None
    fork: Name | None = None
    continues: Name | None = None


class AgentFailure(ResponseBody, kw_only=True):
    type: str
    message: str
    agent: str | None = None
    session_id: str | None = None
    details: Value = None


class SessionCreated(ResponseBody, kw_only=True):
    healthy: bool
    native_session_id: str | None = None
    error: AgentFailure | None = None


class SessionInfo(ResponseBody, kw_only=True):
    session_id: str
    agent: str
    agent_mode: str
    permission_mode: str
    model: str | None
    variant: str | None
    native_session_id: str | None
    ended: bool
    event_count: int
    created_at: int
    updated_at: int
    directory: str | None
    title: str | None
    status: str  # ours: starting, active, resuming, disconnected, closed; in lists, away: its server does not answer
    busy: bool = False  # a turn runs
    queued: int = 0  # messages that wait for it
    exit: Mapping[str, Value] | None = None  # of the agent's process that ended: code, signal, reason
    cut: Mapping[str, Value] | None = (
        None  # the last turn, by a restart or a crash: at, reason; until the next begins
    )
    failed: Mapping[str, Value] | None = (
        None  # the last turn, with an error: at, reason; until the next begins
    )
    pending_permissions: tuple[str, ...] = ()  # by id: what its agent waits for, answered as approvals
    pending_questions: tuple[str, ...] = ()
    mcp: list[str] | None = None  # by name: what they are given are secrets
    skills: list[str] | None = None
    continues: str | None = None  # the session whose transcript it began with
    continued_by: str | None = None  # the one that goes on from here
    server: str | None = None  # in a list of several servers: where it is


class SessionList(ResponseBody, kw_only=True):
    """`next` is the cursor of the page behind, null at the end; only where pages were asked for."""

    sessions: list[SessionInfo]
    next: str | msgspec.UnsetType | None = msgspec.UNSET


class Recording(ResponseBody, kw_only=True):
    """A session that `legation exec` ran by itself. `asks`: what it waits for in its own terminal, where somebody must answer."""

    session_id: str
    agent: str
    directory: str | None
    title: str | None
    status: Literal["running", "closed", "interrupted"]
    event_count: int
    created_at: int
    updated_at: int
    asks: str | None = None
    read_only: Literal[True] = True


class RecordingList(ResponseBody, kw_only=True):
    recordings: list[Recording]


class Attachment(RequestBody, kw_only=True):
    path: Where
    mime: str | None = None
    filename: str | None = None


class Words(RequestBody, kw_only=True):
    message: Annotated[str, Meta(min_length=1)]
    attachments: tuple[Attachment, ...] = ()


class NewMessage(Words, kw_only=True):
    """`message_id` is your name for it: the `prompt-started` of its turn says it again. Without one it gets `msg_...`."""

    message_id: MessageId | None = None


class QuestionAnswers(RequestBody, kw_only=True):
    """One list of chosen options, or of words, for each question that was asked at once."""

    answers: list[list[str]]


class PermissionAnswer(RequestBody, kw_only=True):
    reply: PermissionReplyWord


class SessionChange(RequestBody, kw_only=True):
    """In mid-session; only what is given changes."""

    agent_mode: AgentMode | None = None
    permission_mode: PermissionMode | None = None
    model: Name | None = None
    variant: Name | None = None
    title: Annotated[str, Meta(max_length=512)] | None = None


class EventPage(ResponseBody, kw_only=True):
    """Events as they were projected: bytes that are embedded, not written anew."""

    events: list[msgspec.Raw]
    has_more: bool


class SessionSnapshot(ResponseBody, kw_only=True):
    """What was said in a session up to `seq` of its stream, which is `offset` of its events, summed up."""

    seq: int
    offset: int
    snapshot: msgspec.Raw
