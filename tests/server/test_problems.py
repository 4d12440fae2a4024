"""Errors as the caller sees them; INV-2 of server/app.py."""

import logging
from typing import Any

import pytest
from tests.server.toy_app import ask, toy_app

SECRET = "s3cret-value"


async def create(body: object) -> Any:
    got = await ask(toy_app(), "POST", "/v1/things", token="manager", body=body)
    assert got.status == 400
    assert got.header("content-type") == "application/problem+json"
    assert SECRET not in got.body.decode()
    return got.json()["data"]


@pytest.mark.parametrize(
    ("body", "path", "expected"),
    [
        ({}, "$.title", "a value (it is required)"),
        ({"title": 5}, "$.title", "string"),
        ({"title": ""}, "$.title", "string of length >= 1"),
        ({"title": "a", "colour": SECRET}, "$.colour", "one of blue, green, red"),
        ({"title": "a", SECRET: 1}, "$", "no other members than title, colour, parts, weightGrams"),
        ({"title": "a", "parts": [{"name": "x"}, {}]}, "$.parts[1].name", "a value (it is required)"),
        (
            {"title": "a", "parts": [{"name": "x", SECRET: 1}]},
            "$.parts[0]",
            "no other members than name, count",
        ),
        ({"title": "a", "parts": [{"name": "x", "count": "1"}]}, "$.parts[0].count", "integer"),
        ({"title": "a", "parts": [{"name": "x", "count": 1.5}]}, "$.parts[0].count", "integer"),
        ({"title": "a", "parts": [{"name": "x", "count": 2000.0}]}, "$.parts[0].count", "integer <= 1000"),
        ({"title": "a", "weightGrams": SECRET}, "$.weightGrams", "number | null"),
        ([SECRET], "$", "object"),
    ],
)
async def test_a_wrong_body_is_told_where_and_what_was_expected(
    body: object, path: str, expected: str
) -> None:
    assert await create(body) == {"path": path, "expected": expected}


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", "a body of JSON"),
        (b"{", "JSON, which this is not: input data was truncated"),
        (b'{"title": "a"} trailing', "JSON, which this is not: trailing characters (byte 16)"),
        (b'{"title": "\xff"}', "JSON in UTF-8"),
        (b"\xef\xbb\xbf{}", "JSON, which this is not: invalid character (byte 0)"),
        (b"\x00\x01garbage", "JSON, which this is not: invalid character (byte 0)"),
        (b'{"title": NaN}', "JSON, which this is not: invalid character (byte 10)"),
    ],
)
async def test_what_is_not_json_is_told_so(raw: bytes, expected: str) -> None:
    got = await ask(
        toy_app(),
        "POST",
        "/v1/things",
        token="manager",
        raw=raw,
        headers=[("Content-Type", "application/json")],
    )
    assert (got.status, got.json()["data"]) == (400, {"path": "$", "expected": expected})


async def test_raw_bodies_are_utf8_too() -> None:
    got = await ask(
        toy_app(),
        "PUT",
        "/v1/raw",
        token="bare",
        raw=b'{"a": "\xff"}',
        headers=[("Content-Type", "application/json")],
    )
    assert got.status == 400


@pytest.mark.parametrize("count", ["5.0", "5e0", "0.5e1"])
async def test_a_whole_number_with_a_point_is_an_integer_as_json_schema_has_it(count: str) -> None:
    raw = f'{{"title": "a", "parts": [{{"name": "x", "count": {count}}}], "weightGrams": 1.5}}'.encode()
    got = await ask(
        toy_app(),
        "POST",
        "/v1/things",
        token="manager",
        raw=raw,
        headers=[("Content-Type", "application/json")],
    )
    assert got.json()["parts"] == [{"name": "x", "count": 5}]
    assert got.json()["weightGrams"] == 1.5


@pytest.mark.parametrize("rest", ["1e999", "NaN", "[", '"\\ud800"', "1" * 5000, "1" * 30])
async def test_a_fraction_is_refused_whatever_follows_it(rest: str) -> None:
    raw = f'{{"title": "a", "parts": [{{"name": "x", "count": 5.5}}], "weightGrams": {rest}}}'.encode()
    got = await ask(
        toy_app(),
        "POST",
        "/v1/things",
        token="manager",
        raw=raw,
        headers=[("Content-Type", "application/json")],
    )
    assert got.status == 400


async def test_a_problem_has_its_members() -> None:
    got = await ask(toy_app(), "GET", "/v1/things/none", token="reader", headers=[("X-Request-Id", "mine")])
    assert got.json() == {
        "type": "urn:legation:error:not-found",
        "title": "Not found",
        "status": 404,
        "detail": "cannot find this thing; list them with GET /v1/things",
        "code": "legation/not-found",
        "instance": "urn:legation:request:mine",
    }


async def test_a_defect_is_told_by_its_request_id_and_logged_with_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR, "legation.server"):
        got = await ask(toy_app(), "POST", "/v1/boom", body={"x": SECRET}, headers=[("X-Request-Id", "mine")])
    assert got.status == 500
    assert got.json()["detail"] == ("cannot answer because of a defect; report it with the request's id mine")
    assert b"s3cret" not in got.body
    assert "mine" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert SECRET not in caplog.text


async def test_an_answer_that_cannot_be_written_is_a_defect(caplog: pytest.LogCaptureFixture) -> None:
    assert (await ask(toy_app(), "GET", "/v1/boom/unwritable")).status == 500
    assert "TypeError" in caplog.text


async def test_a_stream_that_fails_stays_unfinished_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    got = await ask(toy_app(), "GET", "/v1/boom/midway", headers=[("X-Request-Id", "mine")])
    assert (got.status, got.body) == (200, b"one")
    assert "request mine failed" in caplog.text


async def test_whoever_is_refused_for_haste_is_told_when_to_come_back() -> None:
    got = await ask(toy_app(), "GET", "/v1/boom/busy")
    assert (got.status, got.header("retry-after")) == (429, "2")
