"""Who has what: on a file nothing of it is written; on Postgres what it costs does not grow."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.postgres import MIGRATED, Postgres
from tests.server.rig import Rig, open_rig

from legation.clock import SystemClock
from legation.errors import Conflict
from legation.secret import Secret
from legation.server.forward import _names
from legation.server.peers.claims import Peer, StreamClaims
from legation.server.routes import ROUTES
from legation.store.codec import MemoryBackend
from legation.store.database.postgres import PostgresDatabase
from legation.store.database.transaction import Queries
from legation.store.identity.workspaces import bootstrap
from legation.store.log import AT_ONCE, EventLog
from legation.store.secrets.sealer import new_key_text

pytestmark = pytest.mark.heavy

LIMIT = 90.0
SESSION = {"agent": "rehearsal"}


# Routes that name a session, a stream or a connection, and are answered by whichever server is called.
ANSWERED_ANYWHERE = {
    "GET /traces",  # the database has them
    "POST /tool/{name}",  # the session is a word in the trace
    "GET /v1/processes/{process}/logs",  # the stream is stdout or stderr
}


def test_every_route_that_names_a_session_or_a_stream_leads_to_its_server() -> None:
    about = re.compile(r"session|streams?$|server_id|connection", re.IGNORECASE)
    for each in (operation for group in ROUTES for operation in group.operations):
        named = [one for one in each.contract.parameters if about.search(one.wire)]
        if not named and not re.match(r"/v1/(sessions|streams|acp)/", each.path):
            continue
        query = "&".join(f"{one.wire}=s" for one in named if one.place == "query").encode()
        path = dict.fromkeys(re.findall(r"\{(\w+)\}", each.path), "s")
        headers = {one.wire.lower(): "s" for one in named if one.place == "header"}
        call: Any = SimpleNamespace(request=SimpleNamespace(scope={"query_string": query}, headers=headers))
        anywhere = f"{each.method} {each.path}" in ANSWERED_ANYWHERE
        assert bool(_names(call, each.path, path)) is not anywhere, f"{each.method} {each.path}"


async def _session_made(rig: Rig) -> None:
    owner = await rig.bearer(rig.people["owner"])
    made = await rig.client.post("/v1/sessions/one", json=SESSION, headers=owner, timeout=90)
    assert made.status_code == 200, made.text
    listed = (await rig.client.get("/v1/sessions", headers=owner)).json()["sessions"]
    assert [each["sessionId"] for each in listed] == ["one"]


async def test_on_a_file_nothing_is_claimed(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    async with open_rig("sqlite", tmp_path, request) as rig:
        await _session_made(rig)
        assert rig.services.forwarder is None
        assert list(await rig.rows("select * from stream_claim")) == []
        assert list(await rig.rows("select * from server_address")) == []


async def test_on_postgres_a_session_is_one_row(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    async with open_rig("postgres", tmp_path, request) as rig:
        await _session_made(rig)
        [row] = await rig.rows("select * from stream_claim")
        created = (await rig.services.sessions.records.get("local", "one")).details.created_at
        assert (row["name"], row["agent"], row["began"]) == ("one", "rehearsal", created)


async def test_a_page_of_a_long_list_reads_a_page(postgres: Postgres) -> None:
    import asyncpg

    url = postgres.new_database(MIGRATED)
    connection = await asyncpg.connect(url.reveal(), server_settings={"search_path": "legation"})
    try:
        await connection.execute(
            "insert into workspace (id, name, created_at) values ('local', 'local', 1); "
            "insert into server_address (server, url, mac, swept_to) values ('srv_a', 'http://a', '', 0); "
            "insert into stream_claim select 'local', 's' || n, 'srv_a', 'x', n / 3, n from generate_series(1, 50000) n; "
            "analyze"
        )
        query = next(each for each in Queries("servers") if each.name == "newest_claims")
        given = {"workspace": "local", "began": 9000, "name": "s27001", "count": 20}
        arguments = [given[name] for name in query.parameters]
        plan = [
            row[0]
            for row in await connection.fetch(f"explain (analyze, timing off) {query.postgres}", *arguments)
        ]
        assert any("stream_claim_newest" in line for line in plan), plan
        assert not any("Sort" in line for line in plan), plan
        found = await connection.fetch(query.postgres, *arguments)
        assert [row["name"] for row in found][:4] == ["s27002", "s26997", "s26998", "s26999"]
    finally:
        await connection.close()


async def test_a_list_waits_once_for_a_server_that_does_not_answer(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    ids = [f"s{number}" for number in range(2 * AT_ONCE + 10)]  # three pages of them
    connections = 0

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.read()  # and says nothing
        writer.close()

    async with open_rig("postgres", tmp_path, request) as rig, EventLog(MemoryBackend()) as log:
        silent = await asyncio.start_server(count, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        database, pepper = rig.services.database, rig.services.keys.pepper
        peer = Peer("srv_silent", url, None, genuine=True)
        async with silent, StreamClaims(database, log, SystemClock(), peer, pepper, print) as claims:
            items = [{"name": name, "agent": "x", "began": 1} for name in ids]
            given = {"workspace": "local", "server": peer.server, "items": json.dumps(items), "now": 1}
            await claims._run(Queries("servers").take_all, **given)
            owner = await rig.bearer(rig.people["owner"])
            listed = (await rig.client.get("/v1/sessions", headers=owner, timeout=90)).json()["sessions"]
            assert sorted(each["sessionId"] for each in listed) == sorted(ids)
            assert {each["status"] for each in listed} == {"away"}
            assert connections == 1


class Gate:
    """Holds one answer back, as a slow machine would, until it is told to go on."""

    def __init__(self) -> None:
        self.holds = False
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()

    async def __call__(self) -> None:
        if self.holds:
            self.holds = False
            self.reached.set()
            await self.go_on.wait()


class HeldDatabase(PostgresDatabase):
    gate = Gate()

    async def read(self, *given: Any, **named: Any) -> Any:
        found = await super().read(*given, **named)
        await self.gate()
        return found


class HeldLog(EventLog):
    gate = Gate()

    async def lookup(self, *given: Any, **named: Any) -> Any:
        found = await super().lookup(*given, **named)
        await self.gate()
        return found


@asynccontextmanager
async def two_servers(postgres: Postgres) -> AsyncIterator[tuple[StreamClaims, StreamClaims, Gate, Gate]]:
    """A, whose database and log can be held, and B."""
    url, pepper = postgres.new_database(MIGRATED), Secret(new_key_text(), "pepper")
    async with (
        asyncio.timeout(LIMIT),
        HeldDatabase(url) as held,
        PostgresDatabase(url) as plain,
        HeldLog(MemoryBackend()) as log,
        EventLog(MemoryBackend()) as other,
    ):
        held.gate, log.gate = Gate(), Gate()
        await plain.transact(bootstrap, "usr_1", now_ms=1)
        a, b = (Peer(f"srv_{name}", f"http://{name}", None, genuine=True) for name in "ab")
        async with (
            StreamClaims(held, log, SystemClock(), a, pepper, print) as first,
            StreamClaims(plain, other, SystemClock(), b, pepper, print) as second,
        ):
            yield first, second, held.gate, log.gate


async def _make(claims: StreamClaims) -> None:
    async with claims.taken("local", "s", "rehearsal", 1):
        pass


async def test_what_is_given_back_while_somebody_looks_for_it_is_not_remembered(postgres: Postgres) -> None:
    async with two_servers(postgres) as (a, b, database, _):
        await _make(a)
        a._ours.clear()  # as after a start
        database.holds = True
        look = asyncio.create_task(a.elsewhere("local", ["s"]))
        await database.reached.wait()
        await a.free("local", "s")
        database.go_on.set()
        assert await look == {}
        await _make(b)
        assert [each.server for each in (await a.elsewhere("local", ["s"])).values()] == ["srv_b"]


async def test_a_create_that_was_broken_off_does_not_free_the_name_of_the_next(postgres: Postgres) -> None:
    async def broken() -> None:
        async with a.taken("local", "s", "rehearsal", 1):
            log.holds = True
            raise asyncio.CancelledError

    async with two_servers(postgres) as (a, b, _, log):
        before = asyncio.all_tasks()
        first = asyncio.create_task(broken())
        await log.reached.wait()
        first.cancel()
        await asyncio.wait({first})
        await _make(a)
        log.go_on.set()
        await asyncio.wait(asyncio.all_tasks() - before)
        with pytest.raises(Conflict):
            await _make(b)


async def test_a_sweep_does_not_free_what_is_claimed_anew_meanwhile(postgres: Postgres) -> None:
    async with two_servers(postgres) as (a, b, _, log):
        await _make(a)  # and of its stream nothing is there
        log.holds = True
        sweep = asyncio.create_task(a.sweep())
        await log.reached.wait()
        await _make(a)
        log.go_on.set()
        await sweep
        with pytest.raises(Conflict):
            await _make(b)
        await a.sweep()
        await _make(b)


async def test_of_many_who_claim_one_name_at_once_one_has_it(postgres: Postgres) -> None:
    """Over and over, by servers that know nothing of each other."""
    url, pepper = postgres.new_database(MIGRATED), Secret(new_key_text(), "pepper")
    async with PostgresDatabase(url) as one, PostgresDatabase(url) as other, EventLog(MemoryBackend()) as log:
        await one.transact(bootstrap, "usr_1", now_ms=1)
        told: list[str] = []
        servers = [
            StreamClaims(
                database,
                log,
                SystemClock(),
                Peer(f"srv_{n}", f"http://{n}", None, genuine=True),
                pepper,
                told.append,
            )
            for n, database in enumerate((one, other, one, other))
        ]
        for server in servers:
            await server.__aenter__()

        async def claimed(server: StreamClaims, name: str) -> bool:
            try:
                async with server.taken("local", name, "rehearsal", 1):
                    await asyncio.sleep(0)
                    return True
            except Conflict:
                return False

        for number in range(100):
            name = f"s{number}"
            won = await asyncio.gather(*[claimed(server, name) for server in servers])
            assert won.count(True) == 1
            winner = servers[won.index(True)]
            for server in servers:
                found = await server.elsewhere("local", [name])
                assert [each.server for each in found.values()] == (
                    [] if server is winner else [winner.here.server]
                )
        for server in servers:
            await server.__aexit__()
        assert told == []
