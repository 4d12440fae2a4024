"""One call of the HTTP API as a value: what to send and how to read the answer. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

import msgspec

from legation.wire.api.shape import Request

T = TypeVar("T")
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Query = tuple[tuple[str, str], ...]

# Doing these twice is doing them once; the rest is never repeated by us.
REPEATABLE: Final[frozenset[Method]] = frozenset({"GET", "PUT", "DELETE"})


@dataclass(frozen=True, slots=True)
class Operation(Generic[T]):
    method: Method
    path: str
    read: Callable[[bytes], T]
    query: Query = ()
    body: bytes | None = None


def as_json(kind: type[T]) -> Callable[[bytes], T]:
    return lambda body: msgspec.json.decode(body, type=kind)


def nothing(body: bytes) -> None:
    """For answers without content; a body that a later version adds is not looked at."""


def get(path: str, kind: type[T], query: Mapping[str, object] | None = None) -> Operation[T]:
    return Operation("GET", path, as_json(kind), query_of(query or {}))


def sending(method: Method, path: str, body: Request, kind: type[T]) -> Operation[T]:
    return Operation(method, path, as_json(kind), body=msgspec.json.encode(body))


def query_of(values: Mapping[str, object]) -> Query:
    """None is left out: the server's default holds."""
    return tuple((name, str(value)) for name, value in values.items() if value is not None)
