"""The servers that one agent has a part in.

INV-O15 Two sessions share a server only if both their folders are trusted, or neither is, and they have the same MCP
        servers: a server's settings count for all of its folders, and a folder's MCP servers for all of its sessions.
"""

from __future__ import annotations

import asyncio
from functools import partial

from legation.agents.native import Equipment
from legation.agents.opencode.server import Listener, OpenCodeServer
from legation.agents.opencode.trust import home_must_bring_no_code, must_bring_no_code
from legation.agents.pool import Lease, pool_key
from legation.wire import jsontext
from legation.wire.acp.mcp import McpServer


class Leases:
    """`listener` joins every server that is leased."""

    def __init__(self, equipment: Equipment, listener: Listener) -> None:
        self._equipment = equipment
        self._listener = listener
        self._held: dict[str, Lease[OpenCodeServer]] = {}
        self._first: Lease[OpenCodeServer] | None = None  # until a session says which server it needs
        self._opening = asyncio.Lock()

    @property
    def servers(self) -> tuple[OpenCodeServer, ...]:
        return tuple(lease.server for lease in self._held.values())

    async def begin(self, timeout: float) -> OpenCodeServer:
        """A server for the folder of the command, which is where the first session mostly is."""
        await asyncio.to_thread(home_must_bring_no_code, self._equipment.command.env)
        lease = await self._lease(str(self._equipment.command.cwd), (), timeout)
        self._first = lease
        return lease.server

    async def server_in(self, cwd: str, mcp: tuple[McpServer, ...], timeout: float) -> OpenCodeServer:
        """For what names the folder, which OpenCode then looks into."""
        await asyncio.to_thread(home_must_bring_no_code, self._equipment.command.env)
        if not self._equipment.trusts(cwd):
            await asyncio.to_thread(must_bring_no_code, cwd)
        lease = await self._lease(cwd, mcp, timeout)
        first, self._first = self._first, None
        if first is not None and first is not lease:  # it began with another than it needs
            self._held = {key: each for key, each in self._held.items() if each is not first}
            first.server.part(self._listener)
            await first.leave(0)
        return lease.server

    def take_all(self) -> tuple[Lease[OpenCodeServer], ...]:
        """Whoever takes them parts from their servers and leaves them."""
        leases, self._held = tuple(self._held.values()), {}
        return leases

    async def _lease(self, cwd: str, mcp: tuple[McpServer, ...], timeout: float) -> Lease[OpenCodeServer]:
        """INV-O15."""
        equipment, command = self._equipment, self._equipment.command
        trusted = equipment.trusts(cwd)
        key = pool_key(command, "trusted" if trusted else "untrusted", jsontext.write(mcp).decode())
        async with self._opening:
            if key not in self._held:
                start = partial(
                    OpenCodeServer.start, equipment.launcher, equipment.pipes, timeout, trusted=trusted
                )
                self._held[key] = await equipment.pool.lease(key, command, start)
                self._held[key].server.join(self._listener)
            return self._held[key]
