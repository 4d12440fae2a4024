"""The ASGI application: routes in, answers out, one road for all of them.

INV-1  The order is fixed: Host, address and method, credential, scope, parameters (those of the path, too) and body.
       A caller without a valid credential learns nothing about what a valid request looks like.
INV-2  Whatever happens, the answer is one of ours: a problem with the request's id, never a traceback.

It is plain ASGI: one task a request, one authentication, one decode, one encode, one pair of sends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from legation import __version__
from legation.clock import Clock, SystemClock
from legation.errors import (
    ConfigInvalid,
    InternalError,
    InvalidParams,
    LegationError,
    MethodNotAllowed,
    NotFound,
    StorageFailed,
)
from legation.server.http.metrics import Metrics, metrics_routes
from legation.server.http.openapi import Json, openapi
from legation.server.http.origins import Hosts, Origins
from legation.server.http.pages import docs_routes
from legation.server.http.request import BodyReader, decode_segment, read_parameters
from legation.server.http.response import StampedSend, Written, request_id, write, write_problem
from legation.server.http.routes import NOBODY, Access, Authenticate, Call, Operation, Routes
from legation.wire.principal import Principal

if TYPE_CHECKING:
    from legation.server.instance import Services


DEFAULT_MAX_BODY_BYTES: Final = 1 << 20
# From whom we do not know: enough for a sign-in code, too little for a burden.
OPEN_BODY_BYTES: Final = 1 << 14
# Seconds that a body may take before its credential is looked at again: the caller's time.
BODY_TRUST: Final = 0.5
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_CLASSES: Final = ("0xx", "1xx", "2xx", "3xx", "4xx", "5xx")
_STREAM: Final = "text/event-stream"


@dataclass(slots=True)
class Resource:
    """A path and what can be done with it."""

    path: str
    operations: dict[str, Operation] = field(default_factory=dict)
    allow: str = ""  # every method, as the Allow header lists them

    def add(self, operation: Operation) -> None:
        if operation.method in self.operations:
            raise TypeError(f"cannot declare {operation.method} {operation.path} twice: remove one")
        self.operations[operation.method] = operation
        if operation.method == "GET":
            self.operations["HEAD"] = operation
        self.allow = ", ".join(sorted(self.operations))


@dataclass(slots=True)
class _Node:
    fixed: dict[str, _Node] = field(default_factory=dict)
    parameter: _Node | None = None
    resource: Resource | None = None
    names: tuple[str, ...] = ()

    def find(self, segments: list[str], at: int) -> tuple[_Node, tuple[str, ...]] | None:
        if at == len(segments):
            return (self, ()) if self.resource else None
        segment = segments[at]
        if (fixed := self.fixed.get(segment)) and (found := fixed.find(segments, at + 1)):
            return found
        if self.parameter and segment and (found := self.parameter.find(segments, at + 1)):
            return found[0], (segment, *found[1])
        return None


class RouteTable:
    """Find the operations of a path: in a dictionary of fixed paths, then in a tree of segments for the templates.

    A fixed segment is preferred to a parameter. The raw path is matched, so that `%2F` is part of a segment."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._fixed: dict[str, Resource] = {}
        self._root = _Node()
        for operation in operations:
            self._add(operation)

    def find(self, raw_path: bytes) -> tuple[Resource, Mapping[str, str], InvalidParams | None] | None:
        """Find the resource, its path parameters, and what is wrong with their percent-encoding.

        That is not raised: who may call the resource at all is asked first."""
        path = raw_path.decode("latin-1")
        if (resource := self._fixed.get(path)) is not None:
            return resource, _NOTHING, None
        segments, broken = path.split("/")[1:], None
        if "%" in path:
            for at, each in enumerate(segments):
                try:
                    segments[at] = decode_segment(each)
                except InvalidParams as error:
                    broken = error  # the segment stays as it is, and is no fixed one
        found = self._root.find(segments, 0)
        if found is None or found[0].resource is None:
            return None
        return found[0].resource, dict(zip(found[0].names, found[1], strict=True)), broken

    def _add(self, operation: Operation) -> None:
        node, names = self._root, []
        for segment in operation.path.split("/")[1:]:
            if segment.startswith("{"):
                names.append(segment[1:-1])
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                node = node.fixed.setdefault(segment, _Node())
        if node.resource is None:
            node.resource, node.names = Resource(operation.path), tuple(names)
        if node.resource.path != operation.path:
            raise TypeError(f"cannot declare {operation.path} beside {node.resource.path}: name it the same")
        node.resource.add(operation)
        if not names:
            self._fixed[operation.path] = node.resource


@dataclass(frozen=True, slots=True)
class RequestSummary:
    """A request that is over, for the access log. It holds no path, query or body: ids and one-time codes stay out."""

    request_id: str
    method: str
    route: str  # the template; empty if there is no such path
    status: int  # 0 if nothing was answered
    seconds: float  # to the end of the answer; of a stream, how long it was open
    principal_kind: str
    principal: str
    workspace: str


@dataclass(slots=True)
class RequestState:
    """A request under way: filled in as it gets further."""

    request_id: str
    method: str
    route: str = ""
    operation: Operation | None = None
    principal: Principal = NOBODY
    status: int = 0

    def summary(self, seconds: float) -> RequestSummary:
        who = self.principal
        return RequestSummary(
            self.request_id, self.method, self.route, self.status, seconds, who.kind, who.id, who.workspace
        )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AppOptions:
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    cors_origins: Collection[str] = ()
    allowed_hosts: Collection[str] | None = None  # None: any
    clock: Clock = field(default_factory=SystemClock)
    version: str = __version__
    metrics: Metrics = field(default_factory=Metrics)
    on_request: Callable[[RequestSummary], None] | None = None  # after each, for the access log


def make_app(
    groups: Sequence[Routes], *, services: Services, authenticate: Authenticate, options: AppOptions
) -> App:
    """Make the application of every group of routes, and of what each server has: /openapi.json, /docs, /metrics."""
    operations = [each for group in groups for each in group.operations]
    operations += metrics_routes(options.metrics).operations
    document = openapi(operations, version=options.version)
    operations += docs_routes(document).operations
    return App(operations, document, services, authenticate, options)


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
        document: Json,
        services: Services,
        authenticate: Authenticate,
        options: AppOptions,
    ) -> None:
        self.operations = tuple(operations)
        self.document = document
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
                self._on_request(state.summary(seconds))

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
            return preflight or _not_allowed(resource.allow, state)
        scope["path_params"] = path
        request, principal = Request(scope, receive), NOBODY
        state.operation = operation
        if not operation.access.open:
            state.principal = principal = await self._authenticate(request)
            operation.access.check(principal)
        if broken is not None:
            raise broken
        arguments: dict[str, object] = {}
        query = b"" if operation.unread else scope["query_string"]
        if operation.parameters or query:
            arguments = read_parameters(operation.parameters, path, query, scope["headers"])
        if operation.body is not None:
            is_open, asked = operation.access.open, self._clock.monotonic()
            limit = self._open_body_bytes if is_open else max(operation.body_bytes, self._max_body_bytes)
            arguments["body"] = await operation.body.read(headers, receive, self._bodies, limit)
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
