"""Grants: for a bounded time agents use tools without asking. People give and revoke them; whoever may read sees them."""

from __future__ import annotations

from legation.approvals import grants
from legation.approvals.grants import new_grant_id
from legation.errors import Conflict, NotFound
from legation.server.http.access import needs
from legation.server.http.call import Call, Reply
from legation.server.http.routes import Routes
from legation.server.surfaces.arrays import listed
from legation.server.surfaces.paging import PageLimit
from legation.wire.api.approvals import GrantView, NewGrant
from legation.wire.api.shape import Page

routes = Routes(tag="grants")


@routes.get("/grants", access=needs("read"))
async def list_grants(call: Call, limit: PageLimit = 100, after: str | None = None) -> Reply[list[GrantView]]:
    """Every grant on record, ended or not, the newest first. The Link header leads to the next part."""
    services, workspace = call.services, call.principal.workspace
    page = await services.database.read(grants.page, workspace, limit, after)
    items = await services.grants.views(workspace, page.items, services.clock.now_ms())
    return listed(call, Page(items=items, next=page.next))


@routes.post("/grants", access=needs("approve"), status=201)
async def give_grant(call: Call, body: NewGrant) -> GrantView:
    """Let agents (a pattern) use tools (a pattern) without asking, for a bounded time. It takes a person.

    What a policy denies stays denied. What waits already and would have passed with it passes now."""
    services, now = call.services, call.services.clock.now_ms()
    giving = services.database.transact(
        services.grants.give, call.principal, body, grant=new_grant_id(now), now_ms=now
    )
    grant = await services.inbox.granting(call.principal.workspace, giving)
    return grant.view(body.reason, now)


@routes.get("/grants/{grant}", access=needs("read"), errors=(NotFound,))
async def read_grant(call: Call, grant: str) -> GrantView:
    """One grant."""
    services, workspace = call.services, call.principal.workspace
    found = await services.database.read(grants.get, workspace, grant)
    (view,) = await services.grants.views(workspace, [found], services.clock.now_ms())
    return view


@routes.delete("/grants/{grant}", access=needs("approve"), errors=(NotFound, Conflict))
async def revoke_grant(call: Call, grant: str) -> None:
    """Revoke a grant: from then on it lets nothing pass. It takes a person."""
    services = call.services
    await services.database.transact(services.grants.revoke, call.principal, grant, services.clock.now_ms())
