"""Session updates of ACP v1: what they are made of, and the reader that never loses one."""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from legation.wire import jsontext
from legation.wire.acp.rpc import Json, Shape

# Content blocks: what prompts, messages and tool results are made of.

UNREAD_TAG = "_unread"


class Annotations(Shape):
    audience: tuple[str, ...] | None = None
    last_modified: str | None = None
    priority: float | None = None


class Text(Shape, tag="text", tag_field="type"):
    text: str
    annotations: Annotations | None = None


class Image(Shape, tag="image", tag_field="type"):
    """Base64 data."""

    data: str
    mime_type: str
    uri: str | None = None
    annotations: Annotations | None = None


class Audio(Shape, tag="audio", tag_field="type"):
    """Base64 data."""

    data: str
    mime_type: str
    annotations: Annotations | None = None


class ResourceLink(Shape, tag="resource_link", tag_field="type"):
    name: str
    uri: str
    mime_type: str | None = None
    title: str | None = None
    description: str | None = None
    size: int | None = None
    annotations: Annotations | None = None


class ResourceContents(Shape):
    """Either `text` or base64 `blob`."""

    uri: str
    text: str | None = None
    blob: str | None = None
    mime_type: str | None = None


class EmbeddedResource(Shape, tag="resource", tag_field="type"):
    resource: ResourceContents
    annotations: Annotations | None = None


class Unread(Shape, tag=UNREAD_TAG, tag_field="type"):
    """A block of a type, or in a form, that this version does not know: kept as it came in `value`."""

    value: Json


ContentBlock: TypeAlias = Text | Image | Audio | ResourceLink | EmbeddedResource | Unread


# Tool calls, as they are announced, changed and asked about.

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


class ToolCall(ToolCallPatch, tag="tool_call", tag_field="sessionUpdate"):
    """The agent starts a tool call."""

    title: str


class ToolCallUpdate(ToolCallPatch, tag="tool_call_update", tag_field="sessionUpdate"):
    """A tool call changes: only the fields present; lists replace the earlier ones whole."""


def merged(before: ToolCallPatch, update: ToolCallPatch) -> ToolCallPatch:
    """A tool call as it is known after an update: permission requests often repeat only a part of it."""
    known = {field: getattr(before, field) for field in ToolCallPatch.__struct_fields__}
    for field in known:
        value = getattr(update, field)
        if value is not None and value is not UNSET:
            known[field] = value
    return ToolCallPatch(**known)


# Plans: the one that a session has, and those that have names.

PlanPriority: TypeAlias = str
PLAN_PRIORITIES = ("high", "medium", "low")
PlanStatus: TypeAlias = str
PLAN_STATUSES = ("pending", "in_progress", "completed")


class PlanEntry(Shape):
    content: str
    priority: PlanPriority
    status: PlanStatus


class Plan(Shape, tag="plan", tag_field="sessionUpdate"):
    """The agent's whole plan, which replaces the earlier one."""

    entries: tuple[PlanEntry, ...]


class PlanItems(Shape, tag="items", tag_field="type"):
    """A plan as entries, all of them."""

    plan_id: str
    entries: tuple[PlanEntry, ...]


class PlanFile(Shape, tag="file", tag_field="type"):
    """A plan that is in a file."""

    plan_id: str
    uri: str


class PlanMarkdown(Shape, tag="markdown", tag_field="type"):
    """A plan as text."""

    plan_id: str
    content: str


PlanContent: TypeAlias = PlanItems | PlanFile | PlanMarkdown | Unread


class PlanUpdate(Shape, tag="plan_update", tag_field="sessionUpdate"):
    """One of several plans, whole: it replaces the earlier one of its `planId`."""

    plan: PlanContent


class PlanRemoved(Shape, tag="plan_removed", tag_field="sessionUpdate"):
    """That plan is no longer followed."""

    plan_id: str


# What a session can be set to: modes, config options, slash commands.

ConfigCategory: TypeAlias = str
CONFIG_CATEGORIES = ("mode", "model", "model_config", "thought_level", "other")
# Of what makes variants of a model, the surest first.
VARIANT_CATEGORIES: Final = ("thought_level", "model_config", "variant")


class SessionMode(Shape):
    id: str
    name: str
    description: str | None = None


class SessionModeState(Shape):
    current_mode_id: str
    available_modes: tuple[SessionMode, ...]


class SelectChoice(Shape):
    """A value to choose, or a named group of them: a group has `group` and `options`, a value has `value`."""

    name: str
    value: str | None = None
    description: str | None = None
    group: str | None = None
    options: tuple["SelectChoice", ...] = ()


class SelectOption(Shape, tag="select", tag_field="type"):
    id: str
    name: str
    current_value: str
    options: tuple[SelectChoice, ...]
    description: str | None = None
    category: ConfigCategory | None = None


class BooleanOption(Shape, tag="boolean", tag_field="type"):
    id: str
    name: str
    current_value: bool
    description: str | None = None
    category: ConfigCategory | None = None


ConfigOption: TypeAlias = SelectOption | BooleanOption | Unread


class CommandInput(Shape):
    hint: str


class AvailableCommand(Shape):
    name: str
    description: str
    input: CommandInput | None = None


# The updates themselves: the fourteen stable ones, and those of named plans.

NoticeSeverity: TypeAlias = str
NOTICE_SEVERITIES = ("info", "warning", "error")
CompactionStatus: TypeAlias = str
COMPACTION_STATUSES = ("in_progress", "completed", "failed", "cancelled")


class UserMessageChunk(Shape, tag="user_message_chunk", tag_field="sessionUpdate"):
    """A piece of the user's message, as the agent echoes or replays it."""

    content: ContentBlock
    message_id: str | None = None


class AgentMessageChunk(Shape, tag="agent_message_chunk", tag_field="sessionUpdate"):
    """A piece of the agent's answer."""

    content: ContentBlock
    message_id: str | None = None


class AgentThoughtChunk(Shape, tag="agent_thought_chunk", tag_field="sessionUpdate"):
    """A piece of the agent's reasoning."""

    content: ContentBlock
    message_id: str | None = None


class AvailableCommandsUpdate(Shape, tag="available_commands_update", tag_field="sessionUpdate"):
    """The slash commands that the session offers now."""

    available_commands: tuple[AvailableCommand, ...]


class CurrentModeUpdate(Shape, tag="current_mode_update", tag_field="sessionUpdate"):
    """The session is in another mode now."""

    current_mode_id: str


class ConfigOptionUpdate(Shape, tag="config_option_update", tag_field="sessionUpdate"):
    """All config options with their values now."""

    config_options: tuple[ConfigOption, ...]


class SessionInfoUpdate(Shape, tag="session_info_update", tag_field="sessionUpdate"):
    """The session's title or date changed; an explicit null clears it, an absent field leaves it."""

    title: str | UnsetType | None = UNSET
    updated_at: str | UnsetType | None = UNSET


class Cost(Shape):
    amount: float
    currency: str


class UsageUpdate(Shape, tag="usage_update", tag_field="sessionUpdate"):
    """How full the context window is, in tokens, and the session's cost so far."""

    used: int
    size: int
    cost: Cost | None = None


class Notice(Shape, tag="notice", tag_field="sessionUpdate"):
    """A notice to the user, outside the conversation."""

    severity: NoticeSeverity
    title: str
    description: str | None = None


class CompactionUpdate(Shape, tag="compaction_update", tag_field="sessionUpdate"):
    """The agent condenses its context: started, finished or failed."""

    compaction_id: str
    status: CompactionStatus
    summary: tuple[ContentBlock, ...] | None = None
    error: str | None = None


class CompactionSummaryChunk(Shape, tag="compaction_summary_chunk", tag_field="sessionUpdate"):
    """A piece of the summary that replaces the condensed context."""

    compaction_id: str
    content: ContentBlock


SessionUpdate: TypeAlias = (
    UserMessageChunk
    | AgentMessageChunk
    | AgentThoughtChunk
    | ToolCall
    | ToolCallUpdate
    | Plan
    | PlanUpdate
    | PlanRemoved
    | AvailableCommandsUpdate
    | CurrentModeUpdate
    | ConfigOptionUpdate
    | SessionInfoUpdate
    | UsageUpdate
    | Notice
    | CompactionUpdate
    | CompactionSummaryChunk
)


class Unrecognized(msgspec.Struct, frozen=True):
    """An update that this version cannot type. `value` is None where the text itself is unreadable."""

    raw: bytes
    value: Json = None


_decoder: msgspec.json.Decoder[SessionUpdate] = msgspec.json.Decoder(SessionUpdate)


def decode_update(raw: bytes) -> SessionUpdate | Unrecognized:
    """The typed update. An unknown block inside a known update is kept as `Unread`; nothing raises."""
    try:
        return _decoder.decode(raw)
    except jsontext.READ_ERRORS:
        update: SessionUpdate | Unrecognized = decode_leniently(raw, SessionUpdate)
        return update


def decode_leniently(raw: bytes, kind: Any) -> Any:
    """Decode with other means than msgspec's, and at worst with parts as `Unread`; else it is `Unrecognized`."""
    try:
        value = jsontext.read(raw)
    except jsontext.READ_ERRORS:
        return Unrecognized(raw)
    for candidate in (value, salvaged(value)):
        try:
            return msgspec.convert(candidate, kind)
        except jsontext.READ_ERRORS:
            continue
    return Unrecognized(raw, value)


Wrap = Callable[[object], object]


def salvaged(update: object) -> object:
    """The update with every part that cannot be typed replaced by an `Unread` that holds it."""
    if not isinstance(update, dict):
        return update
    return {key: _WRAPS[key](value) if key in _WRAPS else value for key, value in update.items()}


def _typed_as(kind: Any) -> Wrap:
    def wrap(value: object) -> object:
        try:
            msgspec.convert(value, kind)
        except jsontext.READ_ERRORS:
            return {"type": UNREAD_TAG, "value": value}
        return value

    return wrap


def _each(wrap: Wrap) -> Wrap:
    return lambda value: [wrap(item) for item in value] if isinstance(value, list) else value


_block, _tool_part = _typed_as(ContentBlock), _typed_as(ToolCallContent)


def _tool_content(value: object) -> object:
    if isinstance(value, dict) and value.get("type") == "content":
        value = {**value, "content": _block(value.get("content"))}
    return _tool_part(value)


def _content(value: object) -> object:
    # One block in a message chunk, a list of parts in a tool call.
    return [_tool_content(item) for item in value] if isinstance(value, list) else _block(value)


_WRAPS: dict[str, Wrap] = {
    "content": _content,
    "summary": _each(_block),
    "configOptions": _each(_typed_as(ConfigOption)),
    "plan": _typed_as(PlanContent),
}
