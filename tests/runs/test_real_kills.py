"""The kill table with everything real: Postgres, a server, a worker, runners with their agents. Each is killed with -9 at every boundary of
the worker's steps; whatever was killed, each run ends once, its agent is asked once, no event is lost or doubled, nothing is left.

`test_kills.py` has the same table with a provider that counts.
"""

import asyncio
import json
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.cli.server_process import Running
from tests.postgres import MIGRATED, Postgres, running_postgres
from tests.runs.rig import LIMIT, Rig, until_packed
from tests.runs.test_kills import (
    CANCELLED,
    PACKS,
    REVIVED,
    TABLE,
    ended,
    started,
    until_it_ends,
)
from tests.runs.worker_to_kill import kill_runner, runners

from legation.client import AsyncLegation
from legation.runs.run import TOPIC, request_cancel
from legation.runs.sandbox import FOLDER
from legation.runs.states import TERMINAL, CleanupStatus, RunState
from legation.secret import Secret
from legation.server.installation import load_installation_keys
from legation.settings import load
from legation.store.database.postgres import PostgresDatabase
from legation.store.database.transaction import Transaction, parse
from legation.store.datafolder import BLOBS
from legation.store.secrets.sealer import Sealer, new_key_text

pytestmark = pytest.mark.heavy

CANARY = "sk-canary-of-the-kill-table"
TOKEN = "token-of-the-kill-table-and-no-other"
SAYS = "#!rehearse\nsay first.\nsay second.\n"
WAITS = "#!rehearse\nsay first.\nstall 600\n"
EVERY = 10  # so many rows are one of every day


def _has_runner(step: str, effect: str, phase: str) -> bool:
    made = (effect == "create" and phase == "after") or effect == "record"
    return (step in ("start", "observe", "stop") and made) or (step, effect, phase) == (
        "stop",
        "stop",
        "before",
    )


ROWS = [
    (victim, *row)
    for victim in ("worker", "server", "postgres", "runner")
    for row in (*TABLE, *PACKS)
    if victim != "runner" or _has_runner(*row)
]
DAILY = {
    ("runner", "start", "create", "after"),
    ("runner", "stop", "stop", "before"),
    ("worker", "pack", "blob", "after"),
    *ROWS[4::EVERY],
}


@dataclass
class Stack:
    """A server and the Postgres behind it; what is killed of them is started again."""

    postgres: Postgres
    url: Secret
    env: dict[str, str]
    home: Path
    port: int
    server: Running

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start_server(self) -> None:
        self.server = Running(self.home, "server", "--port", str(self.port), **self.env)
        self.server.line()

    def kill_server(self) -> None:
        self.server.stop(signal.SIGKILL)
        self.start_server()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    home = tmp_path_factory.mktemp("server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with running_postgres(durable=True) as postgres:
        url = postgres.new_database(MIGRATED)
        keys = {f"LEGATION_{name}": new_key_text() for name in ("VAULT_KEY", "TOKEN_PEPPER", "COOKIE_KEY")}
        env = {"LEGATION_DATABASE_URL": url.reveal(), "LEGATION_TOKEN": TOKEN, **keys}
        made = Stack(postgres, url, env, home, port, None)  # type: ignore[arg-type]
        made.start_server()
        try:
            yield made
            assert CANARY not in postgres.dump(url)
        finally:
            made.server.stop(signal.SIGKILL)


@pytest.mark.parametrize(
    ("victim", "step", "effect", "phase"),
    [pytest.param(*row, marks=() if row in DAILY else pytest.mark.slow) for row in ROWS],
    ids=["-".join(row) for row in ROWS],
)
async def test_whatever_is_killed_there_the_run_ends_once_and_leaves_nothing(
    victim: str, step: str, effect: str, phase: str, tmp_path: Path, stack: Stack
) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    how = "kill" if victim == "worker" else "wait"
    config = {
        "url": stack.url.reveal(),
        "env": stack.env,
        "data_dir": str(data),
        "report_url": stack.address,
        "lease": 3,
        "at": [step, effect, phase],
        "how": how,
        "machine": tmp_path.name,
    }
    if step == "pack":
        config["packs"] = str(stack.server.data_dir / BLOBS)
    if step in CANCELLED and effect != "stop":
        config["runner_dies"] = ["stop", "stop", "before"]
    settings = load({"data_dir": data}, stack.env)
    async with PostgresDatabase(stack.url) as database:
        rig = Rig(database, None, Sealer(load_installation_keys(settings).vault))  # type: ignore[arg-type]
        run_id = await rig.submit(WAITS if step in CANCELLED | REVIVED else SAYS, key=CANARY)
        with started(tmp_path, "first", config) as first:
            if step in CANCELLED:
                await until_running(rig, run_id)
                await database.transact(request_cancel, "local", run_id, now_ms=rig.clock.now_ms())
                database.notify(TOPIC)
            if step in REVIVED:
                await until_running(rig, run_id)
                assert kill_runner(data) > 0
            if victim == "worker":
                assert await ended(first) == -signal.SIGKILL
                with started(tmp_path, "second", {**config, "at": None}):
                    await until_it_ends(rig, run_id)
                    await until_packed(rig, run_id, wanted=step == "pack")
            else:
                await until_there(tmp_path / "killed-first")
                if victim == "runner":
                    assert kill_runner(data) > 0
                else:
                    kill = stack.postgres.kill if victim == "postgres" else stack.kill_server
                    await asyncio.to_thread(kill)
                (tmp_path / "done-first").touch()
                await until_it_ends(rig, run_id)
                await until_packed(rig, run_id, wanted=step == "pack")
        await settled(rig, run_id, data)
        await heard(stack, rig, run_id)


async def until_running(rig: Rig, run_id: str) -> None:
    """Running, and its agent has spoken: what is killed then was at work."""
    async with asyncio.timeout(LIMIT):
        while True:
            with suppress(Exception):
                run = await rig.run(run_id)
                if run.state is RunState.RUNNING and await rig.database.read(_heard, run.attempt_id):
                    return
            await asyncio.sleep(0.05)


def _heard(runner: str) -> Transaction[bool]:
    (query,) = parse("-- name: head\nselect head from runner where id = :id;")
    return any(row["head"] > 0 for row in (yield query(id=runner)))


async def until_there(path: Path) -> None:
    async with asyncio.timeout(LIMIT):
        while not path.exists():
            await asyncio.sleep(0.02)


async def settled(rig: Rig, run_id: str, data: Path) -> None:
    run = await rig.run(run_id)
    assert run.state in TERMINAL, run
    assert (run.cleanup, run.secret_id, run.lease_token, run.attempt) == (
        CleanupStatus.SUCCEEDED,
        None,
        "",
        1,
    )
    assert (run.error_class is not None) == (run.state is RunState.FAILED), run
    assert runners(data) == []
    assert list((data / FOLDER).iterdir()) == [] if (data / FOLDER).exists() else True
    assert await rig.database.read(_secrets, run_id) == 0
    async with asyncio.timeout(LIMIT):  # an agent whose runner was killed is ended by its guard
        while processes_of(run_id):
            await asyncio.sleep(0.05)
    for path in data.rglob("*"):
        assert not path.is_file() or CANARY.encode() not in path.read_bytes(), path


def _secrets(run_id: str) -> Transaction[int]:
    (query,) = parse("-- name: n\nselect count(*) as n from vault_bundle where owner = :owner;")
    return int((yield query(owner=run_id))[0]["n"])


def processes_of(run_id: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if run_id.encode() in (said := path.read_bytes()):
                found.append(said.decode(errors="replace"))
    return found


async def heard(stack: Stack, rig: Rig, run_id: str) -> None:
    """Every event once, in order; of one that ended well, all that the agent said."""
    run = await rig.run(run_id)
    async with AsyncLegation(stack.address, token=TOKEN) as client:
        events = [each async for each in (await client.runs.get(run_id)).events()]
    assert [each.seq for each in events] == [*range(1, len(events) + 1)]
    said = "".join(text_of(each.payload) for each in events if each.type == "agent-message-chunk")
    assert max(said.count("first."), said.count("second.")) <= 1, said
    ends = [each for each in events if each.type == "prompt-finished"]
    assert len(ends) == 1
    assert events[-1].type == "prompt-finished"
    if run.state is RunState.SUCCEEDED:
        assert (said.count("first."), said.count("second.")) == (1, 1)


def text_of(payload: Any) -> str:
    return str(json.loads(bytes(payload))["update"]["content"]["text"])
