"""One line of Claude Code's stream read as the message that it is.

INV-1  Reading is lenient: an optional member that does not fit counts as absent.
INV-2  Every line is a message or `None`: nothing raises, and what is not understood is for the caller to keep.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from legation.agents.answers import READ_ERRORS, fit
from legation.agents.claude import messages as native
from legation.wire import jsontext

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

_KINDS: Final[Mapping[str, type[native.Native]]] = {
    "assistant": native.Assistant,
    "user": native.User,
    "stream_event": native.StreamEvent,
    "result": native.Result,
    "system/init": native.Init,
    "system/status": native.Status,
    "system/compact_boundary": native.CompactBoundary,
    "system/api_retry": native.ApiRetry,
    "system/informational": native.Informational,
    "system/notification": native.Notification,
    "system/local_command_output": native.CommandOutput,
    "system/permission_denied": native.PermissionDenied,
    "system/model_refusal_fallback": native.Refusal,
    "system/model_refusal_no_fallback": native.Refusal,
    "system/task_started": native.TaskStarted,
    "system/task_notification": native.TaskNotification,
    "system/hook_response": native.HookResponse,
    "system/commands_changed": native.CommandsChanged,
    "tool_progress": native.ToolProgress,
    "rate_limit_event": native.RateLimitEvent,
    "command_lifecycle": native.CommandLifecycle,
    "control_request": native.ControlRequest,
    "control_response": native.ControlResponse,
    "control_cancel_request": native.ControlCancel,
    **dict.fromkeys(SILENT, native.Silent),
}
_DECODERS: Final = {key: msgspec.json.Decoder(kind) for key, kind in _KINDS.items()}


class _Head(msgspec.Struct):
    type: str
    subtype: str | None = None


_head = msgspec.json.Decoder(_Head)


def read_line(line: bytes) -> native.Native | None:
    """None for what is no JSON object with a type."""
    try:
        head = _head.decode(line)
    except READ_ERRORS:
        return _read_leniently(line)
    key = _key(head)
    decoder = _DECODERS.get(key)
    if decoder is None:
        return native.Unknown()
    try:
        return decoder.decode(line)
    except READ_ERRORS:
        return _read_leniently(line)


def _key(head: _Head) -> str:
    return f"system/{head.subtype}" if head.type == "system" else head.type


def _read_leniently(line: bytes) -> native.Native | None:
    """Lone surrogates, huge numbers, members of another type than they should be."""
    try:
        value = jsontext.read(line)
        key = _key(fit(value, _Head))
    except READ_ERRORS:
        return None
    try:
        return fit(value, _KINDS[key]) if key in _KINDS else native.Unknown()
    except READ_ERRORS:
        return native.Unknown()
