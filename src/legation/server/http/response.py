"""Write a response: what a handler returned, or a problem (RFC 9457), with the headers that every answer carries."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from starlette.responses import Response
from starlette.types import Message, Send

from legation.clock import Clock
from legation.errors import Code, LegationError, RateLimited, Unauthenticated, Unavailable, problem
from legation.ids import new_id
from legation.server.http.routes import Operation, RouteReply
from legation.wire import jsontext

# A page of ours loads only files of ours, and nobody may frame it.
CONTENT_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    b"connect-src 'self'; manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
PROBLEM_MEDIA: Final = "application/problem+json"
CHALLENGE: Final = 'Bearer realm="legation"'
_HARMLESS: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_JSON: Final = b"application/json"
_NO_STORE: Final = (b"cache-control", b"no-store")
_NO_SNIFF: Final = (b"x-content-type-options", b"nosniff")
_PAGE_HEADERS: Final = {
    b"content-security-policy": CONTENT_POLICY,
    b"referrer-policy": b"no-referrer",
    b"x-frame-options": b"DENY",
}
_answer_encoder: Final = msgspec.json.Encoder()
_problem_encoder: Final = msgspec.json.Encoder(enc_hook=str)


def request_id(headers: Mapping[bytes, bytes], clock: Clock) -> str:
    given = headers.get(b"x-request-id")
    if given is not None and _HARMLESS.fullmatch(given):
        return given.decode("ascii")
    return new_id("req", now_ms=clock.now_ms())


Headers = Iterable[tuple[bytes, bytes]]


@dataclass(slots=True)
class Written:
    """An answer of ours, whole: one start and one body message."""

    status: int
    body: bytes = b""
    media: bytes = _JSON
    headers: Headers = ()

    async def send(self, send: Send, request_id: str, extra: Headers, head: bool) -> None:
        headers = [_NO_STORE, _NO_SNIFF, (b"request-id", request_id.encode("ascii")), *extra, *self.headers]
        if self.status != 204:
            headers.append((b"content-type", self.media))
            headers.append((b"content-length", b"%d" % len(self.body)))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if head else self.body})


def write(operation: Operation, result: object) -> Written | Response:
    if isinstance(result, Response):
        return result
    if isinstance(result, RouteReply):
        status, headers, result = result.status or operation.status, _pairs(result.headers), result.body
    else:
        status, headers = operation.status, []
    body = b"" if result is None and operation.answer is None else _json(result)
    return Written(status, body, headers=headers)


class StampedSend:
    """A `send` that adds the headers that every answer carries to a response made elsewhere."""

    __slots__ = ("extra", "request_id", "send", "started")

    def __init__(self, send: Send, request_id: str, extra: Headers) -> None:
        self.send, self.request_id, self.extra = send, request_id, extra
        self.started = False

    def __call__(self, message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            self.started = True
            message = {**message, "headers": stamp(message.get("headers", ()), self.request_id, self.extra)}
        return self.send(message)  # not awaited here: a stream's chunks pay for no frame of ours


def stamp(given: Headers, request_id: str, extra: Headers) -> list[tuple[bytes, bytes]]:
    headers = list(given)
    names = dict(headers)
    ours = [_NO_STORE, _NO_SNIFF, *(_PAGE_HEADERS.items() if _is_page(names) else ())]
    headers += [pair for pair in ours if pair[0] not in names]
    return [*headers, (b"request-id", request_id.encode("ascii")), *extra]


def _json(result: object) -> bytes:
    try:
        return _answer_encoder.encode(result)
    except UnicodeEncodeError:  # an agent's lone surrogate: it must not make a whole list unreadable
        return jsontext.write(result)


def _is_page(headers: Mapping[bytes, bytes]) -> bool:
    return headers.get(b"content-type", b"").startswith(b"text/html")


def _pairs(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("ascii"), value.encode("latin-1")) for name, value in headers.items()]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong (RFC 9457). `code` is one of a closed set; `data.path` and `data.expected` say what to correct."""

    type: str
    title: str
    status: int
    detail: str
    code: Code
    instance: str
    data: dict[str, Any] | None = None


def write_problem(error: LegationError, request_id: str, headers: Headers = ()) -> Written:
    members = problem(error)
    members["instance"] = f"urn:legation:request:{request_id}"
    return Written(
        status=error.status.http,
        media=PROBLEM_MEDIA.encode(),
        body=_problem_encoder.encode(members),
        headers=[*_problem_headers(error), *headers],
    )


def _problem_headers(error: LegationError) -> list[tuple[bytes, bytes]]:
    if isinstance(error, Unauthenticated):
        return [(b"www-authenticate", CHALLENGE.encode())]
    after = (error.data or {}).get("retryAfter")
    if isinstance(error, RateLimited | Unavailable) and isinstance(after, int | float):
        return [(b"retry-after", str(max(1, -int(-after // 1))).encode())]  # whole seconds, rounded up
    return []
