from __future__ import annotations

from typing import Any

from tools.schemas.inventory import definitions
from tools.schemas.jsonschema import types_of


def _read(**schemas: Any) -> dict[str, Any]:
    return dict(definitions(types_of(schemas)))


def test_an_object_says_its_fields_and_which_may_be_absent() -> None:
    schema = {
        "type": "object",
        "description": "words",
        "properties": {
            "id": {"$ref": "#/$defs/Id"},
            "line": {"type": ["integer", "null"], "minimum": 1},
            "tags": {"type": "array", "items": {"type": "string"}},
            "env": {"type": "object", "additionalProperties": {"type": "string"}},
            "raw": {"description": "anything"},
        },
        "required": ["id"],
    }
    fields = {
        "id": "Id",
        "line?": "integer | null",
        "tags?": "string[]",
        "env?": "{ *: string }",
        "raw?": "any",
    }
    assert _read(Thing=schema) == {"Thing": dict(sorted(fields.items()))}


def test_values_are_a_union_of_literals_however_they_are_listed() -> None:
    assert _read(
        One={"type": "string", "enum": ["b", "a"]},
        Two={"oneOf": [{"type": "string", "const": "b"}, {"type": "string", "const": "a"}]},
    ) == {"One": ("'a'", "'b'"), "Two": ("'a'", "'b'")}


def test_variants_are_called_what_they_call_themselves() -> None:
    tagged = {"type": "object", "properties": {"type": {"const": "text"}}, "required": ["type"]}
    found = _read(
        Block={
            "oneOf": [
                {**tagged, "allOf": [{"$ref": "#/$defs/Text"}]},
                {"type": "object", "properties": {"amend": {"type": "string"}}, "required": ["amend"]},
                {"type": "null"},
            ]
        }
    )
    assert found == {
        "Block": ("Block<amend>", "Block<text>", "null"),
        "Block<amend>": {"amend": "string"},
        "Block<text>": {"...": "Text", "type": "'text'"},
    }


def test_an_object_inside_another_has_an_address() -> None:
    inner = {"type": "object", "properties": {"x": {"type": "number"}}}
    found = _read(
        A={"type": "object", "properties": {"one": inner, "many": {"type": "array", "items": inner}}}
    )
    assert found == {
        "A": {"many?": "A.many#[]", "one?": "A.one"},
        "A.many#": {"x?": "number"},
        "A.one": {"x?": "number"},
    }


def test_an_object_of_which_nothing_is_said_holds_anything() -> None:
    assert _read(A={"type": "object"}, B={"type": "object", "additionalProperties": False}) == {
        "A": "{ *: any }",
        "B": "object",
    }
