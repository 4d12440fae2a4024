"""What changed between two inventories of one agent, in words, each with its address."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from legation.agents.schemas.expression import Union, parse
from legation.agents.schemas.inventory import Inventory
from legation.agents.schemas.naming import BESIDES, Definition

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
