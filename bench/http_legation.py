"""The operation that is compared, in Legation's routes; http_fastapi.py has the same."""

from typing import Annotated, Any, Final, Literal, cast

from msgspec import Meta
from starlette.requests import Request as HttpRequest

from legation.errors import Unauthenticated
from legation.server.http.app import AppOptions, make_app
from legation.server.http.routes import Call, Routes, needs
from legation.wire.api.shape import RequestBody, ResponseBody
from legation.wire.principal import Principal

TOKEN: Final = "bench-token"
WHO: Final = Principal(kind="token", id="t", workspace="local", scopes=frozenset({"manage"}), level=2)

routes = Routes(tag="things")


class Part(RequestBody):
    name: str
    count: Annotated[int, Meta(ge=0)] = 1


class NewThing(RequestBody):
    title: Annotated[str, Meta(min_length=1, max_length=100)]
    colour: Literal["red", "green", "blue"] = "red"
    parts: list[Part] = []  # noqa: RUF012 - msgspec copies it
    note: str | None = None


class Thing(ResponseBody):
    id: str
    title: str
    colour: str
    parts: list[Part]
    note: str | None


async def authenticate(request: HttpRequest) -> Principal:
    if request.headers.get("authorization") != f"Bearer {TOKEN}":
        raise Unauthenticated("cannot tell who you are; send the token")
    return WHO


@routes.post("/v1/things", access=needs("manage"), status=201)
async def create_thing(call: Call, body: NewThing) -> Thing:  # noqa: ARG001
    """Make a thing."""
    return Thing(id="thing_1", title=body.title, colour=body.colour, parts=body.parts, note=body.note)


app = make_app([routes], services=cast(Any, None), authenticate=authenticate, options=AppOptions())
