"""Workspaces, as their members see them: of the others nobody learns even that they exist."""

from typing import Final

import msgspec
from msgspec.structs import replace

from legation.errors import NotFound, StorageFailed
from legation.store.audit import record
from legation.store.database.transaction import Queries, Row, Transaction, only, page_of
from legation.store.identity import members, users
from legation.wire.api.identity import NewUser, NewWorkspace, Workspace
from legation.wire.api.shape import Page
from legation.wire.principal import SCOPES, Principal

SQL = Queries("workspaces")


def create(
    principal: Principal, user: str, new: NewWorkspace, *, workspace: str, now_ms: int
) -> Transaction[Workspace]:
    """The user becomes its owner. Told in both logs: where it was done, and at the start of its own."""
    yield SQL.add_workspace(id=workspace, name=new.name, created_at=now_ms)
    yield from members.insert(workspace, user, "owner", now_ms)
    for where in (principal.workspace, workspace):
        actor = replace(principal, workspace=where)
        yield from record(actor, "workspace.created", workspace, {"owner": user}, now_ms)
    return (yield from get(workspace, user))


def get(workspace: str, user: str) -> Transaction[Workspace]:
    row = only((yield SQL.workspace_of_member(workspace=workspace, user=user)))
    if row is None:
        raise NotFound("cannot find the workspace; check the id among yours")
    return _read(row)


def page(user: str, limit: int, after: str = "") -> Transaction[Page[Workspace]]:
    rows = yield SQL.workspaces_of_member(user=user, after=after, most=limit + 1)
    return page_of(rows, limit, _read, lambda workspace: workspace.id)


def _read(row: Row) -> Workspace:
    return Workspace(
        id=row["id"],
        name=row["name"],
        status=row["status"],
        role=row["role"],
        created_at=row["created_at"],
    )


LOCAL: Final = "local"
OWNER_NAME: Final = "owner"


class Installation(msgspec.Struct, frozen=True):
    """`user` owns `workspace`; in their name the server's own credentials act."""

    workspace: str
    user: str
    created: bool  # by this call


def bootstrap(user: str, *, now_ms: int) -> Transaction[Installation]:
    """Make the first workspace and its owner, once, however many servers start at the same moment. `user` is the id that
    the owner gets if there is none yet."""
    if not (yield SQL.claim_workspace(id=LOCAL, name="Local", created_at=now_ms)):
        owner = yield from members.first_owner(LOCAL)
        if owner is None:
            raise StorageFailed(
                f"cannot start: workspace {LOCAL} has no owner; restore a backup of the database"
            )
        return Installation(LOCAL, owner, created=False)
    yield from users.insert(NewUser(name=OWNER_NAME, instance_admin=True), user=user, now_ms=now_ms)
    yield from members.insert(LOCAL, user, "owner", now_ms)
    actor = Principal(kind="process", id="server", workspace=LOCAL, scopes=SCOPES, level=2, user=user)
    yield from record(actor, "workspace.created", LOCAL, {"owner": user}, now_ms)
    yield from record(actor, "user.created", user, {"admin": True}, now_ms)
    return Installation(LOCAL, user, created=True)
