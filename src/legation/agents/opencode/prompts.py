"""A prompt's content blocks as the parts that OpenCode takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from legation.wire.acp.content import Audio, ContentBlock, EmbeddedResource, Image, ResourceLink, Text

_PLAIN: Final = "text/plain"


def parts(prompt: tuple[ContentBlock, ...]) -> list[dict[str, object]]:
    return [part for block in prompt for part in _parts(block)]


def _parts(block: ContentBlock) -> Iterator[dict[str, object]]:
    match block:
        case Text(text=text):
            yield _text(text)
        case Image(data=data, mime_type=mime, uri=uri):
            yield _data(mime, data, uri)
        case Audio(data=data, mime_type=mime):
            yield _data(mime, data, None)
        case ResourceLink(uri=uri, name=name, mime_type=mime) if uri.startswith("file://"):
            yield {"type": "file", "mime": mime or _PLAIN, "url": uri, "filename": name}
        case ResourceLink(uri=uri, name=name):
            yield _text(f"[{name}]({uri})")
        case EmbeddedResource(resource=found) if found.text is not None:
            yield _text(f'<context ref="{found.uri}">\n{found.text}\n</context>')
        case EmbeddedResource(resource=found) if found.blob is not None:
            yield _data(found.mime_type or "application/octet-stream", found.blob, found.uri)


def _text(text: str) -> dict[str, object]:
    return {"type": "text", "text": text}


def _data(mime: str, data: str, uri: str | None) -> dict[str, object]:
    name = uri.rpartition("/")[2] if uri else ""
    return {
        "type": "file",
        "mime": mime,
        "url": f"data:{mime};base64,{data}",
        **({"filename": name} if name else {}),
    }
