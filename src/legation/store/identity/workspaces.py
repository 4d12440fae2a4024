"""Workspaces, as their members see them: of the others nobody learns even that they exist."""

from dataclasses import replace

from legation.errors import NotFound
from legation.store.audit import record
from legation.store.database.queries import Queries
from legation.store.database.transaction import Row, Transaction, only
from legation.store.identity import members
from legation.store.identity.page import page_of
from legation.wire.api.identity import NewWorkspace, Workspace
from legation.wire.api.shape import Page
from legation.wire.principal import Principal

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
