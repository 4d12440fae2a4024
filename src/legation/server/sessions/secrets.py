"""MCP servers of sessions, sealed in the vault.

INV-L1  What is sealed has a session on record, or is destroyed: now, or at the next start of a server that was killed. A small
        file says what is being sealed: whoever shares the database has secrets there too, so that no session of ours
        names one does not make it nobody's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from legation.clock import Clock
from legation.errors import StorageFailed
from legation.ids import new_id
from legation.server.sessions.record import Sealed
from legation.store.datafolder import make_folder
from legation.store.secrets.vault import Vault
from legation.wire.acp.methods import McpServer


class Owner(NamedTuple):
    """Owner of secrets in the vault."""

    workspace: str
    name: str


@dataclass(eq=False)
class SealedServers:
    _vault: Vault
    _folder: Path  # of the small files
    _clock: Clock

    @asynccontextmanager
    async def sealed(
        self, workspace: str, servers: tuple[McpServer, ...], is_noted: Callable[[], bool]
    ) -> AsyncIterator[Sealed | None]:
        """While their session is being made, or changed to have them; where it does not, nothing is left of them."""
        if not servers:
            yield None
            return
        owner = Owner(workspace, new_id("ssn", now_ms=self._clock.now_ms()))
        await asyncio.to_thread(self._note, owner)
        try:
            bundle = await self._vault.put(workspace, owner.name, msgspec.json.encode(servers))
            yield Sealed(owner=owner.name, bundle=bundle)
        except BaseException:
            if not is_noted():
                await asyncio.shield(self._destroy(owner))
            raise
        await asyncio.to_thread(self._forget, owner)

    async def open(self, workspace: str, sealed: Sealed | None) -> tuple[McpServer, ...]:
        if sealed is None:
            return ()
        plain = await self._vault.open_bytes(workspace, sealed.owner, sealed.bundle)
        return msgspec.json.decode(plain, type=tuple[McpServer, ...])

    async def note(self, workspace: str, sealed: Sealed | None) -> None:
        """Others are about to take its place: whatever cuts that off, the next start destroys what no session names."""
        if sealed is not None:
            await asyncio.to_thread(self._note, Owner(workspace, sealed.owner))

    async def destroy(self, workspace: str, sealed: Sealed | None) -> None:
        if sealed is not None:
            await self._destroy(Owner(workspace, sealed.owner))

    async def recover(self, on_record: Collection[str]) -> None:
        """Destroy what a killed server left: `on_record` are the owners that sessions name."""
        for owner in await asyncio.to_thread(self.left):
            if owner.name in on_record:
                await asyncio.to_thread(self._forget, owner)
            else:
                await self._destroy(owner)

    async def _destroy(self, owner: Owner) -> None:
        await self._vault.destroy_all(owner.workspace, owner.name)
        await asyncio.to_thread(self._forget, owner)

    # The small files. These block for as long as the disk does.

    def left(self) -> list[Owner]:
        found: list[Owner] = []
        with suppress(OSError):
            for path in sorted(self._folder.iterdir()):
                with suppress(OSError, UnicodeDecodeError):
                    found.append(Owner(path.read_text(), path.name))
        return found

    def _note(self, owner: Owner) -> None:
        """Note it, before anything is sealed for it."""
        try:
            make_folder(self._folder)
            (self._folder / owner.name).write_text(owner.workspace)
        except OSError as error:
            raise StorageFailed(
                f"cannot note in {self._folder} what is about to be sealed: {error.strerror}; mend that"
            ) from error

    def _forget(self, owner: Owner) -> None:
        """Forget it: its session is on record, or there is nothing left of it."""
        with suppress(OSError):
            (self._folder / owner.name).unlink()
