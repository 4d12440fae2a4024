"""A prompt as Codex takes it: text, and pictures as data."""

from __future__ import annotations

from legation.agents.codex.sent import UserInput
from legation.wire.acp.content import Audio, ContentBlock, EmbeddedResource, Image, ResourceLink, Text, Unread


def user_input(prompt: tuple[ContentBlock, ...]) -> tuple[UserInput, ...]:
    return tuple(_input(block) for block in prompt)


def _input(block: ContentBlock) -> UserInput:
    match block:
        case Text(text=text):
            return _text(text)
        case Image(data=data, mime_type=mime):
            return {"type": "image", "url": f"data:{mime};base64,{data}"}
        case Audio(data=data, mime_type=mime):
            return {"type": "audio", "url": f"data:{mime};base64,{data}"}
        case ResourceLink(name=name, uri=uri):
            return _text(f"[{name}]({uri})")
        case EmbeddedResource(resource=resource):
            return _text(f"{resource.uri}\n\n{resource.text or ''}")
        case Unread():
            return _text("")


def _text(text: str) -> UserInput:
    return {"type": "text", "text": text, "text_elements": []}
