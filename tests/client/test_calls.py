"""Calls against a real socket that misbehaves: the same table with the sync and the async client."""

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from traceback import TracebackException
from typing import Any

import pytest
from tests.client.both_clients import TOKEN, Driver, both
from tests.client.faulty_server import Asked, Cut, FaultServer, answer, html, in_turn, ok, problem, serving

from legation.client import Timeouts
from legation.client.part_file import PartFile
from legation.errors import (
    Conflict,
    Forbidden,
    InternalError,
    InvalidParams,
    LegationError,
    NotFound,
    RateLimited,
    StorageFailed,
    TimedOut,
    Unauthenticated,
    Unavailable,
)

pytestmark = pytest.mark.heavy  # a server each, and the pauses between tries are real

HEALTH = ok({"status": "ok"})
TOKENS = [
    {
        "id": f"tok_{number}",
        "label": "l",
        "kind": "user",
        "scopes": ["read"],
        "hint": "abcd",
        "user": "usr_1",
        "createdAt": 1,
        "expiresAt": None,
        "lastUsedAt": None,
        "revokedAt": None,
    }
    for number in range(5)
]
USER = {"id": "usr_1", "name": "N", "email": None, "instanceAdmin": False, "createdAt": 1, "disabledAt": None}
WORKSPACE = {"id": "ws_1", "name": "W", "status": "active", "role": "owner", "createdAt": 1}
MEMBER = {"user": "usr_1", "name": "N", "role": "viewer", "since": 1}
Use = Callable[[Any], Any]


@both
@pytest.mark.parametrize(
    ("use", "asked", "body", "given"),
    [
        (lambda one: one.health(), "GET /v1/health", None, {"status": "ok"}),
        (
            lambda one: one.ready(),
            "GET /v1/ready",
            None,
            {"ready": True, "checks": [{"name": "log", "ok": True}]},
        ),
        (lambda one: one.stop(), "POST /v1/stop", None, {"status": "ok"}),
        (
            lambda one: one.me(),
            "GET /v1/me",
            None,
            {"kind": "token", "id": "t", "workspace": "w", "scopes": ["read"], "level": 2, "user": None},
        ),
        (
            lambda one: one.tokens.create("ci", kind="agent", scopes=("read",), expires_in_days=3),
            "POST /v1/tokens",
            {"label": "ci", "kind": "agent", "scopes": ["read"], "expiresInDays": 3},
            {"token": TOKENS[0], "secret": "s"},
        ),
        (lambda one: one.tokens.revoke("tok/1"), "DELETE /v1/tokens/tok%2F1", None, None),
        (
            lambda one: one.users.create("N", role="viewer"),
            "POST /v1/users",
            {"name": "N", "email": None, "instanceAdmin": False, "role": "viewer"},
            USER,
        ),
        (
            lambda one: one.users.change("usr_1", disabled=True),
            "PATCH /v1/users/usr_1",
            {"name": None, "disabled": True, "instanceAdmin": None, "signOut": False},
            USER,
        ),
        (lambda one: one.users.get("usr_1"), "GET /v1/users/usr_1", None, USER),
        (lambda one: one.workspaces.get("ws_1"), "GET /v1/workspaces/ws_1", None, WORKSPACE),
        (lambda one: one.rotate_keys(), "POST /v1/keys/rotate", None, {"keyId": "k", "rewrapped": 3}),
        (lambda one: one.workspaces.create("W"), "POST /v1/workspaces", {"name": "W"}, WORKSPACE),
        (
            lambda one: one.workspaces.set_role("ws_1", "usr_1", "viewer"),
            "PUT /v1/workspaces/ws_1/members/usr_1",
            {"role": "viewer"},
            MEMBER,
        ),
        (
            lambda one: one.workspaces.remove("ws_1", "usr_1"),
            "DELETE /v1/workspaces/ws_1/members/usr_1",
            None,
            None,
        ),
        (
            lambda one: one.sign_in_link(),
            "POST /v1/sign-in-links",
            {"user": None},
            {"url": "u", "expiresAt": 1},
        ),
    ],
)
def test_an_operation_sends_what_the_api_takes_and_gives_its_type(
    driver: Driver, use: Use, asked: str, body: object, given: object
) -> None:
    reply = answer(204, b"") if given is None else ok(given)
    with serving(in_turn(reply)) as server:
        value = driver.call(server.url, use)
    [request] = server.asked
    assert f"{request.method} {request.path}" == asked
    assert (json.loads(request.body) if request.body else None) == body
    assert request.headers["authorization"] == f"Bearer {TOKEN}"
    assert (value is None) == (given is None)


@both
def test_a_list_is_fetched_page_by_page(driver: Driver) -> None:
    def script(asked: Asked) -> list[bytes]:
        start = int(asked.query.get("after", "0"))
        rest = str(start + 2) if start + 2 < len(TOKENS) else None
        return [ok({"items": TOKENS[start : start + 2], "next": rest})]

    with serving(script) as server:
        assert [token.id for token in driver.items(server.url, lambda one: one.tokens.list(limit=2))] == [
            "tok_0",
            "tok_1",
            "tok_2",
            "tok_3",
            "tok_4",
        ]
        assert [asked.query for asked in server.asked] == [
            {"limit": "2"},
            {"limit": "2", "after": "2"},
            {"limit": "2", "after": "4"},
        ]
        page = driver.call(server.url, lambda one: one.tokens.list(after="2").page())
        assert ([token.id for token in page.items], page.next) == (["tok_2", "tok_3"], "4")
        assert len(driver.call(server.url, lambda one: one.tokens.list().all())) == 5


@both
def test_a_list_that_turns_in_a_circle_is_given_up(driver: Driver) -> None:
    with (
        serving(in_turn(ok({"items": TOKENS[:1], "next": "x"}))) as server,
        pytest.raises(InternalError, match="one page for ever"),
    ):
        driver.items(server.url, lambda one: one.tokens.list())


@both
def test_events_come_by_pages_with_their_bytes(driver: Driver) -> None:
    raw = b'{"half":"\\ud83d"}'
    page = b'{"items":[{"seq":3,"at":1,"type":"t","raw":%b}],"next":null}' % raw
    with serving(in_turn(answer(200, page))) as server:
        [event] = driver.items(server.url, lambda one: one.streams.events("ses_1", after=2))
    assert (event.seq, event.raw) == (3, raw)
    assert server.asked[0].path == "/v1/streams/ses_1/events"
    assert server.asked[0].query == {"after": "2"}


@both
def test_a_workspace_goes_along_as_a_header(driver: Driver) -> None:
    with serving(in_turn(HEALTH)) as server:
        driver.call(server.url, lambda one: one.health(), workspace="ws_2")
    assert server.asked[0].headers["legation-workspace"] == "ws_2"


@both
@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (
            problem(404, "legation/not-found", "cannot find token x; list them"),
            NotFound,
            "cannot find token x",
        ),
        (problem(401, "legation/unauthenticated", "cannot tell who you are"), Unauthenticated, "who you are"),
        (problem(409, "legation/newer-than-us", "cannot do it twice"), Conflict, "cannot do it twice"),
        (problem(500, "legation/storage-failed", "cannot write"), StorageFailed, "cannot write"),
        (html(403), Forbidden, "HTTP 403, and not by Legation"),
        (html(500), InternalError, "HTTP 500, and not by Legation"),
        (html(418), InvalidParams, "HTTP 418, and not by Legation"),
        (
            answer(302, b"", location="https://other.example/x?secret=1"),
            InvalidParams,
            "to https://other.example;",
        ),
        (html(200), Unavailable, "what answered is not Legation"),
        (ok({"status": 7}), InternalError, "not as expected"),
        (answer(200, b"[" * 5000, "application/json"), InternalError, "not as expected"),
        (answer(404, b"\xff{", "application/problem+json"), NotFound, "HTTP 404"),
    ],
)
def test_what_is_refused_is_an_error_of_our_tree(
    driver: Driver, reply: bytes, kind: type[LegationError], words: str
) -> None:
    with serving(in_turn(reply)) as server, pytest.raises(LegationError, match=words) as caught:
        driver.call(server.url, lambda one: one.health())
    assert type(caught.value) is kind
    assert len(server.asked) == 1
    assert_no_token(caught.value)


def assert_no_token(error: LegationError) -> None:
    """Nor in a traceback that shows the variables of every frame but the test's own."""
    shown = TracebackException.from_exception(error, capture_locals=True).stack
    ours = [frame.locals for frame in shown if "tests" not in Path(frame.filename).parts]
    assert ours
    assert TOKEN not in repr(ours)
    seen: BaseException | None = error
    while seen is not None:
        assert TOKEN not in f"{seen!r} {seen} {vars(seen)}"
        seen = seen.__cause__ or seen.__context__


@both
def test_an_error_carries_the_data_and_the_request_id(driver: Driver) -> None:
    reply = problem(400, "legation/invalid-params", "cannot", {"path": "$.x"}, request_id="req_7")
    with serving(in_turn(reply)) as server, pytest.raises(InvalidParams) as caught:
        driver.call(server.url, lambda one: one.users.create(""))
    assert caught.value.data == {"path": "$.x", "requestId": "req_7"}


@both
@pytest.mark.parametrize("fault", [html(502), html(503), html(504), html(429, retry_after="0"), b""])
def test_a_call_that_is_safe_to_repeat_is_repeated(driver: Driver, fault: bytes) -> None:
    with serving(in_turn(fault, fault, HEALTH)) as server:
        assert driver.call(server.url, lambda one: one.health()).status == "ok"
    assert len(server.asked) == 3


@both
@pytest.mark.parametrize("fault", [html(503), b"", HEALTH[:-4]])
def test_a_post_is_never_repeated(driver: Driver, fault: bytes) -> None:
    with serving(in_turn(fault, HEALTH)) as server, pytest.raises(Unavailable):
        driver.call(server.url, lambda one: one.workspaces.create("W"))
    assert len(server.asked) == 1


@both
def test_repeating_has_an_end(driver: Driver) -> None:
    with serving(in_turn(html(503))) as server, pytest.raises(Unavailable, match="HTTP 503"):
        driver.call(server.url, lambda one: one.health(), repeats=1)
    assert len(server.asked) == 2


@both
def test_a_reset_connection_is_tried_again(driver: Driver) -> None:
    def cut() -> Iterator[bytes]:
        yield b"HTTP/1.1"
        raise Cut

    with serving(in_turn(cut(), HEALTH)) as server:
        assert driver.call(server.url, lambda one: one.health()).status == "ok"


@both
def test_a_server_that_asks_for_a_long_wait_is_reported_not_waited_for(driver: Driver) -> None:
    with serving(in_turn(html(429, retry_after="3600"))) as server, pytest.raises(RateLimited) as caught:
        driver.call(server.url, lambda one: one.health())
    assert caught.value.data == {"retryAfter": 3600}
    assert len(server.asked) == 1


@both
def test_a_wait_that_the_server_asks_for_is_kept(driver: Driver) -> None:
    with serving(in_turn(html(503, retry_after="1"), HEALTH)) as server:
        began = time.monotonic()
        driver.call(server.url, lambda one: one.health())
        assert time.monotonic() - began >= 1


@both
def test_nobody_there_is_unavailable_and_names_the_address(driver: Driver) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(Unavailable, match=f"cannot GET {url}/v1/me") as caught:
        driver.call(url, lambda one: one.me(), repeats=0)
    assert_no_token(caught.value)


@both
def test_a_server_that_hangs_is_given_up_in_time_and_not_asked_again(driver: Driver) -> None:
    def hang(_: Asked) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\n"
        server.over.wait(20)

    with serving(hang) as server, pytest.raises(TimedOut, match="did not answer in time") as caught:
        driver.call(server.url, lambda one: one.me(), timeouts=Timeouts(read=0.2))
    assert len(server.asked) == 1
    assert_no_token(caught.value)


@both
def test_a_proxy_of_the_environment_never_sees_local_calls(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(in_turn(HEALTH)) as server, serving(in_turn(html(502))) as proxy:
        for name in ("http_proxy", "all_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        driver.call(server.url, lambda one: one.health())
        assert proxy.connections == 0


@both
def test_a_redirect_is_not_followed_and_the_token_goes_nowhere(driver: Driver) -> None:
    with serving(in_turn(HEALTH)) as other:
        reply = answer(307, b"", location=f"{other.url}/v1/me")
        with serving(in_turn(reply)) as server, pytest.raises(InvalidParams, match="redirects"):
            driver.call(server.url, lambda one: one.me())
        assert other.connections == 0


def backup(server: FaultServer, driver: Driver, path: Path) -> None:
    driver.call(server.url, lambda one: one.backup(path))


@both
def test_a_backup_is_one_private_file(driver: Driver, tmp_path: Path) -> None:
    data = bytes(range(256)) * 2000
    with serving(in_turn(answer(200, data, "application/octet-stream"))) as server:
        backup(server, driver, tmp_path / "b.tar")
    assert server.asked[0].query == {}
    assert (tmp_path / "b.tar").read_bytes() == data
    assert (tmp_path / "b.tar").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["b.tar"]


def test_a_file_on_its_way_has_no_name_that_a_kill_could_leave(tmp_path: Path) -> None:
    try:
        os.close(os.open(tmp_path, os.O_WRONLY | os.O_TMPFILE, 0o600))
    except OSError:
        pytest.skip(
            "this file system has no files without a name: run the tests on ext4, xfs, btrfs or tmpfs"
        )
    with PartFile(tmp_path / "b.tar") as part:
        part.write(b"half")
        assert list(tmp_path.iterdir()) == []
        part.write(b" and half")
        part.finish()
    assert (tmp_path / "b.tar").read_bytes() == b"half and half"
    assert (tmp_path / "b.tar").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["b.tar"]


@both
def test_the_keys_go_into_a_backup_only_when_asked_for(driver: Driver, tmp_path: Path) -> None:
    with serving(in_turn(answer(200, b"x", "application/x-tar"))) as server:
        driver.call(server.url, lambda one: one.backup(str(tmp_path / "b.tar"), keys=True))
    assert server.asked[0].query == {"keys": "true"}


@both
def test_a_backup_that_breaks_off_leaves_the_old_one(driver: Driver, tmp_path: Path) -> None:
    (tmp_path / "b.tar").write_bytes(b"old")
    torn = answer(200, b"x" * 100_000, "application/octet-stream")[:-1000]
    with serving(in_turn(torn)) as server, pytest.raises(Unavailable):
        backup(server, driver, tmp_path / "b.tar")
    assert len(server.asked) == 4  # it is safe to repeat, and was
    assert (tmp_path / "b.tar").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["b.tar"]


@both
def test_a_backup_that_is_refused_is_an_error_and_no_file(driver: Driver, tmp_path: Path) -> None:
    reply = problem(403, "legation/forbidden", "cannot back up: needs scope instance")
    with serving(in_turn(reply)) as server, pytest.raises(Forbidden, match="needs scope instance"):
        backup(server, driver, tmp_path / "b.tar")
    assert list(tmp_path.iterdir()) == []


@both
def test_a_backup_to_nowhere_is_an_error_before_anything_is_asked(driver: Driver, tmp_path: Path) -> None:
    with serving(in_turn(HEALTH)) as server, pytest.raises(StorageFailed, match="cannot write"):
        backup(server, driver, tmp_path / "absent" / "b.tar")
    assert server.asked == []
