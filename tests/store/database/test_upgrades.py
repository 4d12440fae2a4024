"""A database of an earlier release, with data in it, brought up to this one."""

from pathlib import Path

import pytest
from tests.approvals.installation import NOW, Installation
from tests.postgres import EMPTY
from tests.store.database.databases import BOTH, make
from tests.store.installation import add_workspaces, new_sealer

from legation.approvals.transitions import get
from legation.store.database import migrations
from legation.store.database.transaction import Rows, Transaction, parse

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
async def test_approvals_of_before_the_door_are_kept_and_usable(
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
        answered = await installation.answer(kept)
        assert answered.status == "approved"
