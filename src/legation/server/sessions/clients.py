"""Clients that follow sessions: whom an agent's requests can be handed to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from legation.wire import jsontext
from legation.wire.acp.rpc import RpcError
from legation.wire.principal import Principal


class ClientAnswer(msgspec.Struct, frozen=True):
    """`by` is whose credential came with the answer."""

    result: bytes
    error: RpcError | None
    by: Principal

    def value(self) -> object:
        """Read the result; None where there is none to be read."""
        try:
            return jsontext.read(self.result) if self.result else None
        except jsontext.READ_ERRORS:
            return None


class Calls(Protocol):
    """Requests to a client."""

    async def ask(self, method: str, params: object) -> ClientAnswer:
        """Wait until it is answered; whoever gives up withdraws it."""

    def tell(self, method: str, params: object) -> None:
        """Ask, and not wait for the answer."""


class SessionClient(Protocol):
    """A connection, as others see it."""

    @property
    def calls(self) -> Calls: ...
    @property
    def client(self) -> Mapping[str, object]:
        """Capabilities that the client named."""

    def wanted(self, permission_id: str) -> None: ...


class SessionClients:
    """Clients of a server by session. Empty until the first one comes."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], list[SessionClient]] = {}

    def add(self, workspace: str, session_id: str, client: SessionClient) -> None:
        """The last one to come is the first to be asked."""
        following = self._of.setdefault((workspace, session_id), [])
        if client in following:
            following.remove(client)
        following.insert(0, client)

    def remove(self, workspace: str, session_id: str, client: SessionClient) -> None:
        following = self._of.get((workspace, session_id), [])
        if client in following:
            following.remove(client)
        if not following:
            self._of.pop((workspace, session_id), None)

    def of(self, workspace: str, session_id: str) -> list[SessionClient]:
        return list(self._of.get((workspace, session_id), ()))

    def offering(self, workspace: str, session_id: str, *capability: str) -> SessionClient | None:
        """Find one that follows the session and has this, such as `fs`, `readTextFile`."""
        following = self._of.get((workspace, session_id), ())
        return next((each for each in following if offers(each.client, *capability)), None)


def offers(client: Mapping[str, object], *path: str) -> bool:
    """Tell whether a client said that it has this; `{}` says so, null and false do not."""
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
