"""Definitions of an inventory: every object inside another gets a name of its own, so that a change has an address.

`Parent.field` is the object in a field, `Parent.field#` one in its list, `Parent<text>` the variant of a union that
says so of itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypeAlias

from legation.agents.schemas.expression import (
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
)

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
