"""Parts of an item as parts of a message."""

from typing import Final

import msgspec

from legation.wire.acp.content import Audio, ContentBlock, EmbeddedResource, ResourceLink
from legation.wire.universal import message_shapes, shapes
from legation.wire.universal.embedded import json_bytes

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
