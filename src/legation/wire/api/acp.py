"""Connections of ACP clients, as sandbox-agent 0.4 lists them."""

from __future__ import annotations

from legation.wire.api.shape import Answer


class AcpServer(Answer, kw_only=True):
    server_id: str
    agent: str
    created_at_ms: int


class AcpServers(Answer, kw_only=True):
    servers: list[AcpServer]
