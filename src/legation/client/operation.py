"""One call of the HTTP API as a value: what to send and how to read the answer. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Literal, NamedTuple, TypeVar
from urllib.parse import parse_qs, urlsplit

import msgspec

from legation.errors import InvalidParams
from legation.wire.api.shape import Page

T = TypeVar("T")
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Query = tuple[tuple[str, str], ...]

# Doing these twice is doing them once; the rest is never repeated by us.
REPEATABLE: Final[frozenset[Method]] = frozenset({"GET", "PUT", "DELETE"})


_LINK: Final = re.compile(r'<([^>]*)>\s*;[^,]*?\brel\s*=\s*"?next"?(?=[\s;,]|$)')


class Answered(NamedTuple):
    """An answer that is a success. The names of headers count in any case."""

    headers: Mapping[str, str]
    body: bytes


Read = Callable[[Answered], T]


@dataclass(frozen=True, slots=True)
class Operation(Generic[T]):
    method: Method
    path: str
    read: Read[T]
    query: Query = ()
    body: bytes | None = None
    wait: float | None = None  # seconds for the answer, where it takes its time; else Timeouts.read
    cursor: str = "after"  # of a list: the parameter that asks for the page behind


@dataclass(frozen=True, slots=True)
class AsJson(Generic[T]):
    kind: type[T]

    def __call__(self, answered: Answered) -> T:
        return msgspec.json.decode(answered.body, type=self.kind)


def of_body(read: Callable[[bytes], T]) -> Read[T]:
    return lambda answered: read(answered.body)


def as_linked(kind: type[T]) -> Read[Page[T]]:
    """A bare array whose next page stands in the `Link` header."""
    items = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]  # it is one at run time
    return lambda answered: Page(items=items.decode(answered.body), next=_next(answered.headers))


def _next(headers: Mapping[str, str]) -> str | None:
    """Only `after` is taken from the link: the token goes where it was given for, whatever a link says."""
    found = _LINK.search(headers.get("link", ""))
    if found is None:
        return None
    after = parse_qs(urlsplit(found[1]).query).get("after")
    if not after:
        raise ValueError("a link to the next page without `after`")
    return after[-1]


def nothing(answered: Answered) -> None:
    """For answers without content; a body that a later version adds is not looked at."""


def get(path: str, kind: type[T], query: Mapping[str, object] | None = None) -> Operation[T]:
    return Operation("GET", path, AsJson(kind), query_of(query or {}))


def get_linked(path: str, kind: type[T], query: Mapping[str, object]) -> Operation[Page[T]]:
    return Operation("GET", path, as_linked(kind), query_of(query))


def sending(method: Method, path: str, body: msgspec.Struct, kind: type[T]) -> Operation[T]:
    return Operation(method, path, AsJson(kind), body=encoded(body))


def encoded(body: msgspec.Struct) -> bytes:
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, RecursionError):  # its words may hold what was to be sent
        raise InvalidParams("cannot send this: it holds a value that JSON has no word for") from None


def query_of(values: Mapping[str, object]) -> Query:
    """None is left out: the server's default holds."""
    return tuple((name, str(value)) for name, value in values.items() if value is not None)
