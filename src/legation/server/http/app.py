"""The ASGI application: routes in, answers out, one road for all of them.

INV-1  The order is fixed: Host, address and method, credential, scope, parameters (those of the path, too) and body.
       A caller without a valid credential learns nothing about what a valid request looks like.
INV-2  Whatever happens, the answer is one of ours: a problem with the request's id, never a traceback.

It is plain ASGI: one task a request, one authentication, one decode, one encode, one pair of sends. An answer is what the
handler returned, or a problem (RFC 9457), with the headers that every answer carries.

Each request is counted, for Prometheus, in its text format. Label values are names of ours (routes, methods, classes),
never what a caller sent: every new combination is kept for good. The counters are our own, because a request counts
twice: prometheus-client takes six times as long for it.
"""

from __future__ import annotations

import logging
import math
import re
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from legation import __version__
from legation.clock import Clock, SystemClock, new_id
from legation.errors import (
    Cancelled,
    ConfigInvalid,
    Conflict,
    InternalError,
    LegationError,
    MethodNotAllowed,
    NotFound,
    RateLimited,
    StorageFailed,
    Unauthenticated,
    Unavailable,
    problem,
)
from legation.server.http.openapi import PROBLEM_MEDIA, Json, check_names, openapi
from legation.server.http.pages import docs_routes
from legation.server.http.request import BodyReader, Headers, Hosts, Origins, read_parameters
from legation.server.http.routes import (
    NOBODY,
    OPERATION,
    Access,
    Authenticate,
    Call,
    Operation,
    RouteReply,
    Routes,
    RouteTable,
    needs,
)
from legation.wire import jsontext
from legation.wire.principal import Principal

if TYPE_CHECKING:
    from legation.server.instance import Services


# Figures.

MEDIA: Final = "text/plain; version=0.0.4; charset=utf-8"

# Seconds: from an answer out of memory to one that waited for a database in trouble.
DURATIONS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

Labels = tuple[str, ...]
M = TypeVar("M", "Counter", "Gauge", "Histogram")


class Counter:
    """A figure that only grows."""

    kind = "counter"

    def __init__(self, name: str, help_text: str, labels: Sequence[str]) -> None:
        self.name, self.help, self.labels = name, help_text, tuple(labels)
        self._values: dict[Labels, float] = {} if labels else {(): 0}

    def inc(self, *labels: str, by: float = 1) -> None:
        if labels not in self._values:
            _check(self.labels, labels)
            self._values[labels] = 0
        self._values[labels] += by

    def lines(self) -> Iterator[str]:
        for labels, value in self._values.items():
            yield _line(self.name, self.labels, labels, value)


class Gauge(Counter):
    """A figure that goes up and down. With `read` its value is asked for when the figures are."""

    kind = "gauge"

    def __init__(
        self, name: str, help_text: str, labels: Sequence[str], read: Callable[[], float] | None
    ) -> None:
        super().__init__(name, help_text, labels)
        self._read = read

    def set(self, value: float, *labels: str) -> None:
        _check(self.labels, labels)
        self._values[labels] = value

    def dec(self, *labels: str, by: float = 1) -> None:
        self.inc(*labels, by=-by)

    def lines(self) -> Iterator[str]:
        if self._read is not None:
            self._values[()] = self._read()
        return super().lines()


class Histogram:
    kind = "histogram"

    def __init__(self, name: str, help_text: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        self.name, self.help, self.labels = name, help_text, tuple(labels)
        self._bounds = sorted(bounds)
        self._values: dict[Labels, tuple[list[int], list[float]]] = {}  # counts by bucket, [sum]

    def observe(self, value: float, *labels: str) -> None:
        found = self._values.get(labels)
        if found is None:
            _check(self.labels, labels)
            found = self._values[labels] = [0] * (len(self._bounds) + 1), [0.0]
        found[0][bisect_left(self._bounds, value)] += 1
        found[1][0] += value

    def lines(self) -> Iterator[str]:
        names = (*self.labels, "le")
        for labels, (counts, total) in self._values.items():
            upto = 0
            for bound, count in zip([*map(_number, self._bounds), "+Inf"], counts, strict=True):
                upto += count
                yield _line(f"{self.name}_bucket", names, (*labels, bound), upto)
            yield _line(f"{self.name}_sum", self.labels, labels, total[0])
            yield _line(f"{self.name}_count", self.labels, labels, upto)


class Metrics:
    """The figures of one server."""

    def __init__(self) -> None:
        self._all: dict[str, Counter | Gauge | Histogram] = {}

    def counter(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Counter:
        """Make a counter. Its name ends with `_total`, as Prometheus has it."""
        return self._keep(Counter(name, help_text, labels))

    def gauge(
        self,
        name: str,
        help_text: str,
        labels: Sequence[str] = (),
        read: Callable[[], float] | None = None,
    ) -> Gauge:
        return self._keep(Gauge(name, help_text, labels, read))

    def histogram(
        self, name: str, help_text: str, labels: Sequence[str] = (), bounds: Sequence[float] = DURATIONS
    ) -> Histogram:
        return self._keep(Histogram(name, help_text, labels, bounds))

    def render(self) -> str:
        lines: list[str] = []
        for each in self._all.values():
            lines += (
                f"# HELP {each.name} {_help(each.help)}",
                f"# TYPE {each.name} {each.kind}",
                *each.lines(),
            )
        return "\n".join([*lines, ""])

    def _keep(self, made: M) -> M:
        if made.name in self._all:
            raise Conflict(f"cannot count {made.name} twice: share the one that is there")
        self._all[made.name] = made
        return made


def _check(names: Labels, values: Labels) -> None:
    if len(names) != len(values):
        raise TypeError(f"cannot count with {len(values)} labels: give {', '.join(names) or 'none'}")


def _line(name: str, names: Labels, values: Labels, value: float) -> str:
    labels = ",".join(f'{key}="{_escaped(each)}"' for key, each in zip(names, values, strict=True))
    return f"{name}{{{labels}}} {_number(value)}" if labels else f"{name} {_number(value)}"


def _number(value: float) -> str:
    return str(int(value)) if math.isfinite(value) and value == int(value) else _odd(float(value))


def _odd(value: float) -> str:
    return repr(value) if math.isfinite(value) else {"inf": "+Inf", "-inf": "-Inf"}.get(str(value), "NaN")


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def metrics_routes(metrics: Metrics) -> Routes:
    routes = Routes(tag="server")

    @routes.get("/metrics", access=needs("read"), media="text/plain")
    async def read_metrics(call: Call) -> Response:  # noqa: ARG001
        """The server's figures, for Prometheus."""
        return Response(metrics.render(), headers={"content-type": MEDIA})

    return routes


# Answers.

# A page of ours loads only files of ours, and nobody may frame it.
CONTENT_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    b"connect-src 'self'; manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
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


class Written(msgspec.Struct):
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
    if result is None and operation.contract.answer is None:
        return Written(status, headers=headers)
    try:
        body = _answer_encoder.encode(result)
    except UnicodeEncodeError:  # an agent's lone surrogate: it must not make a whole list unreadable
        body = jsontext.write(result)
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
    if b"request-id" in names:  # another server's answer, which has all of it
        return headers
    ours = [_NO_STORE, _NO_SNIFF, *(_PAGE_HEADERS.items() if _is_page(names) else ())]
    headers += [pair for pair in ours if pair[0] not in names]
    return [*headers, (b"request-id", request_id.encode("ascii")), *extra]


def _is_page(headers: Mapping[bytes, bytes]) -> bool:
    return headers.get(b"content-type", b"").startswith(b"text/html")


def _pairs(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("ascii"), value.encode("latin-1")) for name, value in headers.items()]


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


# The application.

DEFAULT_MAX_BODY_BYTES: Final = 1 << 20
# From whom we do not know: enough for a sign-in code, too little for a burden.
OPEN_BODY_BYTES: Final = 1 << 14
# Seconds that a body may take before its credential is looked at again: the caller's time.
BODY_TRUST: Final = 0.5
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_CLASSES: Final = ("0xx", "1xx", "2xx", "3xx", "4xx", "5xx")
_STREAM: Final = "text/event-stream"


class RequestSummary(msgspec.Struct, frozen=True):
    """A request that is over, for the access log. It holds no path, query or body: ids and one-time codes stay out."""

    request_id: str
    method: str
    route: str  # the template; empty if there is no such path
    status: int  # 0 if nothing was answered
    seconds: float  # to the end of the answer; of a stream, how long it was open
    principal_kind: str
    principal: str
    workspace: str


class RequestState(msgspec.Struct):
    """A request under way: filled in as it gets further."""

    request_id: str
    method: str
    route: str = ""
    operation: Operation | None = None
    principal: Principal = NOBODY
    status: int = 0


class RequestMetrics:
    """Figures about requests, by the route's template."""

    def __init__(self, metrics: Metrics) -> None:
        self.in_flight = 0
        self._requests = metrics.counter(
            "legation_http_requests_total",
            "Requests answered, by method, route and class of the status.",
            ("method", "route", "status"),
        )
        self._seconds = metrics.histogram(
            "legation_http_request_seconds",
            "Time to the end of the answer, by method and route; streams are not in it.",
            ("method", "route"),
        )
        metrics.gauge(
            "legation_http_requests_in_flight",
            "Requests being answered now, open streams included.",
            read=lambda: self.in_flight,
        )

    def count(self, state: RequestState, seconds: float) -> None:
        method = state.method if state.method in _METHODS else "other"  # a caller's word is no label
        route = state.route or "none"
        self._requests.inc(method, route, _CLASSES[state.status // 100])
        if state.status != 101 and (state.operation is None or state.operation.media != _STREAM):
            self._seconds.observe(seconds, method, route)


logger = logging.getLogger("legation.server")

Elsewhere: TypeAlias = Callable[[Call, str, Mapping[str, str]], Awaitable[Response | None]]
"""Answers for another server that has what the request is about; None: it is ours. Gets the route's path and its parameters."""


class AppOptions(msgspec.Struct, frozen=True, kw_only=True):
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    cors_origins: Collection[str] = ()
    allowed_hosts: Collection[str] | None = None  # None: any
    clock: Clock = msgspec.field(default_factory=SystemClock)
    version: str = __version__
    metrics: Metrics = msgspec.field(default_factory=Metrics)
    on_request: Callable[[RequestSummary], None] | None = None  # after each, for the access log
    elsewhere: Elsewhere | None = None


def make_app(
    groups: Sequence[Routes], *, services: Services, authenticate: Authenticate, options: AppOptions
) -> App:
    """Make the application of every group of routes, and of what each server has: /openapi.json, /docs, /metrics."""
    operations = [each for group in groups for each in group.operations]
    operations += metrics_routes(options.metrics).operations
    check_names(operations)
    document = cache(partial(openapi, tuple(operations), version=options.version))
    operations += docs_routes(document).operations
    return App(operations, services, authenticate, options, document)


class Confirmation:
    """Look at the credential of a call again, now and then: who holds a body back would outlive its end by as long."""

    def __init__(self, call: Call, access: Access) -> None:
        self._call = call
        self._access = access
        self._principal = call.principal
        self._asked = call.services.clock.monotonic()

    async def __call__(self) -> Principal:
        now = self._call.services.clock.monotonic()
        if now - self._asked > BODY_TRUST:
            self._principal = await self._call.authenticate(self._call.request)
            self._access.check(self._principal)
            self._asked = now
        return self._principal


class App:
    def __init__(
        self,
        operations: Sequence[Operation],
        services: Services,
        authenticate: Authenticate,
        options: AppOptions,
        document: Callable[[], Json] = dict,
    ) -> None:
        self.operations = tuple(operations)
        self._document = document
        self._table = RouteTable(operations)
        self._services = services
        self._authenticate = authenticate
        self._bodies = BodyReader()
        self._max_body_bytes = options.max_body_bytes
        self._open_body_bytes = min(OPEN_BODY_BYTES, options.max_body_bytes)
        self._origins = Origins(options.cors_origins)
        self._hosts = Hosts(options.allowed_hosts)
        self._clock = options.clock
        self._figures = RequestMetrics(options.metrics)
        self._on_request = options.on_request
        self._elsewhere = options.elsewhere

    @property
    def document(self) -> Json:
        """The OpenAPI document, made when it is first asked for."""
        return self._document()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await _serve_other(scope, receive, send)
            return
        started = self._clock.monotonic()
        headers = dict(scope["headers"])
        state = RequestState(request_id(headers, self._clock), scope["method"])
        self._figures.in_flight += 1
        try:
            try:
                answer = await self._handle(scope, receive, headers, state)
            except LegationError as error:
                answer = _refusal(error, headers, state)
            except Exception as error:  # noqa: BLE001 - the boundary: the caller gets the id, the log the rest
                answer = _internal(error, state)
            extra = self._origins.headers(headers)
            if isinstance(answer, Written):
                state.status = answer.status
                await answer.send(send, state.request_id, extra, head=scope["method"] == "HEAD")
            else:
                await self._pass_through(
                    answer, scope, receive, StampedSend(send, state.request_id, extra), state
                )
        finally:
            self._figures.in_flight -= 1
            seconds = self._clock.monotonic() - started
            self._figures.count(state, seconds)
            if self._on_request is not None:
                who = (state.principal.kind, state.principal.id, state.principal.workspace)
                self._on_request(
                    RequestSummary(state.request_id, state.method, state.route, state.status, seconds, *who)
                )

    async def _handle(
        self, scope: Scope, receive: Receive, headers: Mapping[bytes, bytes], state: RequestState
    ) -> Written | Response:
        self._hosts.check(scope["headers"], scope.get("http_version", "1.1"))
        raw_path = scope.get("raw_path")  # optional in ASGI
        found = self._table.find(scope["path"].encode() if raw_path is None else raw_path)
        if found is None:
            raise NotFound("cannot find this address; /openapi.json lists those there are")
        resource, path, broken = found
        state.route = resource.path
        operation = resource.operations.get(scope["method"])
        if operation is None:
            preflight = self._origins.preflight(scope["method"], headers, resource.allow)
            return Written(204, headers=preflight) if preflight else _not_allowed(resource.allow, state)
        scope["path_params"] = path
        request, principal = Request(scope, receive), NOBODY
        state.operation = operation
        scope[OPERATION] = operation
        if not operation.access.open:
            state.principal = principal = await self._authenticate(request)
            operation.access.check(principal)
        if broken is not None:
            raise broken
        # Nothing else names what may be another server's: a path, a query, or the header of an ACP connection.
        named = path or scope["query_string"] or resource.path == "/acp"
        if self._elsewhere is not None and named:
            call = Call(principal, state.request_id, request, self._services, self._authenticate)
            if (answer := await self._elsewhere(call, resource.path, path)) is not None:
                return answer
        contract, arguments, asked = operation.contract, dict[str, object](), self._clock.monotonic()
        is_open = operation.access.open
        try:
            query = b"" if operation.unread else scope["query_string"]
            if contract.parameters or query:
                arguments = read_parameters(
                    contract.parameters, path, query, scope["headers"], tolerant=operation.tolerant
                )
            if contract.body is not None:
                limit = self._open_body_bytes if is_open else max(operation.body_bytes, self._max_body_bytes)
                arguments["body"] = await contract.body.read(headers, receive, self._bodies, limit)
        except LegationError as error:
            if operation.refused is not None and not isinstance(error, Cancelled):
                call = Call(principal, state.request_id, request, self._services, self._authenticate)
                await operation.refused(call, error)
            raise
        if not is_open and self._clock.monotonic() - asked > BODY_TRUST:
            # Whoever holds a body back would outlive a revocation by as long.
            state.principal = principal = await self._authenticate(request)
            operation.access.check(principal)
        call = Call(principal, state.request_id, request, self._services, self._authenticate)
        return write(operation, await operation.handler(call, **arguments))

    async def _pass_through(
        self, response: Response, scope: Scope, receive: Receive, send: StampedSend, state: RequestState
    ) -> None:
        state.status = response.status_code
        if scope["method"] == "HEAD":  # a stream has no end to wait for: its head is all that is asked
            await send(
                {
                    "type": "http.response.start",
                    "status": response.status_code,
                    "headers": response.raw_headers,
                }
            )
            await send({"type": "http.response.body"})
            return
        try:
            await response(scope, receive, send)
        except Exception as error:  # noqa: BLE001 - the boundary, as above
            problem = _internal(error, state)
            if not send.started:  # else it stays unfinished, and the server closes the connection
                state.status = problem.status
                await problem.send(send.send, state.request_id, send.extra, head=False)


def _not_allowed(allow: str, state: RequestState) -> Written:
    error = MethodNotAllowed(f"cannot use this method here; use one of {allow}", {"allow": allow.split(", ")})
    return write_problem(error, state.request_id, [(b"allow", allow.encode("ascii"))])


def _refusal(error: LegationError, headers: Mapping[bytes, bytes], state: RequestState) -> Written:
    if error.status.http >= 500:
        logger.warning("request %s: %s", state.request_id, error, exc_info=error)
        if state.principal is NOBODY and isinstance(error, StorageFailed | ConfigInvalid):
            # Paths and addresses of the machine are nothing for whoever we do not know.
            error = type(error)("cannot do this now; the server's log says why, under the request's id")
    # Whoever waits for "100 Continue" and is refused first may keep its body: the connection is spent.
    spent = [(b"connection", b"close")] if b"expect" in headers else []
    return write_problem(error, state.request_id, spent)


def _internal(error: Exception, state: RequestState) -> Written:
    logger.error("request %s failed", state.request_id, exc_info=error)
    words = f"cannot answer because of a defect; report it with the request's id {state.request_id}"
    return write_problem(InternalError(words), state.request_id)


async def _serve_other(scope: Scope, receive: Receive, send: Send) -> None:
    # Nothing starts or ends with the application: its services belong to whoever made it.
    if scope["type"] != "lifespan":
        await send({"type": "websocket.close"})
        return
    while True:
        message: Message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
