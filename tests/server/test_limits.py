"""Bodies too large, too deep, too slow or of the wrong kind; the real server where the connection is the subject."""

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest
import uvicorn
from tests.server.toy_app import Got, ask, toy_app

from legation.errors import InvalidParams
from legation.server.http.app import AppOptions
from legation.server.http.request import BodyReader

LIMIT = 1000
WAIT = 20.0  # seconds: the test's patience with the server
JSON = ("Content-Type", "application/json")


async def put(*parts: bytes, headers: tuple[tuple[str, str], ...] = (JSON,), limit: int = LIMIT) -> Got:
    app = toy_app(options=AppOptions(max_body_bytes=limit))
    return await ask(app, "PUT", "/v1/raw", token="bare", raw=parts, headers=headers)


async def test_a_body_of_exactly_the_limit_is_taken() -> None:
    assert (await put(b"1" * LIMIT)).json() == {"bytes": LIMIT}
    assert (await put(b"1" * 400, b"1" * 600)).json() == {"bytes": LIMIT}


@pytest.mark.parametrize("parts", [(b"1" * 1001,), (b"1" * 1000, b"1"), (b"1" * 600,) * 100])
async def test_a_longer_body_is_refused_however_it_comes(parts: tuple[bytes, ...]) -> None:
    got = await put(*parts)
    assert (got.status, got.json()["code"], got.json()["data"]) == (
        413,
        "legation/too-large",
        {"limit": LIMIT},
    )


@pytest.mark.parametrize("length", ["1001", "9" * 5000])
async def test_a_longer_body_is_refused_by_its_announced_length(length: str) -> None:
    assert (await put(b"1", headers=(JSON, ("Content-Length", length)))).status == 413


async def test_a_refused_caller_that_waits_for_continue_loses_the_connection() -> None:
    announced = (JSON, ("Content-Length", "5000"), ("Expect", "100-continue"))
    assert (await put(b"", headers=announced)).header("connection") == "close"


LONG = b'{"text":"%b","a":1,' % (b"x" * 200_000)  # looked through off the loop


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b'{"a":1,"b":{"a":1},"c":[{"a":1},{"a":2}]}', 200),
        (b'{"a":"\\"b\\":1,\\"b\\":2","b":":"}', 200),  # in a text they are text
        (b'{"a":%b,"b":%b.5}' % (b"1" * 5000, b"1" * 5000), 200),
        (b'{"a":1,"A":2,"\\u00e9":3,"e\\u0301":4}', 200),
        (b'{"a":1,"a":1}', 400),
        (b'{"a":1 ,\n "a"\t: 1}', 400),
        (b'{"a":1,"b":2,"\\u0061":3}', 400),
        (b'{"":1,"":2}', 400),
        ('{"\u00e9":1,"\\u00E9":2}'.encode(), 400),
        (b'[[{"x":[{"a":{},"a":[]}]}]]', 400),
        (LONG + b'"b":2}', 200),
        (LONG + b'"a":2}', 400),
    ],
)
async def test_a_member_named_twice_is_refused_at_any_depth(raw: bytes, status: int) -> None:
    got = await put(raw, limit=1 << 20)
    assert got.status == status
    if status == 400:
        assert got.json()["data"] == {"path": "$", "expected": "each member of an object once"}


@pytest.mark.parametrize("raw", [b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000])
@pytest.mark.parametrize(("method", "path"), [("PUT", "/v1/raw"), ("POST", "/v1/things")])
async def test_a_body_nested_too_deeply_is_refused(method: str, path: str, raw: bytes) -> None:
    app = toy_app()
    got = await ask(app, method, path, token="manager", raw=raw, headers=[JSON])
    assert got.status in (400, 413)


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 200),
        ("Application/JSON", 200),
        ("application/json; charset=utf-8", 200),
        ('application/json;charset="UTF-8"', 200),
        ("application/json; charset=latin-1", 415),
        ("application/json; charset=utf-16", 415),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("application/jsonp", 415),
        ("", 415),
    ],
)
async def test_a_body_is_json_in_utf8_and_says_so(kind: str, status: int) -> None:
    assert (await put(b"[]", headers=(("Content-Type", kind),))).status == status


async def test_a_body_of_no_type_is_refused_and_no_body_is_missing() -> None:
    assert (await put(b"[]", headers=())).status == 415
    assert (await put(b"", headers=())).status == 400


async def test_a_compressed_body_is_refused() -> None:
    assert (await put(b"[]", headers=(JSON, ("Content-Encoding", "gzip")))).status == 415


async def test_a_body_on_a_get_is_ignored() -> None:
    got = await ask(toy_app(), "GET", "/v1/page", raw=b"x" * 5_000_000)
    assert got.status == 200


@pytest.mark.parametrize("target", ["/v1/show/%ff", "/v1/show/%zz", "/v1/show/%", "/v1/show/7?longName=%ff"])
async def test_broken_percent_encoding_is_refused(target: str) -> None:
    assert (await ask(toy_app(), "GET", target)).status == 400


@pytest.mark.parametrize(
    "target", ["/v1/show/7?%zz=1", "/v1/show/7?longName=é", "/v1/show/7?" + "a=1&" * 2000]
)
async def test_a_broken_query_is_refused(target: str) -> None:
    assert (await ask(toy_app(), "GET", target)).status == 400


async def test_nul_in_a_path_is_refused() -> None:
    assert (await ask(toy_app(), "GET", "/v1/things/a%00b", token="reader")).status == 400


async def test_a_body_that_does_not_arrive_is_not_waited_for() -> None:
    reader = BodyReader(seconds=0.05)

    async def receive() -> dict[str, object]:
        await asyncio.Event().wait()
        raise AssertionError

    async with asyncio.timeout(WAIT):
        with pytest.raises(InvalidParams, match="did not arrive within"):
            await reader.read({}, receive, LIMIT)
        assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
        with pytest.raises(InvalidParams):  # the timer starts again
            await reader.read({}, receive, LIMIT)


async def test_cancelling_a_reader_stays_a_cancellation() -> None:
    reader, reading = BodyReader(), asyncio.Event()

    async def receive() -> dict[str, object]:
        reading.set()
        await asyncio.Event().wait()
        raise AssertionError

    task = asyncio.create_task(reader.read({}, receive, LIMIT))
    async with asyncio.timeout(WAIT):
        await reading.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_caller_that_leaves_is_not_a_defect() -> None:
    sent: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.disconnect"}

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "raw_path": b"/v1/maybe",
        "query_string": b"",
        "headers": [(b"host", b"x")],
    }
    await toy_app()(scope, receive, send)  # type: ignore[arg-type]
    assert sent[0]["status"] == 499


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The toy on a real uvicorn, as the server runs it."""
    options = AppOptions(max_body_bytes=1 << 20)
    config = uvicorn.Config(
        toy_app(options=options), loop="uvloop", http="httptools", lifespan="on", log_level="warning"
    )
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()  # who connects before the server is up waits for it
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        server.should_exit = True
        thread.join(WAIT)
        assert not thread.is_alive()


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), WAIT)


def answer(connection: socket.socket) -> tuple[bytes, bytes]:
    """The head and the body of one answer; both empty if the connection was closed."""
    found = b""
    while b"\r\n\r\n" not in found:
        more = connection.recv(65536)
        if not more:
            return b"", b""
        found += more
    head, _, body = found.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(65536)
    return head, body


HEAD = b"PUT /v1/raw HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer bare\r\nContent-Type: application/json\r\n"
AGAIN = b"GET /v1/page HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("megabytes", [2, 8])
def test_after_a_body_too_large_the_connection_goes_on(port: int, megabytes: int) -> None:
    size = megabytes << 20
    with connected(port) as connection:
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % size + b"1" * size)
        assert answer(connection)[0].startswith(b"HTTP/1.1 413")
        connection.sendall(AGAIN)
        assert answer(connection)[0].startswith(b"HTTP/1.1 200")


def test_after_chunks_too_many_the_connection_goes_on(port: int) -> None:
    chunk = b"10000\r\n" + b"1" * 0x10000 + b"\r\n"
    with connected(port) as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 40 + b"0\r\n\r\n")
        assert answer(connection)[0].startswith(b"HTTP/1.1 413")
        connection.sendall(AGAIN)
        assert answer(connection)[0].startswith(b"HTTP/1.1 200")


def test_chunks_within_the_limit_are_one_body(port: int) -> None:
    with connected(port) as connection:
        connection.sendall(
            HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n[1\r\n2\r\n,2\r\n1\r\n]\r\n0\r\n\r\n"
        )
        assert answer(connection)[1] == b'{"bytes":5}'


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00garbage\r\n\r\n",
        b"GET /v1/show/%ff%fe HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/show/\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/show/7?longName=\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /v1/page HTTP/1.1\r\nHost: x\r\nX-Big: " + b"a" * 500_000 + b"\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_no_bytes_make_a_server_error(port: int, sent: bytes) -> None:
    with connected(port) as connection:
        connection.sendall(sent)
        assert answer(connection)[0].split(b" ")[1:2] < [b"500"]
    with connected(port) as connection:
        connection.sendall(AGAIN)
        assert answer(connection)[0].startswith(b"HTTP/1.1 200")
