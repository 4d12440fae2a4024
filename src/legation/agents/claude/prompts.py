"""A prompt's content as the blocks that the model takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from legation.errors import InvalidParams
from legation.wire.acp.content import (
    ContentBlock,
    EmbeddedResource,
    Image,
    ResourceContents,
    ResourceLink,
    Text,
)

_PDF: Final = "application/pdf"


def blocks_of(prompt: tuple[ContentBlock, ...]) -> list[Mapping[str, object]]:
    return [_block(each) for each in prompt]


def _block(block: ContentBlock) -> Mapping[str, object]:
    match block:
        case Text(text=text):
            return _text(text)
        case Image(data=data, mime_type=kind):
            return _data("image", kind, data)
        case ResourceLink(uri=uri, name=name):
            return _text(f"[{name}]({uri})")
        case EmbeddedResource(resource=resource):
            return _resource(resource)
    raise InvalidParams(
        f"cannot send a block of type {type(block).__name__.lower()} to Claude Code: it takes text, images, links and"
        " resources; leave it out"
    )


def _resource(resource: ResourceContents) -> Mapping[str, object]:
    kind, blob = resource.mime_type or "", resource.blob
    if resource.text is not None:
        return _text(f'<context ref="{resource.uri}">\n{resource.text}\n</context>')
    if blob is not None and kind.startswith("image/"):
        return _data("image", kind, blob)
    if blob is not None and kind == _PDF:
        return _data("document", kind, blob)
    raise InvalidParams(
        f"cannot send a resource of type {kind or 'unknown'} to Claude Code: it takes text, images and PDF; send a link"
    )


def _text(text: str) -> Mapping[str, object]:
    return {"type": "text", "text": text}


def _data(block: str, kind: str, data: str) -> Mapping[str, object]:
    return {"type": block, "source": {"type": "base64", "media_type": kind, "data": data}}
