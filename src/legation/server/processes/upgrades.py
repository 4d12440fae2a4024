"""A WebSocket is opened through the same door as any request: routed, authenticated and refused by the same code.

`Upgrades` stands around the application. An opening handshake becomes a GET of its address; if the route answers with
an `Upgrade`, the WebSocket is accepted and the `Upgrade` has it; any other answer, a problem for example, is what the
client gets instead of it. So a route is a WebSocket's by what it returns, and the layer of routes need not know.

INV-U1  Nothing is upgraded that the address, the Host, the credential, its scope and the Origin do not allow.
INV-U2  `?access_token=`, for browsers, which can send no header here, is read of a WebSocket's handshake at these
        addresses only, and never reaches the query that a route sees, or a log.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Final, cast
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from legation.clock import Clock
from legation.errors import InvalidParams, NotFound
from legation.server.http.problems import write_problem
from legation.server.http.requestid import request_id
from legation.server.identity.same_origin import OwnOrigins

ACCESS_TOKEN: Final = "access_token"  # noqa: S105 - a name
_KEY: Final = "legation.websocket"

Serve = Callable[[Receive, Send], Awaitable[None]]
"""Has the WebSocket, accepted, until it returns; it closes it."""


class Upgrades:
    """`addresses` are those of routes that return an `Upgrade`."""

    def __init__(self, app: ASGIApp, addresses: re.Pattern[bytes], clock: Clock) -> None:
        self._app = app
        self._addresses = addresses
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        opening = _Opening(receive, send)
        if self._addresses.fullmatch(scope.get("raw_path") or scope["path"].encode()):
            await self._app(_as_request(scope), _no_body, opening.send)
        else:  # not as a GET: its answer may be a stream without an end, and would be collected for ever
            number = request_id(dict(scope["headers"]), self._clock)
            await write_problem(_nothing_here(), number).send(opening.send, number, (), head=False)


class _Opening:
    """What the application sends as an answer, as the handshake's."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._accepted = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == 101:
            self._accepted = True
            headers = [pair for pair in message["headers"] if pair[0] == b"request-id"]
            await self._receive()  # websocket.connect
            await self._send({"type": "websocket.accept", "headers": headers})
            await cast(Serve, message[_KEY])(self._receive, self._send)
        elif not self._accepted:
            await self._send({**message, "type": message["type"].replace("http.", "websocket.http.", 1)})


class Upgrade(Response):
    """Return it from a GET: `serve` gets the WebSocket. For any other request it is refused in `check_handshake`."""

    def __init__(self, serve: Serve) -> None:
        self.status_code = 101
        self.background = None
        self.init_headers({})
        self._serve = serve

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": 101, "headers": self.raw_headers, _KEY: self._serve}
        )
        await send({"type": "http.response.body", "body": b""})


def check_handshake(request: Request, own: OwnOrigins) -> None:
    """Called by the route, before it returns an `Upgrade`.

    A browser says which page opens a WebSocket, sends the cookie with it whatever page that is, and does not ask us
    first: so the page must be ours, or one that the owner listed, whatever vouches for the call."""
    if _KEY not in request.scope:
        raise InvalidParams("cannot answer this without a WebSocket; open one at this address")
    by_page = "origin" in request.headers or "sec-fetch-site" in request.headers
    if by_page or "authorization" not in request.headers:
        own.check(Request({**request.scope, "method": "POST"}))  # it is no reading: who has it types


def _as_request(scope: Scope) -> Scope:
    headers = list(scope["headers"])
    token, query = _without_token(scope["query_string"])
    if token is not None and all(name != b"authorization" for name, _ in headers):
        headers.append((b"authorization", b"Bearer " + token))
    scheme = "https" if scope["scheme"] == "wss" else "http"
    changed = {"type": "http", "method": "GET", "scheme": scheme, "headers": headers, "query_string": query}
    return {**scope, **changed, _KEY: True}


def _without_token(query: bytes) -> tuple[bytes | None, bytes]:
    if ACCESS_TOKEN.encode() not in query:
        return None, query
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError:
        return None, query  # the route says what is wrong with it
    tokens = [value for name, value in pairs if name == ACCESS_TOKEN]
    rest = [(name, value) for name, value in pairs if name != ACCESS_TOKEN]
    # Several, or none at all, is a wrong credential, as with the header.
    token = tokens[0] if len(tokens) == 1 else ""
    return token.encode("utf-8"), urlencode(rest).encode("ascii")


def _nothing_here() -> NotFound:
    return NotFound("cannot open a WebSocket at this address; call it without an upgrade")


async def _no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}
