"""The events of OpenCode's server: which it sends, which of them this driver reads, and which it drops, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from legation.agents.opencode.messages import Message, NativeError, Part
from legation.agents.opencode.requests import PermissionRequest, QuestionRequest
from legation.agents.opencode.shape import Native
from legation.agents.opencode.states import SessionInfo, Status, Todo
from legation.wire import jsontext


class MessageUpdated(Native):
    session_id: str
    info: Message


class PartUpdated(Native):
    session_id: str
    part: Part


class PartDelta(Native):
    session_id: str
    message_id: str
    part_id: str
    field: str
    delta: str


class SessionUpdated(Native):
    session_id: str
    info: SessionInfo


class SessionCreated(SessionUpdated):
    pass


class StatusChanged(Native):
    session_id: str
    status: Status


class SessionIdle(Native):
    session_id: str


class SessionFailed(Native):
    session_id: str | None = None
    error: NativeError | None = None


class SessionCompacted(Native):
    session_id: str


class PermissionAsked(PermissionRequest):
    pass


class PermissionReplied(Native):
    session_id: str
    request_id: str
    reply: str


class QuestionAsked(QuestionRequest):
    pass


class QuestionEnded(Native):
    """Answered or rejected."""

    session_id: str
    request_id: str


class TodoUpdated(Native):
    session_id: str
    todos: tuple[Todo, ...]


class InstanceDisposed(Native):
    directory: str


READ: Final[Mapping[str, type[Native]]] = {
    "message.updated": MessageUpdated,
    "message.part.updated": PartUpdated,
    "message.part.delta": PartDelta,
    "session.created": SessionCreated,
    "session.updated": SessionUpdated,
    "session.status": StatusChanged,
    "session.idle": SessionIdle,
    "session.error": SessionFailed,
    "session.compacted": SessionCompacted,
    "permission.asked": PermissionAsked,
    "permission.replied": PermissionReplied,
    "question.asked": QuestionAsked,
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


class _Session(msgspec.Struct, frozen=True):
    sessionID: str | None = None  # noqa: N815 - as it is on the wire


@dataclass(frozen=True, slots=True)
class Event:
    """`line` is the event as it came. `body` is None where this driver cannot read it, and of a digest where `is_cut`."""

    type: str
    line: bytes
    directory: str | None = None
    session_id: str | None = None
    body: Native | None = None
    is_cut: bool = False

    @property
    def is_dropped(self) -> bool:
        return self.type in DROPPED or self.type.startswith(DROPPED_PREFIX)


_envelopes = msgspec.json.Decoder(_Envelope)
_payloads = msgspec.json.Decoder(_Payload)
_sessions = msgspec.json.Decoder(_Session)
_bodies = {name: msgspec.json.Decoder(body) for name, body in READ.items()}


def read_event(line: bytes) -> Event | None:
    """None where it is no event at all."""
    try:
        envelope = _envelopes.decode(line)
        raw = bytes(envelope.payload) or line
        payload = _payloads.decode(raw)
    except jsontext.READ_ERRORS:
        return _read_leniently(line)
    return _typed(payload, raw, envelope.directory)


def _typed(payload: _Payload, raw: bytes, directory: str | None) -> Event:
    properties = bytes(payload.properties)
    body = None
    if payload.type in _bodies:
        try:
            body = _bodies[payload.type].decode(properties)
        except jsontext.READ_ERRORS:
            body = None
    if body is not None:
        return Event(payload.type, raw, directory, getattr(body, "session_id", None), body)
    try:
        session = _sessions.decode(properties).sessionID
    except jsontext.READ_ERRORS:
        session = None
    return Event(payload.type, raw, directory, session)


def _read_leniently(line: bytes) -> Event | None:
    """Lone surrogates and bytes that are no UTF-8: written again without them, so that strict readers can."""
    try:
        value = jsontext.read_leniently(line)
        text = jsontext.write(value).decode("utf-8", "replace").encode()
        envelope = _envelopes.decode(text)
        raw = bytes(envelope.payload) or text
        return _typed(_payloads.decode(raw), raw, envelope.directory)
    except jsontext.READ_ERRORS:
        return None
