"""A model endpoint on the loopback that says what a test tells it to; see docs/reference/scripted-model.md."""

from legation.testing.model.anthropic import AnthropicWire
from legation.testing.model.http import HttpAnswer, HttpRequest
from legation.testing.model.request import Message, ModelRequest, ToolResult
from legation.testing.model.script import (
    Cut,
    Failure,
    Pause,
    Reply,
    Script,
    Stall,
    StopReason,
    StreamError,
    Text,
    Thinking,
    ToolCall,
    TooLong,
    Usage,
)
from legation.testing.model.scripted import ScriptedModel, ScriptMismatch
from legation.testing.model.side import is_side_request
from legation.testing.model.wire import Wire

__all__ = [
    "AnthropicWire",
    "Cut",
    "Failure",
    "HttpAnswer",
    "HttpRequest",
    "Message",
    "ModelRequest",
    "Pause",
    "Reply",
    "Script",
    "ScriptMismatch",
    "ScriptedModel",
    "Stall",
    "StopReason",
    "StreamError",
    "Text",
    "Thinking",
    "TooLong",
    "ToolCall",
    "ToolResult",
    "Usage",
    "Wire",
    "is_side_request",
]
