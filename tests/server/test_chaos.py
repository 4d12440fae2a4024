"""The server killed, stalled, robbed of its folder, and asked for two dangerous things at once: what it said is kept,
and what it cannot do it says."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.cli.command import LIMIT, environment, legation
from tests.cli.server_process import Running, running

from legation.clock import SystemClock
from legation.errors import Conflict
from legation.redact import Redactor
from legation.secret import Secret
from legation.server.auth import make_authenticate
from legation.server.http.app import AppOptions, make_app
from legation.server.instance import Services, open_instance
from legation.server.logs import logging_to
from legation.server.routes import ROUTES
from legation.server.routes import server as rotation
from legation.settings import load
from legation.store.backup import archive, restore
from legation.store.files import FolderLock
from legation.store.secrets.sealer import drop_older_keys, rotate_key_file

pytestmark = pytest.mark.heavy

KILLS = 6
WRITERS = 12
STOP_LIMIT = 10.0  # seconds: a server that is not held up ends in one
TURN_LIMIT = 1.0  # seconds for a second rotation to get between the steps of the first, if it can


def owner(server: Running) -> dict[str, str]:
    return {"Authorization": f"Bearer {server.server_file().token}"}


async def _write_until_it_dies(client: httpx2.AsyncClient, told: list[str]) -> None:
    while True:
        try:
            made = await client.post("/v1/users", json={"name": "somebody"})
        except httpx2.HTTPError:
            return
        if made.status_code == 201:
            told.append(made.json()["id"])
        else:
            assert made.status_code == 429, made.text  # so many an hour
            try:
                await client.patch(f"/v1/users/{told[-1]}", json={"name": f"{random.random()}"})
            except httpx2.HTTPError:
                return


async def test_kill_9_among_many_writers_loses_nothing_that_was_told(tmp_path: Path) -> None:
    told: list[str] = []
    for _ in range(KILLS):
        with running(tmp_path) as up:
            up.line()
            url = up.server_file().url
            async with httpx2.AsyncClient(base_url=url, headers=owner(up), timeout=LIMIT) as client:
                writers = [asyncio.create_task(_write_until_it_dies(client, told)) for _ in range(WRITERS)]
                await asyncio.sleep(random.uniform(0.02, 0.4))  # the moment is the point
                up.process.kill()
                await asyncio.gather(*writers)
        with closing(sqlite3.connect(up.data_dir / "legation.db")) as database:
            assert database.execute("pragma integrity_check").fetchall() == [("ok",)]
            assert database.execute("pragma foreign_key_check").fetchall() == []
            there = {row[0] for row in database.execute("select id from app_user")}
            recorded = {
                row[0] for row in database.execute("select target from audit where action = 'user.created'")
            }
        assert there >= set(told)
        assert recorded >= set(told)
    assert told


def test_of_two_that_start_at_once_one_wins_and_the_other_says_who(tmp_path: Path) -> None:
    with running(tmp_path) as one, running(tmp_path) as other:
        deadline = time.monotonic() + LIMIT
        while one.process.poll() is None and other.process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        loser, winner = (one, other) if one.process.poll() is not None else (other, one)
        assert "is up" in winner.line()
        assert loser.process.returncode == 5
        assert loser.process.stderr is not None
        assert f"process {winner.process.pid} owns it" in loser.process.stderr.read().decode()
        assert winner.server_file().pid == winner.process.pid


# Keys.


@asynccontextmanager
async def installation(home: Path) -> AsyncIterator[tuple[Services, httpx2.AsyncClient]]:
    settings = load({"data_dir": home / "data", "port": 0}, {"HOME": str(home)})
    async with open_instance(settings, mode="server", clock=SystemClock(), stop=lambda: None) as (
        services,
        _,
    ):
        app = make_app(
            ROUTES,
            services=services,
            authenticate=make_authenticate(services),
            options=AppOptions(),
        )
        headers = {"authorization": f"Bearer {services.own_token.reveal()}"}
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(
            transport=transport, base_url=services.public_url, headers=headers
        ) as client:
            yield services, client


async def test_a_second_rotation_gets_between_no_two_steps_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes when the first is about to drop what it takes for old: its own key would be the only one left."""
    loop, made, dropped = asyncio.get_running_loop(), threading.Event(), threading.Event()
    second: list[Future[httpx2.Response]] = []

    def rotated(file: Path) -> object:
        try:
            return rotate_key_file(file)
        finally:
            if second:
                made.set()
                dropped.wait(TURN_LIMIT)

    def drop_late(*args: Any) -> object:
        if not second:
            second.append(asyncio.run_coroutine_threadsafe(client.post("/v1/keys/rotate"), loop))
            made.wait(TURN_LIMIT)
        try:
            return drop_older_keys(*args)
        finally:
            dropped.set()

    monkeypatch.setattr(rotation, "rotate_key_file", rotated)
    monkeypatch.setattr(rotation, "drop_older_keys", drop_late)
    async with installation(tmp_path) as (services, client):
        bundle = await services.vault.put("local", "run_1", {"KEY": Secret("value")})
        assert (await client.post("/v1/keys/rotate")).status_code == 200
        assert (await asyncio.wrap_future(second[0])).status_code in (200, 409)
    async with installation(tmp_path) as (services, _):
        assert (await services.vault.open("local", "run_1", bundle))["KEY"].reveal() == "value"


async def test_a_backup_holds_the_keys_that_open_it_though_they_are_rotated_meanwhile(tmp_path: Path) -> None:
    copy = tmp_path / "copy.tar"
    async with installation(tmp_path) as (services, client):
        bundle = await services.vault.put("local", "run_1", {"KEY": Secret("value")})
        blobs = tmp_path / "data" / "blobs"
        blobs.mkdir(exist_ok=True)
        (blobs / "large").write_bytes(
            os.urandom(4 << 20)
        )  # more than the pipe holds: the keys come behind it
        pieces = archive(tmp_path / "data", with_keys=True, made_at=0, legation="test")
        with copy.open("wb") as file:
            file.write(await anext(pieces))
            assert (await client.post("/v1/keys/rotate")).status_code == 200
            async for piece in pieces:
                file.write(piece)
    shutil.rmtree(tmp_path / "data")
    restore(copy, tmp_path / "data", replace=False, now_ms=1)
    async with installation(tmp_path) as (services, _):
        assert (await services.vault.open("local", "run_1", bundle))["KEY"].reveal() == "value"


# The folder.


async def test_no_server_starts_on_a_folder_that_is_being_restored(tmp_path: Path) -> None:
    """The copy comes through a pipe, so that the restore is in the middle for as long as we like."""
    async with installation(tmp_path):
        pieces = [
            piece async for piece in archive(tmp_path / "data", with_keys=True, made_at=0, legation="test")
        ]
    whole, pipe = b"".join(pieces), tmp_path / "pipe"
    os.mkfifo(pipe)
    restoring = asyncio.create_task(
        asyncio.to_thread(restore, pipe, tmp_path / "data", replace=True, now_ms=1)
    )
    with await asyncio.to_thread(pipe.open, "wb") as file:
        await asyncio.to_thread(file.write, whole[: tarfile.RECORDSIZE * 2])
        with pytest.raises(Conflict):
            FolderLock(tmp_path / "data" / "legation.db.lock").acquire()
        await asyncio.to_thread(file.write, whole[tarfile.RECORDSIZE * 2 :])
    assert (await restoring).moved_aside is not None


def test_a_restore_that_was_cut_off_is_not_taken_for_a_first_start(tmp_path: Path) -> None:
    """Killed between its two moves: the old data are aside, the new ones not in their place yet."""
    place = tmp_path / ".local/share"
    (place / "legation.before-restore-1").mkdir(parents=True)
    (place / ".legation-restore-x").mkdir()
    refused = legation(tmp_path, "up", "--port", "0")
    assert refused.returncode == 5
    assert "legation.before-restore-1" in refused.stderr
    assert not (place / "legation").exists()


def test_what_a_killed_backup_left_is_swept(tmp_path: Path) -> None:
    left = tmp_path / ".local/share/legation/.backup-killed"
    left.mkdir(parents=True)
    (left / "events.db").write_bytes(bytes(4096))
    with running(tmp_path) as up:
        up.line()
        assert not left.exists()


def test_a_folder_taken_away_is_told_and_nothing_is_acknowledged(tmp_path: Path) -> None:
    with running(tmp_path) as up:
        up.line()
        url, headers = up.server_file().url, owner(up)
        up.data_dir.rename(tmp_path / "elsewhere")
        assert httpx2.post(f"{url}/v1/users", json={"name": "Ada"}, headers=headers).status_code == 500
        assert httpx2.get(f"{url}/v1/ready").json()["data"]["failing"] == ["database"]
        (tmp_path / "elsewhere").rename(up.data_dir)
        assert httpx2.post(f"{url}/v1/users", json={"name": "Ada"}, headers=headers).status_code == 201
        assert httpx2.get(f"{url}/v1/ready").status_code == 200
        assert up.stop() == 0


def test_it_is_not_ready_while_the_database_takes_no_transaction(tmp_path: Path) -> None:
    with running(tmp_path) as up:
        up.line()
        url = up.server_file().url
        with closing(sqlite3.connect(up.data_dir / "legation.db", isolation_level=None)) as other:
            other.execute("begin immediate")
            assert httpx2.get(f"{url}/v1/ready", timeout=LIMIT).json()["data"]["failing"] == ["database"]
            assert httpx2.get(f"{url}/v1/health").status_code == 200
        assert up.stop() == 0


# The outputs.


def test_a_reader_of_the_log_that_stalls_does_not_keep_the_server_from_ending(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    server = subprocess.Popen(
        [sys.executable, "-m", "legation", "server", "--port", "0"],
        env=environment(tmp_path, LEGATION_TOKEN="t" * 30),
        stdin=subprocess.DEVNULL,
        stderr=writing,
    )
    os.close(writing)
    try:
        said = b""
        while b"listening on http" not in said:
            said += os.read(reading, 65536)
        url = said.partition(b"listening on ")[2].split(b'"')[0].split()[0].decode()
        with httpx2.Client(base_url=url) as client:
            for _ in range(1000):  # some 200 bytes each: more than the pipe holds
                client.get("/v1/health")
        server.send_signal(signal.SIGTERM)
        assert server.wait(STOP_LIMIT) == 0
    finally:
        server.kill()
        server.wait()
        os.close(reading)


def test_a_log_on_a_full_disk_does_not_make_the_end_an_error() -> None:
    with logging_to(Path("/dev/full"), "info", Redactor([])):
        logging.getLogger("legation.test").info("nobody will read it")


def test_a_parent_that_cannot_be_watched_is_told(tmp_path: Path) -> None:
    with running(tmp_path, "server", "--exit-with-parent", LEGATION_TOKEN="t" * 30) as server:
        assert server.process.wait(LIMIT) == 2
        assert server.process.stderr is not None
        assert b"standard input" in server.process.stderr.read()
