"""What a published type can be on the wire, followed through its definitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Final, TypeAlias

from legation.agents.schemas.expression import (
    PRIMITIVES,
    Both,
    Field,
    List,
    Literal,
    Map,
    Name,
    Type,
    Union,
    parse,
)
from legation.agents.schemas.inventory import Inventory
from legation.agents.schemas.naming import BESIDES, OTHERS

EVERYTHING: Final = "any"


@dataclass(frozen=True, slots=True)
class Plain:
    """`value` is the text of a literal, where only one is possible."""

    kind: str
    value: str | None = None


@dataclass(frozen=True, slots=True)
class Items:
    item: Type


@dataclass(frozen=True, slots=True)
class Fields:
    """An object with these; `others` are those of any other name, None where nothing is said of them."""

    named: Mapping[str, Field]
    others: Type | None = None

    def only(self, name: str) -> str | None:
        """The one value that a field can have, as the text of a literal."""
        field = self.named.get(name)
        return field.type.text if field and isinstance(field.type, Literal) else None


Form: TypeAlias = Plain | Items | Fields


@dataclass(frozen=True, slots=True)
class Published:
    """An inventory that can be followed."""

    inventory: Inventory

    def forms(self, type_: Type) -> Iterator[Form]:
        match type_:
            case Union(members=members):
                for each in members:
                    yield from self.forms(each)
            case Both(members=members):
                yield from self._joined([list(self.forms(each)) for each in members])
            case List(item=item):
                yield Items(item)
            case Map(value=value):
                yield Fields({}, value)
            case Literal():
                yield Plain(type_.kind, type_.text)
            case Name(name=name) if name in PRIMITIVES:
                yield Fields({}, Name(EVERYTHING)) if name == "object" else Plain(name)
            case Name(name=name):
                yield from self._defined(name)

    def _defined(self, name: str) -> Iterator[Form]:
        found = self.inventory.definitions.get(name)
        if found is None:
            yield Plain(EVERYTHING)  # of another package: nothing is known
        elif isinstance(found, str):
            yield from self.forms(parse(found))
        elif isinstance(found, tuple):
            for each in found:
                yield from self.forms(parse(each))
        else:
            own = _own(found)
            besides = [list(self.forms(parse(found[BESIDES])))] if BESIDES in found else []
            yield from self._joined([[own], *besides])

    def _joined(self, parts: list[list[Form]]) -> Iterator[Form]:
        for chosen in product(*parts):
            objects = [each for each in chosen if isinstance(each, Fields)]
            if objects:
                named = {name: field for each in objects for name, field in each.named.items()}
                yield Fields(named, next((each.others for each in objects if each.others is not None), None))
            else:
                yield chosen[0]


def _own(definition: Mapping[str, str]) -> Fields:
    named = {
        key.removesuffix("?"): Field(parse(text), not key.endswith("?"))
        for key, text in definition.items()
        if key not in (BESIDES, OTHERS)
    }
    return Fields(named, parse(definition[OTHERS]) if OTHERS in definition else None)
