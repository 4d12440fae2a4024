"""What an agent publishes about its protocol, as facts: names, types, required or not, values. No text of theirs.

`Parent.field` is the object in a field, `Parent.field#` one in its list, `Parent<text>` the variant of a union that
says so of itself.

INV-1  One inventory has one form on disk (`written`): names sorted, types in their own form, a line each. A change
       of an agent is a change of the lines that it is about.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final, TypeAlias

import msgspec

from legation.errors import InvalidParams, NotFound
from tools.schemas.expression import (
    Both,
    Field,
    List,
    Literal,
    Map,
    Name,
    Object,
    Type,
    Union,
    both,
    parse,
)

# Definitions: every object inside another gets a name of its own, so that a change has an address.


Definition: TypeAlias = str | tuple[str, ...] | Mapping[str, str]
"""A type; the members of a union; or fields with their types, `name?` for one that may be absent, `*` for any other
name, and `...` for what the object is besides."""

BESIDES: Final = "..."
OTHERS: Final = "*"
# By what variants call themselves, the best first; then any field that can have one value only.
_TELLING: Final = ("subtype", "type", "method", "sessionUpdate", "kind", "status", "mode")

_ODD: Final = re.compile(r"[^\w./:+$-]")  # what a name cannot hold


def definitions(types: Mapping[str, Type]) -> dict[str, Definition]:
    naming = _Naming(set(types))
    for name, type_ in types.items():
        naming.define(name, type_)
    return dict(sorted(naming.found.items()))


def field_key(name: str, *, required: bool) -> str:
    return name if required else f"{name}?"


class _Naming:
    def __init__(self, taken: set[str]) -> None:
        self.found: dict[str, Definition] = {}
        self._taken = taken

    def define(self, name: str, type_: Type) -> None:
        if isinstance(type_, Object) and type_.fields:
            self.found[name] = self._fields(name, type_)
        elif isinstance(type_, Both) and any(isinstance(each, Object) for each in type_.members):
            self.found[name] = self._joined(name, type_)
        else:
            named = self._named(type_, name)
            self.found[name] = tuple(map(str, named.members)) if isinstance(named, Union) else str(named)

    def _joined(self, name: str, type_: Both) -> Definition:
        own: dict[str, Field] = {}
        for each in type_.members:
            own |= each.fields if isinstance(each, Object) else {}
        besides = both([each for each in type_.members if not isinstance(each, Object)])
        fields = dict(self._fields(name, Object(own)))
        if besides != Name("any"):
            fields[BESIDES] = str(self._named(besides, name))
        return dict(sorted(fields.items()))

    def _fields(self, name: str, type_: Object) -> dict[str, str]:
        fields = {
            field_key(key, required=field.required): str(self._named(field.type, f"{name}.{key}"))
            for key, field in type_.fields.items()
        }
        if type_.others is not None:
            fields[OTHERS] = str(self._named(type_.others, f"{name}.*"))
        return dict(sorted(fields.items()))

    def _named(self, type_: Type, name: str) -> Type:
        """The same type with every object in it defined and named."""
        match type_:
            case Object(fields=fields, others=others) if not fields:
                return Map(self._named(others, f"{name}.*")) if others is not None else Name("object")
            case Object():
                return self._own(name, type_)
            case Both(members=members) if any(isinstance(each, Object) for each in members):
                return self._own(name, type_)
            case List(item=item):
                return List(self._named(item, f"{name}#"))
            case Map(value=value):
                return Map(self._named(value, f"{name}.*"))
            case Both(members=members):
                return both([self._named(each, name) for each in members])
            case Union(members=members):
                return self._variants(members, name)
            case _:
                return type_

    def _variants(self, members: tuple[Type, ...], name: str) -> Type:
        objects = [each for each in members if _is_object(each)]
        alone = len(objects) == 1 and name not in self._taken
        named = [
            self._named(each, name if alone or not _is_object(each) else f"{name}<{_called(each)}>")
            for each in members
        ]
        return Union(tuple(sorted(set(named), key=lambda each: (each == Name("null"), str(each)))))

    def _own(self, name: str, type_: Type) -> Name:
        unique, count = name, 1
        while unique in self._taken or unique in self.found:
            count += 1
            unique = f"{name[:-1]}:{count}>" if name.endswith(">") else f"{name}:{count}"
        self._taken.add(unique)
        self.define(unique, type_)
        return Name(unique)


def _is_object(type_: Type) -> bool:
    return isinstance(type_, Object) or (isinstance(type_, Both) and any(map(_is_object, type_.members)))


def _called(type_: Type) -> str:
    """The one value of a telling field, else the one field that must be there, else all of them."""
    parts = type_.members if isinstance(type_, Both) else (type_,)
    fields = {key: field for each in parts if isinstance(each, Object) for key, field in each.fields.items()}
    telling = [key for key in _TELLING if key in fields] + sorted(fields)
    for key in telling:
        value = fields[key].type
        if isinstance(value, Literal) and value.kind == "string":
            return _ODD.sub("_", value.text.strip("'"))
    needed = sorted(key for key, field in fields.items() if field.required)
    return "+".join(needed or sorted(fields)) or "empty"


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


# What changed between two inventories of one agent, in words, each with its address.


_PARENT: Final = re.compile(r"(?:<[^>]*>|\.[^.<#]+|#)(?::\d+)?$")
_SHOWN: Final = 200  # characters of a type in a sentence


@dataclass(frozen=True, slots=True)
class Change:
    """`where` is a definition, or a field of one."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where} {self.what}"


def changes(before: Inventory, after: Inventory) -> list[Change]:
    """Empty: nothing that an inventory holds has changed, whatever the versions are."""
    old, new = before.definitions, after.definitions
    every = old.keys() | new.keys()
    found = [Change(name, "is gone") for name in _outermost(old.keys() - new.keys(), every)]
    found += [Change(name, "is new") for name in _outermost(new.keys() - old.keys(), every)]
    for name in sorted(old.keys() & new.keys()):
        found += _changed(name, old[name], new[name])
    return found


def _outermost(names: set[str], every: set[str]) -> list[str]:
    """An object inside another comes and goes with the field that holds it, and that is said of the field."""
    return sorted(name for name in names if not any(parent in every for parent in _parents(name)))


def _parents(name: str) -> Iterator[str]:
    while (shorter := _PARENT.sub("", name)) != name:
        yield shorter
        name = shorter


def _changed(name: str, old: Definition, new: Definition) -> Iterator[Change]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        yield from _fields(name, old, new)
    elif isinstance(old, Mapping) or isinstance(new, Mapping):
        yield Change(name, f"was {_kind(old)}, and is {_kind(new)}")
    else:
        yield from _types(name, _text(old), _text(new))


def _kind(definition: Definition) -> str:
    return "an object with fields" if isinstance(definition, Mapping) else _short(_text(definition))


def _text(definition: Definition) -> str:
    return definition if isinstance(definition, str) else " | ".join(definition)


def _fields(name: str, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Change]:
    before = {key.removesuffix("?"): key for key in old}
    after = {key.removesuffix("?"): key for key in new}
    for key in sorted(before.keys() | after.keys()):
        where = name if key == BESIDES else f"{name}.{key}"
        if key not in after:
            yield Change(where, f"is gone; it was {_short(old[before[key]])}")
        elif key not in before:
            absent = "; it may be absent" if after[key] != key else ""
            yield Change(where, f"is new: {_short(new[after[key]])}{absent}")
        else:
            if before[key] != after[key]:
                yield Change(where, "must be there now" if after[key] == key else "may be absent now")
            yield from _types(where, old[before[key]], new[after[key]])


def _types(where: str, old: str, new: str) -> Iterator[Change]:
    if old == new:
        return
    before, after = _members(old), _members(new)
    if not set(before) & set(after):
        yield Change(where, f"was {_short(old)}, and is {_short(new)}")
        return
    more, less = (
        [each for each in after if each not in before],
        [each for each in before if each not in after],
    )
    if more:
        yield Change(where, f"can also be {_short(', '.join(more))}")
    if less:
        yield Change(where, f"cannot be {_short(', '.join(less))} any more")


def _members(text: str) -> list[str]:
    found = parse(text)
    return [str(each) for each in found.members] if isinstance(found, Union) else [str(found)]


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
