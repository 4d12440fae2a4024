"""Declaring routes: the signature of the handler is the contract, checked where it is written.

    routes = Routes(tag="tokens")

    @routes.post("/v1/tokens", access=needs("manage"), status=201, errors=(Conflict,))
    async def create_token(call: Call, body: NewToken) -> TokenCreated:
        \"\"\"The summary, in one sentence.

        The description.\"\"\"

A name in braces is a path parameter, `body` is the body, `Annotated[..., Header("Name")]` a header, and every
other parameter is one of the query, in camelCase on the wire; a list type takes a repeated one. Returning None
means 204. `Annotated[..., Alias("snake_name")]` gives one of the query a second name. A Starlette `Response` passes through as it is; say its type with `media`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Required, TypedDict, TypeVar, Unpack

from legation.errors import LegationError
from legation.server.http.access import OPEN, SIGNED_IN, Access, needs
from legation.server.http.call import Alias, Call, Header, Reply
from legation.server.http.operations import Handler, Method, Operation, declare

__all__ = [
    "OPEN",
    "SIGNED_IN",
    "Access",
    "Alias",
    "Call",
    "Header",
    "Operation",
    "Reply",
    "RouteOptions",
    "Routes",
    "needs",
]

F = TypeVar("F", bound=Handler)


class RouteOptions(TypedDict, total=False):
    access: Required[Access]
    status: int  # of success: 200, or 204 where nothing is returned, unless said
    errors: tuple[type[LegationError], ...]  # beyond those that every route of its kind may answer with
    also: Mapping[int, object]  # other answers, and their types: {503: Readiness}
    media: str  # of the answer; application/json unless said
    takes: str  # the media type of a body that the handler reads itself, as it arrives, from `call.request`
    listed: bool  # False: not part of the OpenAPI document
    body_bytes: int  # the longest `body`, where the limit of the settings is too small for what it is for
    any_query: bool  # a query is not looked at; else one that is not declared is refused


class Routes:
    """The routes of one surface; `legation.server.http.app.make_app` makes an application of several."""

    def __init__(self, *, tag: str) -> None:
        self.tag = tag
        self._operations: list[Operation] = []

    @property
    def operations(self) -> tuple[Operation, ...]:
        return tuple(self._operations)

    def get(self, path: str, **options: Unpack[RouteOptions]) -> Callable[[F], F]:
        """Answers HEAD too, without the body."""
        return self._route("GET", path, options)

    def post(self, path: str, **options: Unpack[RouteOptions]) -> Callable[[F], F]:
        return self._route("POST", path, options)

    def put(self, path: str, **options: Unpack[RouteOptions]) -> Callable[[F], F]:
        return self._route("PUT", path, options)

    def patch(self, path: str, **options: Unpack[RouteOptions]) -> Callable[[F], F]:
        return self._route("PATCH", path, options)

    def delete(self, path: str, **options: Unpack[RouteOptions]) -> Callable[[F], F]:
        return self._route("DELETE", path, options)

    def _route(self, method: Method, path: str, options: RouteOptions) -> Callable[[F], F]:
        def keep(handler: F) -> F:
            self._operations.append(
                declare(
                    handler,
                    method=method,
                    path=path,
                    tag=self.tag,
                    access=options["access"],
                    status=options.get("status"),
                    errors=options.get("errors", ()),
                    also=options.get("also", {}),
                    media=options.get("media", "application/json"),
                    listed=options.get("listed", True),
                    takes=options.get("takes"),
                    any_query=options.get("any_query", False),
                    body_bytes=options.get("body_bytes", 0),
                )
            )
            return handler

        return keep
