"""A session's log as the seed's own universal events: whole messages, made from the items of `projector`.

There are no deltas: a message comes when it is complete. INV-U1, U3 to U5 hold here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from legation.wire import codec, lifecycle
from legation.wire.acp.content import Audio, ContentBlock, EmbeddedResource, ResourceLink
from legation.wire.events import Event
from legation.wire.universal import message_shapes, shapes
from legation.wire.universal.asks import Field, fields_of
from legation.wire.universal.calls import KEPT
from legation.wire.universal.outbox import (
    LogRow,
    Projected,
    Row,
    filled,
    has_long,
    is_long,
    json_bytes,
    json_value,
    time_of,
)
from legation.wire.universal.projector import Projector
from legation.wire.universal.shapes import SessionFacts, floor

# Parts of an item as parts of a message.

_block_decoder: Final = msgspec.json.Decoder(ContentBlock)


def message_part(part: shapes.Part, tool: str, *, failed: bool) -> message_shapes.MessagePart | None:
    """`tool` is the name of the tool that the item is about. A status says nothing that a message could."""
    match part:
        case shapes.Text(text=text):
            return message_shapes.Text(text)
        case shapes.ToolCall(name=name, arguments=given, call_id=call_id):
            arguments = msgspec.Raw(given.encode())
            kind = message_shapes.FunctionCall if _is_function(name) else message_shapes.ToolCall
            return kind(call_id, name, arguments)
        case shapes.ToolResult(call_id=call_id, output=output):
            if _is_function(tool):
                return message_shapes.FunctionResult(call_id, tool, output, failed)
            return message_shapes.ToolResult(call_id, output, tool or None, failed)
        case shapes.FileRef(path=path):
            return message_shapes.File(message_shapes.PathSource(path), raw=_raw(part))
        case shapes.Image(path=path, mime=mime):
            return message_shapes.Image(_source(path), mime)
        case shapes.Json(json=raw):
            return _resource(raw)
        case shapes.Status():
            return None
    return message_shapes.UnknownPart(_raw(part))


def _is_function(name: str) -> bool:
    return "." in name


def _source(path: str) -> message_shapes.AttachmentSource:
    if path.startswith("data:"):
        return message_shapes.DataSource(path.partition(",")[2], "base64")
    return message_shapes.UrlSource(path) if "://" in path else message_shapes.PathSource(path)


def _resource(raw: msgspec.Raw) -> message_shapes.MessagePart:
    """Blocks that 0.1.11 has no part for, and which are files."""
    try:
        block = _block_decoder.decode(raw)
    except (ValueError, RecursionError):
        return message_shapes.UnknownPart(raw)
    match block:
        case Audio():
            return message_shapes.File(message_shapes.DataSource(block.data, "base64"), block.mime_type)
        case ResourceLink():
            source = message_shapes.UrlSource(block.uri)
            return message_shapes.File(source, block.mime_type, block.name, raw)
        case EmbeddedResource(resource=found) if found.text is not None or found.blob is not None:
            held = message_shapes.DataSource(found.text or "")
            if found.text is None:
                held = message_shapes.DataSource(found.blob or "", "base64")
            return message_shapes.File(held, found.mime_type, found.uri)
    return message_shapes.UnknownPart(raw)


def _raw(part: shapes.Part) -> msgspec.Raw:
    return msgspec.Raw(json_bytes(part))


REPLIES: Final = ("once", "always", "reject")
_NO_END: Final = "the turn ended before the tool did"
_RESET: Final = lifecycle.SessionReset.event_type()

_encode = msgspec.json.Encoder().encode


_NAME_BYTES = 256  # of a call and its name, in a dictionary


class ProjectedMessage(msgspec.Struct, frozen=True):
    sequence: int
    data: message_shapes.EventData
    cause: Event
    session: SessionFacts

    @property
    def source_seq(self) -> int:
        return self.cause.seq

    def apart(self, include_raw: bool = False) -> Sequence[bytes]:  # noqa: ARG002 - as of `encode`
        if not is_long(self.cause):
            match self.data:
                case message_shapes.Message(message=message_shapes.Parsed(parts=said)) if has_long(said):
                    pass
                case _:
                    return ()
        parts = filled(self._encoded, self.data)
        return parts if len(parts) > 1 else ()

    def encode(self, include_raw: bool = False) -> bytes:  # noqa: ARG002 - the schema has no place for it
        return self._encoded(self.data)

    def _encoded(self, data: message_shapes.EventData) -> bytes:
        event = message_shapes.UniversalEvent(
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

    __slots__ = ("_items", "_sequence", "_session", "_started", "_tools")

    def __init__(self, session: SessionFacts) -> None:
        self._session = session
        self._items = Projector(session)
        self._sequence = 0
        self._started = False
        self._tools: dict[str, str] = {}  # of this turn: the name of each call

    def copy(self) -> MessageProjector:
        """One that goes on from here by itself."""
        other = MessageProjector(self._session)
        other._items, other._tools = self._items.copy(), dict(self._tools)
        other._sequence, other._started = self._sequence, self._started
        return other

    @property
    def sequence(self) -> int:
        """The last one that was given out."""
        return self._sequence

    @property
    def held(self) -> int:
        """Bytes, about, of what it remembers of calls."""
        return self._items.held + _NAME_BYTES * len(self._tools)

    def go_on(self, events: Sequence[Event], start: int) -> list[Row]:  # noqa: ARG002 - there are no deltas
        return []

    def feed(self, event: Event) -> list[ProjectedMessage]:
        found = []
        for projected in self._items.feed(event):
            if projected.type == "session.started" and (event.type == _RESET or not self._started):
                self._sequence, self._started, self._tools = floor(event.seq), True, {}
            data = self._data(projected)
            if data is not None:
                self._sequence += 1
                found.append(ProjectedMessage(self._sequence, data, event, self._session))
        return found

    def _data(self, projected: Projected) -> message_shapes.EventData | None:
        match projected.data:
            case shapes.ItemDelta():
                return None
            case shapes.ItemEvent(item=item):
                return self._item(projected, item)
            case shapes.SessionStarted(metadata=metadata):
                return message_shapes.Started(metadata)
            case shapes.Error(message=message, code=code, details=details):
                return message_shapes.Error(message, code, details)
            case shapes.SessionEnded(reason="error") as ended:
                return message_shapes.Error(ended.message or "", "process_exit", json_value(ended))
            case shapes.Unparsed(error=error):
                return message_shapes.Message(message_shapes.Unparsed(LogRow.of(projected.cause), error))
        return self._asked(projected)

    def _asked(self, projected: Projected) -> message_shapes.EventData | None:
        if projected.type == "turn.ended":
            self._tools = {}
        if projected.type in ("question.requested", "permission.requested"):
            payload = codec.decode(projected.cause)
            if isinstance(payload, lifecycle.QuestionAsked):
                return _question(payload)
            if isinstance(payload, lifecycle.PermissionAsked):
                return _permission(payload, projected.cause)
        return message_shapes.Unknown(LogRow.of(projected.cause)) if projected.has_raw else None

    def _item(self, projected: Projected, item: shapes.Item) -> message_shapes.EventData | None:
        if projected.type == "item.started":
            return None
        if item.kind in ("status", "unknown"):
            return message_shapes.Unknown(LogRow.of(projected.cause))
        failed = item.status == "failed"
        tool = self._tools.get(item.native_item_id or "", "")
        parts = [message_part(part, tool, failed=failed) for part in item.content]
        if item.kind == "tool_call":
            self._note_name(item)
        if failed and projected.synthetic:
            parts.append(message_shapes.ErrorPart(_NO_END))
        metadata = message_shapes.MessageMetadata(
            item.item_id, item.status, item.native_item_id, item.parent_id
        )
        kept = tuple(part for part in parts if part is not None)
        return message_shapes.Message(message_shapes.Parsed(item.role or "assistant", kept, metadata))

    def _note_name(self, item: shapes.Item) -> None:
        for part in item.content:
            if isinstance(part, shapes.ToolCall):
                self._tools[part.call_id] = part.name
                if len(self._tools) > 2 * KEPT:  # of those before, the fold itself has forgotten the calls
                    del self._tools[next(iter(self._tools))]


def _question(asked: lifecycle.QuestionAsked) -> message_shapes.QuestionAsked:
    fields = fields_of(asked.requested_schema)
    about = [asked.message, *([asked.url] if asked.url else [])]
    plain = message_shapes.QuestionInfo("\n".join(about), (), multi_select=False, custom=False)
    return message_shapes.QuestionAsked(
        asked.id,
        tuple(_info(asked.message, field) for field in fields) or (plain,),
        _tool(asked.tool_call_id),
    )


def _info(message: str, field: Field) -> message_shapes.QuestionInfo:
    return message_shapes.QuestionInfo(
        field.description or message,
        tuple(message_shapes.Option(choice.label) for choice in field.choices),
        multi_select=field.many,
        custom=not field.choices,
        header=field.title,
    )


def _permission(asked: lifecycle.PermissionAsked, cause: Event) -> message_shapes.PermissionAsked:
    action = asked.action
    return message_shapes.PermissionAsked(
        asked.id,
        action.tool,
        (*action.commands, *action.paths, *action.urls),
        REPLIES,
        LogRow.of(cause),
        _tool(asked.tool_call_id),
    )


def _tool(call_id: str | None) -> message_shapes.ToolRef | None:
    return None if call_id is None else message_shapes.ToolRef(call_id)
