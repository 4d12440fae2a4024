"""Base of Legation's own events: a payload's class says which event it is, `TurnState` is `turn-state`."""

import re
from typing import dataclass_transform

import msgspec

_WORD_START = re.compile(r"(?<!^)(?=[A-Z])")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Payload(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """camelCase on the wire; absent optional fields are left out."""

    @classmethod
    def event_type(cls) -> str:
        return _WORD_START.sub("-", cls.__name__).lower()
