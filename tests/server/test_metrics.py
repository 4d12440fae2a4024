"""Figures in Prometheus' text format."""

import math

import pytest
from tests.server.toy_app import ask, toy_app

from legation.errors import Conflict
from legation.server.http.app import AppOptions, Metrics
from legation.testing.clock import FakeClock


def test_a_counter_grows_by_its_labels() -> None:
    metrics = Metrics()
    counter = metrics.counter("things_total", "Things,\nall.", ("kind",))
    counter.inc("a")
    counter.inc("a", by=2)
    counter.inc('b"\\\n')
    assert metrics.render() == (
        "# HELP things_total Things,\\nall.\n"
        "# TYPE things_total counter\n"
        'things_total{kind="a"} 3\n'
        'things_total{kind="b\\"\\\\\\n"} 1\n'
    )


def test_a_gauge_is_set_or_asked_for() -> None:
    metrics, readings = Metrics(), [4.5, math.inf]
    level = metrics.gauge("level", "A level.")
    level.set(3)
    level.dec(by=1)
    metrics.gauge("asked", "Asked for.", read=lambda: readings.pop(0))
    assert "level 2\n" in metrics.render()
    assert metrics.render().endswith("asked +Inf\n")


def test_a_histogram_counts_up_to_each_bound() -> None:
    metrics = Metrics()
    seconds = metrics.histogram("seconds", "Time.", ("route",), bounds=(0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 5):
        seconds.observe(value, "/x")
    assert metrics.render().splitlines()[2:] == [
        'seconds_bucket{route="/x",le="0.1"} 2',
        'seconds_bucket{route="/x",le="1"} 3',
        'seconds_bucket{route="/x",le="+Inf"} 4',
        'seconds_sum{route="/x"} 5.65',
        'seconds_count{route="/x"} 4',
    ]


def test_one_name_is_counted_once_and_with_its_labels() -> None:
    metrics = Metrics()
    counter = metrics.counter("things_total", "Things.", ("kind",))
    with pytest.raises(Conflict):
        metrics.gauge("things_total", "Other things.")
    with pytest.raises(TypeError, match="give kind"):
        counter.inc()


async def test_requests_are_counted_by_route_and_never_by_what_was_sent() -> None:
    app = toy_app(options=AppOptions(clock=FakeClock()))
    await ask(app, "GET", "/v1/things/s3cret", token="reader")
    await ask(app, "S3CRET", "/nowhere/s3cret")
    await ask(app, "GET", "/v1/follow/x", token="reader")
    text = (await ask(app, "GET", "/metrics", token="reader")).body.decode()
    lines = text.splitlines()
    assert 'legation_http_requests_total{method="GET",route="/v1/things/{id}",status="4xx"} 1' in lines
    assert 'legation_http_requests_total{method="other",route="none",status="4xx"} 1' in lines
    assert 'legation_http_request_seconds_count{method="GET",route="/v1/things/{id}"} 1' in lines
    assert "legation_http_requests_in_flight 1" in lines
    assert 'seconds_count{method="GET",route="/v1/follow/{name}"}' not in text
    assert "s3cret" not in text.lower()


async def test_they_are_plain_text_for_those_who_may_read() -> None:
    app = toy_app()
    got = await ask(app, "GET", "/metrics", token="reader")
    assert got.header("content-type") == "text/plain; version=0.0.4; charset=utf-8"
    assert (await ask(app, "GET", "/metrics", token="bare")).status == 403
