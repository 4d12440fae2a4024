"""Every surface of the server. A new one is a module with its `routes`, and a name in this list."""

from typing import Final

from legation.server.surfaces import (
    acp,
    agents,
    approvals,
    audit,
    backup,
    files,
    fs,
    grants,
    health,
    home,
    keys,
    left_out,
    me,
    policy,
    processes,
    session_events,
    sessions,
    sign_in,
    streams,
    tokens,
    tools,
    traces,
    trust,
    users,
    workspaces,
)

SURFACES: Final = tuple(
    module.routes
    for module in (
        home,
        health,
        me,
        sign_in,
        users,
        workspaces,
        tokens,
        audit,
        streams,
        files,
        keys,
        backup,
        approvals,
        grants,
        traces,
        policy,
        tools,
        trust,
        agents,
        sessions,
        session_events,
        fs,
        processes,
        acp,
        left_out,
    )
)

# What the mesh port serves.
MESH: Final = tuple(module.routes for module in (approvals, grants, traces))
