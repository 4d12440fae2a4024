"""The smallest text that fits a JSON schema: what a side request gets where it asks for structure."""

from __future__ import annotations

import json
from collections.abc import Mapping

PLAIN = "Scripted"


def sample_text(schema: Mapping[str, object] | None) -> str:
    return PLAIN if schema is None else json.dumps(_sample(schema))


def _sample(schema: Mapping[str, object]) -> object:
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        return choices[0]
    match schema.get("type"):
        case "object":
            properties = schema.get("properties")
            known = properties if isinstance(properties, dict) else {}
            return {name: _sample(each) for name, each in known.items() if isinstance(each, dict)}
        case "array":
            return []
        case "integer" | "number":
            return 0
        case "boolean":
            return False
        case "null":
            return None
        case _:
            return PLAIN
