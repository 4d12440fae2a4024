"""Arguments that fit a declared schema, made of what a script means to say.

Agents name the same thing differently (`file_path`, `filePath`, `path`). Each value stands here under all its names; the
first that the schema declares gets it, and whatever else the schema requires gets the smallest value that fits.
"""

from __future__ import annotations

from collections.abc import Mapping

from legation.testing.model.declared import Object, as_object
from legation.testing.model.sample import sample

PATH = ("file_path", "filePath", "absolute_path", "path")
CONTENT = ("content", "contents", "text")
COMMAND = ("command", "cmd")
OLD = ("old_string", "oldString", "old_str", "old")
NEW = ("new_string", "newString", "new_str", "new")
DESCRIPTION = ("description",)

Meant = Mapping[tuple[str, ...], object]


def fitting(schema: Object, meant: Meant) -> dict[str, object]:
    properties = as_object(schema.get("properties"))
    found: dict[str, object] = {}
    for names, value in meant.items():
        name = next((name for name in names if name in properties), None)
        if name is not None:
            found[name] = value
        elif not properties:  # a schema that says nothing takes the usual name
            found[names[0]] = value
    return {**_owed(schema, found), **found}


def items_schema(schema: Object, name: str) -> Object:
    """Of the members of the array `name`."""
    return as_object(as_object(as_object(schema.get("properties")).get(name)).get("items"))


def _owed(schema: Object, found: Mapping[str, object]) -> dict[str, object]:
    required = schema.get("required")
    properties = as_object(schema.get("properties"))
    names = [str(name) for name in required] if isinstance(required, list) else []
    return {name: sample(as_object(properties.get(name))) for name in names if name not in found}
