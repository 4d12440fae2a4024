"""A model endpoint on the loopback that says what a test tells it to; see docs/reference/scripted-model.md."""

from legation.testing.model.anthropic import AnthropicWire
from legation.testing.model.gemini import GeminiWire
from legation.testing.model.http import HttpAnswer, HttpRequest
from legation.testing.model.openai_chat import OpenAiChatWire
from legation.testing.model.openai_responses import OpenAiResponsesWire
from legation.testing.model.request import Message, ModelRequest, ToolResult, Wire
from legation.testing.model.script import (
    AskUser,
    Cut,
    EditFile,
    ExitPlan,
    Failure,
    Mcp,
    Pause,
    ReadFile,
    Reply,
    RunShell,
    Script,
    Stall,
    StopReason,
    StreamError,
    SubAgent,
    Text,
    Thinking,
    Todo,
    Tool,
    ToolCall,
    TooLong,
    Usage,
    WriteFile,
)
from legation.testing.model.server import ScriptedModel, ScriptMismatch, every_wire, is_side_request

__all__ = [
    "AnthropicWire",
    "AskUser",
    "Cut",
    "EditFile",
    "ExitPlan",
    "Failure",
    "GeminiWire",
    "HttpAnswer",
    "HttpRequest",
    "Mcp",
    "Message",
    "ModelRequest",
    "OpenAiChatWire",
    "OpenAiResponsesWire",
    "Pause",
    "ReadFile",
    "Reply",
    "RunShell",
    "Script",
    "ScriptMismatch",
    "ScriptedModel",
    "Stall",
    "StopReason",
    "StreamError",
    "SubAgent",
    "Text",
    "Thinking",
    "Todo",
    "TooLong",
    "Tool",
    "ToolCall",
    "ToolResult",
    "Usage",
    "Wire",
    "WriteFile",
    "every_wire",
    "is_side_request",
]
