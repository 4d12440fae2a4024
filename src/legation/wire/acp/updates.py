"""The session updates of ACP v1, the fourteen stable ones and those of named plans; and the reader that never loses one."""

from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from legation.wire import jsontext
from legation.wire.acp.config import AvailableCommand, ConfigOption
from legation.wire.acp.content import ContentBlock
from legation.wire.acp.plan import Plan, PlanRemoved, PlanUpdate
from legation.wire.acp.salvage import salvaged
from legation.wire.acp.shape import Json, Shape
from legation.wire.acp.toolcall import ToolCall, ToolCallUpdate

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
        return _decode_leniently(raw)


def _decode_leniently(raw: bytes) -> SessionUpdate | Unrecognized:
    try:
        value = jsontext.read(raw)
    except jsontext.READ_ERRORS:
        return Unrecognized(raw)
    for candidate in (value, salvaged(value)):
        try:
            update: SessionUpdate = msgspec.convert(candidate, SessionUpdate)
        except jsontext.READ_ERRORS:
            continue
        return update
    return Unrecognized(raw, value)
