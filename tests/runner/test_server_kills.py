"""A runner and a real server, killed at any moment with an approval pending: it is answered once, and acted on once."""

import asyncio
import json
import random
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.runner.caller_server import LIMIT, TOKEN
from tests.runner.test_runner import alive, config_of, scripted, started
from tests.server.test_waits import POLICY, TOOLS, Installation, Server, approve_in_the_end

from legation.clock import SystemClock
from legation.runner.receiver import add_runner
from legation.store.database.sqlite import SqliteDatabase
from legation.store.database.transaction import Rows, Transaction, parse
from legation.wire.callbacks import token_digest

pytestmark = pytest.mark.heavy

# Acts in its folder when it may: a line for each time.
ACTS = scripted("""
hello(); session(); p = prompted(); open("pid", "w").write(str(os.getpid()))
permission(7, title="deploy", kind="execute", rawInput={"command": "deploy"})
chosen = answer(7)["result"]["outcome"].get("optionId")
open("acted", "a").write(f"{chosen}\\n")
update("done"); done(p)
""")


class Place:
    """A server that is killed and started again at the same address, on a database of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "policy.yaml").write_text(POLICY)
        (folder / "tools.yaml").write_text(TOOLS % {"url": "http://127.0.0.1:1"})
        backend: Any = None
        self.installation = Installation(folder, backend, {})
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]

    def server(self) -> Any:
        return self.installation.server("server", self.port)

    @asynccontextmanager
    async def database(self) -> AsyncIterator[SqliteDatabase]:
        """While no server has it."""
        path = self.folder / "server" / ".local/share/legation" / "legation.db"
        async with SqliteDatabase(path, clock=SystemClock()) as database:
            yield database

    async def rows(self, sql: str) -> Rows:
        def work() -> Transaction[Rows]:
            (query,) = parse(f"-- name: test\n{sql}")
            return (yield query())

        async with self.database() as database:
            return await database.transact(work)

    async def prepare(self) -> None:
        async with self.server():
            pass
        async with self.database() as database:
            now = SystemClock().now_ms()
            await database.transact(add_runner, "run_1", "local", token_digest(TOKEN), "box", now_ms=now)

    def config(self) -> dict[str, object]:
        url = f"http://127.0.0.1:{self.port}/v1/runs/run_1"
        return config_of(f"{url}/reports", "go", permissions="route", commandsUrl=f"{url}/commands")

    @property
    def acted(self) -> list[str]:
        path = self.folder / "work" / "acted"
        return path.read_text().split() if path.exists() else []


@pytest.mark.parametrize(
    "seed", [0, 2, *(pytest.param(each, marks=pytest.mark.slow) for each in range(3, 20))]
)
async def test_an_approval_pending_at_the_servers_death_is_answered_and_acted_on_once(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    number = chance.choice([signal.SIGKILL, signal.SIGTERM])
    place = Place(tmp_path)
    await place.prepare()
    async with started(tmp_path, place.config(), agent=ACTS) as ran:
        async with place.server() as server:
            [asked] = await server.pending(1)
            server.process.stop(number)
        if chance.random() < 0.5:
            async with place.server() as server:  # and once more, at any moment
                await asyncio.sleep(chance.random() / 2)
                server.kill()
        async with place.server() as server:
            assert [*await server.pending(1)] == [asked]  # under the same id
            await approve_in_the_end(server, asked)
            if chance.random() < 0.5:
                server.kill()  # the answer may be given, on its way, or used
        async with place.server():
            code, said = await ran.ended()
        assert code == 0, said
    assert place.acted == ["allow_once"]
    [approval] = await place.rows("select id, status, consumed_at from approval")
    assert (approval["id"], approval["status"]) == (asked, "approved")
    assert approval["consumed_at"] is not None
    [row] = await place.rows("select head, ended_at, commands from runner")
    assert (row["ended_at"] is not None, row["commands"]) == (True, 1)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_runner_that_is_killed_leaves_no_agent_and_nothing_that_can_be_answered(
    tmp_path: Path, number: signal.Signals
) -> None:
    place = Place(tmp_path)
    await place.prepare()
    async with place.server() as server:
        async with started(tmp_path, place.config(), agent=ACTS) as ran:
            [asked] = await server.pending(1)
            ran.process.send_signal(number)
            await ran.ended()
        pid = int((tmp_path / "work" / "pid").read_text())
        async with asyncio.timeout(LIMIT):
            while alive(pid):
                await asyncio.sleep(0.05)
        if number is signal.SIGKILL:  # its next life says so; else it has done that itself
            async with started(tmp_path, place.config(), agent="/no/such/agent") as ran:
                assert (await ran.ended())[0] == 6
        found = await _until_over(server, asked)
        assert found["status"] in ("superseded", "cancelled")
        assert (await server.answer(asked)).status_code == 409
    assert place.acted in ([], ["None"])  # stopped in order, it was told `cancelled`


async def _until_over(server: Server, approval: str) -> dict[str, Any]:
    async with asyncio.timeout(LIMIT):
        while (found := await server.approval(approval))["status"] == "pending":
            await asyncio.sleep(0.05)
    return found


async def test_what_a_later_server_finds_is_all_that_was_said(tmp_path: Path) -> None:
    """No server at all, from the beginning to the end: the spool is kept, and collected."""
    place = Place(tmp_path)
    await place.prepare()
    config = {**place.config(), "flushTimeout": 0.5, "permissionTimeout": 0.5}
    async with started(tmp_path, config, agent=ACTS) as ran:
        code, said = await ran.ended()
    assert (code, "start the runner again on the same folder" in said) == (8, True)
    assert place.acted == ["reject_once"]
    config["flushTimeout"] = 60
    async with place.server(), started(tmp_path, config, agent="/no/such/agent") as ran:
        code, said = await ran.ended()
    assert code == 0, said
    [exit_] = tmp_path.rglob("exit.json")
    assert json.loads(exit_.read_text())["code"] == 0
    [row] = await place.rows("select head, ended_at from runner")
    assert row["ended_at"] is not None
    assert [each["status"] for each in await place.rows("select status from approval")] in (
        ["superseded"],
        ["cancelled"],
        ["expired"],
        [],
    )
