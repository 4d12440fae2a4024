"""The one agent process of a connection: started when it is needed, and again when it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from legation.errors import TimedOut
from legation.host.host import AcpHost
from legation.host.launch import Launch
from legation.server.sessions.starting import start
from legation.wire.hoststream import AgentUpdated

RESTART_WAIT: Final = 60.0  # seconds for an agent that the host starts again: the agent's time
LOOK: Final = 0.05  # seconds between two looks at it

Define = Callable[[], Awaitable[Launch]]


class Seat:
    """`host` is that of the workspace; `define` says how the agent is started, as it is now."""

    def __init__(
        self, host: Callable[[], Awaitable[AcpHost]], define: Define, terminals: Callable[[], bool]
    ) -> None:
        """`terminals`: whether the client has any, to be offered to the agent."""
        self._host = host
        self._define = define
        self._terminals = terminals
        self._starting = asyncio.Lock()
        self._agent_id: str | None = None
        self._left = False

    @property
    def agent_id(self) -> str | None:
        return self._agent_id

    async def host(self) -> AcpHost:
        return await self._host()

    async def ready(self) -> AgentUpdated:
        """Its agent, running."""
        async with self._starting:
            host = await self._host()
            found = await self._settled(host)
            if found is None or found.status != "ready":
                if self._agent_id is not None:
                    await host.dispose_agent(self._agent_id)
                found = await self._spawned(host)
            return found

    async def _spawned(self, host: AcpHost) -> AgentUpdated:
        found = await start(host, await self._define(), terminals=self._terminals())
        self._agent_id = found.agent_id
        if self._left:  # the client went away while it started
            await host.dispose_agent(found.agent_id)
        return found

    async def _settled(self, host: AcpHost) -> AgentUpdated | None:
        """As it is when the host has done with it; a process that did not obey is replaced by the host itself."""
        try:
            async with asyncio.timeout(RESTART_WAIT):
                while (found := host.get_agent(self._agent_id or "")) and _passes(found):  # noqa: ASYNC110
                    await asyncio.sleep(LOOK)
                return found
        except TimeoutError:
            raise TimedOut(
                "cannot use the agent: it is being started again for too long; try later"
            ) from None

    async def rest(self) -> None:
        """Its agent is stopped, until it is needed again; not in a turn, which may be another's: its sessions take messages
        too."""
        async with self._starting:
            host = await self._host()
            if self._agent_id is not None and not host.is_busy(self._agent_id):
                await host.dispose_agent(self._agent_id)
                self._agent_id = None

    async def retire(self) -> None:
        """Others who have a session of it wait until it has gone, and get another agent; `leave` follows."""
        self._left = True
        if self._agent_id is not None:
            (await self._host()).retire_agent(self._agent_id)

    async def leave(self) -> None:
        """Its process group is ended; what sessions it had are disconnected, and stay."""
        self._left = True
        if self._agent_id is not None:
            await (await self._host()).dispose_agent(self._agent_id)


def _passes(agent: AgentUpdated) -> bool:
    return agent.status in ("starting", "restarting") or (
        agent.status == "exited" and agent.reason == "stopped"
    )
