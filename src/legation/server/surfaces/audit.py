"""The audit log of the caller's workspace."""

from __future__ import annotations

from legation.server.http.access import needs
from legation.server.http.call import Call
from legation.server.http.routes import Routes
from legation.server.surfaces.paging import PageLimit
from legation.store import audit
from legation.wire.api.identity import AuditEntry
from legation.wire.api.shape import Page

routes = Routes(tag="audit")


@routes.get("/v1/audit", access=needs("manage"))
async def list_audit(call: Call, limit: PageLimit = 100, after: str | None = None) -> Page[AuditEntry]:
    """Who changed what in the workspace, the newest first."""
    found = await call.services.database.read(audit.page, call.principal.workspace, after, limit + 1)
    more = len(found) > limit
    return Page(items=found[:limit], next=found[limit - 1].id if more else None)
