"""Starting an agent's process, with its key: there is one that is ready for sessions, or none."""

from __future__ import annotations

import asyncio

from legation.host.host import AcpHost
from legation.host.launch import Launch
from legation.wire.hoststream import AgentUpdated


async def start(host: AcpHost, launch: Launch, *, terminals: bool = False) -> AgentUpdated:
    try:
        started = await host.spawn_agent(launch.definition, terminals=terminals)
    except BaseException:
        await asyncio.shield(_forget_failed(host))
        raise
    offered = {str(each.get("id")) for each in started.auth_methods or ()}
    if launch.key_method in offered:
        try:
            await host.authenticate(started.agent_id, str(launch.key_method))
        except BaseException:
            await asyncio.shield(host.dispose_agent(started.agent_id))
            raise
    return started


async def _forget_failed(host: AcpHost) -> None:
    """Agents that never came to life: whoever wanted one is told, and nothing is to be known of it."""
    for agent in host.get_agents():
        if agent.reason in ("spawn-failed", "initialize-failed"):
            await host.dispose_agent(agent.agent_id)
