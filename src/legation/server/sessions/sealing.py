"""MCP servers of sessions, sealed in the vault while and after their session is made.

INV-L1  What is sealed has a session on record, or is destroyed: now, or at the next start of a server that was killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

from legation.clock import Clock
from legation.ids import new_id
from legation.server.sessions.details import Sealed
from legation.server.sessions.unsettled import Owner, Unsettled
from legation.store.vault import Vault
from legation.wire.acp.mcp import McpServer


class Sealing:
    def __init__(self, vault: Vault, unsettled: Unsettled, clock: Clock) -> None:
        self._vault = vault
        self._unsettled = unsettled
        self._clock = clock

    @asynccontextmanager
    async def sealed(
        self, workspace: str, servers: tuple[McpServer, ...], is_made: Callable[[], bool]
    ) -> AsyncIterator[Sealed | None]:
        """While their session is being made; where it is not, nothing is left of them."""
        if not servers:
            yield None
            return
        from legation.host.mcp import seal

        owner = Owner(workspace, new_id("ssn", now_ms=self._clock.now_ms()))
        await asyncio.to_thread(self._unsettled.note, owner)
        try:
            bundle = await self._vault.put(workspace, owner.name, seal(servers))
            yield Sealed(owner=owner.name, bundle=bundle)
        except BaseException:
            if not is_made():
                await asyncio.shield(self._destroy(owner))
            raise
        await asyncio.to_thread(self._unsettled.forget, owner)

    async def destroy(self, workspace: str, sealed: Sealed | None) -> None:
        if sealed is not None:
            await self._vault.destroy_all(workspace, sealed.owner)

    async def settle(self, on_record: Collection[str]) -> None:
        """After a start: `on_record` are the owners that sessions name."""
        for owner in await asyncio.to_thread(self._unsettled.left):
            if owner.name in on_record:
                await asyncio.to_thread(self._unsettled.forget, owner)
            else:
                await self._destroy(owner)

    async def _destroy(self, owner: Owner) -> None:
        await self._vault.destroy_all(owner.workspace, owner.name)
        await asyncio.to_thread(self._unsettled.forget, owner)
