"""How sessions end: here for certain, at their agent as far as it can be told, and nothing of theirs runs on."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from legation.agents.driver import Driver
from legation.errors import LegationError
from legation.host.agent import Agent
from legation.host.ownership import OwnedTerminals
from legation.host.session import Session
from legation.host.sessions import Sessions
from legation.host.stream import HostStream
from legation.wire.diagnostic import DiagnosticCode

Settle: TypeAlias = Callable[[], Awaitable[None]]
"""Ends what must not outlive a session's record."""

_log = logging.getLogger(__name__)


class Ending:
    """`limit` is the seconds an agent has to answer."""

    def __init__(
        self, sessions: Sessions, terminals: OwnedTerminals | None, limit: float, host: HostStream
    ) -> None:
        self._sessions = sessions
        self._terminals = terminals
        self._limit = limit
        self._host = host

    async def close(self, session: Session, agent: Agent | None, *, reopens: bool) -> None:
        live = agent.live if agent and session.status == "active" else None
        await session.end("closed", reopens=reopens)
        await self._free(session, agent)
        if live is not None and live.can_close:
            await self._tell(live, session, "closed")

    async def delete(self, session: Session, agent: Agent | None, settle: Settle | None = None) -> None:
        """`agent` is one that may have it, open or not. Whoever has something to `settle` has decided for good: then its
        agent is told first, for it may be stopped there."""
        live = agent.live if agent else None

        async def part() -> None:
            await self._free(session, agent)
            if live is not None and (live.can_delete or live.can_close):
                await self._tell(live, session, "deleted" if live.can_delete else "closed")

        async def last() -> None:
            await part()
            if settle is not None:
                await settle()

        if settle is None:
            await session.end("deleted")
            await part()
        else:
            await session.end("deleted", last=last)

    async def lost(self, agent: Agent) -> None:
        """Its process has ended: its sessions are disconnected, at once."""
        for session in self._sessions.of(agent.id):
            await session.lose_agent(agent.how_it_ended())
            await self._free(session, agent)

    async def _free(self, session: Session, agent: Agent | None) -> None:
        await self.release_terminals(session)
        if agent is not None:
            agent.router.forget(session)

    async def release_terminals(self, session: Session) -> None:
        """What a handler of the application's does wrong keeps no session open and no host alive."""
        if self._terminals is None:
            return
        try:
            await self._terminals.cleanup_session(session.id)
        except Exception as error:  # noqa: BLE001 - the handler's own fault, isolated and told
            _log.exception("cannot release the terminals of session %s", session.id)
            self._complain(session, f"its terminals could not be released: {type(error).__name__}")

    async def _tell(self, live: Driver, session: Session, status: str) -> None:
        """Best effort: ours is ended whatever the agent says."""
        tell = live.delete_session if status == "deleted" else live.close_session
        try:
            await tell(session.meta.agent_session_id, self._limit)
        except LegationError as error:
            self._complain(session, f"the agent could not be told that it is {status}: {error.message}")

    def _complain(self, session: Session, what: str) -> None:
        self._host.diagnose(
            DiagnosticCode.AGENT_PROCESS_ERROR, what, agent_id=session.agent_id, session_id=session.id
        )
