"""Which clients follow which session: whom an agent's requests can be handed to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from legation.server.acp.offer import offers

if TYPE_CHECKING:
    from legation.server.acp.client_calls import ClientCalls


class Following(Protocol):
    """A connection, as others see it."""

    @property
    def calls(self) -> ClientCalls: ...
    @property
    def client(self) -> Mapping[str, object]:
        """What the client said that it can."""

    def wanted(self, permission_id: str) -> None: ...


class Clients:
    """Of a server. Empty until the first client comes."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], list[Following]] = {}

    def add(self, workspace: str, session_id: str, client: Following) -> None:
        """The last one to come is the first to be asked."""
        following = self._of.setdefault((workspace, session_id), [])
        if client in following:
            following.remove(client)
        following.insert(0, client)

    def remove(self, workspace: str, session_id: str, client: Following) -> None:
        following = self._of.get((workspace, session_id), [])
        if client in following:
            following.remove(client)
        if not following:
            self._of.pop((workspace, session_id), None)

    def of(self, workspace: str, session_id: str) -> list[Following]:
        return list(self._of.get((workspace, session_id), ()))

    def offering(self, workspace: str, session_id: str, *capability: str) -> Following | None:
        """One that follows the session and has this, such as `fs`, `readTextFile`."""
        following = self._of.get((workspace, session_id), ())
        return next((each for each in following if offers(each.client, *capability)), None)
