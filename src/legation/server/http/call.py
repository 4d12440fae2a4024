"""What a handler gets and gives: one call in, a value or a `Reply` out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from starlette.requests import Request

from legation.wire.principal import Principal

if TYPE_CHECKING:
    from legation.server.services import Services

T = TypeVar("T")

Authenticate = Callable[[Request], Awaitable[Principal]]

NOBODY: Final = Principal(kind="nobody", id="nobody", workspace="", scopes=frozenset(), level=0)


@dataclass(frozen=True, slots=True)
class Call:
    """One request, as a handler sees it."""

    principal: Principal  # NOBODY on open routes, whatever credential came with the request
    request_id: str
    request: Request
    services: Services
    authenticate: Authenticate  # for what outlives the request's beginning, to ask again


@dataclass(frozen=True, slots=True)
class Reply(Generic[T]):
    """An answer that needs a header, or another status than its route's."""

    body: T
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Header:
    """Marks a parameter that is read from a header: `Annotated[str | None, Header("Last-Event-ID")] = None`."""

    name: str


@dataclass(frozen=True, slots=True)
class Alias:
    """Marks a parameter of the query that has a second name: `Annotated[str | None, Alias("session_id")] = None`."""

    name: str
