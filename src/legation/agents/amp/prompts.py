"""A prompt as Amp takes it: text, on its input and never in its arguments."""

from __future__ import annotations

from legation.errors import InvalidParams
from legation.wire import jsontext
from legation.wire.acp.content import ContentBlock, EmbeddedResource, ResourceLink, Text


def text_of(prompt: tuple[ContentBlock, ...]) -> str:
    return "\n\n".join(_text(block) for block in prompt)


def line_of(text: str) -> bytes:
    message = {"role": "user", "content": [{"type": "text", "text": text}]}
    return jsontext.write({"type": "user", "message": message}) + b"\n"


def _text(block: ContentBlock) -> str:
    match block:
        case Text(text=text):
            return text
        case ResourceLink(uri=uri, name=name):
            return f"[{name}]({uri})"
        case EmbeddedResource(resource=resource) if resource.text is not None:
            return f'<context ref="{resource.uri}">\n{resource.text}\n</context>'
    raise InvalidParams(
        f"cannot send a block of type {type(block).__name__.lower()} to Amp: it takes text and links; leave it out"
    )
