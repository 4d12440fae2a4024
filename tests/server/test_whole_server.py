"""The real server in its own process: held to its OpenAPI document, thrown garbage at, searched for secrets."""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2
import pytest
from schemathesis import GenerationMode
from tests.cli.command import legation
from tests.cli.server_process import Running, running
from tests.postgres import PASSWORD, Postgres
from tests.server.fuzz import fuzz
from tests.store.canary import in_folder, new_canary, search

from legation.secret import Secret

pytestmark = pytest.mark.heavy

STOPS_IT = ("stop",)
# Valid by their schema and refused all the same, for what no schema can say: the owner's maximum, an agent's name as
# a label, a text that is no policy, an agent that must be named, what is no JSON-RPC, an id
# of too many bytes or several lines. Every other check holds.
REFUSES_MORE = (
    "postAcpMessage",
    "deleteAcpServer",
    "postStreamableMessage",
    "deleteStreamableConnection",
    "giveGrant",
    "createToken",
    "replayPolicy",
    "explainPolicy",
    "decide",
    "ask",
    "callTool",
    "listRuns",
    "listRunEvents",
    "keepTemplate",
    "resumeRun",
)
STARTS_AGENTS = ("createSession", "submitRun", "submitRuns")  # whichever a fuzzer names, and from the network
PATIENCE = 600  # tenths of a second: the test's, with a server that drops its readers
NO_FUZZERS = ("uploadFiles",)  # a tar is nothing that a fuzzer can make up


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path) as server:
        server.line()
        yield server


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One for all whose requests are refused: each test shows that it goes on."""
    with running(tmp_path_factory.mktemp("shared")) as server:
        server.line()
        yield server


def owner(up: Running) -> dict[str, str]:
    return {"Authorization": f"Bearer {up.server_file().token}"}


# Examples of each operation, right and wrong ones. They are the same in every run, so that more of them find nothing more
# from day to day: a few are for the daily run, many for the long one.
@pytest.mark.parametrize("examples", [2, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.timeout(3600)
def test_every_answer_is_as_documented(up: Running, examples: int) -> None:
    url = up.server_file().url
    called = fuzz(
        url,
        headers=owner(up),
        examples=examples,
        skip=(*STOPS_IT, *STARTS_AGENTS, *NO_FUZZERS),
        refuses_more=REFUSES_MORE,
    )
    assert called > 20
    assert httpx2.get(f"{url}/v1/ready").status_code == 200
    assert "traceback" not in (up.data_dir / "logs/server.jsonl").read_text()


# Wrong requests without a credential are those of `test_access_table.py`, too: here only in the long run.
@pytest.mark.parametrize(
    ("examples", "modes"),
    [(1, [GenerationMode.POSITIVE]), pytest.param(15, [*GenerationMode], marks=pytest.mark.slow)],
    ids=["1", "15"],
)
@pytest.mark.timeout(1800)
def test_also_without_a_credential(up: Running, examples: int, modes: list[GenerationMode]) -> None:
    assert fuzz(up.server_file().url, examples=examples, modes=modes, skip=NO_FUZZERS) > 20
    assert legation(up.home, "status").returncode == 0  # nobody could stop it


def raw(up: Running, request: bytes) -> bytes:
    where = urlsplit(up.server_file().url)
    with socket.create_connection((where.hostname, where.port), timeout=20) as connection:
        connection.sendall(request)
        with suppress(OSError):  # it may have hung up already: not all of a long request need be read
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        with suppress(ConnectionResetError):  # the same
            while piece := connection.recv(65536):
                answer += piece
    return answer


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00" * 5000,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /v1/me HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer \xff\xfe\r\n\r\n",
        b"POST /v1/sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST /v1/sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /v1/streams/%ff%00/sse HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    ],
    ids=range(8),
)
def test_garbage_is_refused_and_the_server_goes_on(shared: Running, garbage: bytes) -> None:
    answer = raw(shared, garbage)
    assert not answer or answer.split()[1][:1] == b"4", answer[:80]
    assert httpx2.get(f"{shared.server_file().url}/v1/health").json() == {"status": "ok"}


def test_a_name_of_another_site_that_points_here_is_refused(shared: Running) -> None:
    where = urlsplit(shared.server_file().url)
    connection = http.client.HTTPConnection(str(where.hostname), where.port, timeout=20)
    connection.request("GET", "/v1/health", headers={"Host": "evil.example"})
    answer = connection.getresponse()
    assert answer.status == 400
    assert answer.headers["content-type"] == "application/problem+json"
    connection.close()


OTHER_NAMES = [
    b"GET /v1/health HTTP/1.1",
    b"GET /v1/health HTTP/1.0",
    b"GET /v1/health HTTP/1.1\r\nHost: [127.0.0.1]evil",
    b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1:evil",
    b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example",
    b"GET /v1/health HTTP/1.1\r\nHost: evil.example\r\nHost: 127.0.0.1",
    b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: 127.0.0.1",
    b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\0evil",
    b"GET /v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n evil.example",
    b"GET http://evil.example/v1/health HTTP/1.1\r\nHost: 127.0.0.1",
    b"GET http://127.0.0.1@evil.example/v1/health HTTP/1.1\r\nHost: 127.0.0.1",
    b"GET https://127.0.0.1/v1/health HTTP/1.1\r\nHost: 127.0.0.1",
    b"GET http://127.0.0.1/v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example",
    b"GET http://evil.example/v1/health HTTP/1.1\r\nHost: evil.example",
    b"GET http://127.0.0.1 HTTP/1.1\r\nHost: 127.0.0.1",
    b"CONNECT 127.0.0.1:80 HTTP/1.1\r\nHost: 127.0.0.1",
    b"GET /v1/health HTTP/1.1\r\nHost: evil.example\r\nX-Forwarded-Host: 127.0.0.1",
    b"GET /v1/health HTTP/1.1\r\nHost: evil.example\r\nForwarded: host=127.0.0.1",
]


def test_no_other_name_of_the_server_gets_through(shared: Running) -> None:
    for head in OTHER_NAMES:
        answer = raw(shared, head + b"\r\n\r\n")
        assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400")), head
    # With its own name in the target, as proxies send it (RFC 9112), it is answered.
    own = b"GET http://127.0.0.1/v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    assert raw(shared, own).startswith(b"HTTP/1.1 200")


def test_a_reader_that_takes_nothing_is_dropped(tmp_path: Path) -> None:
    """And what it held is given back: the file, the place among the transfers, the turn at backups."""
    with (tmp_path / "big").open("wb") as file:
        file.truncate(1 << 28)  # more than the system keeps for a connection
    with running(tmp_path, LEGATION_READER_TIMEOUT="1s") as up:
        up.line()
        where, token = urlsplit(up.server_file().url), up.server_file().token
        asked = (
            f"GET /v1/fs/file?path=big HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n"
        )
        with ExitStack() as lines:
            for _ in range(32):
                line = lines.enter_context(socket.create_connection((where.hostname, where.port), timeout=20))
                line.sendall(asked.encode())
                assert line.recv(12) == b"HTTP/1.1 200"  # and no more
            # Dropped, one after the other, while all of them stay connected on this side.
            for _ in range(PATIENCE):
                if not held_open(up.process.pid, tmp_path / "big"):
                    break
                threading.Event().wait(0.1)
            assert not held_open(up.process.pid, tmp_path / "big")
            (tmp_path / "small").write_bytes(bytes(1 << 20))
            answer = httpx2.get(f"{up.server_file().url}/v1/fs/file?path=small", headers=owner(up))
            assert (answer.status_code, len(answer.content)) == (200, 1 << 20)  # who reads, gets all of it


def held_open(pid: int, path: Path) -> int:
    found = 0
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found += each.readlink() == path
    return found


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_no_secret_is_anywhere(tmp_path: Path, database: str, request: pytest.FixtureRequest) -> None:
    """Through every door: headers, bodies, paths, queries, settings; then every byte it wrote is searched."""
    canaries = [new_canary(name) for name in ("header", "body", "path", "query", "cookie", "basic", "code")]
    env: dict[str, Any] = {"LEGATION_TOKEN": f"canary-token-{new_canary('t')[9:40]}"}
    postgres: Postgres | None = None
    if database == "postgres":
        postgres = request.getfixturevalue("postgres")
        env |= {"LEGATION_DATABASE_URL": postgres.new_database().reveal()}
        for name in ("VAULT_KEY", "TOKEN_PEPPER", "COOKIE_KEY"):
            env[f"LEGATION_{name}"] = legation(tmp_path, "keys", "new").stdout.strip()
        assert legation(tmp_path, "migrate", **env).returncode == 0
    answers = b""
    with running(tmp_path, "server", "--log-level", "debug", **env) as server:
        said = server.line()
        url = server.server_file().url
        mine = {"Authorization": f"Bearer {env['LEGATION_TOKEN']}"}
        made = httpx2.post(f"{url}/v1/tokens", json={"label": "ci"}, headers=mine).json()["secret"]
        link = httpx2.post(f"{url}/v1/sign-in-links", json={}, headers=mine).json()["url"].partition("#")[2]
        signed_in = httpx2.post(f"{url}/v1/sign-in", json={"code": link})
        cookie = signed_in.headers["set-cookie"].split(";")[0].partition("=")[2]
        for answer in _knock(url, mine, canaries):
            answers += answer.content + str(answer.headers).encode()
        for good in (made, env["LEGATION_TOKEN"]):
            assert httpx2.get(f"{url}/v1/me", headers={"Authorization": f"Token {good}"}).status_code == 200
        assert httpx2.get(f"{url}/v1/me", headers={"Cookie": f"legation_session={cookie}"}).status_code == 200
        if postgres is None:
            answers += httpx2.get(f"{url}/v1/backup", headers=mine).content
        server.stop_and_read()
    places = {"answers": answers, "stderr": server.said + said.encode()}
    places |= {name: data for name, data in in_folder(server.data_dir).items() if name != "keys.json"}
    if postgres is not None:
        places["dump"] = postgres.dump(Secret(env["LEGATION_DATABASE_URL"])).encode()
        places["postgres log"] = (postgres.folder / "log").read_bytes()
    given = [value for name, value in env.items() if name != "LEGATION_DATABASE_URL"]
    given += [PASSWORD] if postgres is not None else []
    assert search(places, [*canaries, *given, made, link, cookie]) == []


def _knock(url: str, mine: dict[str, str], canaries: list[str]) -> Iterator[httpx2.Response]:
    header, body, path, query, cookie, basic, code = canaries
    encoded = base64.b64encode(f"user:{basic}".encode()).decode()
    ascii_header = header.encode("ascii", "ignore").decode()
    with httpx2.Client(base_url=url) as client:
        yield client.get("/v1/me", headers={"Authorization": f"Bearer {ascii_header}"})
        yield client.get("/v1/me", headers={"Authorization": f"Basic {encoded}"})
        yield client.get(
            "/v1/me", headers={"Cookie": f"legation_session={cookie.encode('ascii', 'ignore').decode()}"}
        )
        yield client.post("/v1/sign-in", json={"code": code})
        yield client.post("/v1/users", json={"name": "Ada", "password": body}, headers=mine)
        yield client.post("/v1/users", json={"name": [body]}, headers=mine)
        yield client.post("/v1/users", content=json.dumps({"name": body})[:-3], headers=mine)
        yield client.delete(f"/v1/tokens/{quote(path, safe='')}", headers=mine)
        yield client.get(f"/v1/users/{quote(path, safe='')}", headers=mine)
        yield client.patch(f"/v1/users/{quote(path, safe='')}", json={"name": "x"}, headers=mine)
        yield client.delete(f"/v1/tokens/{'x'}", params={"token": query}, headers=mine)
        yield client.get("/v1/streams", params={"limit": query}, headers=mine)
        yield client.get("/v1/blobs", params={"key": query, "expires": 1, "signature": query})
        yield client.get(
            "/v1/me", headers={**mine, "X-Request-Id": ascii_header, "Legation-Workspace": ascii_header}
        )


def test_every_folder_in_the_data_folder_is_its_owners_alone(tmp_path: Path) -> None:
    """Those that are made on the way to another as well, and those that an earlier release left open."""
    data, outside = tmp_path / ".local/share/legation", tmp_path / "outside"
    before = os.umask(0o022)
    try:
        for left in (data / "work/local/old", data / "agents/local/claude/home/its-own", outside):
            left.mkdir(parents=True)
        (data / "work/linked").symlink_to(outside)
        with running(tmp_path, "up", LEGATION_PROCESSES="true") as server:
            server.line()
            with httpx2.Client(
                base_url=server.server_file().url, headers=owner(server), timeout=60
            ) as client:
                assert client.post("/v1/sessions/s", json={"agent": "rehearsal"}).status_code == 200
                assert client.post("/v1/processes", json={"command": "true"}).status_code == 200
                assert client.get("/v1/backup").status_code == 200
                found = {str(path.relative_to(data)): path for path in folders(data)}
                assert {"agents/local/rehearsal/tmp", "processes/local/home", "work/local/s"} <= found.keys()
                open_ = {name for name, path in found.items() if path.stat().st_mode & 0o077}
                assert open_ == set()
    finally:
        os.umask(before)
    assert (data / "agents/local/claude/home/its-own").stat().st_mode & 0o777 == 0o755
    assert outside.stat().st_mode & 0o777 == 0o755


def folders(data: Path) -> Iterator[Path]:
    """Of Legation's own making: what is in homes and in folders of sessions is their agents' and users'."""
    for place, names, _ in os.walk(data):
        path = Path(place)
        if path.name == "home" or path.parent.parent == data / "work":
            names.clear()
        yield from (path / name for name in names if not (path / name).is_symlink())
