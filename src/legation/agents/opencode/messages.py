"""Types of what OpenCode's server says: messages and parts, sessions, requests, answers, events.

Members that nobody reads are left out, unknown ones ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, dataclass_transform

import msgspec

from legation.wire import jsontext


def _wire_name(name: str) -> str:
    """OpenCode writes `sessionID`, `callID`, and camel case otherwise."""
    first, *rest = name.split("_")
    return first + "".join("ID" if word == "id" else word.capitalize() for word in rest)


# Type checkers do not let options of a Struct pass to its children, as msgspec does.
@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class OpenCodeShape(msgspec.Struct, frozen=True, kw_only=True, rename=_wire_name):
    """Base of all that is read."""


# Messages and their parts.


class CacheTokens(OpenCodeShape):
    read: float
    write: float


class OpenCodeTokens(OpenCodeShape):
    input: float
    output: float
    reasoning: float
    cache: CacheTokens
    total: float | None = None

    @property
    def context(self) -> int:
        """Tokens that stood in the model's window."""
        return int(self.input + self.cache.read + self.cache.write + self.output + self.reasoning)


class ErrorData(OpenCodeShape):
    message: str | None = None
    status_code: int | None = None
    is_retryable: bool | None = None
    provider_id: str | None = None


class NativeError(OpenCodeShape):
    """One shape for all kinds of errors; `name` is the kind."""

    name: str
    data: ErrorData


class TimeSpan(OpenCodeShape):
    """The time at which a message or a part began and ended, in milliseconds."""

    created: float | None = None
    completed: float | None = None
    start: float | None = None
    end: float | None = None


class ModelName(OpenCodeShape):
    provider_id: str
    model_id: str
    variant: str | None = None


class UserMessage(OpenCodeShape, tag="user", tag_field="role"):
    id: str
    session_id: str
    agent: str
    model: ModelName


class AssistantMessage(OpenCodeShape, tag="assistant", tag_field="role"):
    """An answer to the user's message `parent_id`. `finish` is the model's reason to end; a message that has ended has
    `time.completed`."""

    id: str
    session_id: str
    parent_id: str
    time: TimeSpan
    cost: float
    tokens: OpenCodeTokens
    finish: str | None = None
    error: NativeError | None = None
    summary: bool | None = None


Message: TypeAlias = UserMessage | AssistantMessage


class _Part(OpenCodeShape):
    id: str
    session_id: str
    message_id: str


class TextPart(_Part, tag="text", tag_field="type"):
    text: str
    synthetic: bool | None = None
    ignored: bool | None = None
    time: TimeSpan | None = None


class ReasoningPart(_Part, tag="reasoning", tag_field="type"):
    text: str
    time: TimeSpan


class ToolPending(OpenCodeShape, tag="pending", tag_field="status"):
    input: Mapping[str, Any]


class ToolRunning(OpenCodeShape, tag="running", tag_field="status"):
    input: Mapping[str, Any]
    title: str | None = None
    metadata: Mapping[str, Any] | None = None


class ToolCompleted(OpenCodeShape, tag="completed", tag_field="status"):
    input: Mapping[str, Any]
    output: str
    title: str
    metadata: Mapping[str, Any]


class ToolErrored(OpenCodeShape, tag="error", tag_field="status"):
    input: Mapping[str, Any]
    error: str
    metadata: Mapping[str, Any] | None = None


ToolState: TypeAlias = ToolPending | ToolRunning | ToolCompleted | ToolErrored


class ToolPart(_Part, tag="tool", tag_field="type"):
    call_id: str
    tool: str
    state: ToolState


class FilePart(_Part, tag="file", tag_field="type"):
    mime: str
    url: str
    filename: str | None = None


class StepStartPart(_Part, tag="step-start", tag_field="type"):
    pass


class StepFinishPart(_Part, tag="step-finish", tag_field="type"):
    reason: str
    cost: float
    tokens: OpenCodeTokens


class CompactionPart(_Part, tag="compaction", tag_field="type"):
    auto: bool


class SnapshotPart(_Part, tag="snapshot", tag_field="type"):
    pass


class PatchPart(_Part, tag="patch", tag_field="type"):
    pass


class AgentPart(_Part, tag="agent", tag_field="type"):
    pass


class SubtaskPart(_Part, tag="subtask", tag_field="type"):
    pass


class RetryPart(_Part, tag="retry", tag_field="type"):
    pass


Part: TypeAlias = (
    TextPart
    | ReasoningPart
    | ToolPart
    | FilePart
    | StepStartPart
    | StepFinishPart
    | CompactionPart
    | SnapshotPart
    | PatchPart
    | AgentPart
    | SubtaskPart
    | RetryPart
)


class Told(OpenCodeShape):
    """A message of the history. Its parts are read one by one: one that nobody knows must not hide the others."""

    info: Message
    parts: tuple[Any, ...]

    def known(self) -> tuple[tuple[Part, ...], tuple[Any, ...]]:
        """Read the parts: those that can be, and those that cannot, as they are."""
        read: list[Part] = []
        odd: list[Any] = []
        for raw in self.parts:
            try:
                read.append(msgspec.convert(raw, Part))
            except msgspec.ValidationError:
                odd.append(raw)
        return tuple(read), tuple(odd)


# What a session is and does.


class Busy(OpenCodeShape, tag="busy", tag_field="type"):
    pass


class Idle(OpenCodeShape, tag="idle", tag_field="type"):
    pass


class Retry(OpenCodeShape, tag="retry", tag_field="type"):
    """A wait until it asks the model again, at `next`, in milliseconds since the epoch."""

    attempt: int
    message: str
    next: int


Status: TypeAlias = Busy | Idle | Retry


class SessionModel(OpenCodeShape):
    id: str
    provider_id: str
    variant: str | None = None


class SessionTime(OpenCodeShape):
    created: int
    updated: int


class OpenCodeSessionInfo(OpenCodeShape):
    id: str
    directory: str
    title: str
    time: SessionTime
    parent_id: str | None = None
    cost: float | None = None
    agent: str | None = None
    model: SessionModel | None = None


class TodoItem(OpenCodeShape):
    content: str
    status: str
    priority: str


# What OpenCode waits for: told as events, and listed while it does.


class CallRef(OpenCodeShape):
    message_id: str
    call_id: str


class PermissionRequest(OpenCodeShape):
    id: str
    session_id: str
    permission: str
    patterns: tuple[str, ...]
    metadata: Mapping[str, Any]
    tool: CallRef | None = None


class QuestionOption(OpenCodeShape):
    label: str
    description: str


class OpenCodeQuestion(OpenCodeShape):
    question: str
    header: str
    options: tuple[QuestionOption, ...]
    multiple: bool | None = None
    custom: bool | None = None


class QuestionRequest(OpenCodeShape):
    id: str
    session_id: str
    questions: tuple[OpenCodeQuestion, ...]
    tool: CallRef | None = None


# What there is to choose from, where the server is asked.


class PermissionRule(OpenCodeShape):
    permission: str
    pattern: str
    action: str


class OfferedAgent(OpenCodeShape):
    """`mode` is primary, subagent or all."""

    name: str
    mode: str
    permission: tuple[PermissionRule, ...]
    description: str | None = None
    hidden: bool | None = None


class ModelLimit(OpenCodeShape):
    context: float


class OpenCodeModel(OpenCodeShape):
    id: str
    name: str
    limit: ModelLimit
    variants: Mapping[str, Any] | None = None


class ProviderInfo(OpenCodeShape):
    id: str
    name: str
    models: Mapping[str, OpenCodeModel]


class Providers(OpenCodeShape):
    """`default` is the model of each provider that it would choose by itself."""

    providers: tuple[ProviderInfo, ...]
    default: Mapping[str, str]


class Config(OpenCodeShape):
    """GET /config: of all that it has, the model that was chosen."""

    model: str | None = None


class ServerHealth(OpenCodeShape):
    version: str


class McpStatus(OpenCodeShape):
    status: str
    error: str | None = None


# Events: which the server sends, which of them this driver reads, and which it drops, and why.


class SessionProperties(OpenCodeShape):
    session_id: str


class MessageUpdated(SessionProperties):
    info: Message


class PartUpdated(SessionProperties):
    part: Part


class PartDelta(SessionProperties):
    message_id: str
    part_id: str
    field: str
    delta: str


class SessionChanged(SessionProperties):
    info: OpenCodeSessionInfo


class StatusChanged(SessionProperties):
    status: Status


class SessionIdle(SessionProperties):
    pass


class SessionFailed(OpenCodeShape):
    session_id: str | None = None
    error: NativeError | None = None


class SessionCompacted(SessionProperties):
    pass


class PermissionReplied(SessionProperties):
    request_id: str
    reply: str


class QuestionEnded(SessionProperties):
    """Answered or rejected."""

    request_id: str


class TodoUpdated(SessionProperties):
    todos: tuple[TodoItem, ...]


class InstanceDisposed(OpenCodeShape):
    directory: str


READ: Final[Mapping[str, type[OpenCodeShape]]] = {
    "message.updated": MessageUpdated,
    "message.part.updated": PartUpdated,
    "message.part.delta": PartDelta,
    "session.created": SessionChanged,
    "session.updated": SessionChanged,
    "session.status": StatusChanged,
    "session.idle": SessionIdle,
    "session.error": SessionFailed,
    "session.compacted": SessionCompacted,
    "permission.asked": PermissionRequest,
    "permission.replied": PermissionReplied,
    "question.asked": QuestionRequest,
    "question.replied": QuestionEnded,
    "question.rejected": QuestionEnded,
    "todo.updated": TodoUpdated,
    "server.instance.disposed": InstanceDisposed,
}

_STATE: Final = "the program's own state: nothing that happens in a session"
_TOLD: Final = "the same is told by the parts of the message"
_OTHER: Final = "another interface of it, which this driver does not use"

DROPPED: Final[Mapping[str, str]] = {
    "sync": "every event of a session once more, for its own replicas",
    "server.connected": "the stream has begun",
    "server.heartbeat": "the stream lives",
    "global.disposed": _STATE,
    "catalog.updated": _STATE,
    "integration.updated": _STATE,
    "integration.connection.updated": _STATE,
    "installation.updated": _STATE,
    "installation.update-available": _STATE,
    "lsp.updated": _STATE,
    "lsp.client.diagnostics": _STATE,
    "mcp.tools.changed": _STATE,
    "models-dev.refreshed": _STATE,
    "plugin.added": _STATE,
    "project.updated": _STATE,
    "project.directories.updated": _STATE,
    "reference.updated": _STATE,
    "vcs.branch.updated": _STATE,
    "workspace.failed": _STATE,
    "workspace.ready": _STATE,
    "workspace.status": _STATE,
    "worktree.failed": _STATE,
    "worktree.ready": _STATE,
    "file.edited": _TOLD,
    "file.watcher.updated": _TOLD,
    "session.diff": _TOLD,
    "message.removed": "the log keeps what was said",
    "message.part.removed": "the log keeps what was said",
    "session.deleted": "whoever deleted it knows",
    "command.executed": _TOLD,
    "mcp.browser.open.failed": _OTHER,
    "permission.v2.asked": _OTHER,
    "permission.v2.replied": _OTHER,
    "question.v2.asked": _OTHER,
    "question.v2.rejected": _OTHER,
    "question.v2.replied": _OTHER,
    "pty.created": _OTHER,
    "pty.deleted": _OTHER,
    "pty.exited": _OTHER,
    "pty.updated": _OTHER,
    "tui.command.execute": _OTHER,
    "tui.prompt.append": _OTHER,
    "tui.session.select": _OTHER,
    "tui.toast.show": _OTHER,
}
DROPPED_PREFIX: Final = "session.next."  # the protocol to come, which is sent besides the present one


class _Envelope(msgspec.Struct, frozen=True):
    """GET /global/event wraps the event and says of which folder it is; GET /event does neither."""

    payload: msgspec.Raw = msgspec.Raw(b"")
    directory: str | None = None


class _Payload(msgspec.Struct, frozen=True):
    type: str
    properties: msgspec.Raw = msgspec.Raw(b"{}")


class _SessionOf(msgspec.Struct, frozen=True):
    sessionID: str | None = None  # noqa: N815 - as it is on the wire


@dataclass(frozen=True, slots=True)
class OpenCodeEvent:
    """`line` is the event as it came. `body` is None where this driver cannot read it, and of a digest where `is_cut`."""

    type: str
    line: bytes
    directory: str | None = None
    session_id: str | None = None
    body: OpenCodeShape | None = None
    is_cut: bool = False

    @property
    def is_dropped(self) -> bool:
        return self.type in DROPPED or self.type.startswith(DROPPED_PREFIX)


_envelopes = msgspec.json.Decoder(_Envelope)
_payloads = msgspec.json.Decoder(_Payload)
_sessions = msgspec.json.Decoder(_SessionOf)
_bodies = {name: msgspec.json.Decoder(body) for name, body in READ.items()}


def read_event(line: bytes) -> OpenCodeEvent | None:
    """Read an event; None where it is none at all."""
    try:
        envelope = _envelopes.decode(line)
        raw = bytes(envelope.payload) or line
        payload = _payloads.decode(raw)
    except jsontext.READ_ERRORS:
        return _read_leniently(line)
    return _typed(payload, raw, envelope.directory)


def _typed(payload: _Payload, raw: bytes, directory: str | None) -> OpenCodeEvent:
    properties = bytes(payload.properties)
    body = None
    if payload.type in _bodies:
        try:
            body = _bodies[payload.type].decode(properties)
        except jsontext.READ_ERRORS:
            body = None
    if body is not None:
        return OpenCodeEvent(payload.type, raw, directory, getattr(body, "session_id", None), body)
    try:
        session = _sessions.decode(properties).sessionID
    except jsontext.READ_ERRORS:
        session = None
    return OpenCodeEvent(payload.type, raw, directory, session)


def _read_leniently(line: bytes) -> OpenCodeEvent | None:
    """Lone surrogates and bytes that are no UTF-8: written again without them, so that strict readers can."""
    try:
        value = jsontext.read_leniently(line)
        text = jsontext.write(value).decode("utf-8", "replace").encode()
        envelope = _envelopes.decode(text)
        raw = bytes(envelope.payload) or text
        return _typed(_payloads.decode(raw), raw, envelope.directory)
    except jsontext.READ_ERRORS:
        return None
