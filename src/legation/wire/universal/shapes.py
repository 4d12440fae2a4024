"""The events of sandbox-agent 0.1.11, as they are on the wire: snake_case, ten keys, thirteen types.

A key that the original always writes is always here, null or not; one that it leaves out when empty is left out.
Values of any form are JSON text already.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal, TypeAlias

import msgspec

# What a projection says of its session that is not in the log: fixed when the session is made.

STRIDE: Final = 8
"""More numbers than one event of the log can ever use, the ends of what it begins included (INV-U3)."""


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """As it was asked for. What changes later is told by status items."""

    agent: str
    agent_mode: str | None = None
    model: str | None = None
    permission_mode: str | None = None
    variant: str | None = None


class SessionFacts(msgspec.Struct, frozen=True):
    """`session_id` is the client's name for it, `native_session_id` the agent's."""

    session_id: str
    agent: str
    native_session_id: str | None
    metadata: Metadata


NOBODY: Final = SessionFacts("", "", None, Metadata(""))  # for a fold of which nothing is shown


def floor(seq: int) -> int:
    """The number before the first one that a reading from this event on gives out."""
    return STRIDE * (seq - 1)


PLAN_KIND: Final = "switch_mode"
"""Of the call by which an agent asks to leave its plan and begin: a question beside the permission, of the same id."""

Schema = Literal["sandbox-agent", "universal"]
"""What a session's events can be shown as: those of sandbox-agent 0.1.11, or whole messages."""

EventType = Literal[
    "session.started",
    "session.ended",
    "turn.started",
    "turn.ended",
    "item.started",
    "item.delta",
    "item.completed",
    "error",
    "permission.requested",
    "permission.resolved",
    "question.requested",
    "question.resolved",
    "agent.unparsed",
]
Source = Literal["agent", "daemon"]
ItemKind = Literal["message", "tool_call", "tool_result", "system", "status", "unknown"]
Role = Literal["user", "assistant", "system", "tool"]
ItemStatus = Literal["in_progress", "completed", "failed"]
FileAction = Literal["read", "write", "patch"]
PermissionStatus = Literal["requested", "accept", "accept_for_session", "reject"]
QuestionStatus = Literal["requested", "answered", "rejected"]


class ItemText(msgspec.Struct, frozen=True, tag="text", gc=False):
    text: str


class ItemJson(msgspec.Struct, frozen=True, tag="json"):
    json: msgspec.Raw


class ItemToolCall(msgspec.Struct, frozen=True, tag="tool_call", gc=False):
    """`arguments` is JSON in a string."""

    name: str
    arguments: str
    call_id: str


class ItemToolResult(msgspec.Struct, frozen=True, tag="tool_result", gc=False):
    call_id: str
    output: str


class FileRef(msgspec.Struct, frozen=True, tag="file_ref", gc=False):
    path: str
    action: FileAction
    diff: str | None = None


class Reasoning(msgspec.Struct, frozen=True, tag="reasoning", gc=False):
    text: str
    visibility: Literal["public", "private"] = "public"


class ItemImage(msgspec.Struct, frozen=True, tag="image", gc=False):
    """`path` is an address, or a `data:` URL that holds the image."""

    path: str
    mime: str | None = None


class ItemLabel(msgspec.Struct, frozen=True, tag="status", gc=False):
    label: str
    detail: str | None = None


Part: TypeAlias = (
    ItemText | ItemJson | ItemToolCall | ItemToolResult | FileRef | Reasoning | ItemImage | ItemLabel
)


class Item(msgspec.Struct, frozen=True):
    item_id: str
    native_item_id: str | None
    parent_id: str | None
    kind: ItemKind
    role: Role | None
    content: tuple[Part, ...]
    status: ItemStatus


class SessionStarted(msgspec.Struct, frozen=True):
    metadata: Metadata


class Stderr(msgspec.Struct, frozen=True, omit_defaults=True):
    truncated: bool
    head: str | None = None
    tail: str | None = None
    total_lines: int | None = None


class SessionEnded(msgspec.Struct, frozen=True, omit_defaults=True):
    reason: Literal["completed", "error", "terminated"]
    terminated_by: Source
    message: str | None = None
    exit_code: int | None = None
    stderr: Stderr | None = None


class Turn(msgspec.Struct, frozen=True, omit_defaults=True):
    phase: Literal["started", "ended"]
    turn_id: str | None = None
    metadata: msgspec.Raw | None = None


class ItemEvent(msgspec.Struct, frozen=True):
    item: Item


class ItemDelta(msgspec.Struct, frozen=True, gc=False):
    item_id: str
    native_item_id: str | None
    delta: str


class Error(msgspec.Struct, frozen=True):
    message: str
    code: str | None = None
    details: msgspec.Raw | None = None


class Permission(msgspec.Struct, frozen=True):
    permission_id: str
    action: str
    status: PermissionStatus
    metadata: msgspec.Raw | None = None


class Question(msgspec.Struct, frozen=True):
    question_id: str
    prompt: str
    options: tuple[str, ...]
    response: str | None
    status: QuestionStatus


class Unparsed(msgspec.Struct, frozen=True):
    error: str
    location: str
    raw_hash: str | None = None


Data: TypeAlias = (
    SessionStarted | SessionEnded | Turn | ItemEvent | ItemDelta | Error | Permission | Question | Unparsed
)


class UniversalEvent(msgspec.Struct, frozen=True):
    """`raw` comes last: the bytes of the log are put there without being read."""

    event_id: str
    sequence: int
    time: datetime
    session_id: str
    native_session_id: str | None
    synthetic: bool
    source: Source
    type: EventType
    data: Data
    raw: None = None
