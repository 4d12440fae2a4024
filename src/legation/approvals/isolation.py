"""Content isolation: arguments as somebody sees them who is to judge their structure, not to read what they say.

INV-C1  No text of more than `LONGEST_TEXT` bytes, and nothing under a key that names content, is left, however deep
        it is nested; be it in objects, in arrays, or as the name of a member.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from legation.settings import Settings
from legation.wire import jsontext
from legation.wire.principal import Principal

LONGEST_TEXT: Final = 256  # bytes of UTF-8 that are shown as they are
CONTENT_KEYS: Final = frozenset({"content", "body", "data", "file_content", "text"})
DEEPEST: Final = 64  # levels; what is nested further is content as a whole
_LOOKED_AT: Final = 512  # characters in which a control character tells that it is no text
_HTML: Final = ("<!doctype html", "<html")
_LAYOUT: Final = frozenset("\t\n\r\f")

MediaType: TypeAlias = Literal[
    "application/json", "text/xml", "text/html", "text/plain", "application/octet-stream"
]


def is_isolated(principal: Principal, settings: Settings) -> bool:
    """Whether content is hidden from it. From a person who may decide it never is."""
    return principal.level < 2 and not settings.expose_content


def hide(params: Mapping[str, object]) -> dict[str, object]:
    """The same members; for each content its length in bytes, its SHA-256 and its type."""
    return _members(params, 0)


def _members(found: Mapping[str, object], depth: int) -> dict[str, object]:
    return {
        _name(key): _metadata(value) if key.casefold() in CONTENT_KEYS else _value(value, depth + 1)
        for key, value in found.items()
    }


def _value(value: object, depth: int) -> object:
    if isinstance(value, str):
        return _metadata(value) if len(_bytes(value)) > LONGEST_TEXT else value
    if isinstance(value, Mapping):
        return _metadata(value) if depth > DEEPEST else _members(value, depth)
    if isinstance(value, list | tuple):
        return _metadata(value) if depth > DEEPEST else [_value(each, depth + 1) for each in value]
    return value


def _name(key: str) -> str:
    """Of a member: a text can be hidden there as well."""
    data = _bytes(key)
    return key if len(data) <= LONGEST_TEXT else f"sha256:{hashlib.sha256(data).hexdigest()}"


def _metadata(value: object) -> dict[str, object]:
    """Of a text its UTF-8; of anything else its JSON."""
    data = _bytes(value) if isinstance(value, str) else jsontext.write(value)
    return {
        "content_length": len(data),
        "content_sha256": hashlib.sha256(data).hexdigest(),
        "content_type_detected": media_type(value) if isinstance(value, str) else "application/json",
    }


def media_type(text: str) -> MediaType:
    start = text.lstrip()[:_LOOKED_AT]
    if start.startswith(("{", "[")) and _is_json(text):
        return "application/json"
    if start.startswith("<"):
        return "text/html" if start.lower().startswith(_HTML) else "text/xml"
    if any(_is_control(each) for each in text[:_LOOKED_AT]):
        return "application/octet-stream"
    return "text/plain"


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(_bytes(text))
    except jsontext.READ_ERRORS:
        return False
    return True


def _is_control(character: str) -> bool:
    return (character < " " or character == "\x7f") and character not in _LAYOUT


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
