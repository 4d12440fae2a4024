"""Operations on trusted folders: where what a repository says to agents counts."""

from __future__ import annotations

from legation.client.operation import Operation, get, nothing, sending
from legation.client.target import segment
from legation.wire.api.shape import Page
from legation.wire.api.trust import NewTrust, TrustView


def list_trusted() -> Operation[Page[TrustView]]:
    """Folders of the server's machine that the workspace trusts, by path."""
    return get("/v1/trust", Page[TrustView])


def trust_folder(folder: str) -> Operation[TrustView]:
    """The configuration for agents in it counts: hooks, allow rules, MCP servers. An absolute path of the server's
    machine. It takes a person."""
    return sending("POST", "/v1/trust", NewTrust(folder=folder), TrustView)


def untrust_folder(trust: str) -> Operation[None]:
    """By its id. Agents that run keep what they have read."""
    return Operation("DELETE", f"/v1/trust/{segment(trust)}", nothing)
