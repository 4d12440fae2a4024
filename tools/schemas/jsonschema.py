"""JSON Schema, as far as agents use it: draft 7, 2020-12, and OpenAPI 3.1. Words, defaults and bounds are left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tools.schemas.expression import (
    ANY,
    NULL,
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
    union,
)

Schema = Mapping[str, Any] | bool
_DECLARED: Final = {"string", "integer", "number", "boolean", "null"}
_FOLDERS: Final = ("v2",)  # Codex keeps its second protocol in a folder of its own among the definitions


def types_of(schemas: Mapping[str, Schema]) -> dict[str, Type]:
    """By name, those in a folder by their name alone."""
    found: dict[str, Type] = {}
    for name, schema in schemas.items():
        if name in _FOLDERS and isinstance(schema, Mapping):
            found |= types_of(schema)
        else:
            found[clean(name)] = type_of(schema)
    return found


def type_of(schema: Schema) -> Type:
    if isinstance(schema, bool):
        return ANY if schema else Name("never")
    parts = [
        *_references(schema),
        *_values(schema),
        *_choices(schema),
        *map(type_of, schema.get("allOf", ())),
    ]
    declared = schema.get("type")
    if declared is not None and not _says_more(parts, declared):
        parts.append(_declared(schema, declared))
    elif declared is None and "properties" in schema:
        parts.append(_object(schema))
    found = both(parts)
    return union([found, NULL]) if schema.get("nullable") else found


def clean(name: str) -> str:
    """A name that stands in a type: some publishers have spaces and brackets in theirs."""
    return "".join(char if char not in ' |&()[]{}"' else "_" for char in name)


def _references(schema: Mapping[str, Any]) -> list[Type]:
    return [Name(clean(schema["$ref"].rpartition("/")[2].replace("~1", "/")))] if "$ref" in schema else []


def _values(schema: Mapping[str, Any]) -> list[Type]:
    if "const" in schema:
        return [_literal(schema["const"])]
    return [union([_literal(value) for value in schema["enum"]])] if "enum" in schema else []


def _literal(value: object) -> Type:
    return NULL if value is None else Literal.of(value)


def _choices(schema: Mapping[str, Any]) -> list[Type]:
    return [
        union([type_of(each) for each in schema[word]]) for word in ("oneOf", "anyOf") if schema.get(word)
    ]


def _says_more(parts: list[Type], declared: object) -> bool:
    """Whether the parts make the plain `type` beside them idle: literals, or a reference."""
    return declared != "object" and any(isinstance(each, (Name, Literal, Union, Both)) for each in parts)


def _declared(schema: Mapping[str, Any], declared: object) -> Type:
    if isinstance(declared, list):
        return union([_declared(schema, each) for each in declared])
    if declared in _DECLARED:
        return Name(str(declared))
    if declared == "array":
        return _list(schema)
    return _object(schema) if declared == "object" else ANY


def _list(schema: Mapping[str, Any]) -> Type:
    fixed = schema.get("prefixItems") or (schema["items"] if isinstance(schema.get("items"), list) else [])
    return List(union([type_of(each) for each in fixed]) if fixed else type_of(schema.get("items", True)))


def _object(schema: Mapping[str, Any]) -> Type:
    required = set(schema.get("required", ()))
    fields = {
        name: Field(type_of(each), name in required) for name, each in schema.get("properties", {}).items()
    }
    named = schema.get("patternProperties") or {}
    extra = schema.get("additionalProperties", not fields if not named else False)
    values = [type_of(each) for each in named.values()] + ([type_of(extra)] if extra else [])
    if not fields:
        # An object of which nothing is said holds anything, unless it may hold nothing.
        composed = any(word in schema for word in ("oneOf", "anyOf", "allOf", "$ref"))
        return ANY if composed and not values[1:] and extra in (True, False) else _map(values)
    others = union(values) if values and extra is not True else None
    return Object(fields, others)


def _map(values: list[Type]) -> Type:
    return Map(union(values)) if values else Name("object")
