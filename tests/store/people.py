"""Users, members and principals for the tests of identity."""

from tests.store.database.databases import Either

from legation.clock import new_id
from legation.store.database.transaction import Queries, Rows, Transaction, parse
from legation.store.identity import members, users, workspaces
from legation.store.identity.tokens import standing
from legation.store.identity.workspaces import Installation, bootstrap
from legation.wire.api.identity import NewUser, NewWorkspace
from legation.wire.principal import SCOPES, Principal, Role, Scope

NOW = 1_700_000_000_000
AUDIT = Queries("audit")


def server_of(installed: Installation) -> Principal:
    """Whoever may do everything, in the first workspace."""
    return Principal(
        kind="process",
        id="server",
        workspace=installed.workspace,
        scopes=SCOPES,
        level=2,
        user=installed.user,
    )


async def install(database: Either) -> Principal:
    return server_of(await database.transact(bootstrap, new_id("usr", now_ms=NOW), now_ms=NOW))


async def add_user(
    database: Either, by: Principal, role: Role | None = None, *, admin: bool = False, name: str = "Ada"
) -> str:
    new = NewUser(name=name, instance_admin=admin, role=role)
    return (await database.transact(users.create, by, new, user=new_id("usr", now_ms=NOW), now_ms=NOW)).id


async def add_workspace(database: Either, by: Principal, owner: str) -> str:
    made = await database.transact(
        workspaces.create,
        by,
        owner,
        NewWorkspace(name="Other"),
        workspace=new_id("wsp", now_ms=NOW),
        now_ms=NOW,
    )
    return made.id


async def sign_in(database: Either, user: str, workspace: str) -> Principal:
    found = await database.read(standing, user, workspace)
    assert found is not None
    return Principal(kind="user", id=user, workspace=workspace, scopes=found.scopes, level=2, user=user)


def token_principal(user: str, workspace: str, *scopes: Scope, level: int = 2) -> Principal:
    assert level in (0, 1, 2)
    return Principal(
        kind="token",
        id="tok_1",
        workspace=workspace,
        scopes=frozenset(scopes),
        level=level,  # type: ignore[arg-type]
        user=user,
    )


async def role_of(database: Either, workspace: str, user: str) -> Role | None:
    page = await database.read(members.page, workspace, 500)
    return next((member.role for member in page.items if member.user == user), None)


def rows_of(sql: str) -> Transaction[Rows]:
    (query,) = parse(f"-- name: rows\n{sql}")
    return (yield query())


async def actions(database: Either) -> list[str]:
    """What the audit log says was done, the oldest first, in every workspace."""
    rows = await database.read(rows_of, "select action from audit order by id")
    return [row["action"] for row in rows]
