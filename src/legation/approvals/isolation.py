"""Content isolation: arguments as somebody sees them who is to judge their structure, not to read what they say.

INV-C1  No text of more than `LONGEST_TEXT` bytes, and nothing under a key that names content, is left, however deep
        it is nested; be it in objects, in arrays, or as the name of a member.
INV-C2  What stands for hidden content never becomes an argument: who edits what it cannot see gives each stand-in back in
        its place, untouched, where the content takes its place again, and nowhere else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from legation.errors import InvalidParams
from legation.settings import Settings
from legation.wire import jsontext
from legation.wire.principal import Principal

LONGEST_TEXT: Final = 256  # bytes of UTF-8 that are shown as they are
CONTENT_KEYS: Final = frozenset({"content", "body", "data", "file_content", "text"})
DEEPEST: Final = 64  # levels; what is nested further is content as a whole
_LOOKED_AT: Final = 512  # characters in which a control character tells that it is no text
_HIDDEN_NAME: Final = "sha256:"  # in place of a member's name
_METADATA: Final = frozenset({"content_length", "content_sha256", "content_type_detected"})
_HTML: Final = ("<!doctype html", "<html")
_LAYOUT: Final = frozenset("\t\n\r\f")

MediaType: TypeAlias = Literal[
    "application/json", "text/xml", "text/html", "text/plain", "application/octet-stream"
]


def is_isolated(principal: Principal, settings: Settings) -> bool:
    """Tell whether content is hidden from it. From a person who may decide it never is."""
    return principal.level < 2 and not settings.expose_content


def hide(params: Mapping[str, object]) -> dict[str, object]:
    """Put for each content its length in bytes, its SHA-256 and its type; the members stay."""
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
    # The name of a member: a text can be hidden there as well.
    data = _bytes(key)
    return key if len(data) <= LONGEST_TEXT else f"{_HIDDEN_NAME}{hashlib.sha256(data).hexdigest()}"


def _metadata(value: object) -> dict[str, object]:
    data = _bytes(value) if isinstance(value, str) else jsontext.write(value)  # UTF-8, or JSON
    return {
        "content_length": len(data),
        "content_sha256": hashlib.sha256(data).hexdigest(),
        "content_type_detected": media_type(value) if isinstance(value, str) else "application/json",
    }


def restored(edited: Mapping[str, object], params: Mapping[str, object]) -> dict[str, object]:
    """Make the arguments that somebody means who was shown `hide(params)` and changed some of it: content that was hidden
    is as it was. `InvalidParams` where a stand-in is missing, changed, or in another place, be it within a text."""
    return _restored_members(edited, params, 0, "$", frozenset(_stand_ins(hide(params))))


def _restored_members(
    edited: Mapping[str, object], params: Mapping[str, object], depth: int, at: str, known: frozenset[str]
) -> dict[str, object]:
    for former, value in params.items():
        hidden = _is_hidden(value, depth + 1, former) or _name(former) != former
        if (hidden or _holds_hidden(value, depth + 1)) and edited.keys().isdisjoint({former, _name(former)}):
            raise _misplaced(f"{at}.{_name(former)}")
    names = {shown: key for key in params for shown in (key, _name(key))}
    found = {}
    for shown, value in edited.items():
        place = f"{at}.{shown}"
        if shown not in names:
            _must_be_plain(shown, place, known)
            _must_be_plain(value, place, known)
            found[shown] = value
        elif (key := names[shown]).casefold() in CONTENT_KEYS:
            found[key] = _kept(value, params[key], place)
        else:
            found[key] = _restored(value, params[key], depth + 1, place, known)
    return found


def _restored(edited: object, value: object, depth: int, at: str, known: frozenset[str]) -> object:
    if _is_hidden(value, depth):
        return _kept(edited, value, at)
    if isinstance(value, Mapping) and isinstance(edited, Mapping):
        return _restored_members(edited, value, depth, at, known)
    if isinstance(value, list | tuple) and isinstance(edited, list | tuple):
        former: list[object] = [*value, *([None] * (len(edited) - len(value)))]
        if any(_is_or_holds_hidden(each, depth + 1) for each in value[len(edited) :]):
            raise _misplaced(at)
        return [
            _restored(each, former[index], depth + 1, f"{at}[{index}]", known)
            for index, each in enumerate(edited)
        ]
    if _holds_hidden(value, depth):
        raise _misplaced(at)
    if edited != value:
        _must_be_plain(edited, at, known)
    return edited


def _kept(edited: object, value: object, at: str) -> object:
    if edited not in (_metadata(value), value):  # who knows it by other ways may say it
        raise _misplaced(at)
    return value


def _is_hidden(value: object, depth: int, key: str = "") -> bool:
    # As `_members` and `_value` have it.
    if key.casefold() in CONTENT_KEYS:
        return True
    if isinstance(value, str):
        return len(_bytes(value)) > LONGEST_TEXT
    return isinstance(value, Mapping | list | tuple) and depth > DEEPEST


def _holds_hidden(value: object, depth: int) -> bool:
    if isinstance(value, Mapping):
        return any(
            _name(key) != key or _is_hidden(each, depth + 1, key) or _holds_hidden(each, depth + 1)
            for key, each in value.items()
        )
    if isinstance(value, list | tuple):
        return any(_is_or_holds_hidden(each, depth + 1) for each in value)
    return False


def _is_or_holds_hidden(value: object, depth: int) -> bool:
    return _is_hidden(value, depth) or _holds_hidden(value, depth)


def _stand_ins(shown: object) -> Iterator[str]:
    """List the digests in what is shown."""
    if isinstance(shown, Mapping):
        if shown.keys() == _METADATA:
            yield str(shown["content_sha256"])
            return
        for key, value in shown.items():
            if key.startswith(_HIDDEN_NAME):
                yield key.removeprefix(_HIDDEN_NAME)
            yield from _stand_ins(value)
    elif isinstance(shown, list):
        for each in shown:
            yield from _stand_ins(each)


def _must_be_plain(value: object, at: str, known: frozenset[str], depth: int = 0) -> None:
    """Refuse a stand-in, and any part of one within a text."""
    if depth > DEEPEST:
        raise _misplaced(at)
    if isinstance(value, str):
        folded = value.casefold()
        if "content_sha256" in folded or any(digest in folded for digest in known):
            raise _misplaced(at)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            _must_be_plain(key, at, known)
            _must_be_plain(each, f"{at}.{key}", known, depth + 1)
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            _must_be_plain(each, f"{at}[{index}]", known, depth + 1)


def _misplaced(at: str) -> InvalidParams:
    path = at if len(at) <= LONGEST_TEXT else f"{at[:LONGEST_TEXT]}..."
    return InvalidParams(
        "cannot take these arguments: content is hidden from you, and what stands for it is changed, missing or in another "
        "place; give it back as it was shown and change the rest, or leave it to a person",
        {"path": path, "expected": "what was shown there"},
    )


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
