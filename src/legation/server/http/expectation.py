"""What a request should have held, and where: the only thing that is said about a wrong one.

INV: nothing of what the caller sent is repeated; it may be a secret in the wrong place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import inspect as shape

from legation.errors import InvalidParams

_AT: Final = re.compile(r"^(?P<what>.*?)(?: - at `(?:key in `)?(?P<path>\$[^`]*)`*)?$", re.DOTALL)
_PATH: Final = re.compile(r"\$(?:\.[A-Za-z0-9_]{1,64}|\[[0-9.]{1,9}\]){0,32}")
_EXPECTED: Final = re.compile(r"Expected (?P<what>.*?)(?:, got .*)?", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(?P<name>[^`]*)`")
_STEP: Final = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<item>[^\]]*)\]")
_JSON_WORDS: Final = {"int": "integer", "str": "string", "float": "number", "bool": "boolean"}
_PYTHON: Final = re.compile(r"(?<=`)(?:int|str|float|bool)\b|(?<=\| )(?:int|str|float|bool)\b")


def invalid(path: str, expected: str) -> InvalidParams:
    return InvalidParams(
        f"cannot use the request: expected {expected} at {path}; correct it and send it again",
        {"path": path, "expected": expected},
    )


def expectation(error: msgspec.DecodeError, kind: object) -> tuple[str, str]:
    """The path and what was expected there, out of msgspec's message and the type it was decoding."""
    said = _AT.match(str(error))
    what, path = (said["what"], said["path"] or "$") if said else ("", "$")
    if not _PATH.fullmatch(path):  # a name that the caller made up, as long as they liked
        path = "$"
    if missing := _MISSING.fullmatch(what):
        return f"{path}.{missing['name']}", "a value (it is required)"
    if what.startswith("Object contains unknown field"):
        return path, _members(_at(kind, path))
    if expected := _EXPECTED.fullmatch(what):
        if "matching regex" in what and (words := _description(kind, path)):
            return path, words
        return path, _PYTHON.sub(lambda word: _JSON_WORDS[word[0]], expected["what"]).replace("`", "")
    if isinstance(error, msgspec.ValidationError):
        return path, _choices(_at(kind, path)) or "another value: this one is out of range"
    # msgspec's own words for what is not JSON name the byte, never the text.
    return path, f"JSON, which this is not: {what.removeprefix('JSON is malformed: ').lower()}"


def _at(kind: object, path: str) -> list[shape.Type]:
    """Every type that the schema allows at the path."""
    found = list(_flat(shape.type_info(kind)))
    for step in _STEP.finditer(path):
        found = [deeper for each in found for inner in _step(each, step) for deeper in _flat(inner)]
    return found


def _description(kind: object, path: str) -> str | None:
    """What the type itself says to people, in place of its pattern."""
    steps = list(_STEP.finditer(path))
    found = [shape.type_info(kind)]
    for step in steps:
        found = [inner for each in found for flat in _flat(each) for inner in _step(flat, step)]
    return next((text for each in found for text in _descriptions(each)), None)


def _descriptions(kind: shape.Type) -> Iterator[str]:
    if isinstance(kind, shape.Metadata):
        yield from filter(None, [(kind.extra_json_schema or {}).get("description")])
        yield from _descriptions(kind.type)
    elif isinstance(kind, shape.UnionType):
        for each in kind.types:
            yield from _descriptions(each)


def _flat(kind: shape.Type) -> Iterator[shape.Type]:
    if isinstance(kind, shape.UnionType):
        for each in kind.types:
            yield from _flat(each)
    elif isinstance(kind, shape.Metadata):
        yield from _flat(kind.type)
    else:
        yield kind


def _step(kind: shape.Type, step: re.Match[str]) -> Iterator[shape.Type]:
    name, item = step["name"], step["item"]
    if isinstance(kind, shape.StructType) and name and name == kind.tag_field:
        yield shape.LiteralType((kind.tag,))
    elif isinstance(kind, shape.StructType) and name:
        yield from (field.type for field in kind.fields if field.encode_name == name)
    elif isinstance(kind, shape.DictType):
        yield kind.value_type
    elif isinstance(kind, shape.CollectionType) and item:
        yield kind.item_type


def _members(kinds: list[shape.Type]) -> str:
    structs = [kind for kind in kinds if isinstance(kind, shape.StructType)]
    names = [kind.tag_field for kind in structs if kind.tag_field]
    names += [field.encode_name for kind in structs for field in kind.fields]
    return f"no other members than {', '.join(dict.fromkeys(names))}" if names else "no members"


def _choices(kinds: list[shape.Type]) -> str:
    values: list[object] = []
    for kind in kinds:
        if isinstance(kind, shape.LiteralType):
            values += kind.values
        elif isinstance(kind, shape.EnumType):
            values += [each.value for each in kind.cls]
        elif isinstance(kind, shape.StructType) and kind.tag is not None:
            values.append(kind.tag)
    return f"one of {', '.join(map(str, values))}" if values else ""
