"""What clients send with each method. Unknown members are ignored, as everywhere in ACP."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from legation.errors import InvalidParams
from legation.host.endpoint import what_is_wrong
from legation.host.lifecycle import MAX_DIRECTORIES
from legation.wire import jsontext
from legation.wire.acp.content import Audio, EmbeddedResource, Image, ResourceLink, Text
from legation.wire.acp.mcp import McpServer
from legation.wire.acp.sessions import SessionRequest
from legation.wire.acp.shape import Shape

T = TypeVar("T")


class Initialize(Shape):
    protocol_version: int | str
    client_capabilities: dict[str, object] | None = None


class NewRequest(Shape):
    """Where a session works; given with new, load and resume."""

    cwd: str
    mcp_servers: tuple[McpServer, ...] | None = None
    additional_directories: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if len(self.additional_directories or ()) > MAX_DIRECTORIES:
            raise ValueError(f"give at most {MAX_DIRECTORIES} additional folders")
        for folder in (self.cwd, *(self.additional_directories or ())):
            if not Path(folder).is_absolute() or "\0" in folder:
                raise ValueError("give absolute paths")


class LoadRequest(NewRequest, kw_only=True):
    session_id: str


class Prompt(SessionRequest, kw_only=True):
    prompt: tuple[Text | Image | Audio | ResourceLink | EmbeddedResource, ...]


def read(params: bytes, shape: type[T]) -> T:
    try:
        return msgspec.convert(read_any(params), shape)
    except msgspec.ValidationError as error:
        raise InvalidParams(f"cannot read the parameters: {what_is_wrong(error)}; correct them") from None


def read_any(params: bytes) -> object:
    """Of a method that we do not know."""
    try:
        return jsontext.read(params or b"{}")
    except jsontext.READ_ERRORS:
        raise InvalidParams(
            "cannot read the parameters: they are no JSON that can be held; correct them"
        ) from None
