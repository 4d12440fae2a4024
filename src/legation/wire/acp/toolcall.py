"""Tool calls, as they are announced, changed and asked about."""

from typing import TypeAlias

from msgspec import UNSET, UnsetType

from legation.wire.acp.content import ContentBlock, Unread
from legation.wire.acp.shape import Json, Shape

ToolKind: TypeAlias = str
TOOL_KINDS = (
    "read",
    "edit",
    "delete",
    "move",
    "search",
    "execute",
    "think",
    "fetch",
    "switch_mode",
    "other",
)

ToolCallStatus: TypeAlias = str
TOOL_CALL_STATUSES = ("pending", "in_progress", "completed", "failed")


class Content(Shape, tag="content", tag_field="type"):
    content: ContentBlock


class Diff(Shape, tag="diff", tag_field="type"):
    """A changed file; no `oldText` means a new one."""

    path: str
    new_text: str
    old_text: str | None = None


class Terminal(Shape, tag="terminal", tag_field="type"):
    terminal_id: str


ToolCallContent: TypeAlias = Content | Diff | Terminal | Unread


class ToolCallLocation(Shape):
    path: str
    line: int | None = None


class ToolCall(Shape, tag="tool_call", tag_field="sessionUpdate"):
    """The agent starts a tool call."""

    tool_call_id: str
    title: str
    name: str | None = None
    kind: ToolKind | None = None
    status: ToolCallStatus | None = None
    content: tuple[ToolCallContent, ...] | None = None
    locations: tuple[ToolCallLocation, ...] | None = None
    raw_input: Json | UnsetType = UNSET
    raw_output: Json | UnsetType = UNSET


class ToolCallPatch(Shape):
    """Part of a tool call: only the fields present count; lists replace the earlier ones whole."""

    tool_call_id: str
    title: str | None = None
    name: str | None = None
    kind: ToolKind | None = None
    status: ToolCallStatus | None = None
    content: tuple[ToolCallContent, ...] | None = None
    locations: tuple[ToolCallLocation, ...] | None = None
    raw_input: Json | UnsetType = UNSET
    raw_output: Json | UnsetType = UNSET


class ToolCallUpdate(ToolCallPatch, tag="tool_call_update", tag_field="sessionUpdate"):
    """A tool call changes: only the fields present; lists replace the earlier ones whole."""


AnyToolCall: TypeAlias = ToolCall | ToolCallPatch


def merged(before: AnyToolCall, update: AnyToolCall) -> ToolCallPatch:
    """What is known of a tool call after an update: permission requests often repeat only a part of it."""
    known = {field: getattr(before, field) for field in ToolCallPatch.__struct_fields__}
    for field in known:
        value = getattr(update, field)
        if value is not None and value is not UNSET:
            known[field] = value
    return ToolCallPatch(**known)
