"""The lines of Claude Code's stream, as far as they are acted on, and how one is read.

Members that we do not name are ignored. tests/agents/claude/test_messages.py compares them with what is published.

INV-1  Reading is lenient: an optional member that does not fit counts as absent.
INV-2  Every line is a message or `None`: nothing raises, and what is not understood is for the caller to keep.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, dataclass_transform

import msgspec

from legation.agents.messages import READ_ERRORS, fit
from legation.wire import jsontext


# Type checkers do not let options of a Struct pass to its children, as msgspec does.
@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class ClaudeShape(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all lines."""


class Block(ClaudeShape):
    """One content block, of whatever type: only the members of its own are there."""

    type: str
    text: str = ""
    thinking: str = ""
    id: str = ""
    name: str = ""
    input: object = None
    tool_use_id: str = ""
    content: object = None
    is_error: bool | None = None


class ClaudeTokens(ClaudeShape):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens_details: Mapping[str, object] | None = None


class AssistantBody(ClaudeShape):
    id: str = ""
    model: str = ""
    content: tuple[Block, ...] = ()
    usage: ClaudeTokens | None = None


class Assistant(ClaudeShape):
    """One block of the model's message, usually; `error` where the program itself speaks of a failure."""

    message: AssistantBody
    parent_tool_use_id: str | None = None
    error: str | None = None


class UserBody(ClaudeShape):
    content: str | tuple[Block, ...] = ()


class UserLine(ClaudeShape):
    """Words to the model: results of tools, our own prompts again, remarks of the program."""

    message: UserBody
    parent_tool_use_id: str | None = None
    isSynthetic: bool = False  # noqa: N815 - spelt as on the wire
    isReplay: bool = False  # noqa: N815
    tool_use_result: object = None
    uuid: str = ""


class EventMessage(ClaudeShape):
    id: str = ""
    model: str = ""
    usage: ClaudeTokens | None = None


class Delta(ClaudeShape):
    type: str = ""
    text: str = ""
    thinking: str = ""


class StreamedEvent(ClaudeShape):
    """A piece of a reply as the model's endpoint streams it."""

    type: str
    message: EventMessage | None = None
    delta: Delta | None = None
    usage: ClaudeTokens | None = None


class StreamEvent(ClaudeShape):
    event: StreamedEvent
    parent_tool_use_id: str | None = None


class ResultOrigin(ClaudeShape):
    kind: str = ""


class ModelUse(ClaudeShape):
    contextWindow: float = 0  # noqa: N815


class Result(ClaudeShape):
    """The end of a turn. `user_message_uuids` are the prompts that it answers: none for a turn that nobody asked for."""

    subtype: str
    is_error: bool = False
    result: str = ""
    errors: tuple[str, ...] = ()
    stop_reason: str | None = None
    terminal_reason: str | None = None
    api_error_status: float | None = None
    origin: ResultOrigin | None = None
    user_message_uuid: str | None = None
    user_message_uuids: tuple[str, ...] = ()
    total_cost_usd: float | None = None
    usage: ClaudeTokens | None = None
    modelUsage: Mapping[str, ModelUse] = {}  # noqa: N815
    session_id: str = ""

    @property
    def answered(self) -> tuple[str, ...]:
        alone = (self.user_message_uuid,) if self.user_message_uuid else ()
        return self.user_message_uuids or alone


class Init(ClaudeShape):
    """The first line of every turn."""

    session_id: str = ""
    model: str = ""
    permissionMode: str = ""  # noqa: N815


class StatusLine(ClaudeShape):
    status: str | None = None
    permissionMode: str | None = None  # noqa: N815
    compact_result: str | None = None
    compact_error: str | None = None
    uuid: str = ""


class CompactBoundary(ClaudeShape):
    uuid: str = ""


class ApiRetry(ClaudeShape):
    attempt: float
    max_retries: float = 0
    retry_delay_ms: float = 0
    error_status: float | None = None
    error: str = "unknown"


class Informational(ClaudeShape):
    content: str
    level: str = "info"


class Notification(ClaudeShape):
    text: str


class CommandOutput(ClaudeShape):
    content: str
    uuid: str = ""


class PermissionDenied(ClaudeShape):
    tool_name: str = ""
    tool_use_id: str = ""
    message: str = ""


class Refusal(ClaudeShape):
    """The model refused; another one may have answered instead."""

    content: str = ""
    original_model: str = ""
    api_refusal_explanation: str | None = None


class TaskStarted(ClaudeShape):
    tool_use_id: str | None = None
    is_backgrounded: bool = False


class TaskNotification(ClaudeShape):
    status: str
    summary: str = ""
    tool_use_id: str | None = None


class HookResponse(ClaudeShape):
    hook_name: str = ""
    hook_event: str = ""
    outcome: str = ""
    output: str = ""


class SlashCommand(ClaudeShape):
    name: str
    description: str = ""
    argumentHint: str = ""  # noqa: N815


class CommandsChanged(ClaudeShape):
    commands: tuple[SlashCommand, ...] = ()


class ToolProgress(ClaudeShape):
    tool_use_id: str


class RateLimit(ClaudeShape):
    status: str = ""
    rateLimitType: str | None = None  # noqa: N815
    resetsAt: float | None = None  # noqa: N815


class RateLimitEvent(ClaudeShape):
    rate_limit_info: RateLimit


class CommandLifecycle(ClaudeShape):
    """A step of a prompt: queued, started, completed, cancelled. Not in the published types."""

    command_uuid: str
    state: str


class ControlRequest(ClaudeShape):
    request_id: str
    request: Mapping[str, object]


class ControlAnswer(ClaudeShape):
    subtype: str
    request_id: str
    response: Mapping[str, object] = {}
    error: str = ""


class ControlResponse(ClaudeShape):
    """An answer to us, or our own again: the program repeats what it is told."""

    response: ControlAnswer


class ControlCancel(ClaudeShape):
    request_id: str


class Silent(ClaudeShape):
    """A line that says nothing to a reader: `SILENT` gives the reason."""


class UnknownLine(ClaudeShape):
    """JSON, and no line that we know."""


# Lines read as messages.


SILENT: Final[Mapping[str, str]] = {
    "keep_alive": "a sign of life of the connection",
    "system/thinking_tokens": "an estimate that the usage at the end makes good",
    "system/task_progress": "a sub-agent's own calls are told as they come",
    "system/task_updated": "the notification that follows tells the end",
    "system/background_tasks_changed": "each task tells its beginning and end",
    "system/session_state_changed": "the turn's own messages tell it",
    "system/hook_started": "the hook's response tells what came of it",
    "system/hook_progress": "the hook's response tells what came of it",
    "system/files_persisted": "of the maker's own file store",
    "tool_use_summary": "a shorter text for what was told already",
}

_KINDS: Final[Mapping[str, type[ClaudeShape]]] = {
    "assistant": Assistant,
    "user": UserLine,
    "stream_event": StreamEvent,
    "result": Result,
    "system/init": Init,
    "system/status": StatusLine,
    "system/compact_boundary": CompactBoundary,
    "system/api_retry": ApiRetry,
    "system/informational": Informational,
    "system/notification": Notification,
    "system/local_command_output": CommandOutput,
    "system/permission_denied": PermissionDenied,
    "system/model_refusal_fallback": Refusal,
    "system/model_refusal_no_fallback": Refusal,
    "system/task_started": TaskStarted,
    "system/task_notification": TaskNotification,
    "system/hook_response": HookResponse,
    "system/commands_changed": CommandsChanged,
    "tool_progress": ToolProgress,
    "rate_limit_event": RateLimitEvent,
    "command_lifecycle": CommandLifecycle,
    "control_request": ControlRequest,
    "control_response": ControlResponse,
    "control_cancel_request": ControlCancel,
    **dict.fromkeys(SILENT, Silent),
}
_DECODERS: Final = {key: msgspec.json.Decoder(kind) for key, kind in _KINDS.items()}


class _MessageHead(msgspec.Struct):
    type: str
    subtype: str | None = None


_head = msgspec.json.Decoder(_MessageHead)


def read_line(line: bytes) -> ClaudeShape | None:
    """Read a line; None for what is no JSON object with a type."""
    try:
        head = _head.decode(line)
    except READ_ERRORS:
        return _read_leniently(line)
    key = _key(head)
    decoder = _DECODERS.get(key)
    if decoder is None:
        return UnknownLine()
    try:
        return decoder.decode(line)
    except READ_ERRORS:
        return _read_leniently(line)


def _key(head: _MessageHead) -> str:
    return f"system/{head.subtype}" if head.type == "system" else head.type


def _read_leniently(line: bytes) -> ClaudeShape | None:
    """Lone surrogates, huge numbers, members of another type than they should be."""
    try:
        value = jsontext.read(line)
        key = _key(fit(value, _MessageHead))
    except READ_ERRORS:
        return None
    try:
        return fit(value, _KINDS[key]) if key in _KINDS else UnknownLine()
    except READ_ERRORS:
        return UnknownLine()
