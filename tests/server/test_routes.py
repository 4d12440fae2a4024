"""Declaring routes, and what a handler is given; INV-1 of server/app.py."""

from typing import Annotated

import pytest
from msgspec import Meta
from starlette.responses import Response
from tests.server.toy_app import Shelf, ask, broken, routes, toy_app

from legation.errors import ConfigInvalid, Conflict
from legation.server.http.app import AppOptions, RequestSummary
from legation.server.http.routes import NOBODY, OPEN, SIGNED_IN, Call, Header, RouteReply, Routes, needs
from legation.testing.clock import FakeClock
from legation.wire.principal import Scope


async def test_every_kind_of_parameter_arrives_typed() -> None:
    got = await ask(
        toy_app(),
        "GET",
        "/v1/show/7?flag=true&longName=a%20b+c&ratio=0.5&numbers=1&numbers=2",
        headers=[("X-Tag", "blue")],
    )
    assert got.status == 200
    assert got.json()["given"] == {
        "count": 7,
        "flag": True,
        "longName": "a b c",
        "ratio": 0.5,
        "numbers": [1, 2],
        "tag": "blue",
        "who": "nobody",
    }


async def test_an_absent_parameter_is_its_default() -> None:
    given = (await ask(toy_app(), "GET", "/v1/show/7")).json()["given"]
    assert given == {
        "count": 7,
        "flag": False,
        "longName": "",
        "ratio": None,
        "numbers": None,
        "tag": None,
        "who": "nobody",
    }


@pytest.mark.parametrize(
    ("target", "path", "expected"),
    [
        ("/v1/show/x", "path.count", "integer"),
        ("/v1/show/9223372036854775808", "path.count", "integer <= 9223372036854775807"),
        ("/v1/show/7?flag=yes", "query.flag", "true or false"),
        ("/v1/show/7?ratio=2", "query.ratio", "number <= 1.0"),
        ("/v1/show/7?numbers=1&numbers=x", "query.numbers[1]", "integer"),
        ("/v1/show/7?ratio=null", "query.ratio", "number"),
        ("/v1/show/7?longName=a&longName=b", "query.longName", "one value, not several"),
        ("/v1/show/7?long_name=a", "query", "no other parameters than flag, longName, ratio, numbers"),
        ("/v1/show/7?longName=%00", "query.longName", "text without the character NUL"),
        ("/v1/page?x=1", "query", "no parameters"),
    ],
)
async def test_a_wrong_parameter_is_named_with_what_was_expected(
    target: str, path: str, expected: str
) -> None:
    got = await ask(toy_app(), "GET", target)
    assert (got.status, got.json()["data"]) == (400, {"path": path, "expected": expected})


async def test_a_wrong_header_is_named() -> None:
    got = await ask(toy_app(), "GET", "/v1/show/7", headers=[("X-Tag", "longer than ten")])
    assert got.json()["data"] == {"path": "header.X-Tag", "expected": "string of length <= 10"}


async def test_a_slash_in_an_id_is_part_of_it() -> None:
    app = toy_app()
    got = await ask(app, "GET", "/v1/follow/session%2F1", token="reader")
    assert b"data: session/1\n" in got.body
    assert (await ask(app, "GET", "/v1/follow/session/1", token="reader")).status == 404


async def test_an_escaped_fixed_segment_is_the_same_address() -> None:
    assert (await ask(toy_app(), "GET", "/v1/p%61ge")).status == 200


async def test_a_fixed_segment_is_preferred_to_a_parameter() -> None:
    app = toy_app()
    await ask(app, "POST", "/v1/things", token="manager", body={"title": "a"})
    assert (await ask(app, "GET", "/v1/things/newest", token="reader")).json()["title"] == "a"
    assert (await ask(app, "DELETE", "/v1/things/newest", token="manager")).status == 405


async def test_a_reply_sets_status_and_headers() -> None:
    got = await ask(toy_app(), "POST", "/v1/things", token="manager", body={"title": "a"})
    assert (got.status, got.header("location")) == (201, "/v1/things/thing_0")
    assert got.header("content-type") == "application/json"


async def test_nothing_returned_is_204_without_a_body() -> None:
    app = toy_app()
    await ask(app, "POST", "/v1/things", token="manager", body={"title": "a"})
    got = await ask(app, "DELETE", "/v1/things/thing_0", token="manager")
    assert (got.status, got.body, got.header("content-type")) == (204, b"", None)


async def test_an_optional_body_may_be_absent() -> None:
    app = toy_app()
    assert (await ask(app, "POST", "/v1/maybe")).json() == {"given": {"body": None}}
    with_body = await ask(app, "POST", "/v1/maybe", body={"title": "a"})
    assert with_body.json() == {"given": {"body": {"title": "a", "colour": None}}}


async def test_pages_follow_each_other() -> None:
    app = toy_app()
    for title in "abc":
        await ask(app, "POST", "/v1/things", token="manager", body={"title": title})
    first = (await ask(app, "GET", "/v1/things?limit=2", token="reader")).json()
    second = (await ask(app, "GET", f"/v1/things?limit=2&after={first['next']}", token="reader")).json()
    assert [each["title"] for each in first["items"] + second["items"]] == ["a", "b", "c"]
    assert second["next"] is None


ADDRESSES = [
    ("GET", "/v1/things/thing_0", "read"),
    ("POST", "/v1/things", "manage"),
    ("GET", "/v1/things?limit=bad", "read"),
    ("GET", "/metrics", "read"),
]


@pytest.mark.parametrize(("method", "target", "scope"), ADDRESSES)
async def test_without_a_credential_nothing_is_learned_about_the_request(
    method: str, target: str, scope: Scope
) -> None:
    for token in (None, "wrong"):
        got = await ask(toy_app(), method, target, token=token, raw=b"not json")
        assert got.status == 401
        assert got.header("www-authenticate") == 'Bearer realm="legation"'


@pytest.mark.parametrize(("method", "target", "scope"), ADDRESSES)
async def test_without_the_scope_it_is_forbidden_before_anything_is_read(
    method: str, target: str, scope: Scope
) -> None:
    got = await ask(toy_app(), method, target, token="bare", raw=b"not json")
    assert (got.status, got.json()["data"]) == (403, {"scope": scope})


async def test_any_valid_credential_is_enough_where_signed_in_is_asked() -> None:
    app = toy_app()
    assert (await ask(app, "PUT", "/v1/raw", token="bare", body=[1])).json() == {"bytes": 3}
    assert (await ask(app, "PUT", "/v1/raw", body=[1])).status == 401


async def test_a_wrong_method_is_told_every_right_one() -> None:
    app = toy_app()
    got = await ask(app, "PUT", "/v1/things/thing_0")
    assert (got.status, got.header("allow")) == (405, "DELETE, GET, HEAD, PATCH")
    assert (await ask(app, "OPTIONS", "/v1/things")).header("allow") == "GET, HEAD, POST"
    assert (await ask(app, "BREW", "/v1/things")).status == 405


@pytest.mark.parametrize("target", ["/", "/v1", "/v1/things/", "//v1/things", "/v1/things//", "*", ""])
async def test_an_unknown_address_is_not_found(target: str) -> None:
    got = await ask(toy_app(), "GET", target)
    assert (got.status, got.json()["code"]) == (404, "legation/not-found")


@pytest.mark.parametrize("target", ["/v1/things", "/openapi.json", "/docs", "/metrics"])
async def test_head_is_get_without_the_body(target: str) -> None:
    app = toy_app()
    head, get = [await ask(app, method, target, token="reader") for method in ("HEAD", "GET")]
    assert (head.status, head.body) == (200, b"")
    assert head.header("content-type") == get.header("content-type")


async def test_head_of_a_stream_does_not_follow_it() -> None:
    got = await ask(toy_app(), "HEAD", "/v1/follow/x", token="reader")
    assert (got.status, got.body) == (200, b"")
    assert got.header("content-type") == "text/event-stream; charset=utf-8"


async def test_a_response_passes_through_with_the_common_headers() -> None:
    got = await ask(toy_app(), "GET", "/v1/follow/x", token="reader", headers=[("X-Request-Id", "mine")])
    assert got.body.count(b"data: x\n") == 3
    assert got.header("request-id") == "mine"
    assert got.header("x-content-type-options") == "nosniff"


@pytest.mark.parametrize("given", ["a", "A.b_c-9", "x" * 64])
async def test_a_harmless_request_id_is_taken_over(given: str) -> None:
    got = await ask(toy_app(), "GET", "/v1/page", headers=[("X-Request-Id", given)])
    assert got.header("request-id") == given


@pytest.mark.parametrize("given", ["", "x" * 65, "a b", "a\nb", "a;b", "é"])
async def test_another_request_id_is_replaced(given: str) -> None:
    got = await ask(toy_app(), "GET", "/v1/page", headers=[("X-Request-Id", given)])
    assert (got.header("request-id") or "").startswith("req_")


async def test_answers_are_not_stored_and_not_sniffed() -> None:
    app = toy_app()
    for got in (await ask(app, "GET", "/v1/things", token="reader"), await ask(app, "GET", "/nowhere")):
        assert (got.header("cache-control"), got.header("x-content-type-options")) == ("no-store", "nosniff")


async def test_a_page_may_load_only_what_is_ours() -> None:
    got = await ask(toy_app(), "GET", "/v1/page")
    policy = got.header("content-security-policy") or ""
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy


async def test_other_origins_get_nothing_by_default() -> None:
    app = toy_app()
    origin = ("Origin", "https://evil.example")
    got = await ask(app, "GET", "/v1/page", headers=[origin])
    assert not [name for name, _ in got.headers if name.startswith("access-control")]
    asked = [origin, ("Access-Control-Request-Method", "GET")]
    assert (await ask(app, "OPTIONS", "/v1/page", headers=asked)).status == 405


async def test_only_a_listed_origin_may_call_with_credentials() -> None:
    app = toy_app(options=AppOptions(cors_origins=["https://app.example.org"]))
    good, bad = ("Origin", "https://app.example.org"), ("Origin", "https://app.example.org.evil.example")
    got = await ask(app, "GET", "/v1/things", headers=[good])  # refused, and readable all the same
    assert got.status == 401
    assert got.header("access-control-allow-origin") == good[1]
    assert got.header("access-control-allow-credentials") == "true"
    asked = ("Access-Control-Request-Method", "POST")
    preflight = await ask(app, "OPTIONS", "/v1/things", headers=[good, asked])
    assert (preflight.status, preflight.header("access-control-allow-methods")) == (204, "GET, HEAD, POST")
    allowed = set((preflight.header("access-control-allow-headers") or "").split(", "))
    assert {"Authorization", "Content-Type", "Last-Event-ID", "Prefer"} <= allowed
    for refused in (
        await ask(app, "GET", "/v1/page", headers=[bad]),
        await ask(app, "OPTIONS", "/v1/things", headers=[bad, asked]),
    ):
        assert refused.header("access-control-allow-origin") is None
        assert refused.header("vary") == "Origin"


@pytest.mark.parametrize("origin", ["*", "app.example.org", "https://*.example.org", "https://a.b/path"])
def test_an_inexact_origin_is_refused_at_the_start(origin: str) -> None:
    with pytest.raises(ConfigInvalid, match="exact origins"):
        toy_app(options=AppOptions(cors_origins=[origin]))


HOSTILE_HOSTS = [
    "[127.0.0.1]evil",
    "[127.0.0.1]",
    "[localhost]",
    "[::1]evil",
    "[::1]:evil",
    "[::1",
    "::1",
    "[::1%25lo]",
    "[::1%lo]:80",
    "127.0.0.1:evil",
    "127.0.0.1:",
    "127.0.0.1:0",
    "127.0.0.1:65536",
    "127.0.0.1:80:80",
    "127.0.0.1:80.evil.example",
    "127.0.0.1:+80",
    "127.0.0.1:\xb2",  # a digit to some, a port to nobody
    "127.0.0.1.",
    "127.1",
    "2130706433",
    "localhost.",
    "localhost ",
    "localhost\tevil",
    "localhost\0",
    "localhost,evil.example",
    "localhost, localhost",
    "evil.example@localhost",
    "localhost@evil.example",
    "localhost/evil",
    "localhost#evil",
    "localhost?evil",
    "localhost\\evil",
    "l\xf6calhost",
    "http://localhost",
    "localhost" * 1000,
    "localhost:" + "8" * 5000,
]
WELL_SPELT = {"127.0.0.1.", "127.1", "2130706433", "localhost."}  # names, if no names of ours


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8080", 200),
        ("[::1]:8080", 200),
        ("127.0.0.1:80", 200),
        ("evil.example", 400),
        ("localhost.evil.example", 400),
        ("", 400),
        ("[0:0:0:0:0:0:0:1]", 200),
        *((host, 400) for host in HOSTILE_HOSTS),
    ],
)
async def test_a_host_that_is_not_ours_is_refused(host: str, status: int) -> None:
    app = toy_app(options=AppOptions(allowed_hosts={"localhost", "::1", "127.0.0.1"}))
    assert (await ask(app, "GET", "/v1/page", headers=[("Host", host)])).status == status


@pytest.mark.parametrize("host", [each for each in HOSTILE_HOSTS if each not in WELL_SPELT])
async def test_also_where_every_name_will_do_a_host_has_one_meaning(host: str) -> None:
    assert (await ask(toy_app(), "GET", "/v1/page", headers=[("Host", host)])).status == 400


@pytest.mark.parametrize("names", [None, {"localhost"}])
@pytest.mark.parametrize(
    "pair", [("localhost", "evil.example"), ("evil.example", "localhost"), ("localhost",) * 2]
)
async def test_two_hosts_are_refused_whichever_is_ours(names: set[str] | None, pair: tuple[str, str]) -> None:
    app = toy_app(options=AppOptions(allowed_hosts=names))
    assert (await ask(app, "GET", "/v1/page", headers=[("Host", each) for each in pair])).status == 400


async def test_each_request_is_summed_up_without_what_it_held() -> None:
    seen: list[RequestSummary] = []
    app = toy_app(options=AppOptions(clock=FakeClock(), on_request=seen.append))
    await ask(app, "GET", "/v1/things/s3cret", token="reader", headers=[("X-Request-Id", "one")])
    await ask(app, "GET", "/nowhere/s3cret?s3cret", headers=[("X-Request-Id", "two")])
    assert seen == [
        RequestSummary("one", "GET", "/v1/things/{id}", 404, 0.0, "token", "reader", "local"),
        RequestSummary("two", "GET", "", 404, 0.0, "nobody", "nobody", ""),
    ]


async def test_handlers_get_the_services() -> None:
    own = Shelf()
    app = toy_app(services=own)
    await ask(app, "POST", "/v1/things", token="manager", body={"title": "a"})
    assert [each.owner for each in own.things.values()] == ["manager"]


def test_operations_can_be_listed() -> None:
    found = {(each.method, each.path): each for each in routes.operations}
    create = found["POST", "/v1/things"]
    assert (create.access, create.status, create.errors) == (needs("manage"), 201, (Conflict,))
    assert found["DELETE", "/v1/things/{id}"].status == 204
    assert found["PUT", "/v1/raw"].access is SIGNED_IN
    app = toy_app()
    assert {"/openapi.json", "/docs", "/metrics"} <= {each.path for each in app.operations}


def test_nobody_may_do_nothing() -> None:
    assert (NOBODY.kind, NOBODY.scopes, NOBODY.level) == ("nobody", frozenset(), 0)


async def no_call(body: str) -> None:
    """No call."""


async def no_type(call: Call, thing) -> None:  # type: ignore[no-untyped-def]
    """No type."""


async def no_answer(call: Call):  # type: ignore[no-untyped-def]
    """No answer."""


async def no_words(call: Call) -> None:
    pass


async def many(call: Call, *rest: str) -> None:
    """Many."""


async def default_in_path(call: Call, id: str = "") -> None:  # noqa: A002
    """Default in path."""


async def none_without_default(call: Call, x: str | None) -> None:
    """None without default."""


async def with_body(call: Call, body: str) -> None:
    """With a body."""


async def strange_body(call: Call, body: object) -> None:
    """A body of no known type."""


async def strange_parameter(call: Call, x: Annotated[complex | None, Meta()] = None) -> None:
    """A parameter of no known type."""


async def strange_answer(call: Call) -> RouteReply[object]:
    """An answer of no known type."""
    return RouteReply(object())


async def good(call: Call, tag: Annotated[str | None, Header("X")] = None) -> Response:
    """Good."""
    return Response()


def plain(call: Call) -> None:
    """Not async."""


@pytest.mark.parametrize(
    ("method", "path", "handler", "says"),
    [
        ("post", "/x", no_call, "`call: Call`"),
        ("get", "/x", no_type, "give `thing` a type"),
        ("get", "/x", no_answer, "what it returns"),
        ("get", "/x", no_words, "docstring"),
        ("get", "/x", many, "plain parameter"),
        ("get", "/x/{id}", default_in_path, "no default"),
        ("get", "/x/{id}", good, "add a parameter for id"),
        ("get", "/x", none_without_default, "the default None"),
        ("get", "/x", with_body, "has no body"),
        ("post", "/x", strange_body, "`body` cannot be read"),
        ("get", "/x", strange_parameter, "`x` cannot be read"),
        ("get", "/x", strange_answer, "cannot be written"),
        ("get", "/x", plain, "async"),
        ("get", "x", good, "write the path"),
        ("get", "/x/", good, "write the path"),
    ],
)
def test_a_signature_that_cannot_be_served_is_refused_by_the_name_of_its_route(
    method: str, path: str, handler: object, says: str
) -> None:
    group = Routes(tag="t")
    getattr(group, method)(path, access=OPEN)(handler)
    with pytest.raises(TypeError, match=f"cannot declare {method.upper()} .*{says}"):
        assert group.operations[0].contract.summary


def test_an_unknown_scope_is_refused() -> None:
    with pytest.raises(TypeError, match="'everything'"):
        needs("everything")  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["/v1/page", "/v1/things/{other}"])
def test_two_routes_of_one_address_are_refused(path: str) -> None:
    async def other_one(call: Call, other: str = "") -> None:
        """Another."""

    async def in_path(call: Call, other: str) -> None:
        """Another."""

    twice = Routes(tag="t")
    twice.get(path, access=OPEN)(in_path if "{" in path else other_one)
    with pytest.raises(TypeError, match="cannot declare"):
        toy_app([routes, broken, twice])
