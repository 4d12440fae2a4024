"""Sessions of a real agent over HTTP, with a scripted model behind it: begun, spoken to, and waited for by events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.server.sessions.session_client import SessionClient

from legation.agents.catalogue.catalogue import Catalogue
from legation.agents.catalogue.entries import CatalogueEntry, Way
from legation.testing.model import ScriptedModel

NAME = "real"


class _WithOne(Catalogue):
    added: tuple[CatalogueEntry, ...] = ()

    def entries(self) -> tuple[CatalogueEntry, ...]:
        return (*super().entries(), *self.added)


def add_to_catalogue(talk: SessionClient, way: Way) -> None:
    """The agent that is driven so, as `real`."""
    catalogue = _WithOne(talk.rig.services.settings.data_dir)
    catalogue.added = (CatalogueEntry(name=NAME, title="The real one", way=way, needs_sign_in=False),)
    talk.rig.services.hosts.launcher.catalogue = catalogue


@dataclass
class RealSessions:
    talk: SessionClient
    model: ScriptedModel

    async def open(self, session: str = "s", **body: object) -> None:
        await self.talk.created(session, agent=NAME, directory=str(self.talk.work), **body)

    async def send(self, text: str, session: str = "s") -> int:
        """Where the log stood before."""
        after = (await self.talk.rig.services.log.stream(session)).head
        answer = await self.talk.call("POST", f"/v1/sessions/{session}/messages", {"message": text})
        assert answer.status_code == 204, answer.text
        return after

    async def ended(self, after: int, session: str = "s") -> dict[str, Any]:
        _, found = await self.talk.until(session, "prompt-finished", after=after)
        return found  # type: ignore[no-any-return]

    async def said(self, text: str, session: str = "s") -> dict[str, Any]:
        """One whole turn: how it ended."""
        return await self.ended(await self.send(text, session), session)

    async def asked(self, text: str, session: str = "s") -> tuple[str, int]:
        """A permission that it waits for, and where the log stood."""
        after = await self.send(text, session)
        _, found = await self.talk.until(session, "permission-asked", after=after)
        return str(found["id"]), after

    async def pid(self, session: str = "s") -> int:
        host = await self.talk.rig.services.hosts.host()
        return host.session(session).agent.processes[0]
