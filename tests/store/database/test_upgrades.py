"""A database of an earlier release, with data in it, brought up to this one."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.approvals.installation import NOW, Installation
from tests.postgres import EMPTY, Postgres
from tests.runs.rig import CountingProvider, Rig, folder_blobs, tell, until_packed
from tests.store.database.databases import BOTH, Either, make
from tests.store.installation import add_workspaces, new_sealer

from legation.approvals import grants
from legation.approvals.listing import views
from legation.approvals.policy.facts import Facts
from legation.approvals.queue import ApprovalQueue
from legation.approvals.trace.chain import verify
from legation.approvals.transitions import Unheard, get
from legation.approvals.upkeep import SignsOfLife, supersede_lost
from legation.runs.events import RunEventStore
from legation.runs.packs import EventPacks
from legation.runs.run import PACKING
from legation.runs.states import RunState
from legation.secret import Secret
from legation.server import inbox
from legation.store.database import migrations, postgres
from legation.store.database.postgres import PostgresDatabase
from legation.store.database.transaction import Rows, Transaction, parse
from legation.store.secrets.sealer import KeyRing, Sealer, encode, make_key
from legation.testing.clock import FakeClock
from legation.wire.action import Action

pytestmark = pytest.mark.heavy

# As 0002 had it: a pending approval of before the door.
PENDING = f"""
insert into approval (
  id, workspace_id, trace_id, waiter, requester_kind, requester, agent, tool, kind, action_digest, policy_version,
  policy_rule, verdict, needs, injection_risk, argument_bytes, argument_names, content_owner, group_key, status,
  created_at, expires_at
) values (
  'apr_old', 'local', '{"0" * 31}1', 'prc_0', 'token', 'tok_1', 'claude', 'fs.write', 'edit', 'd', 'v1', 'p:r',
  'supervisor', 'supervisor', 0, 2, 'path', 'day', 'g', 'pending', {NOW}, {NOW + 60_000}
)"""


def _run(text: str) -> Transaction[Rows]:
    (query,) = parse(f"-- name: run\n{text}")
    return (yield query())


async def migrate_to(number: int, database: Either, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bring it up to an earlier schema."""
    newest = migrations.chain()
    with monkeypatch.context() as earlier:
        earlier.setattr(migrations, "chain", lambda: newest[:number])
        earlier.setattr(migrations, "newest", lambda: number)
        await database.migrate()


@pytest.mark.parametrize("dialect", BOTH)
async def test_an_approval_that_was_pending_is_kept_and_superseded_for_nobody_waits_any_more(
    dialect: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = migrations.chain()
    async with make(dialect, tmp_path, request, template=EMPTY) as database:
        await migrate_to(2, database, monkeypatch)
        await add_workspaces(database)
        await database.transact(_run, PENDING)
        applied = await database.migrate()
        assert [migration.number for migration in applied] == list(range(3, len(newest) + 1))
        installation = Installation(database, new_sealer())
        kept = await database.read(get, "local", "apr_old")
        assert (kept.status, kept.editable) == ("pending", False)
        # It was waited for by a process of before the upgrade, which is gone.
        with pytest.raises(Unheard):
            await installation.answer(kept)
        inbox = ApprovalQueue(installation.ledger, FakeClock(), "prc_new")
        assert await supersede_lost(inbox, SignsOfLife()) == 1
        (view,) = await views(database, installation.sealer, "local", [await installation.get(kept)], NOW + 1)
        assert view.status == "superseded"
        assert view.why == "the server was restarted while it waited for an answer"


# What a server of the landed release (schema 7) left in its tables when it was killed: a call denied, one approved and one
# allowed whose tool was at work, two calls and a session's agent that waited. Sealed with the key 0, 1, 2, ... 31.
LANDED = Path(__file__).with_name("landed.json")
LANDED_SCHEMA = 7
CHANGED = ("approval", "acting", "waiter", "approval_grant")  # tables that a migration since has changed


def _fill(table: str, given: list[dict[str, Any]]) -> Transaction[None]:
    for row in given:
        (query,) = parse(
            f"-- name: fill\ninsert into {table} ({', '.join(row)}) values ({', '.join(f':{name}' for name in row)})"
        )
        yield query(**row)


def _landed() -> dict[str, list[dict[str, Any]]]:
    def read(value: dict[str, Any]) -> Any:
        return bytes.fromhex(value["hex"]) if value.keys() == {"hex"} else value

    found: dict[str, list[dict[str, Any]]] = json.loads(LANDED.read_text(), object_hook=read)
    return found


def _said(found: Iterable[Mapping[str, Any]]) -> list[str]:
    """What rows say, in one order."""
    return sorted(repr(sorted(each for each in row.items() if each[1] is not None)) for row in found)


@pytest.mark.parametrize("dialect", BOTH)
async def test_what_a_landed_server_left_when_it_was_killed_is_all_there_and_nobody_waits(
    dialect: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest, tables = migrations.chain(), _landed()
    async with make(dialect, tmp_path, request, template=EMPTY) as database:
        await migrate_to(LANDED_SCHEMA, database, monkeypatch)
        for table, given in tables.items():
            await database.transact(_fill, table, given)
        applied = await database.migrate()
        assert [migration.number for migration in applied] == [*range(LANDED_SCHEMA + 1, len(newest) + 1)]
        for table in tables.keys() - set(CHANGED):
            kept = [dict(row) for row in await database.read(_run, f"select * from {table}")]
            assert _said(kept) == _said(tables[table]), table

        sealer = Sealer(KeyRing(make_key(Secret(encode(bytes(range(32))), "vault-key"))))
        installation, now = Installation(database, sealer), tables["approval"][-1]["created_at"] + 1
        queue = ApprovalQueue(installation.ledger, FakeClock(now), "prc_new")
        assert await supersede_lost(queue, SignsOfLife()) == 1
        before = {row["id"]: row for row in tables["approval"]}
        after = {approval: await database.read(get, "local", approval) for approval in before}
        assert [row["status"] for row in before.values()].count("pending") == 3
        for approval, row in before.items():
            waited = row["status"] == "pending"
            assert after[approval].status == ("superseded" if waited else row["status"])
            assert after[approval].consumed_at == row.get("consumed_at")
            if waited:
                (view,) = await views(database, sealer, "local", [after[approval]], now)
                assert view.why == "the server was restarted while it waited for an answer"
        assert await database.read(_run, "select * from acting") == []
        steps = "select trace_id from trace_step where reason = 'outcome-unknown'"
        unknown = {row["trace_id"] for row in await database.read(_run, steps)}
        assert unknown == {row["trace_id"] for row in tables["acting"]}
        assert {json.dumps(each.params) for each in await installation.entries(tool="db.write")} == {
            f'{{"n": {number}}}' for number in (0, 1, 3)
        }
        for (server,) in await database.read(_run, "select distinct server from trace_head"):
            report = await verify(database, sealer, "local", server)
            assert (report.faults, report.steps > 0) == ((), True)


GRANT = f"""
insert into approval_grant (
  id, workspace_id, agent, tools, created_at, expires_at, granted_kind, granted_by
) values ('grt_old', 'local', 'claude', 'fs.*', {NOW}, {NOW + 60_000}, 'user', 'usr_1')"""
ITEM = f"""
insert into inbox_item (workspace_id, id, kind, section, state, session_id, server, since)
values ('local', 'S', 'session', 'ready', 'ended', 'S', 'srv', {NOW})"""


@pytest.mark.parametrize("dialect", BOTH)
async def test_a_grant_of_before_the_inbox_is_for_every_folder_and_the_inbox_is_empty(
    dialect: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = migrations.chain()
    before = next(each.number for each in newest if each.name == "inbox") - 1
    async with make(dialect, tmp_path, request, template=EMPTY) as database:
        await migrate_to(before, database, monkeypatch)
        await add_workspaces(database)
        await database.transact(_run, GRANT)
        await database.migrate()
        kept = await database.read(grants.get, "local", "grt_old")
        assert (kept.folder, kept.session_id) == (None, None)
        action = Action(agent="claude", tool="fs.write", paths=("/anywhere/a",))
        assert kept.covers(action, None, Facts())
        assert await database.read(inbox.unseen, "local", "ready", "usr_1") == []
        await database.transact(_run, ITEM)
        assert [row["id"] for row in await database.read(inbox.unseen, "local", "ready", "usr_1")] == ["S"]
        assert await database.transact(inbox.forget, NOW + inbox.KEPT_MS) == 0
        assert await database.transact(inbox.forget, NOW + inbox.KEPT_MS + 1) == 1
        assert await database.read(inbox.unseen, "local", "ready", "usr_1") == []


KEY = """
insert into content_key (workspace_id, owner, key_id, wrapped_key, created_at)
values ('local', 'day-2026-01-02', 'key', cast('' as bytea), 0)"""


async def test_what_an_update_adds_to_a_table_postgres_knows_of_at_once(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = migrations.chain()
    before = next(each.number for each in newest if each.name == "retention") - 1
    async with make("postgres", tmp_path, request, template=EMPTY) as database:
        await migrate_to(before, database, monkeypatch)
        await add_workspaces(database)
        await database.transact(_run, KEY)
        await database.migrate()
        known = "select null_frac from pg_stats where tablename = 'content_key' and attname = 'purged_at'"
        assert [row["null_frac"] for row in await database.read(_run, known)] == [1]


async def test_no_table_of_a_new_postgres_is_known_to_be_empty(postgres: Postgres) -> None:
    """One that is, is read whole for each row that names it: by the plan of a foreign key, which a connection makes once."""
    async with PostgresDatabase(postgres.new_database()) as database:
        await database.migrate()
        async with database._connection() as connection:
            empty = await connection.fetch(
                "select relname from pg_class where relkind = 'r' and reltuples = 0 and relnamespace = 'legation'::regnamespace"
            )
    assert [row["relname"] for row in empty] == []


@pytest.mark.parametrize("dialect", BOTH)
async def test_a_database_of_before_durable_runs_takes_runs_and_keeps_what_it_had(
    dialect: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest, sealer = migrations.chain(), new_sealer()
    async with make(dialect, tmp_path, request, template=EMPTY) as database:
        await migrate_to(LANDED_SCHEMA, database, monkeypatch)
        await add_workspaces(database)
        await database.transact(_run, PENDING)
        rig = Rig(database, CountingProvider(tmp_path / "things"), sealer)
        kept = await rig.vault.put("local", "before", {"KEY": Secret("a-key-of-before", "KEY")})
        await database.transact(rig.content.append, "local", "before", "events", 1, 1, b"said before")
        assert [each.number for each in await database.migrate()] == [
            *range(LANDED_SCHEMA + 1, len(newest) + 1)
        ]
        assert await database.migrate() == []
        async with rig.working(rig.worker()):
            run = await rig.until(await rig.submit())
        assert (run.state, run.secret_id) == (RunState.SUCCEEDED, None)
        assert (await rig.vault.open("local", "before", kept))["KEY"].reveal() == "a-key-of-before"
        (page,) = await rig.content.read("local", "before", "events")
        assert page.plain == b"said before"
        assert (await database.read(get, "local", "apr_old")).status == "pending"


BEFORE_PACKS = 14


@pytest.mark.parametrize("dialect", BOTH)
async def test_runs_that_ended_before_packs_are_packed_and_those_under_way_go_on(
    dialect: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make(dialect, tmp_path, request, template=EMPTY) as database:
        await migrate_to(BEFORE_PACKS, database, monkeypatch)
        await add_workspaces(database)
        rig = Rig(database, CountingProvider(tmp_path / "things"))
        ended, waits = await rig.submit(), await rig.submit()
        told = [await tell(rig, each) for each in (ended, waits)]
        # As the landed worker left one that had ended.
        done = "state = 'succeeded', outcome = 'succeeded', ended_at = 7, machine = '', next_check_at = null"
        await database.transact(_run, f"update run set {done} where id = '{ended}'")
        await database.migrate()
        run = await rig.run(ended)
        assert (run.machine, run.next_check_at, (await rig.run(waits)).machine) == (PACKING, 7, "")
        blobs = folder_blobs(tmp_path)
        async with rig.working(rig.worker(packs=EventPacks(database, rig.content, blobs))):
            await until_packed(rig, ended)
            await rig.until(waits)
        store = RunEventStore(database, rig.content, blobs)
        assert [await store.read("local", each, 0) for each in (ended, waits)] == told


async def test_an_update_may_take_longer_than_any_statement_of_a_request(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index over years of record: the update was given up after a minute, at every try."""
    newest = migrations.chain()
    slow = migrations.Migration(len(newest) + 1, "slow", "select pg_sleep(6); create table slow (id {int})")
    with monkeypatch.context() as impatient:
        impatient.setattr(postgres, "COMMAND_LIMIT", 5.0)
        async with make("postgres", tmp_path, request) as database:
            impatient.setattr(migrations, "chain", lambda: (*newest, slow))
            impatient.setattr(migrations, "newest", lambda: slow.number)
            assert [each.name for each in await database.migrate()] == ["slow"]
            assert await database.version() == slow.number
