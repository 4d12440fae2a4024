"""MCP servers of a session, as OpenCode is told of them."""

from __future__ import annotations

from typing import Any

from legation.agents.opencode.shape import Native
from legation.wire.acp.mcp import McpServer


class McpStatus(Native):
    status: str
    error: str | None = None


def mcp_config(server: McpServer) -> dict[str, Any]:
    if server.type == "stdio":
        return {
            "type": "local",
            "command": [server.command or "", *(server.args or ())],
            "environment": {each.name: each.value for each in server.env or ()},
            "enabled": True,
        }
    return {
        "type": "remote",
        "url": server.url or "",
        "headers": {each.name: each.value for each in server.headers or ()},
        "oauth": False,  # nobody is there to open a browser
        "enabled": True,
    }
