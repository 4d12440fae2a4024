"""A session's log as the seed's own universal events: whole messages, made from the items of `projector`.

There are no deltas: a message comes when it is complete. INV-U1, U3 to U5 hold here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, TypeAlias

import msgspec

from legation.wire import event_types
from legation.wire.acp.updates import Audio, ContentBlock, EmbeddedResource, ResourceLink
from legation.wire.events import Event
from legation.wire.universal import shapes
from legation.wire.universal.asks import FormField, fields_of, plan_question
from legation.wire.universal.output import (
    LogRow,
    ProjectedEvent,
    ProjectedRow,
    filled,
    has_long,
    is_long,
    json_bytes,
    json_value,
    time_of,
)
from legation.wire.universal.projector import Projector
from legation.wire.universal.shapes import Metadata, SessionFacts

# The seed's own universal events. Every enum is an object whose `type` says which it is; keys are snake_case.


class PathSource(msgspec.Struct, frozen=True, tag="path"):
    path: str


class UrlSource(msgspec.Struct, frozen=True, tag="url"):
    url: str


class DataSource(msgspec.Struct, frozen=True, tag="data", omit_defaults=True):
    data: str
    encoding: str | None = None


AttachmentSource: TypeAlias = PathSource | UrlSource | DataSource


class MessageText(msgspec.Struct, frozen=True, tag="text"):
    text: str


class MessageToolCall(msgspec.Struct, frozen=True, tag="tool_call"):
    id: str
    name: str
    input: msgspec.Raw


class MessageToolResult(msgspec.Struct, frozen=True, tag="tool_result", omit_defaults=True):
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


class MessageFile(msgspec.Struct, frozen=True, tag="file", omit_defaults=True):
    source: AttachmentSource
    mime_type: str | None = None
    filename: str | None = None
    raw: msgspec.Raw | None = None


class MessageImage(msgspec.Struct, frozen=True, tag="image", omit_defaults=True):
    source: AttachmentSource
    mime_type: str | None = None


class MessageError(msgspec.Struct, frozen=True, tag="error"):
    message: str


class MessageUnknown(msgspec.Struct, frozen=True, tag="unknown"):
    raw: msgspec.Raw


MessagePart: TypeAlias = (
    MessageText
    | MessageToolCall
    | MessageToolResult
    | FunctionCall
    | FunctionResult
    | MessageFile
    | MessageImage
    | MessageError
    | MessageUnknown
)


class MessageMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """The item that the message is in the events of 0.1.11."""

    item_id: str
    status: str
    native_item_id: str | None = None
    parent_id: str | None = None


class ParsedMessage(msgspec.Struct, frozen=True, tag="parsed"):
    role: str
    parts: tuple[MessagePart, ...]
    metadata: MessageMetadata


class UnparsedMessage(msgspec.Struct, frozen=True, tag="unparsed"):
    raw: LogRow
    error: str


class MessageEvent(msgspec.Struct, frozen=True, tag="message"):
    message: ParsedMessage | UnparsedMessage


class StartedEvent(msgspec.Struct, frozen=True, tag="started"):
    details: Metadata


class ErrorEvent(msgspec.Struct, frozen=True, tag="error", omit_defaults=True):
    message: str
    kind: str | None = None
    details: msgspec.Raw | None = None


class AnswerOption(msgspec.Struct, frozen=True):
    label: str


class QuestionInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """`custom`: any text is an answer."""

    question: str
    options: tuple[AnswerOption, ...]
    multi_select: bool
    custom: bool
    header: str | None = None


class ToolRef(msgspec.Struct, frozen=True):
    call_id: str


class QuestionAskedMember(msgspec.Struct, frozen=True):
    id: str
    questions: tuple[QuestionInfo, ...]


class QuestionEvent(
    msgspec.Struct,
    frozen=True,
    tag="question_asked",
    omit_defaults=True,
    rename={"question_asked": "questionAsked"},
):
    """`questionAsked` is the same by the documents' own name, which is also how they are found."""

    id: str
    questions: tuple[QuestionInfo, ...]
    question_asked: QuestionAskedMember
    tool: ToolRef | None = None


class PermissionAskedMember(msgspec.Struct, frozen=True):
    id: str
    permission: str
    patterns: tuple[str, ...]
    reply: tuple[str, ...]


class PermissionEvent(
    msgspec.Struct,
    frozen=True,
    tag="permission_asked",
    omit_defaults=True,
    rename={"permission_asked": "permissionAsked"},
):
    """`patterns` are the paths, commands and addresses that it is about; `reply` is what can be answered. `permissionAsked`
    has the same by the documents' own name."""

    id: str
    permission: str
    patterns: tuple[str, ...]
    reply: tuple[str, ...]
    metadata: LogRow
    permission_asked: PermissionAskedMember
    tool: ToolRef | None = None


class UnknownEvent(msgspec.Struct, frozen=True, tag="unknown"):
    """An event of the log that the schema has no word for."""

    raw: LogRow


EventData: TypeAlias = (
    MessageEvent | StartedEvent | ErrorEvent | QuestionEvent | PermissionEvent | UnknownEvent
)


class MessageEnvelope(msgspec.Struct, frozen=True, omit_defaults=True):
    id: int
    timestamp: datetime
    session_id: str
    agent: str
    data: EventData
    agent_session_id: str | None = None


# Parts of an item as parts of a message.

_block_decoder: Final = msgspec.json.Decoder(ContentBlock)


def _message_part(part: shapes.Part, tool: str, *, failed: bool) -> MessagePart | None:
    """`tool` is the name of the tool that the item is about. A status says nothing that a message could."""
    match part:
        case shapes.ItemText(text=text):
            return MessageText(text)
        case shapes.ItemToolCall(name=name, arguments=given, call_id=call_id):
            arguments = msgspec.Raw(given.encode())
            kind = FunctionCall if _is_function(name) else MessageToolCall
            return kind(call_id, name, arguments)
        case shapes.ItemToolResult(call_id=call_id, output=output):
            if _is_function(tool):
                return FunctionResult(call_id, tool, output, failed)
            return MessageToolResult(call_id, output, tool or None, failed)
        case shapes.FileRef(path=path):
            return MessageFile(PathSource(path), raw=_raw(part))
        case shapes.ItemImage(path=path, mime=mime):
            return MessageImage(_source(path), mime)
        case shapes.ItemJson(json=raw):
            return _resource(raw)
        case shapes.ItemLabel():
            return None
    return MessageUnknown(_raw(part))


def _is_function(name: str) -> bool:
    return "." in name


def _source(path: str) -> AttachmentSource:
    if path.startswith("data:"):
        return DataSource(path.partition(",")[2], "base64")
    return UrlSource(path) if "://" in path else PathSource(path)


def _resource(raw: msgspec.Raw) -> MessagePart:
    """Blocks that 0.1.11 has no part for, and which are files."""
    try:
        block = _block_decoder.decode(raw)
    except (ValueError, RecursionError):
        return MessageUnknown(raw)
    match block:
        case Audio():
            return MessageFile(DataSource(block.data, "base64"), block.mime_type)
        case ResourceLink():
            source = UrlSource(block.uri)
            return MessageFile(source, block.mime_type, block.name, raw)
        case EmbeddedResource(resource=found) if found.text is not None or found.blob is not None:
            held = DataSource(found.text or "")
            if found.text is None:
                held = DataSource(found.blob or "", "base64")
            return MessageFile(held, found.mime_type, found.uri)
    return MessageUnknown(raw)


def _raw(part: shapes.Part) -> msgspec.Raw:
    return msgspec.Raw(json_bytes(part))


REPLIES: Final = ("once", "always", "reject")
_NO_END: Final = "the turn ended before the tool did"

_encode = msgspec.json.Encoder().encode


class ProjectedMessage(msgspec.Struct, frozen=True):
    sequence: int
    data: EventData
    cause: Event
    session: SessionFacts

    @property
    def source_seq(self) -> int:
        return self.cause.seq

    def apart(self, include_raw: bool = False) -> Sequence[bytes]:  # noqa: ARG002 - as of `encode`
        if not is_long(self.cause):
            match self.data:
                case MessageEvent(message=ParsedMessage(parts=said)) if has_long(said):
                    pass
                case _:
                    return ()
        parts = filled(self._encoded, self.data)
        return parts if len(parts) > 1 else ()

    def encode(self, include_raw: bool = False) -> bytes:  # noqa: ARG002 - the schema has no place for it
        return self._encoded(self.data)

    def _encoded(self, data: EventData) -> bytes:
        event = MessageEnvelope(
            self.sequence,
            time_of(self.cause),
            self.session.session_id,
            self.session.agent,
            data,
            self.session.native_session_id,
        )
        try:
            return _encode(event)
        except UnicodeEncodeError:  # lone surrogates
            return json_bytes(event)


class MessageProjector:
    """The same fold as `Projector`, in other words."""

    __slots__ = ("_session", "items")

    def __init__(self, session: SessionFacts, items: Projector | None = None) -> None:
        self._session = session
        self.items = items or Projector(session)

    def copy(self) -> MessageProjector:
        """One that goes on from here by itself."""
        return MessageProjector(self._session, self.items.copy())

    @property
    def sequence(self) -> int:
        """The last one that was given out."""
        return self.items.messages.sequence

    def go_on(self, events: Sequence[Event], start: int, *, framed: bool = True) -> list[ProjectedRow]:  # noqa: ARG002 - there are no deltas
        return []

    def feed(self, event: Event) -> list[ProjectedMessage]:
        return self._made(event, self.items.feed_uncounted(event) or ())

    def feed_whole(self, event: Event) -> list[ProjectedMessage] | None:
        """As `feed`; None, and nothing is fed, where a message may end with the event of which the text is missing."""
        found = self.items.feed_uncounted(event, whole=True)
        return None if found is None else self._made(event, found)

    def _made(self, event: Event, items: Sequence[ProjectedEvent]) -> list[ProjectedMessage]:
        found, numbers = [], self.items.messages
        for projected in items:
            if numbers.count(projected):
                data = self._data(projected)
                found.append(ProjectedMessage(numbers.sequence, data, event, self._session))
        return found

    def _data(self, projected: ProjectedEvent) -> EventData:
        match projected.data:
            case shapes.ItemEvent(item=item):
                return self._item(projected, item)
            case shapes.SessionStarted(metadata=metadata):
                return StartedEvent(metadata)
            case shapes.Error(message=message, code=code, details=details):
                return ErrorEvent(message, code, details)
            case shapes.SessionEnded(reason="error") as ended:
                return ErrorEvent(ended.message or "", "process_exit", json_value(ended))
            case shapes.Unparsed(error=error):
                return MessageEvent(UnparsedMessage(LogRow.of(projected.cause), error))
        return self._asked(projected)

    def _asked(self, projected: ProjectedEvent) -> EventData:
        if projected.type in ("question.requested", "permission.requested"):
            payload = event_types.decode(projected.cause)
            if isinstance(payload, event_types.QuestionAsked):
                return _question(payload)
            if isinstance(payload, event_types.PermissionAsked) and projected.type == "question.requested":
                return _plan(payload)
            if isinstance(payload, event_types.PermissionAsked):
                return _permission(payload, projected.cause)
        return UnknownEvent(LogRow.of(projected.cause))

    def _item(self, projected: ProjectedEvent, item: shapes.Item) -> EventData:
        if item.kind in ("status", "unknown"):
            return UnknownEvent(LogRow.of(projected.cause))
        failed = item.status == "failed"
        tool = self.items.messages.tools.get(item.native_item_id or "", "")
        parts = [_message_part(part, tool, failed=failed) for part in item.content]
        self.items.messages.note_name(item)
        if failed and projected.synthetic:
            parts.append(MessageError(_NO_END))
        metadata = MessageMetadata(item.item_id, item.status, item.native_item_id, item.parent_id)
        kept = tuple(part for part in parts if part is not None)
        return MessageEvent(ParsedMessage(item.role or "assistant", kept, metadata))


def _question(asked: event_types.QuestionAsked) -> QuestionEvent:
    fields = fields_of(asked.requested_schema)
    about = [asked.message, *([asked.url] if asked.url else [])]
    plain = QuestionInfo("\n".join(about), (), multi_select=False, custom=False)
    questions = tuple(_info(asked.message, field) for field in fields) or (plain,)
    member = QuestionAskedMember(asked.id, questions)
    return QuestionEvent(asked.id, questions, member, _tool(asked.tool_call_id))


def _plan(asked: event_types.PermissionAsked) -> QuestionEvent:
    question = plan_question(asked)
    options = tuple(map(AnswerOption, question.options))
    info = QuestionInfo(question.prompt, options, multi_select=False, custom=False)
    return QuestionEvent(asked.id, (info,), QuestionAskedMember(asked.id, (info,)), _tool(asked.tool_call_id))


def _info(message: str, field: FormField) -> QuestionInfo:
    return QuestionInfo(
        field.description or message,
        tuple(AnswerOption(choice.label) for choice in field.choices),
        multi_select=field.many,
        custom=not field.choices,
        header=field.title,
    )


def _permission(asked: event_types.PermissionAsked, cause: Event) -> PermissionEvent:
    action = asked.action
    patterns = (*action.commands, *action.paths, *action.urls)
    member = PermissionAskedMember(asked.id, action.tool, patterns, REPLIES)
    return PermissionEvent(
        asked.id, action.tool, patterns, REPLIES, LogRow.of(cause), member, _tool(asked.tool_call_id)
    )


def _tool(call_id: str | None) -> ToolRef | None:
    return None if call_id is None else ToolRef(call_id)
