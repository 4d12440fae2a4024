"""The smallest value that fits a JSON schema: what is said where a structure is asked for and its content is not."""

from __future__ import annotations

import json
from collections.abc import Mapping

PLAIN = "Scripted"


def sample_text(schema: Mapping[str, object] | None) -> str:
    return PLAIN if schema is None else json.dumps(sample(schema))


def sample(schema: Mapping[str, object]) -> object:
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        return choices[0]
    if "const" in schema:
        return schema["const"]
    match str(schema.get("type", "")).lower():  # Gemini's own schemas shout
        case "object":
            properties = schema.get("properties")
            known = properties if isinstance(properties, dict) else {}
            return {name: sample(each) for name, each in known.items() if isinstance(each, dict)}
        case "array":
            return []
        case "integer" | "number":
            least = schema.get("minimum")
            return least if isinstance(least, int | float) else 0
        case "boolean":
            return False
        case "null":
            return None
        case _:
            return PLAIN
