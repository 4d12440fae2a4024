"""The settings file of one turn: it takes the place of the user's, and may hold keys of MCP servers.

INV-S1  Only its owner can read it.
INV-S2  Every call of a tool is delegated to us, and nothing is updated, shared or opened to others behind our back.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from legation.wire import jsontext
from legation.wire.acp.mcp import McpServer

# Tools by which the model would change what gates it.
_DISABLED: Final = ("load_plugin", "reload_plugins", "update_setting")


def write_settings(folder: Path, delegate: Path, servers: tuple[McpServer, ...]) -> Path:
    settings = {
        "amp.permissions": [{"tool": "*", "action": "delegate", "to": str(delegate)}],
        "amp.dangerouslyAllowAll": False,
        "amp.mcpServers": {server.name: _described(server) for server in servers},
        "amp.tools.disable": [f"builtin:{name}" for name in _DISABLED],
        "amp.updates.mode": "disabled",
        "amp.notifications.enabled": False,
        "amp.remoteThreadCreation.enabled": False,
    }
    path = folder / "settings.json"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(jsontext.write(settings))
    return path


def _described(server: McpServer) -> Mapping[str, object]:
    if server.type != "stdio":
        return {"url": server.url, "headers": {each.name: each.value for each in server.headers or ()}}
    variables = {each.name: each.value for each in server.env or ()}
    return {"command": server.command, "args": list(server.args or ()), "env": variables}
