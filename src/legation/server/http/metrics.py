"""Figures for Prometheus, in its text format: counters, gauges and histograms, each with a closed set of labels.

Label values are names of ours (routes, methods, classes), never what a caller sent: every new combination is
kept for good. Our own, because a request counts twice: prometheus-client takes six times as long for it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from starlette.responses import Response

from legation.errors import Conflict
from legation.server.http.routes import Call, Routes, needs

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
