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


def offers(client: Mapping[str, object], *path: str) -> bool:
    """Whether a client said that it has this; `{}` says so, null and false do not."""
    found: object = client
    for name in path:
        if not isinstance(found, Mapping):
            return False
        found = found.get(name)
    return found is not None and found is not False


def what_counts(client: Mapping[str, object]) -> dict[str, object]:
    """The part of a client's capabilities that counts here, in the protocol's own form."""
    return {
        "fs": {name: offers(client, "fs", name) for name in ("readTextFile", "writeTextFile")},
        "terminal": offers(client, "terminal"),
        "elicitation": {name: {} for name in ("form", "url") if offers(client, "elicitation", name)},
    }
