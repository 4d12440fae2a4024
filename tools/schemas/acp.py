"""The Agent Client Protocol: the JSON schemas in the npm package of its TypeScript SDK."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from tools.schemas.expression import Field, Name, Object, Type, reached
from tools.schemas.inventory import Inventory, inventory
from tools.schemas.jsonschema import types_of
from tools.schemas.places import Places, version_of

PACKAGE: Final = "@agentclientprotocol/sdk"
METHODS: Final = "methods"
_STABLE: Final = "schema/v1/schema.json"
_UNSTABLE: Final = "schema/v1/schema.unstable.json"
_LOOKED_AHEAD: Final = ("PromptResponse", "SessionUpdate")


def find(places: Places) -> Path | None:
    return places.package(PACKAGE)


async def extract(package: Path) -> Inventory:
    return inventory("acp", version_of(package), f"{PACKAGE}: {_STABLE}", _types(package / _STABLE))


async def extract_unstable(package: Path) -> Inventory:
    """What the unstable schema has otherwise, of turns and updates: agents send some of that already."""
    stable = (await extract(package)).definitions
    types = reached(_types(package / _UNSTABLE), _LOOKED_AHEAD)
    full = inventory("acp-unstable", version_of(package), f"{PACKAGE}: {_UNSTABLE}", types)
    own = {name: each for name, each in full.definitions.items() if stable.get(name) != each}
    return replace(full, definitions=own)


def _types(file: Path) -> dict[str, Type]:
    schemas = msgspec.json.decode(file.read_bytes())["$defs"]
    return {**types_of(schemas), METHODS: _methods(schemas)}


def _methods(schemas: dict[str, Any]) -> Type:
    """Which side answers a method, with what it takes and what it gives: `agent session/new` and so on."""
    found: dict[str, Field] = {}
    for name, schema in schemas.items():
        if isinstance(schema, dict) and "x-method" in schema:
            end = "result" if name.endswith("Response") else "params"
            found[f"{schema['x-side']} {schema['x-method']} {end}"] = Field(Name(name), required=True)
    return Object(found)
