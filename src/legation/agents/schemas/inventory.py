"""What an agent publishes about its protocol, as facts: names, types, required or not, values. No text of theirs.

INV-1  One inventory has one form on disk (`written`): names sorted, types in their own form, a line each. A change
       of an agent is a change of the lines that it is about.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

import msgspec

from legation.agents.schemas.expression import Type, parse
from legation.agents.schemas.naming import Definition, definitions
from legation.errors import InvalidParams, NotFound

FOLDER: Final = "published"
LINE: Final = 100  # characters of a definition that stands in one line


@dataclass(frozen=True, slots=True)
class Inventory:
    """`source` says what it was read from, in words that name no place of a machine."""

    agent: str
    version: str
    source: str
    definitions: Mapping[str, Definition]


def inventory(agent: str, version: str, source: str, types: Mapping[str, Type]) -> Inventory:
    return Inventory(agent, version, source, definitions(types))


def written(found: Inventory) -> bytes:
    """Canonical JSON. A short definition is a line, a long one a line for each part."""
    head = ((key, getattr(found, key)) for key in ("agent", "version", "source"))
    lines = [f" {_json(key)}: {_json(value)}," for key, value in head]
    defined = (f"  {_json(name)}: {_shown(found.definitions[name])}" for name in sorted(found.definitions))
    body = ",\n".join(defined)
    return "\n".join(["{", *lines, ' "definitions": {', body, " }", "}", ""]).encode()


def _shown(definition: Definition) -> str:
    line = _json(definition)
    if len(line) <= LINE:
        return line
    parts = [_json(each) for each in definition] if isinstance(definition, tuple) else _pairs(definition)
    opens, closes = ("[", "]") if isinstance(definition, tuple) else ("{", "}")
    return f"{opens}\n   {(chr(44) + chr(10) + '   ').join(parts)}\n  {closes}"


def _pairs(definition: Definition) -> list[str]:
    if not isinstance(definition, Mapping):
        return []
    return [f"{_json(key)}: {_json(definition[key])}" for key in sorted(definition)]


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()


class _File(msgspec.Struct, forbid_unknown_fields=True):
    agent: str
    version: str
    source: str
    definitions: dict[str, str | list[str] | dict[str, str]]


def read(raw: bytes) -> Inventory:
    try:
        file = msgspec.json.decode(raw, type=_File)
        found = {name: _definition(value) for name, value in file.definitions.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise InvalidParams(f"cannot read the inventory: {error}; extract it again") from None
    return Inventory(file.agent, file.version, file.source, found)


def _definition(value: Any) -> Definition:
    types = [value] if isinstance(value, str) else value.values() if isinstance(value, dict) else value
    for each in types:
        parse(each)
    return tuple(value) if isinstance(value, list) else value


def committed(agent: str) -> Inventory:
    """The fall-back that is part of this package."""
    file = files(__package__) / FOLDER / f"{agent}.json"
    if not file.is_file():
        raise NotFound(f"cannot find an inventory of {agent!r}; extract it first")
    return read(file.read_bytes())
