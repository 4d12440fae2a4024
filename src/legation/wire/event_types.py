"""Event types of Legation's own: on the streams of a session, of a host, of a server, of approvals and of the inbox;
diagnostics. Rows of the log from typed payloads, and typed payloads from rows; session updates in a normalised shape.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache
from typing import Final, Literal, TypeAlias, cast, get_args

import msgspec

from legation.wire import jsontext
from legation.wire.acp.methods import McpServer, McpTransport, PermissionOption, StopReason, Usage
from legation.wire.acp.rpc import RpcError
from legation.wire.acp.updates import (
    ConfigOption,
    ContentBlock,
    Diff,
    SessionModeState,
    SessionUpdate,
    Unrecognized,
    decode_leniently,
    decode_update,
)
from legation.wire.action import Action, Ask, Decision, Outcome
from legation.wire.api.approvals import ApprovalChanged
from legation.wire.api.inbox import InboxChanged
from legation.wire.events import UNRECOGNIZED, UPDATE_TYPES, Draft, Event, Payload, params_draft

# Legation's own events on a session's stream: what ACP has no update for.

Status = Literal["starting", "active", "resuming", "disconnected", "closed", "deleted"]
Turn = Literal["accepted", "running", "requires-action", "idle"]
QuestionOutcome = Literal["accepted", "declined", "expired", "superseded", "cancelled"]


# In the `data` of the error that a turn ends with which its host cut off: nobody cancelled it, and no agent ended it.
CUT: Final[Mapping[str, object]] = {"cut": True}


class SessionStatus(Payload):
    """The session's status changed."""

    status: Status
    reason: str | None = None


class SetupFacts(Payload):
    """What the agent answered of its modes and options, as they are now: when it took the session, or when one of them was
    chosen and it said nothing of it by itself. What is absent is as it was."""

    modes: SessionModeState | None = None
    config_options: tuple[ConfigOption, ...] | None = None


class SessionReset(Payload):
    """The history before this event no longer counts: what follows replaces it, with fresh numbers."""

    reason: str | None = None


class TurnState(Payload):
    """A turn moved on; when idle, `reason` is the stop reason or why it ended without one."""

    turn: str
    state: Turn
    reason: str | None = None


class PromptStarted(Payload):
    """A prompt was handed to the agent. `message` names the one of the sessions API that it comes from."""

    turn: str
    prompt: tuple[ContentBlock, ...]
    message: str | None = None


class PromptFinished(Payload):
    """The agent answered the prompt; with an `error`, the stop reason is a placeholder."""

    turn: str
    stop_reason: StopReason
    error: RpcError | None = None
    usage: Usage | None = None

    @property
    def cut_by(self) -> str | None:
        """The reason why its host cut it off, where it did."""
        return self.error.message if self.error is not None and self.error.data == CUT else None


class PermissionAsked(Payload):
    """The agent asks whether it may act; it waits until the answer of the same `id`."""

    id: str
    title: str
    action: Action
    options: tuple[PermissionOption, ...]
    asked_at: int
    expires_at: int | None = None
    tool_call_id: str | None = None
    turn: str | None = None
    diffs: tuple[Diff, ...] = ()

    @classmethod
    def from_ask(cls, ask: Ask) -> "PermissionAsked":
        return cls(
            id=ask.id,
            title=ask.title,
            action=ask.action,
            options=ask.options,
            asked_at=ask.asked_at,
            expires_at=ask.expires_at,
            tool_call_id=ask.tool_call_id,
            turn=ask.turn,
            diffs=ask.diffs,
        )


class PermissionAnswered(Payload):
    """A permission was decided, by whom and why; `optionId` is what the agent was told, absent if cancelled,
    and `message` in words."""

    id: str
    outcome: Outcome
    by: str
    option_id: str | None = None
    reason: str | None = None
    message: str | None = None
    by_name: str | None = None  # where `by` is an id: a person's, or `supervisor:` and its token's name

    @classmethod
    def from_decision(cls, ask_id: str, decision: Decision, option_id: str | None) -> "PermissionAnswered":
        return cls(
            id=ask_id,
            outcome=decision.outcome,
            by=decision.by,
            option_id=option_id,
            reason=decision.reason,
            message=decision.message,
            by_name=decision.by_name,
        )


class UnaskedEffect(Payload):
    """A tool call was carried out that nobody was asked about. `policy` and `rule` are what the rules would have said;
    absent where there are none."""

    title: str
    action: Action
    tool_call_id: str | None = None
    turn: str | None = None
    policy: str | None = None
    rule: str | None = None
    reason: str | None = None
    ends_turn: bool = False


class UnaskingMode(Payload):
    """The agent is in a mode in which it does not ask: it began in it (`found` is `opened`) or went there by itself
    (`left`). `putInto` is the mode that it was put into; absent where it could not be, and `reason` says why."""

    mode: str
    found: Literal["opened", "left"]
    put_into: str | None = None
    reason: str | None = None


class QuestionAsked(Payload):
    """The agent asks its user a question: a form to fill in or a page to visit."""

    id: str
    message: str
    mode: str
    requested_schema: Mapping[str, object] | None = None
    url: str | None = None
    elicitation_id: str | None = None
    tool_call_id: str | None = None
    turn: str | None = None
    expires_at: int | None = None


class QuestionAnswered(Payload):
    """A question was answered; `content` holds the filled-in form where it was accepted."""

    id: str
    outcome: QuestionOutcome
    by: str
    content: Mapping[str, object] | None = None
    reason: str | None = None


class ExtensionMessage(Payload):
    """The agent sent a message of its own (`_vendor/...`), as it was sent. A `request` waits for an answer."""

    method: str
    params: object = None
    request: bool = False


class ExtensionAnswered(Payload):
    """What the agent was told on a request of its own: a client's `result` or `error`, or why there is none."""

    method: str
    result: object = None
    error: RpcError | None = None


class AgentExited(Payload):
    """The agent's process ended, with an exit code or a signal."""

    code: int | None = None
    signal: int | None = None
    stderr_tail: str | None = None


# Events of the host's own stream: full projections of agents, sessions and permissions.

AgentStatus = Literal["starting", "ready", "restarting", "exited", "disposed"]
PermissionState = Literal["pending", "answered", "superseded"]


class ExitStatus(Payload):
    code: int | None = None
    signal: int | None = None


class AgentUpdated(Payload):
    """An agent as it is now; capabilities and authMethods are those it announced, verbatim."""

    agent_id: str
    status: AgentStatus
    restart_count: int
    reason: str | None = None
    exit: ExitStatus | None = None
    capabilities: Mapping[str, object] | None = None
    auth_methods: tuple[Mapping[str, object], ...] | None = None


class AgentRemoved(Payload):
    """An agent was disposed of and is no longer listed."""

    agent_id: str


class McpServerNames(Payload):
    """An MCP server without its secrets: which variables or headers it gets, not their values."""

    name: str
    type: McpTransport
    env: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()

    @classmethod
    def from_server(cls, server: McpServer) -> "McpServerNames":
        env = tuple(variable.name for variable in server.env or ())
        headers = tuple(header.name for header in server.headers or ())
        return cls(name=server.name, type=server.type, env=env, headers=headers)


class SessionUpdated(Payload):
    """A session as it is now."""

    session_id: str
    status: Status
    cwd: str
    additional_directories: tuple[str, ...]
    agent_id: str | None = None
    agent_definition_id: str | None = None
    mcp_servers: tuple[McpServerNames, ...] | None = None
    title: str | None = None
    updated_at: str | None = None


class PermissionUpdated(Payload):
    """A permission of any session: pending with the question, then answered or superseded."""

    id: str
    session_id: str
    state: PermissionState
    ask: PermissionAsked | None = None
    outcome: Outcome | None = None
    by: str | None = None


# Events of a server's own stream, `server`: its life, and diagnostics of its log.


class ServerStarted(Payload):
    """The server listens."""

    version: str
    mode: Literal["up", "server"]
    url: str


class ServerStopped(Payload):
    """It was told to stop, and does. After a crash this is missing."""


# Diagnostics: what went wrong or was done behind the events. A closed set of codes.
#
# INV-7  A diagnostic names environment variables, never their values.


class DiagnosticCode(StrEnum):
    AGENT_SPAWN = "agent/spawn"
    AGENT_SPAWN_FAILED = "agent/spawn-failed"
    AGENT_INITIALIZED = "agent/initialized"
    AGENT_INITIALIZE_FAILED = "agent/initialize-failed"
    AGENT_EXIT = "agent/exit"
    AGENT_PROCESS_ERROR = "agent/process-error"
    AGENT_STDERR = "agent/stderr"
    AGENT_RESTART_SCHEDULED = "agent/restart-scheduled"
    AGENT_RESTART_SUPPRESSED = "agent/restart-suppressed"
    AGENT_RESTART_EXHAUSTED = "agent/restart-exhausted"
    AGENT_KILL = "agent/kill"
    AGENT_STRAY_LINE = "agent/stray-line"
    AGENT_LINE_TOO_LONG = "agent/line-too-long"
    AGENT_UNKNOWN_SESSION = "agent/unknown-session"
    AGENT_UNREADABLE_PERMISSION = "agent/unreadable-permission"
    AGENT_LATE_RESPONSE = "agent/late-response"
    SESSION_RECOVERY_SKIPPED = "session/recovery-skipped"
    SESSION_LOAD_FAILED = "session/load-failed"
    SESSION_REPLAY_SHORTER = "session/replay-shorter"
    SESSION_HELD_ELSEWHERE = "session/held-elsewhere"
    STORAGE_WRITE_FAILED = "storage/write-failed"
    STORAGE_RECOVERED = "storage/recovered"
    STORAGE_MALFORMED_LINE = "storage/malformed-line"
    EVENT_UNSERIALIZABLE = "event/unserializable"
    SUBSCRIBER_ERROR = "subscriber/error"
    CLOCK_JUMPED = "clock/jumped"


DIAGNOSTIC_MEANINGS: Mapping[DiagnosticCode, str] = {
    DiagnosticCode.AGENT_SPAWN: "an agent process was started; names of its environment variables only",
    DiagnosticCode.AGENT_SPAWN_FAILED: "the agent's program could not be started",
    DiagnosticCode.AGENT_INITIALIZED: "the agent answered the handshake",
    DiagnosticCode.AGENT_INITIALIZE_FAILED: "the handshake failed, timed out or named another version",
    DiagnosticCode.AGENT_EXIT: "the process ended, with code or signal",
    DiagnosticCode.AGENT_PROCESS_ERROR: "a pipe to the process failed",
    DiagnosticCode.AGENT_STDERR: "the process wrote to its standard error",
    DiagnosticCode.AGENT_RESTART_SCHEDULED: "a crashed agent will be started again after a pause",
    DiagnosticCode.AGENT_RESTART_SUPPRESSED: "the restart policy says not to start it again",
    DiagnosticCode.AGENT_RESTART_EXHAUSTED: "it crashed too often in a row",
    DiagnosticCode.AGENT_KILL: "it did not stop in time and was killed",
    DiagnosticCode.AGENT_STRAY_LINE: "a line that is no protocol message was skipped",
    DiagnosticCode.AGENT_LINE_TOO_LONG: "a line beyond the hard cap was skipped",
    DiagnosticCode.AGENT_UNKNOWN_SESSION: "an update or a question came for a session that nobody opened",
    DiagnosticCode.AGENT_UNREADABLE_PERMISSION: "a permission could not be read, or was one too many, so nobody was asked and nothing allowed",
    DiagnosticCode.AGENT_LATE_RESPONSE: "an answer came to a request that nobody waits for any more",
    DiagnosticCode.SESSION_RECOVERY_SKIPPED: "a session could not be taken up again after a restart",
    DiagnosticCode.SESSION_LOAD_FAILED: "the agent could not load the session",
    DiagnosticCode.SESSION_REPLAY_SHORTER: "the agent told less of a session than is recorded, which stays",
    DiagnosticCode.SESSION_HELD_ELSEWHERE: "another server of the database had a session of the same id first",
    DiagnosticCode.STORAGE_WRITE_FAILED: "events were delivered from memory and could not be stored yet",
    DiagnosticCode.STORAGE_RECOVERED: "a damaged end of a log was cut off, or waiting events were stored at last",
    DiagnosticCode.STORAGE_MALFORMED_LINE: "a line of a stored log could not be read and was skipped",
    DiagnosticCode.EVENT_UNSERIALIZABLE: "an event could not be written as JSON and was rejected",
    DiagnosticCode.SUBSCRIBER_ERROR: "a subscriber raised an error; the others were not disturbed",
    DiagnosticCode.CLOCK_JUMPED: "the machine's clock went forward, or was set back, by more than an hour",
}


class Diagnostic(Payload):
    """Something to know that is no part of the conversation; never changes the state of a session."""

    code: DiagnosticCode
    message: str
    agent_id: str | None = None
    session_id: str | None = None
    data: Mapping[str, object] | None = None


# The types of each stream. A new one is read, written and documented when it stands here.

SESSION_STREAM: tuple[type[Payload], ...] = (
    SessionStatus,
    SessionReset,
    SetupFacts,
    TurnState,
    PromptStarted,
    PromptFinished,
    PermissionAsked,
    PermissionAnswered,
    UnaskedEffect,
    UnaskingMode,
    QuestionAsked,
    QuestionAnswered,
    ExtensionMessage,
    ExtensionAnswered,
    AgentExited,
    Diagnostic,
)
HOST_STREAM: tuple[type[Payload], ...] = (
    AgentUpdated,
    AgentRemoved,
    SessionUpdated,
    PermissionUpdated,
    Diagnostic,
)
SERVER_STREAM: tuple[type[Payload], ...] = (ServerStarted, ServerStopped, Diagnostic)
APPROVAL_STREAM: tuple[type[Payload], ...] = (ApprovalChanged,)
INBOX_STREAM: tuple[type[Payload], ...] = (InboxChanged,)

EVENT_TYPES: tuple[type[Payload], ...] = (
    *SESSION_STREAM,
    *HOST_STREAM,
    *SERVER_STREAM,
    *APPROVAL_STREAM,
    *INBOX_STREAM,
)


# Rows and payloads.

UPDATES: tuple[type[SessionUpdate], ...] = get_args(SessionUpdate)

Known: TypeAlias = Payload | SessionUpdate

_TAG = "sessionUpdate"
_META = "_meta"
_NULL_SAYS_SOMETHING = {
    "session_info_update": frozenset({"title", "updatedAt"}),
    "tool_call": frozenset({"rawInput", "rawOutput"}),
    "tool_call_update": frozenset({"rawInput", "rawOutput"}),
}

ACP_TYPES = frozenset((*UPDATE_TYPES.values(), UNRECOGNIZED))
_decoders = {cls.event_type(): msgspec.json.Decoder(cls) for cls in EVENT_TYPES}


@cache
def event_type(payload: type[Known]) -> str:
    if issubclass(payload, Payload):
        return payload.event_type()
    return UPDATE_TYPES[cast(str, payload.__struct_config__.tag)]


def draft(payload: Known, native: bytes = b"") -> Draft:
    """The row of a payload; `native` is the agent's own line, where a driver translated it."""
    return Draft(event_type(type(payload)), jsontext.write(payload), native)


def update_draft(
    session_id: str,
    update: SessionUpdate,
    native: bytes = b"",
    *,
    whole: Callable[[bytes], bytes] | None = None,
) -> Draft:
    """The row of an update that a driver made of the agent's own line, `native`. If it made it of a digest, `whole` says
    what it would have made of the line (INV-W5)."""
    text = jsontext.write(update)
    if whole is None:
        return params_draft(session_id, text, native, event_type(type(update)))
    made = params_draft(session_id, whole(text), native, event_type(type(update)))
    return msgspec.structs.replace(made, digest=text)


def decode(event: Event | Draft) -> Known | Unrecognized:
    """The typed payload of a row. What this version cannot type is Unrecognized; nothing raises."""
    if event.type in ACP_TYPES:
        return decode_update(event.brief)
    decoder = _decoders.get(event.type)
    if decoder is None:
        return Unrecognized(event.raw, _value(event.raw))
    try:
        return decoder.decode(event.raw)
    except jsontext.READ_ERRORS:
        payload: Payload | Unrecognized = decode_leniently(event.raw, decoder.type)
        return payload


def _value(raw: bytes) -> object:
    try:
        return jsontext.read(raw)
    except jsontext.READ_ERRORS:
        return None


class Normalized(msgspec.Struct, frozen=True):
    """`payload` is an object, save for unrecognized updates that are none."""

    type: str
    payload: object
    extensions: Mapping[str, object] = {}


class _Keys(msgspec.Struct, frozen=True):
    known: frozenset[str]
    omitted_when_null: frozenset[str]


def normalize_session_update(update: bytes | Mapping[str, object]) -> Normalized:
    """A session update as its type, its payload and its extensions: a projection of the stored bytes, made when read.

    1. The tag decides the type, and leaves the payload.
    2. A top-level key that the update defines goes to the payload. If its value is null and the key is optional
       it is left out, except where null says something: `title` and `updatedAt` of session_info_update (clear
       it), `rawInput` and `rawOutput` of tool_call and tool_call_update (any value is passed through). A required
       key that is null is malformed, and kept.
    3. A top-level `_meta`, and every other unknown top-level key, goes to the extensions as it is, null or not.
    4. Only the top level is looked at. Nested values are passed through, nulls included: in `oldText: null` null
       says that a file is new.
    5. An update with an unknown tag is `unrecognized-update`: its payload is the whole of it, tag and `_meta`
       included. Text that cannot be read as JSON without loss is the same, its payload the text as a string."""
    value = _read(update) if isinstance(update, bytes) else update
    tag = value.get(_TAG) if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or not isinstance(tag, str) or tag not in UPDATE_TYPES:
        return Normalized(UNRECOGNIZED, value)
    keys = _KEYS[tag]
    payload: dict[str, object] = {}
    extensions: dict[str, object] = {}
    for key, item in value.items():
        if key not in keys.known:
            extensions[key] = item
        elif item is not None or key not in keys.omitted_when_null:
            payload[key] = item
    extensions.pop(_TAG)
    return Normalized(UPDATE_TYPES[tag], payload, extensions)


def _read(raw: bytes) -> object:
    try:
        return jsontext.read(raw)
    except jsontext.READ_ERRORS:
        return raw.decode("utf-8", "replace")


def _keys(update: type[msgspec.Struct], tag: str) -> _Keys:
    fields = [field for field in msgspec.structs.fields(update) if field.encode_name != _META]
    optional = frozenset(field.encode_name for field in fields if not field.required)
    return _Keys(
        known=frozenset(field.encode_name for field in fields),
        omitted_when_null=optional - _NULL_SAYS_SOMETHING.get(tag, frozenset()),
    )


_KEYS = {tag: _keys(update, tag) for update in UPDATES for tag in (cast(str, update.__struct_config__.tag),)}
