"""A tool that is an HTTP address, as its owner wrote it down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

from legation.secret import Secret
from legation.wire.action import Sort

Method: TypeAlias = Literal["POST", "GET", "PUT", "PATCH", "DELETE"]
METHODS: Final[tuple[str, ...]] = get_args(Method)
BODYLESS: Final = frozenset({"GET", "DELETE"})

TIMEOUT: Final = 30.0  # seconds: the tool's time, from the first byte sent to the last one read
MOST_TIMEOUT: Final = 86400.0
MAX_ANSWER: Final = 1 << 20  # bytes
MOST_ANSWER: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSpec:
    name: str
    url: str
    method: Method = "POST"
    kind: str = "other"
    timeout: float = TIMEOUT
    headers: Mapping[str, str | Secret] = field(default_factory=dict)
    max_answer: int = MAX_ANSWER
    folder: str | None = None
    arguments: Mapping[str, Sort] = field(default_factory=dict)

    @property
    def secrets(self) -> tuple[Secret, ...]:
        return tuple(value for value in self.headers.values() if isinstance(value, Secret))
