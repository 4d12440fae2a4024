"""Bases of what the HTTP API takes and gives: camelCase on the wire, like the events."""

from typing import Generic, TypeVar, dataclass_transform

import msgspec

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class RequestBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A member that we do not know is refused: a misspelt one would otherwise be silently ignored."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class ResponseBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Every member is always there; what has no value is null. Readers ignore members they do not know."""


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True, rename="camel"):
    """A part of a list. `next` goes back as `?after=` for the part behind it; null at the end."""

    items: list[T]
    next: str | None = None
