"""A database of an earlier release, with data in it, brought up to this one."""

from pathlib import Path

import pytest
from tests.approvals.installation import NOW, Installation
from tests.postgres import EMPTY
from tests.runs.rig import CountingProvider, Rig
from tests.store.database.databases import BOTH, make
from tests.store.installation import add_workspaces, new_sealer

from legation.approvals import grants
from legation.approvals.listing import views
from legation.approvals.policy.facts import Facts
from legation.approvals.queue import ApprovalQueue
from legation.approvals.transitions import Unheard, get
from legation.approvals.upkeep import SignsOfLife, supersede_lost
from legation.runs.states import RunState
from legation.secret import Secret
from legation.server import inbox
from legation.store.database import migrations
from legation.store.database.transaction import Rows, Transaction, parse
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


@pytest.mark.parametrize("dialect", BOTH)
async def test_an_approval_that_was_pending_is_kept_and_superseded_for_nobody_waits_any_more(
    dialect: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = migrations.chain()
    async with make(dialect, tmp_path, request, template=EMPTY) as database:
        with monkeypatch.context() as earlier:
            earlier.setattr(migrations, "chain", lambda: newest[:2])
            earlier.setattr(migrations, "newest", lambda: 2)
            await database.migrate()
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
        with monkeypatch.context() as earlier:
            earlier.setattr(migrations, "chain", lambda: newest[:before])
            earlier.setattr(migrations, "newest", lambda: before)
            await database.migrate()
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
        with monkeypatch.context() as earlier:
            earlier.setattr(migrations, "chain", lambda: newest[:before])
            earlier.setattr(migrations, "newest", lambda: before)
            await database.migrate()
        await add_workspaces(database)
        await database.transact(_run, KEY)
        await database.migrate()
        known = "select null_frac from pg_stats where tablename = 'content_key' and attname = 'purged_at'"
        assert [row["null_frac"] for row in await database.read(_run, known)] == [1]


LANDED = 7  # the newest migration of the release before durable runs


@pytest.mark.parametrize("dialect", BOTH)
async def test_a_database_of_before_durable_runs_takes_runs_and_keeps_what_it_had(
    dialect: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest, sealer = migrations.chain(), new_sealer()
    async with make(dialect, tmp_path, request, template=EMPTY) as database:
        with monkeypatch.context() as earlier:
            earlier.setattr(migrations, "chain", lambda: newest[:LANDED])
            earlier.setattr(migrations, "newest", lambda: LANDED)
            await database.migrate()
        await add_workspaces(database)
        await database.transact(_run, PENDING)
        rig = Rig(database, CountingProvider(tmp_path / "things"), sealer)
        kept = await rig.vault.put("local", "before", {"KEY": Secret("a-key-of-before", "KEY")})
        await database.transact(rig.content.append, "local", "before", "events", 1, 1, b"said before")
        assert [each.number for each in await database.migrate()] == [*range(LANDED + 1, len(newest) + 1)]
        assert await database.migrate() == []
        async with rig.working(rig.worker()):
            run = await rig.until(await rig.submit())
        assert (run.state, run.secret_id) == (RunState.SUCCEEDED, None)
        assert (await rig.vault.open("local", "before", kept))["KEY"].reveal() == "a-key-of-before"
        (page,) = await rig.content.read("local", "before", "events")
        assert page.plain == b"said before"
        assert (await database.read(get, "local", "apr_old")).status == "pending"
