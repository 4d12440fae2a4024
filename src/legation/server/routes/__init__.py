"""Every route of the server. A new group is a module with its `routes`, and a name in this list."""

from typing import Final

from legation.server.routes import (
    acp,
    agents,
    approvals,
    asks,
    config,
    dashboard,
    files,
    identity,
    inbox,
    policy,
    processes,
    runners,
    runs,
    server,
    sessions,
    sign_in,
    streams,
    tools,
    traces,
    trust,
)

ROUTES: Final = (
    server.routes,
    dashboard.routes,
    identity.routes,
    sign_in.routes,
    identity.users_routes,
    identity.workspaces_routes,
    identity.tokens_routes,
    identity.audit_routes,
    streams.routes,
    files.blob_routes,
    approvals.routes,
    approvals.grants_routes,
    inbox.routes,
    traces.routes,
    policy.routes,
    tools.routes,
    asks.routes,
    trust.routes,
    agents.routes,
    sessions.routes,
    sessions.event_routes,
    files.routes,
    config.routes,
    processes.routes,
    acp.routes,
    runners.routes,
    runs.routes,
    runs.templates_routes,
    server.left_out_routes,
)

# What the mesh port serves.
MESH_ROUTES: Final = (approvals.routes, approvals.grants_routes, traces.routes)
