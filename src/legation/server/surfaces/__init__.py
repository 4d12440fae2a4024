"""Every surface of the server. A new one is a module with its `routes`, and a name in this list."""

from typing import Final

from legation.server.surfaces import (
    audit,
    backup,
    files,
    health,
    home,
    keys,
    me,
    sign_in,
    streams,
    tokens,
    users,
    workspaces,
)

SURFACES: Final = tuple(
    module.routes
    for module in (home, health, me, sign_in, users, workspaces, tokens, audit, streams, files, keys, backup)
)
