"""Operations on the agents of a server."""

from __future__ import annotations

from dataclasses import replace

from legation.client.operation import AsJson, Operation, get, sending
from legation.client.target import segment
from legation.client.timeouts import ASK_AGENT_READ, INSTALL_READ
from legation.wire.api.agents import (
    AgentInfo,
    AgentInstall,
    AgentInstalled,
    AgentList,
    ModeInfo,
    ModeList,
    ModelList,
)


def list_agents() -> Operation[list[AgentInfo]]:
    """Those that the server knows, here or not."""
    return Operation("GET", "/v1/agents", lambda answered: _agents(answered).agents)


def install_agent(agent: str, *, reinstall: bool = False) -> Operation[AgentInstalled]:
    """Returns when it is there. What is there already stays, unless it is to be installed anew."""
    path, body = f"{_agent(agent)}/install", AgentInstall(reinstall=reinstall)
    return replace(sending("POST", path, body, AgentInstalled), wait=INSTALL_READ)


def agent_modes(agent: str) -> Operation[list[ModeInfo]]:
    """What `agent_mode` may be."""
    return Operation(
        "GET", f"{_agent(agent)}/modes", lambda answered: _modes(answered).modes, wait=ASK_AGENT_READ
    )


def agent_models(agent: str) -> Operation[ModelList]:
    """What `model` may be, and `variant` with it."""
    return replace(get(f"{_agent(agent)}/models", ModelList), wait=ASK_AGENT_READ)


def _agent(agent: str) -> str:
    return f"/v1/agents/{segment(agent)}"


_agents = AsJson(AgentList)
_modes = AsJson(ModeList)
