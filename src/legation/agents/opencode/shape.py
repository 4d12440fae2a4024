"""How this driver reads what OpenCode says: members that nobody reads are left out, and unknown ones ignored."""

from __future__ import annotations

from typing import dataclass_transform

import msgspec


def _wire_name(name: str) -> str:
    """OpenCode writes `sessionID`, `callID`, and camel case otherwise."""
    first, *rest = name.split("_")
    return first + "".join("ID" if word == "id" else word.capitalize() for word in rest)


# Type checkers do not let options of a Struct pass to its children, as msgspec does.
@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Native(msgspec.Struct, frozen=True, kw_only=True, rename=_wire_name):
    """Base of all that is read."""
