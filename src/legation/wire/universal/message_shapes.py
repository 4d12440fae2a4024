"""The seed's own universal events. Every enum is an object whose `type` says which it is; keys are snake_case."""

from datetime import datetime
from typing import TypeAlias

import msgspec

from legation.wire.universal.outbox import LogRow
from legation.wire.universal.shapes import Metadata


class PathSource(msgspec.Struct, frozen=True, tag="path"):
    path: str


class UrlSource(msgspec.Struct, frozen=True, tag="url"):
    url: str


class DataSource(msgspec.Struct, frozen=True, tag="data", omit_defaults=True):
    data: str
    encoding: str | None = None


AttachmentSource: TypeAlias = PathSource | UrlSource | DataSource


class Text(msgspec.Struct, frozen=True, tag="text"):
    text: str


class ToolCall(msgspec.Struct, frozen=True, tag="tool_call"):
    id: str
    name: str
    input: msgspec.Raw


class ToolResult(msgspec.Struct, frozen=True, tag="tool_result", omit_defaults=True):
    id: str
    output: str
    name: str | None = None
    is_error: bool = False


class FunctionCall(msgspec.Struct, frozen=True, tag="function_call"):
    """A call of a tool that an MCP server has: its name is `server.tool`."""

    id: str
    name: str
    arguments: msgspec.Raw


class FunctionResult(msgspec.Struct, frozen=True, tag="function_result", omit_defaults=True):
    id: str
    name: str
    result: str
    is_error: bool = False


class File(msgspec.Struct, frozen=True, tag="file", omit_defaults=True):
    source: AttachmentSource
    mime_type: str | None = None
    filename: str | None = None
    raw: msgspec.Raw | None = None


class Image(msgspec.Struct, frozen=True, tag="image", omit_defaults=True):
    source: AttachmentSource
    mime_type: str | None = None


class ErrorPart(msgspec.Struct, frozen=True, tag="error"):
    message: str


class UnknownPart(msgspec.Struct, frozen=True, tag="unknown"):
    raw: msgspec.Raw


MessagePart: TypeAlias = (
    Text | ToolCall | ToolResult | FunctionCall | FunctionResult | File | Image | ErrorPart | UnknownPart
)


class MessageMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """The item that the message is in the events of 0.1.11."""

    item_id: str
    status: str
    native_item_id: str | None = None
    parent_id: str | None = None


class Parsed(msgspec.Struct, frozen=True, tag="parsed"):
    role: str
    parts: tuple[MessagePart, ...]
    metadata: MessageMetadata


class Unparsed(msgspec.Struct, frozen=True, tag="unparsed"):
    raw: LogRow
    error: str


class Message(msgspec.Struct, frozen=True, tag="message"):
    message: Parsed | Unparsed


class Started(msgspec.Struct, frozen=True, tag="started"):
    details: Metadata


class Error(msgspec.Struct, frozen=True, tag="error", omit_defaults=True):
    message: str
    kind: str | None = None
    details: msgspec.Raw | None = None


class Option(msgspec.Struct, frozen=True):
    label: str


class QuestionInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """`custom`: any text is an answer."""

    question: str
    options: tuple[Option, ...]
    multi_select: bool
    custom: bool
    header: str | None = None


class ToolRef(msgspec.Struct, frozen=True):
    call_id: str


class QuestionAsked(msgspec.Struct, frozen=True, tag="question_asked", omit_defaults=True):
    id: str
    questions: tuple[QuestionInfo, ...]
    tool: ToolRef | None = None


class PermissionAsked(msgspec.Struct, frozen=True, tag="permission_asked", omit_defaults=True):
    """`patterns` are the paths, commands and addresses that it is about; `reply` is what can be answered."""

    id: str
    permission: str
    patterns: tuple[str, ...]
    reply: tuple[str, ...]
    metadata: LogRow
    tool: ToolRef | None = None


class Unknown(msgspec.Struct, frozen=True, tag="unknown"):
    """An event of the log that the schema has no word for."""

    raw: LogRow


EventData: TypeAlias = Message | Started | Error | QuestionAsked | PermissionAsked | Unknown


class UniversalEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    id: int
    timestamp: datetime
    session_id: str
    agent: str
    data: EventData
    agent_session_id: str | None = None
