"""What becomes of sessions whose agent ended: disconnected at once, taken up again by its next process."""

from __future__ import annotations

from collections.abc import Callable

from legation.errors import LegationError
from legation.host.agent import Agent
from legation.host.ending import Ending
from legation.host.session import Session
from legation.host.sessions import Sessions
from legation.host.stream import HostStream
from legation.host.takeup import TakeUp
from legation.wire.diagnostic import DiagnosticCode


class Recovery:
    def __init__(
        self,
        sessions: Sessions,
        ending: Ending,
        take_up: Callable[[Agent, Session], TakeUp],
        host: HostStream,
    ) -> None:
        self._sessions = sessions
        self._ending = ending
        self._take_up = take_up
        self._host = host

    async def lost(self, agent: Agent) -> None:
        for session in self._sessions.of(agent.id):
            await session.lose_agent(agent.how_it_ended())
            agent.router.forget(session)
            await self._ending.release_terminals(session)

    async def ready_again(self, agent: Agent) -> None:
        """One after the other: an agent that was just restarted is not flooded."""
        for session in self._sessions.of(agent.id):
            if session.status != "disconnected":
                continue
            try:
                await self._take_up(agent, session).resume_or_load(resumes=True)
            except LegationError as error:
                self._skip(session, error.message)

    def _skip(self, session: Session, why: str) -> None:
        self._host.diagnose(
            DiagnosticCode.SESSION_RECOVERY_SKIPPED,
            f"not taken up again: {why}",
            agent_id=session.agent_id,
            session_id=session.id,
        )
