"""The part of a schema that some of its definitions lead to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from legation.agents.schemas.expression import Both, List, Literal, Map, Name, Object, Type, Union


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
