"""Workspaces and their members.

The path's workspace is the principal's: `auth.py` looks at it for whoever may be in several. Any other, foreign
or not there at all, is not found.
"""

from __future__ import annotations

import msgspec

from legation.errors import Conflict, NotFound, RateLimited
from legation.ids import new_id
from legation.server.http.access import PEOPLE, needs
from legation.server.http.call import Call
from legation.server.http.routes import Routes
from legation.server.identity.rates import WORKSPACES, limit_caller
from legation.server.surfaces.paging import PageLimit
from legation.store.identity import members, workspaces
from legation.store.identity.standing import person_behind
from legation.wire.api.identity import Member, NewRole, NewWorkspace, Workspace
from legation.wire.api.shape import Page

routes = Routes(tag="workspaces")


@routes.get("/v1/workspaces", access=needs("read"))
async def list_workspaces(call: Call, limit: PageLimit = 100, after: str = "") -> Page[Workspace]:
    """Those that the caller is a member of; with a token, the token's own."""
    user, database = person_behind(call.principal), call.services.database
    if call.principal.kind in PEOPLE:
        return await database.read(workspaces.page, user, limit, after)
    own = await _own(call)
    return Page(items=[own] if own.id > after else [])


@routes.post("/v1/workspaces", access=needs("instance"), status=201, errors=(RateLimited,))
async def create_workspace(call: Call, body: NewWorkspace) -> Workspace:
    """Create a workspace; the caller becomes its owner."""
    await limit_caller(call, "workspaces", WORKSPACES)
    now = call.services.clock.now_ms()
    created = await call.services.database.transact(
        workspaces.create,
        call.principal,
        person_behind(call.principal),
        body,
        workspace=new_id("wsp", now_ms=now),
        now_ms=now,
    )
    await call.services.changes.open(created.id)
    return created


@routes.get("/v1/workspaces/{workspace}", access=needs("read"), errors=(NotFound,))
async def read_workspace(call: Call, workspace: str) -> Workspace:
    """One workspace that the caller is a member of; `role` is null for a token, which has scopes instead."""
    _must_be_own(call, workspace)
    return await _own(call)


@routes.get("/v1/workspaces/{workspace}/members", access=needs("read"), errors=(NotFound,))
async def list_members(call: Call, workspace: str, limit: PageLimit = 100, after: str = "") -> Page[Member]:
    """The members of a workspace."""
    _must_be_own(call, workspace)
    return await call.services.database.read(members.page, workspace, limit, after)


@routes.put("/v1/workspaces/{workspace}/members/{user}", access=needs("manage"), errors=(NotFound, Conflict))
async def set_member(call: Call, workspace: str, user: str, body: NewRole) -> Member:
    """Make a user a member, or give a member another role.

    The last owner cannot be demoted."""
    _must_be_own(call, workspace)
    member = await call.services.database.transact(
        members.put, call.principal, user, body.role, now_ms=call.services.clock.now_ms()
    )
    await call.services.shut_out()
    return member


@routes.delete(
    "/v1/workspaces/{workspace}/members/{user}", access=needs("manage"), errors=(NotFound, Conflict)
)
async def remove_member(call: Call, workspace: str, user: str) -> None:
    """Remove a member, and revoke the tokens that they made in the workspace.

    The last owner cannot be removed."""
    _must_be_own(call, workspace)
    await call.services.database.transact(
        members.remove, call.principal, user, now_ms=call.services.clock.now_ms()
    )
    await call.services.shut_out()


async def _own(call: Call) -> Workspace:
    found = await call.services.database.read(
        workspaces.get, call.principal.workspace, person_behind(call.principal)
    )
    if call.principal.kind in PEOPLE:
        return found
    return msgspec.structs.replace(found, role=None)  # the one that is read is its maker's


def _must_be_own(call: Call, workspace: str) -> None:
    if workspace != call.principal.workspace:
        raise NotFound("cannot find the workspace; check the id among yours")
