"""session/*: what a client asks of an agent, and the answers."""

from typing import TypeAlias

from msgspec import UNSET, Raw, UnsetType

from legation.wire.acp.config import ConfigOption, SessionModeState
from legation.wire.acp.content import ContentBlock
from legation.wire.acp.mcp import McpServer
from legation.wire.acp.shape import Json, Shape

StopReason: TypeAlias = str
STOP_REASONS = ("end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled")


class NewSessionRequest(Shape):
    cwd: str
    mcp_servers: tuple[McpServer, ...]
    additional_directories: tuple[str, ...] = ()


class LoadSessionRequest(Shape):
    """The agent replays the whole history as updates before it answers."""

    session_id: str
    cwd: str
    mcp_servers: tuple[McpServer, ...]
    additional_directories: tuple[str, ...] = ()


class ResumeSessionRequest(Shape):
    """As load, without a replay."""

    session_id: str
    cwd: str
    mcp_servers: tuple[McpServer, ...] = ()
    additional_directories: tuple[str, ...] = ()


class SessionSetup(Shape):
    """The answer to load and resume. `models` is an older form that agents still send."""

    modes: SessionModeState | None = None
    config_options: tuple[ConfigOption, ...] | None = None
    models: Json | UnsetType = UNSET


class NewSessionResponse(SessionSetup, kw_only=True):
    session_id: str


class ListSessionsRequest(Shape):
    cwd: str | None = None
    cursor: str | None = None


class SessionInfo(Shape):
    session_id: str
    cwd: str
    additional_directories: tuple[str, ...] = ()
    title: str | None = None
    updated_at: str | None = None


class ListSessionsResponse(Shape):
    sessions: tuple[SessionInfo, ...]
    next_cursor: str | None = None


class SessionRequest(Shape):
    """session/close, session/delete and session/cancel carry nothing but the id."""

    session_id: str


class SessionNotification(Shape):
    """session/update. The update stays as the bytes it came in."""

    session_id: str
    update: Raw


class SetModeRequest(Shape):
    session_id: str
    mode_id: str


class SetConfigOptionRequest(Shape):
    """`type` is "boolean" for a boolean `value`, and absent for the id of a choice."""

    session_id: str
    config_id: str
    value: str | bool
    type: str | None = None


class SetConfigOptionResponse(Shape):
    config_options: tuple[ConfigOption, ...]


class PromptRequest(Shape):
    session_id: str
    prompt: tuple[ContentBlock, ...]


class Usage(Shape):
    """Tokens of one turn. Not yet stable in ACP v1, but agents send it."""

    total_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    thought_tokens: int | None = None
    cached_read_tokens: int | None = None
    cached_write_tokens: int | None = None


class PromptResponse(Shape):
    stop_reason: StopReason
    usage: Usage | None = None
