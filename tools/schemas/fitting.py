"""Whether types of ours fit what is published: everything that may come can be read, and what must be sent is there.

A type of ours may stand for several published ones: one shape for all kinds of MCP servers, say.

INV-1  A field of ours is published, in one of those at least, and takes every kind of value that it can have there.
INV-2  A field that may be absent, or null, in one of them may be so with us.
INV-3  A field that all of them require is a field of ours that is always written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final, TypeAlias

from msgspec import inspect

from tools.schemas.expression import (
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
    union,
)
from tools.schemas.inventory import BESIDES, OTHERS, Inventory

# What a published type can be on the wire, followed through its definitions.


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


_KINDS: Final[dict[type[inspect.Type], frozenset[str]]] = {
    inspect.StrType: frozenset(["string"]),
    inspect.IntType: frozenset(["integer"]),
    inspect.FloatType: frozenset(["number", "integer"]),
    inspect.BoolType: frozenset(["boolean"]),
    inspect.NoneType: frozenset(["null"]),
}
_EVERYWHERE: Final = "_meta"  # any object of the protocol may have it, said so or not
_OWN_TAG: Final = "_"  # a variant of ours for what we cannot read: never on the wire


@dataclass(frozen=True, slots=True, order=True)
class Misfit:
    """`where` is the type of ours, and maybe its field."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(frozen=True, slots=True)
class Fitted:
    """`compared` are the types of ours that were met with a published one."""

    misfits: tuple[Misfit, ...]
    compared: frozenset[type]


def fit(pairs: Iterable[tuple[object, str]], published: Published) -> Fitted:
    """Each type of ours with the published one of that name, and all that they lead to."""
    fitting = _Fitting(published)
    for ours, definition in pairs:
        if definition in published.inventory.definitions:
            name = getattr(ours, "__name__", definition)
            fitting.fit(inspect.type_info(ours), parse(definition), name)
        else:
            fitting.report(definition, "ours stands for it, and it is not published")
    fitting.judge()
    return Fitted(tuple(sorted(fitting.found)), fitting.compared)


@dataclass(slots=True)
class _Fitting:
    published: Published
    found: set[Misfit] = field(default_factory=set)
    _seen: set[tuple[str, str, str]] = field(default_factory=set)
    _read: dict[type, tuple[inspect.StructType, list[Fields]]] = field(default_factory=dict)

    @property
    def compared(self) -> frozenset[type]:
        return frozenset(self._read)

    def report(self, where: str, what: str) -> None:
        self.found.add(Misfit(where, what))

    def fit(self, ours: inspect.Type, theirs: Type, where: str) -> None:
        members = _members(ours)
        key = (where, str(members), str(theirs))
        if key in self._seen or any(map(_takes_all, members)):
            return
        self._seen.add(key)
        forms = list(self.published.forms(theirs))
        items = [form.item for form in forms if isinstance(form, Items)]
        if items:
            self._list(members, union(items), where)
        for form in forms:
            self._form(members, form, where)
        for each in members:
            if isinstance(each, inspect.StructType) and not _reads_any(each, forms):
                self.report(where, f"ours reads a variant {each.tag}, and it is not published")

    def _list(self, members: list[inspect.Type], item: Type, where: str) -> None:
        lists = [each for each in members if isinstance(each, (inspect.VarTupleType, inspect.ListType))]
        if not lists:
            self.report(where, "may be a list, which ours does not read")
        for each in lists:
            self.fit(each.item_type, item, where)

    def _form(self, members: list[inspect.Type], form: Form, where: str) -> None:
        structs = [each for each in members if isinstance(each, inspect.StructType)]
        maps = [each for each in members if isinstance(each, inspect.DictType)]
        if isinstance(form, Plain):
            if form.kind not in _kinds(members):
                self.report(where, f"may be {_value(form)}, which ours does not read")
        elif isinstance(form, Fields) and maps:
            for type_ in [form.others, *(each.type for each in form.named.values())]:
                if type_ is not None:
                    self.fit(maps[0].value_type, type_, where)
        elif isinstance(form, Fields) and not structs:
            self.report(where, "may be an object, which ours does not read")
        elif isinstance(form, Fields):
            self._object(structs, form, where)

    def _object(self, structs: list[inspect.StructType], form: Fields, where: str) -> None:
        struct = next((each for each in structs if _reads(each, form)), None)
        if struct is None:
            called = form.only(str(structs[0].tag_field)) or "+".join(form.named)
            self.report(where, f"has a variant {called}, which ours does not know")
            return
        self._read.setdefault(struct.cls, (struct, []))[1].append(form)
        for each in struct.fields:
            if each.encode_name in form.named:
                at = f"{struct.cls.__name__}.{each.encode_name}"
                self.fit(each.type, form.named[each.encode_name].type, at)

    def judge(self) -> None:
        """What can be said of a type only with everything in view that it stands for."""
        for struct, forms in self._read.values():
            if not all(form.others is not None and not form.named for form in forms):
                for where, what in _judged(struct, forms):
                    self.report(f"{struct.cls.__name__}.{where}", what)


def _judged(struct: inspect.StructType, forms: list[Fields]) -> Iterator[tuple[str, str]]:
    omits = struct.cls.__struct_config__.omit_defaults
    ours = {each.encode_name: each for each in struct.fields}
    for name, own in ours.items():
        published = [form.named[name] for form in forms if name in form.named]
        if not published and name != _EVERYWHERE:
            yield name, "ours reads it, and it is not published"
        if own.required and not all(name in form.named and form.named[name].required for form in forms):
            yield name, "may be absent, and ours requires it"
    for name in set.intersection(
        *({key for key, each in form.named.items() if each.required} for form in forms)
    ):
        if name == struct.tag_field:
            continue
        if name not in ours:
            yield name, "is required, and ours does not write it"
        elif not ours[name].required and omits:
            yield name, "is required, and ours leaves it out when it has its default"


def _members(ours: inspect.Type) -> list[inspect.Type]:
    return list(ours.types) if isinstance(ours, inspect.UnionType) else [ours]


def _takes_all(ours: inspect.Type) -> bool:
    if isinstance(ours, inspect.CustomType):
        return ours.cls is object
    return isinstance(ours, (inspect.AnyType, inspect.RawType))


def _kinds(members: Iterable[inspect.Type]) -> frozenset[str]:
    none: frozenset[str] = frozenset()
    return none.union(*(_KINDS.get(type(each), none) for each in members))


def _value(form: Plain) -> str:
    return "anything" if form.kind == EVERYTHING else form.value or form.kind


def _reads(struct: inspect.StructType, form: Fields) -> bool:
    """Whether our reader would take this form for that type: by its tag, where there is one."""
    return struct.tag is None or form.only(str(struct.tag_field)) == Literal.of(struct.tag).text


def _reads_any(struct: inspect.StructType, forms: list[Any]) -> bool:
    own = isinstance(struct.tag, str) and struct.tag.startswith(_OWN_TAG)
    return own or any(isinstance(form, Fields) and _reads(struct, form) for form in forms)
