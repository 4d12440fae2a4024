"""Content blocks of ACP as parts of an item. What 0.1.11 has no part for is a `json` part, whole."""

from urllib.parse import unquote, urlsplit

from legation.wire.acp.content import ContentBlock, ResourceLink, Text, Unread
from legation.wire.acp.content import Image as ImageBlock
from legation.wire.universal import shapes
from legation.wire.universal.embedded import json_value


def part_of(block: ContentBlock) -> shapes.Part:
    match block:
        case Text(text=text):
            return shapes.Text(text)
        case ImageBlock():
            return shapes.Image(block.uri or f"data:{block.mime_type};base64,{block.data}", block.mime_type)
        case ResourceLink(uri=uri) if (path := path_of(uri)) is not None:
            return shapes.FileRef(path, "read")
        case Unread(value=value):
            return shapes.Json(json_value(value))
    return shapes.Json(json_value(block))


def path_of(uri: str) -> str | None:
    """Of a file: address."""
    if not uri.startswith("file:"):
        return None
    try:
        return unquote(urlsplit(uri).path) or None
    except ValueError:
        return None
