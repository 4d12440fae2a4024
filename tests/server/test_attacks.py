"""What an attacker tried: a web page, an agent without the token, a weak credential, a stranger on the network, a
hostile backup. Each of these once worked, or is the reason why something is as it is."""

import asyncio
import hashlib
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from starlette.types import Receive, Scope, Send
from tests.cli.server_process import running as running_program
from tests.server.rig import Rig, bearer, open_rig

from legation.errors import ConfigInvalid, InvalidParams
from legation.server.address import listen
from legation.server.http import server as http_server
from legation.server.http.server import UvicornServer
from legation.server.installation import prepare_folder
from legation.store.backup import FORMAT, MANIFEST, BackupFile, Manifest, restore
from legation.store.database import migrations
from legation.store.database.sqlite import SqliteDatabase
from legation.store.identity import members
from legation.wire.principal import Role

LIMIT = 20.0  # seconds: the test's patience with the server
ASK = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
JSON = {"content-type": "application/json"}
LOOK = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('select * from sqlite_master').fetchall(); c.close()"


@pytest.fixture
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    async with open_rig("sqlite", tmp_path, request) as made:
        yield made


async def echo(scope: Scope, _receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """To a server of one's own."""
    sock = listen("127.0.0.1", 0)
    server = UvicornServer(echo)
    serve = asyncio.create_task(server.serve_on([sock]))
    reader, writer = await asyncio.open_connection(*sock.getsockname())
    try:
        async with asyncio.timeout(LIMIT):
            yield reader, writer
    finally:
        writer.transport.abort()
        server.stop()
        await serve


async def everything(reader: asyncio.StreamReader) -> bytes:
    """To the end of the connection, which the server may have cut off."""
    answer = b""
    try:
        while piece := await reader.read(65536):
            answer += piece
    except ConnectionResetError:
        pass
    return answer


# Somebody looks into the database while the server runs.


async def test_whoever_looks_into_the_database_leaves_its_log_in_place(tmp_path: Path) -> None:
    """A raw open and close of the file by our process gives up SQLite's locks; the log was then deleted under us, and
    with it every change to come."""
    path = tmp_path / "legation.db"
    async with SqliteDatabase(path) as database:
        await database.migrate()
        await database.scrub()
        log = path.with_name("legation.db-wal")
        before = log.stat().st_ino
        await asyncio.to_thread(subprocess.run, [sys.executable, "-c", LOOK, str(path)], check=True, env={})
        assert log.stat().st_ino == before


# A weak credential.


@pytest.mark.heavy
async def test_a_body_held_back_does_not_outlive_its_credential(rig: Rig) -> None:
    """Removed while the body was on its way, an owner made themselves an owner again."""
    owner = rig.people["owner"]
    headers = {**await rig.bearer(owner), **JSON}

    async def held_back() -> AsyncIterator[bytes]:
        yield b'{"role":'
        await rig.remove(owner)
        rig.clock.advance(5)
        yield b'"owner"}'

    answer = await rig.client.put(
        f"/v1/workspaces/local/members/{owner}", content=held_back(), headers=headers
    )
    assert answer.status_code == 401
    assert not await rig.rows(
        f"select role from membership where workspace_id = 'local' and user_id = '{owner}'"
    )


@pytest.mark.heavy
async def test_a_token_of_one_workspace_makes_no_session_in_another(rig: Rig) -> None:
    stranger, now = rig.people["stranger"], rig.clock.now_ms()  # owns the other workspace
    await rig.services.database.transact(members.put, rig.server, stranger, "owner", now_ms=now)
    headers = await rig.bearer(stranger)
    assert (await rig.client.post("/v1/sign-in-links", json={}, headers=headers)).status_code == 403


@pytest.mark.heavy
@pytest.mark.parametrize("role", ["owner", "approver"])
async def test_who_approves_nothing_makes_nobody_an_approver(rig: Rig, role: Role) -> None:
    owner, viewer = rig.people["owner"], rig.people["viewer"]
    path, body = f"/v1/workspaces/local/members/{viewer}", {"role": role}
    for kind in ("agent", "supervisor"):
        headers = await rig.bearer(owner, kind=kind)
        assert (await rig.client.put(path, json=body, headers=headers)).status_code == 403
    headers = await rig.bearer(owner, "manage")
    assert (await rig.client.put(path, json=body, headers=headers)).status_code == 403


@pytest.mark.heavy
async def test_a_token_makes_no_token_that_decides_more(rig: Rig) -> None:
    headers = await rig.bearer(rig.people["owner"], kind="agent")
    for kind in ("user", "supervisor"):
        body = {"label": "more", "kind": kind, "scopes": ["approve"]}
        assert (await rig.client.post("/v1/tokens", json=body, headers=headers)).status_code == 403


@pytest.mark.heavy
async def test_a_token_is_no_part_of_an_address(rig: Rig) -> None:
    _, secret = await rig.token(rig.people["owner"])
    for name in ("token", "access_token", "authorization"):
        assert (await rig.client.get("/v1/me", params={name: secret})).status_code == 401
    assert (await rig.client.get("/v1/me", headers=bearer(secret))).status_code == 200


# A stranger on the network.


async def test_requests_sent_all_at_once_are_cut_off() -> None:
    """Each that waits costs 4 KB for its 20 bytes: twenty connections took 800 MB."""
    async with connected() as (reader, writer):
        writer.write(ASK * 5000)
        assert (await everything(reader)).count(b"HTTP/1.1 200") < 100


async def test_a_few_requests_sent_at_once_are_answered() -> None:
    async with connected() as (reader, writer):
        writer.write(ASK * 8)
        for _ in range(8):
            assert b"200 OK" in await reader.readuntil(b"ok")


@pytest.mark.parametrize("begun", [b"0\r\nx: ", b"0\r\n", b"1;"])
async def test_what_follows_a_body_is_bounded(begun: bytes) -> None:
    """A trailer of 128 MB took as much memory, and 20 seconds of the loop."""
    async with connected() as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + begun)
        await reader.readuntil(b"ok")

        async def send() -> None:
            while True:
                writer.write(b"a" * 65536)
                await writer.drain()

        sending = asyncio.create_task(send())
        await everything(reader)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


@pytest.mark.parametrize("after", [b"\r\n", b"\r\n\r\n\r\n"])
async def test_an_empty_line_keeps_no_connection_open(after: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEAD_TIMEOUT", 0.2)
    async with connected() as (reader, writer):
        writer.write(ASK)
        await reader.readuntil(b"ok")
        writer.write(after)
        assert await everything(reader) == b""


async def test_a_body_that_nobody_reads_keeps_no_connection_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEAD_TIMEOUT", 0.2)
    async with connected() as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n")
        await reader.readuntil(b"ok")
        writer.write(b"x")
        assert await everything(reader) == b""


@pytest.mark.parametrize(
    "fields",
    [
        b"content-length: 4\r\ntransfer-encoding: chunked\r\n",
        b"content-length: 0\r\ncontent-length: 5\r\n",
        b"content-length: 5, 5\r\n",
        b"content-length: +5\r\n",
        b"content-length : 5\r\n",
        b"transfer-encoding: xchunked\r\n",
        b"transfer-encoding: chunked, identity\r\n",
        b"x: a\r\n b\r\n",
    ],
)
async def test_no_request_hides_in_another(fields: bytes) -> None:
    async with connected() as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\n" + fields + b"\r\n0\r\n\r\n" + ASK)
        answer = await everything(reader)
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"200 OK" not in answer


# An agent on this machine.


@pytest.mark.heavy
def test_nobody_can_guess_the_name_that_the_cookie_belongs_to(tmp_path: Path) -> None:
    """Browsers send a cookie to every port of its host: a page that an agent serves led the browser to the same name at
    the agent's port, and had the owner's session."""
    names = set()
    for home in (tmp_path / "one", tmp_path / "two"):
        home.mkdir()
        with running_program(home) as server:
            names.add(server.line().partition("http://")[2].partition(":")[0])
    assert len(names) == 2


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    """They could put a link in the place of any file that is written there."""
    folder, victim = tmp_path / "data", tmp_path / "victim"
    folder.mkdir()
    victim.write_text("precious")
    (folder / f".writable-{os.getpid()}").symlink_to(victim)
    folder.chmod(mode)
    with pytest.raises(ConfigInvalid):
        prepare_folder(folder)
    assert victim.read_text() == "precious"


# A hostile backup.


def sparse(name: str, size: int) -> bytes:
    """A header of 512 bytes that stands for `size` zeros (old GNU format), and a manifest that agrees."""
    info = tarfile.TarInfo(name)
    info.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[345:500] = bytes(155)
    header[386:410] = b"%011o\0%011o\0" % (size, 0)  # one empty piece, at the end
    header[483:495] = b"%011o\0" % size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    file = BackupFile(size, hashlib.sha256(bytes(size)).hexdigest())
    text = msgspec.json.encode(Manifest(FORMAT, 0, "0", migrations.newest(), {name: file}))
    manifest = tarfile.TarInfo(MANIFEST)
    manifest.size = len(text)
    return bytes(header) + manifest.tobuf() + text.ljust(1024, b"\0") + bytes(1024)


def with_nul_in_a_name() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("blobs/x")
        info.pax_headers = {"path": "blobs/a\0b"}
        tar.addfile(info)
    return out.getvalue()


@pytest.mark.parametrize(
    "data",
    [sparse("blobs/x", 2**20), with_nul_in_a_name()],
    ids=["sparse", "nul"],
)
def test_a_bomb_is_no_backup(tmp_path: Path, data: bytes) -> None:
    copy, folder = tmp_path / "copy.tar", tmp_path / "home" / "data"
    copy.write_bytes(data)
    with pytest.raises(InvalidParams):
        restore(copy, folder, replace=False, now_ms=0)
    assert [*folder.parent.iterdir()] == []
