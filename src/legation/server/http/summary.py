"""What is known of a request when it is over: for the access log and for the figures.

Neither holds a path, a query or a body, only the route's template: ids and one-time codes stay out of both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from legation.server.http.call import NOBODY
from legation.server.http.metrics import Metrics
from legation.server.http.operations import Operation
from legation.wire.principal import Principal

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_CLASSES: Final = ("0xx", "1xx", "2xx", "3xx", "4xx", "5xx")
_STREAM: Final = "text/event-stream"


@dataclass(frozen=True, slots=True)
class RequestSummary:
    request_id: str
    method: str
    route: str  # the template; empty if there is no such path
    status: int  # 0 if nothing was answered
    seconds: float  # to the end of the answer; of a stream, how long it was open
    principal_kind: str
    principal: str
    workspace: str


@dataclass(slots=True)
class Trail:
    """Filled in as the request gets further."""

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


class HttpFigures:
    """The server's own figures about its requests."""

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

    def count(self, trail: Trail, seconds: float) -> None:
        method = trail.method if trail.method in _METHODS else "other"  # a caller's word is no label
        route = trail.route or "none"
        self._requests.inc(method, route, _CLASSES[trail.status // 100])
        if trail.status != 101 and (trail.operation is None or trail.operation.media != _STREAM):
            self._seconds.observe(seconds, method, route)
