"""A small application with every kind of route, and a way to call one that hides nothing of ASGI."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

from legation.errors import Conflict, NotFound, RateLimited, Unauthenticated
from legation.server.http.app import App, AppOptions, make_app
from legation.server.http.routes import OPEN, SIGNED_IN, Call, Header, RouteReply, Routes, needs
from legation.wire.api.shape import Page, RequestBody, ResponseBody
from legation.wire.principal import Principal, Scope

Title = Annotated[str, Meta(min_length=1, max_length=40)]
Colour = Literal["red", "green", "blue"]
Count = Annotated[int, Meta(ge=0, le=1000)]


class Part(RequestBody):
    name: Title
    count: Count = 1


class NewThing(RequestBody):
    title: Title
    colour: Colour = "red"
    parts: Annotated[list[Part], Meta(max_length=20)] = []  # noqa: RUF012 - msgspec copies it
    weight_grams: Annotated[float, Meta(ge=0, le=1e6)] | None = None


class Change(RequestBody):
    title: Title | None = None
    colour: Colour | None = None


class Thing(ResponseBody):
    id: str
    title: str
    colour: Colour
    parts: list[Part]
    weight_grams: float | None
    owner: str


class Size(ResponseBody):
    bytes: int


class Shown(ResponseBody):
    """What the handler was given, for the tests to look at."""

    given: dict[str, Any]


@dataclass
class Shelf:
    """Stands where the services are."""

    things: dict[str, Thing] = field(default_factory=dict)


routes = Routes(tag="things")


def shelf(call: Call) -> Shelf:
    return cast(Shelf, call.services)


def thing(call: Call, name: str) -> Thing:
    if name not in shelf(call).things:
        raise NotFound("cannot find this thing; list them with GET /v1/things")
    return shelf(call).things[name]


@routes.get("/v1/things", access=needs("read"))
async def list_things(
    call: Call,
    limit: Annotated[int, Meta(ge=1, le=500)] = 100,
    after: str | None = None,
    colours: list[Colour] | None = None,
) -> Page[Thing]:
    """The things on the shelf.

    In the order of their ids, of all colours unless some are named."""
    found = [each for key, each in sorted(shelf(call).things.items()) if after is None or key > after]
    found = [each for each in found if not colours or each.colour in colours]
    return Page(items=found[:limit], next=found[limit - 1].id if len(found) > limit else None)


@routes.post("/v1/things", access=needs("manage"), status=201, errors=(Conflict,))
async def create_thing(call: Call, body: NewThing) -> RouteReply[Thing]:
    """Put a thing on the shelf."""
    if any(each.title == body.title for each in shelf(call).things.values()):
        raise Conflict("cannot add this thing: one of this title is there; choose another")
    made = Thing(
        id=f"thing_{len(shelf(call).things)}",
        title=body.title,
        colour=body.colour,
        parts=body.parts,
        weight_grams=body.weight_grams,
        owner=call.principal.id,
    )
    shelf(call).things[made.id] = made
    return RouteReply(made, headers={"Location": f"/v1/things/{made.id}"})


@routes.get("/v1/things/{id}", access=needs("read"))
async def read_thing(call: Call, id: str) -> Thing:  # noqa: A002
    """One thing."""
    return thing(call, id)


@routes.patch("/v1/things/{id}", access=needs("manage"))
async def change_thing(call: Call, id: str, body: Change) -> Thing:  # noqa: A002
    """Change a thing."""
    old = thing(call, id)
    changed = msgspec.structs.replace(old, title=body.title or old.title, colour=body.colour or old.colour)
    shelf(call).things[id] = changed
    return changed


@routes.delete("/v1/things/{id}", access=needs("manage"))
async def remove_thing(call: Call, id: str) -> None:  # noqa: A002
    """Take a thing off the shelf."""
    thing(call, id)
    del shelf(call).things[id]


@routes.get("/v1/things/newest", access=needs("read"), errors=(NotFound,))
async def read_newest(call: Call) -> Thing:
    """The thing that was added last."""
    if not shelf(call).things:
        raise NotFound("cannot find a thing: the shelf is empty; add one")
    return max(shelf(call).things.values(), key=lambda each: each.id)


@routes.put("/v1/raw", access=SIGNED_IN)
async def put_raw(call: Call, body: msgspec.Raw) -> Size:
    """Any JSON, as it came."""
    return Size(bytes=len(bytes(body)))


@routes.post("/v1/maybe", access=OPEN)
async def maybe(call: Call, body: Change | None = None) -> Shown:
    """With a body or without."""
    return Shown(given={"body": None if body is None else msgspec.to_builtins(body)})


@routes.get("/v1/show/{count}", access=OPEN)
async def show(
    call: Call,
    count: int,
    flag: bool = False,
    long_name: str = "",
    ratio: Annotated[float, Meta(ge=0, le=1)] | None = None,
    numbers: list[int] | None = None,
    tag: Annotated[str | None, Header("X-Tag"), Meta(max_length=10)] = None,
) -> Shown:
    """Every kind of parameter."""
    return Shown(
        given={
            "count": count,
            "flag": flag,
            "longName": long_name,
            "ratio": ratio,
            "numbers": numbers,
            "tag": tag,
            "who": call.principal.kind,
        }
    )


@routes.get("/v1/follow/{name}", access=needs("read"), media="text/event-stream")
async def follow(
    call: Call, name: str, last_event_id: Annotated[str | None, Header("Last-Event-ID")] = None
) -> Response:
    """A stream."""

    async def lines() -> AsyncIterator[bytes]:
        for number in range(3):
            yield f"id: {number}\ndata: {name}\n\n".encode()

    return StreamingResponse(lines(), media_type="text/event-stream")


@routes.get("/v1/page", access=OPEN, media="text/html")
async def page(call: Call) -> Response:
    """A page."""
    return Response("<p>hello</p>", media_type="text/html")


# What a good application never does; kept apart from what is fuzzed.
broken = Routes(tag="broken")


@broken.post("/v1/boom", access=OPEN)
async def boom(call: Call, body: dict[str, str]) -> None:
    """Fails."""
    raise ZeroDivisionError("the value was s3cret")


@broken.get("/v1/boom/unwritable", access=OPEN)
async def unwritable(call: Call) -> Shown:
    """Returns what is not JSON."""
    return Shown(given={"x": object()})


@broken.get("/v1/boom/midway", access=OPEN, media="text/plain")
async def midway(call: Call) -> Response:
    """Fails in the middle of a stream."""

    async def lines() -> AsyncIterator[bytes]:
        yield b"one"
        raise ZeroDivisionError

    return StreamingResponse(lines(), media_type="text/plain")


@broken.get("/v1/boom/busy", access=OPEN, errors=(RateLimited,))
async def busy(call: Call) -> None:
    """Too often."""
    raise RateLimited("cannot do this so often; wait", {"retryAfter": 1.2})


TOKENS: dict[str, frozenset[Scope]] = {
    "reader": frozenset({"read"}),
    "manager": frozenset({"read", "manage"}),
    "bare": frozenset(),
}


async def authenticate(request: HttpRequest) -> Principal:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme != "Bearer" or token not in TOKENS:
        raise Unauthenticated("cannot tell who you are; send Authorization: Bearer with a token")
    return Principal(kind="token", id=token, workspace="local", scopes=TOKENS[token], level=2)


def toy_app(
    surfaces: Sequence[Routes] = (routes, broken), options: AppOptions | None = None, services: object = None
) -> App:
    return make_app(
        surfaces,
        services=services or Shelf(),  # type: ignore[arg-type]
        authenticate=authenticate,
        options=options or AppOptions(version="1.2.3"),
    )


@dataclass(frozen=True)
class Got:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    def json(self) -> Any:
        return json.loads(self.body)


async def ask(
    app: App,
    method: str,
    target: str,
    *,
    token: str | None = None,
    headers: Iterable[tuple[str, str]] = (),
    body: object = None,
    raw: bytes | Sequence[bytes] | None = None,
) -> Got:
    """`body` goes as JSON; `raw` as it is, in as many messages as it has parts."""
    pairs = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    if all(name != b"host" for name, _ in pairs):
        pairs.append((b"host", b"toy.test"))  # HTTP/1.1 has none without
    parts = [raw] if isinstance(raw, bytes) else list(raw or [b""])
    if body is not None:
        parts = [json.dumps(body).encode()]
        pairs.append((b"content-type", b"application/json"))
    if token is not None:
        pairs.append((b"authorization", f"Bearer {token}".encode()))
    path, _, query = target.partition("?")
    scope = {
        "type": "http",
        "method": method,
        "raw_path": path.encode("latin-1"),
        "path": path,
        "query_string": query.encode("latin-1"),
        "headers": pairs,
        "http_version": "1.1",
        "scheme": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
    }
    incoming = [
        {"type": "http.request", "body": part, "more_body": number < len(parts) - 1}
        for number, part in enumerate(parts)
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        return incoming.pop(0) if incoming else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start = sent[0]
    return Got(
        status=start["status"],
        headers=[(key.decode("latin-1"), value.decode("latin-1")) for key, value in start["headers"]],
        body=b"".join(each.get("body", b"") for each in sent[1:]),
    )
