"""What Legation offers as an agent: what the agent behind it can, and what our own log can do for it."""

from __future__ import annotations

from collections.abc import Mapping

from legation import __version__
from legation.wire.acp.shape import PROTOCOL_VERSION
from legation.wire.hoststream import AgentUpdated


def hello(agent: str, found: AgentUpdated) -> dict[str, object]:
    """The answer to `initialize`. Members of the agent's that we do not know are passed on as they are."""
    return {
        "protocolVersion": PROTOCOL_VERSION,
        "agentCapabilities": capabilities(found.capabilities or {}),
        "agentInfo": {"name": "legation", "title": f"Legation ({agent})", "version": __version__},
        "authMethods": list(found.auth_methods or ()),
        "_meta": {"legation": {"agent": agent}},
    }


def capabilities(of_agent: Mapping[str, object]) -> dict[str, object]:
    """Sessions are listed, closed and deleted by us; loading is told from our log, once the agent has it again."""
    sessions = of_agent.get("sessionCapabilities")
    can = dict(sessions) if isinstance(sessions, Mapping) else {}
    reopens = of_agent.get("loadSession") is True or can.get("resume") is not None
    can |= {"list": {}, "close": {}, "delete": {}}
    can.pop("resume", None)
    if reopens:
        can["resume"] = {}
    return {**of_agent, "loadSession": reopens, "sessionCapabilities": can}
