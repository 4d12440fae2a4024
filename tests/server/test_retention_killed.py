"""A prune whose server is killed, at every step: nothing is half deleted, and the next one brings it to its end."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_hex
from shutil import copytree
from typing import Any

import httpx2
import pytest
from tests.approvals.installation import HOLDER, PERSON, YES, proposal
from tests.approvals.test_trace import after, allowed
from tests.postgres import MIGRATED, Postgres, database_name
from tests.server.sessions.test_delete import AFTER_THAT, NOTHING_IS_DECIDED
from tests.server.sessions.test_making import NEW, dying, next_server, play

from legation.approvals.approval import new_approval_id
from legation.approvals.trace.chain import Chain, Ledger
from legation.approvals.transitions import Transitions
from legation.clock import SystemClock
from legation.secret import Secret
from legation.server.installation import load_installation_keys, server_name
from legation.settings import load
from legation.store.database.postgres import PostgresDatabase
from legation.store.database.sqlite import SqliteDatabase
from legation.store.database.transaction import Queries
from legation.store.database.transaction import rows as run
from legation.store.datafolder import SERVER
from legation.store.log import EventLog
from legation.store.secrets.sealer import Sealer, new_key_text
from legation.store.sqlite import PAGE_BYTES, SWEEP_PAGES, SqliteBackend
from legation.wire.events import Draft

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]  # the first one fills an installation

ALL = {"olderThan": "0s", "kinds": ["sessions", "work", "content", "traces"]}
DAYS = 3 * 86_400_000
CALLS = 80  # asked about, nine steps each: more than two slices of each kind
SECRET = b"canary-" + token_hex(16).encode()

# In the order of what is done. What was at work is none of it.
POINTS = [
    ("legation.server.retention:Retention.finish", 2),  # the first is of the start
    NOTHING_IS_DECIDED,
    *AFTER_THAT,
    ("legation.store.log:EventLog.sweep", 1),
    ("legation.store.sqlite:SqliteBackend._drop_some", 2),
    ("legation.server.retention:WorkFolders._discard", 1),
    ("legation.server.sessions.service:remove_folder", 2),
    ("legation.approvals.trace.cut:begin_purge", 1),
    ("legation.approvals.trace.cut:purge_slice", 1),
    ("legation.approvals.trace.cut:purge_slice", 2),
    ("legation.approvals.trace.cut:cut_slice", 1),
    ("legation.approvals.trace.cut:_checkpoint", 1),
    ("legation.approvals.trace.cut:cut_slice", 2),
    ("legation.approvals.trace.cut:_checkpoint", 2),
    ("legation.server.retention:_give_back", 1),
    ("legation.store.log:EventLog.give_back", 1),
]
IN_A_FILE = ("legation.store.database.sqlite:SqliteDatabase.scrub", 1)
OF_POSTGRES = ("legation.store.database.postgres:PostgresDatabase.scrub", 1)
# Every day on Postgres: one between two of its transactions, and one in the middle of one; in a file also one of each kind of thing
# that is deleted, and the end.
DAILY = {("legation.approvals.trace.cut:purge_slice", 2), ("legation.approvals.trace.cut:_checkpoint", 2)}
DAILY_IN_A_FILE = DAILY | {
    NOTHING_IS_DECIDED,
    ("legation.store.sqlite:SqliteBackend._drop_some", 2),
    ("legation.server.sessions.service:remove_folder", 2),
    IN_A_FILE,
}
EVERYWHERE = [
    pytest.param(database, where, marks=() if where in daily else pytest.mark.slow)
    for database, daily, last in (
        ("sqlite", DAILY_IN_A_FILE, IN_A_FILE),
        ("postgres", DAILY, OF_POSTGRES),
    )
    for where in (*POINTS, last)
]


KEYS = ("VAULT_KEY", "TOKEN_PEPPER", "COOKIE_KEY")


@dataclass
class Place:
    """A home, and the database of its server: a file in it, or one of Postgres."""

    home: Path
    postgres: Postgres | None = None
    env: dict[str, str] = field(default_factory=dict)

    @property
    def data(self) -> Path:
        return self.home / ".local/share/legation"

    def rows(self, sql: str) -> list[Any]:
        if self.postgres is None:
            return rows(self.data / "legation.db", sql)
        name = database_name(self.url)
        words = ("-qAt", "-h", str(self.postgres.folder), "-U", "legation", name, "-c")
        return self.postgres.run("psql", *words, f"set search_path = legation; {sql}").splitlines()

    @property
    def url(self) -> Secret:
        return Secret(self.env["LEGATION_DATABASE_URL"], "database_url")

    def copied(self, home: Path) -> "Place":
        copytree(self.home, home, dirs_exist_ok=True)
        if self.postgres is None:
            return Place(home)
        url = self.postgres.new_database(database_name(self.url))
        return replace(self, home=home, env=self.env | {"LEGATION_DATABASE_URL": url.reveal()})


def on_postgres(home: Path, server: Postgres) -> Place:
    """A home whose server has a new database, and the keys that it needs there."""
    env = {f"LEGATION_{name}": new_key_text() for name in KEYS}
    return Place(home, server, {"LEGATION_DATABASE_URL": server.new_database(MIGRATED).reveal(), **env})


@pytest.fixture(scope="module")
def origin(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """An installation with a session that is over, a folder without one, a session at work, and calls of three days ago."""
    home = tmp_path_factory.mktemp("origin")
    if request.param == "sqlite":
        yield filled(Place(home))
        return
    server: Postgres = request.getfixturevalue("postgres_server")
    own = Postgres(server.binaries, server.folder)  # the others' databases are dropped after each test
    yield filled(on_postgres(home, own))
    own.drop_databases()


def filled(place: Place) -> Place:
    with next_server(place.home, **place.env) as http:
        for name in ("s", "kept"):
            assert http.post(f"/v1/sessions/{name}", json=NEW).status_code == 200
            assert "hello" in play(http, name, "say hello")
        assert http.post("/v1/sessions/s/terminate").status_code == 204
        assert http.get("/v1/trace/verify").status_code == 200
    asyncio.run(add_calls(place, CALLS))
    asyncio.run(_lengthen(place.data))
    (place.data / "work/local/nobodys").mkdir(parents=True)
    return place


@asynccontextmanager
async def open_ledger(place: Place) -> AsyncIterator[Ledger]:
    """The one of its server, beside it."""
    settings = load({"data_dir": place.data}, {"HOME": str(place.home), **place.env})
    sealer = Sealer(load_installation_keys(settings).vault)
    opened = PostgresDatabase(place.url) if place.env else SqliteDatabase(place.data / "legation.db")
    async with opened as database:
        name = server_name(place.data / SERVER)
        yield Ledger(database, Chain(name, sealer, at_once=database.dialect == "postgres"))


async def add_calls(place: Place, calls: int) -> None:
    """As earlier days would have left it: calls with their approvals and contents."""
    now = SystemClock().now_ms() - DAYS
    async with open_ledger(place) as ledger:
        life = Transitions(ledger.chain)
        sign = Queries("door").sign(id=HOLDER, server="earlier", grace=1)
        await ledger.database.transact(run, sign)
        for number in range(calls):
            at = now + number
            asked = proposal(
                id=new_approval_id(at), requester_kind="process", requester="host", expires_at=at + 60_000
            )
            approval = await ledger.transact("local", life.propose, asked, at)
            await ledger.transact("local", life.resolve, PERSON, approval.id, YES, at + 1)
            digest = (approval.action_digest, approval.policy_version)
            await ledger.transact(
                "local", life.consume, "local", approval.id, approval.awaited_by, *digest, at + 2
            )
            await ledger.append("local", [*after(approval), *allowed()], at + 3)


async def _lengthen(data: Path) -> None:
    """A session whose events take more than one commit to go."""
    async with EventLog(SqliteBackend(data / "events.db")) as log:
        await (await log.stream("s")).reopen()
        text = b'"' + SECRET + b"x" * PAGE_BYTES + b'"'
        for _ in range(SWEEP_PAGES + 8):
            await (await log.stream("s")).append([Draft(type="native", raw=text)])
        await (await log.stream("s")).close()


@pytest.fixture
def place(origin: Place, tmp_path: Path) -> Iterator[Place]:
    made = origin.copied(tmp_path)
    yield made
    if made.postgres is not None:
        name = database_name(made.url)
        made.postgres.execute(f"drop database {name} with (force)")
        made.postgres.databases.remove(name)


def pruned(http: httpx2.Client) -> dict[str, Any]:
    answer = http.post("/v1/prune", json=ALL)
    assert answer.status_code == 200, answer.text
    lines = [httpx2.Response(200, content=each).json() for each in answer.text.splitlines()]
    assert [each["problem"] for each in lines if each["problem"]] == []
    return {each["kind"]: each["count"] for each in lines if each["done"]}


def verifies(http: httpx2.Client) -> None:
    reports = http.get("/v1/trace/verify").json()
    assert reports
    assert [each["problems"] for each in reports if each["problems"]] == []


def rows(path: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


ORPHANS = {
    "content without a step": "select 1 from trace_content c where not exists "
    "(select 1 from trace_step s where s.server = c.server and s.seq = c.seq)",
    "content that is being purged": "select 1 from content_key where purged_at is not null",
    "a key of a day without content": "select 1 from content_key k where owner like 'day-%' and not exists "
    "(select 1 from trace_content c where c.owner = k.owner)",
    "an approval without a step": "select 1 from approval a where not exists "
    "(select 1 from trace_step s where s.approval_id = a.id)",
    "a grant of nobody": "select 1 from approval_grant where session_id = 's' and revoked_at is null",
}
LEFT = {
    "a page of a deleted stream": "select 1 from page where stream in (select id from stream where state = 'deleted')",
    "a part of one": "select 1 from part where stream in (select id from stream where state = 'deleted')",
    "a deletion that did not end": "select 1 from unswept",
}


def check_that_nothing_is_left(place: Place) -> None:
    data = place.data
    for what, sql in ORPHANS.items():
        assert place.rows(sql) == [], what
    for what, sql in LEFT.items():
        assert rows(data / "events.db", sql) == [], what
    assert len(place.rows("select id from vault_bundle")) == 1  # of the one that is kept
    assert {each.name for each in (data / "work/local").iterdir()} == {"kept"}
    assert [*(data / "discarded").glob("*")] == []
    files = [each for each in data.glob("events.db*") if each.is_file()]
    assert not any(SECRET in each.read_bytes() for each in files)


@pytest.mark.parametrize(("origin", "where"), EVERYWHERE, indirect=["origin"])
def test_nothing_is_half_deleted_where_it_is_killed(place: Place, where: tuple[str, int]) -> None:
    with dying(place.home, where, **place.env) as http:
        assert "here" in play(http, "kept", "say here")
        with pytest.raises(httpx2.HTTPError):
            http.post("/v1/prune", json=ALL)
    with next_server(place.home, **place.env) as http:
        verifies(http)
        found = http.get("/v1/sessions/s")
        assert found.status_code == (200 if where in POINTS[:2] else 404)
        if found.status_code == 200:  # then all of it is there
            assert found.json()["eventCount"] > SWEEP_PAGES
        assert "again" in play(http, "kept", "say again")
        assert pruned(http).keys() == {"sessions", "work", "content", "traces"}
        verifies(http)
        assert http.get("/v1/sessions/s").status_code == 404
        [report] = http.get("/v1/trace/verify").json()
        assert report["first"] > 9 * CALLS
        assert len(place.rows("select id from approval")) == 0
        deleted = [
            each for each in http.get("/v1/audit").json()["items"] if each["action"] == "session.deleted"
        ]
        assert [each["target"] for each in deleted] == ["s"]
        assert "on" in play(http, "kept", "say on")
    check_that_nothing_is_left(place)
