"""A type, as every publisher's schema comes down to: written in one small language, whichever language it came from.

    'read' | 'edit' | null      literals and unions      ToolCall[]      a list
    { *: string }               any names, one type      A & B           both

INV-1  `parse(str(type))` gives the type back, and two types with the same members in another order are one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

PRIMITIVES: Final = frozenset(["string", "integer", "number", "boolean", "null", "any", "never", "object"])
_QUOTE: Final = "\\u0027"  # a quote inside a literal


@dataclass(frozen=True, slots=True)
class Name:
    """A primitive, or a definition of that name."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Literal:
    """One value, as its JSON text, but for the quotes; as text, because `true` and `1` are otherwise equal."""

    text: str

    @classmethod
    def of(cls, value: object) -> Literal:
        text = msgspec.json.encode(value).decode()
        return cls(f"'{text[1:-1].replace(chr(39), _QUOTE)}'" if isinstance(value, str) else text)

    @property
    def kind(self) -> str:
        if self.text in ("true", "false"):
            return "boolean"
        return "string" if self.text[0] == "'" else "integer" if self.text.lstrip("-").isdigit() else "number"

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class List:
    item: Type

    def __str__(self) -> str:
        return f"({self.item})[]" if isinstance(self.item, (Union, Both)) else f"{self.item}[]"


@dataclass(frozen=True, slots=True)
class Map:
    value: Type

    def __str__(self) -> str:
        return f"{{ *: {self.value} }}"


@dataclass(frozen=True, slots=True)
class Union:
    members: tuple[Type, ...]

    def __str__(self) -> str:
        return " | ".join(map(str, self.members))


@dataclass(frozen=True, slots=True)
class Both:
    members: tuple[Type, ...]

    def __str__(self) -> str:
        return " & ".join(f"({each})" if isinstance(each, Union) else str(each) for each in self.members)


@dataclass(frozen=True, slots=True)
class Field:
    type: Type
    required: bool


@dataclass(frozen=True, slots=True)
class Object:
    """Named fields. Only while a schema is read: an inventory gives each a name (`naming.py`)."""

    fields: Mapping[str, Field]
    others: Type | None = None  # what fields of any other name hold


Type: TypeAlias = Name | Literal | List | Map | Union | Both | Object

ANY: Final = Name("any")
NULL: Final = Name("null")


def union(members: Iterator[Type] | list[Type]) -> Type:
    """Flat, each member once, in an order of its own."""
    flat = _flat(members, Union)
    return flat[0] if len(flat) == 1 else Union(tuple(flat)) if flat else Name("never")


def both(members: Iterator[Type] | list[Type]) -> Type:
    flat = [each for each in _flat(members, Both) if each != ANY]
    return flat[0] if len(flat) == 1 else Both(tuple(flat)) if flat else ANY


def _flat(members: Iterator[Type] | list[Type], kind: type[Union | Both]) -> list[Type]:
    found: list[Type] = []
    for each in members:
        for part in each.members if isinstance(each, kind) else (each,):
            if part not in found:
                found.append(part)
    return sorted(found, key=_order)


def _order(part: Type) -> tuple[bool, str]:
    return part == NULL, "" if isinstance(part, Object) else str(part)


_TOKEN: Final = re.compile(r"'[^']*'|\{ \*: |\[\]|[|&()}]|[^\s|&()\[\]{}']+")


def parse(text: str) -> Type:
    """Raises ValueError for what `str` did not write."""
    reader = _Reader(_TOKEN.findall(text))
    found = reader.union()
    if reader.left() or str(found) != text:
        raise ValueError(f"not a type in its own form: {text}")
    return found


class _Reader:
    def __init__(self, tokens: list[str]) -> None:
        self._left = tokens[::-1]

    def left(self) -> bool:
        return bool(self._left)

    def union(self) -> Type:
        return union(list(self._separated("|")))

    def _separated(self, by: str) -> Iterator[Type]:
        inner = self._part if by == "&" else lambda: both(list(self._separated("&")))
        yield inner()
        while self._left and self._left[-1] == by:
            self._left.pop()
            yield inner()

    def _part(self) -> Type:
        found = self._atom(self._take())
        while self._left and self._left[-1] == "[]":
            self._left.pop()
            found = List(found)
        return found

    def _atom(self, word: str) -> Type:
        if word in ("(", "{ *: "):
            inner = self.union()
            closing = self._take()
            if closing not in (")", "}"):
                raise ValueError(f"{closing} where a bracket should close")
            return inner if word == "(" else Map(inner)
        return Literal(word) if word[0] in "'-0123456789" or word in ("true", "false") else Name(word)

    def _take(self) -> str:
        if not self._left:
            raise ValueError("ends too early")
        return self._left.pop()


# The part of a schema that some of its definitions lead to.


def reached(
    types: Mapping[str, Type], roots: Iterable[str], *, without: tuple[str, ...] = ()
) -> dict[str, Type]:
    """`without` are starts of names: they stay names, and what they mean is left out."""
    found: dict[str, Type] = {}
    waiting = [name for name in roots if name in types]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = types[name]
            waiting += [each for each in names(types[name]) if each in types and not each.startswith(without)]
    return found


def names(type_: Type) -> Iterator[str]:
    match type_:
        case Name(name=name):
            yield name
        case List(item=inner) | Map(value=inner):
            yield from names(inner)
        case Union(members=members) | Both(members=members):
            for each in members:
                yield from names(each)
        case Object(fields=fields, others=others):
            for field in fields.values():
                yield from names(field.type)
            if others is not None:
                yield from names(others)
        case Literal():
            return
