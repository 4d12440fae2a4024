"""The sessions of a host as a connection uses them: found, restored, and taken up again by its agent."""

from __future__ import annotations

import asyncio
from typing import Protocol
from weakref import WeakValueDictionary

from legation.errors import InvalidParams, LegationError, NotFound, SessionClosed
from legation.host.host import AcpHost
from legation.host.session import Session
from legation.server.acp.requests import Place
from legation.server.acp.seat import Seat
from legation.server.sessions.names import must_be_session_id
from legation.server.sessions.record import was_deleted
from legation.wire.acp.mcp import McpServer
from legation.wire.hoststream import AgentUpdated


class Opened(Protocol):
    """Told of each session that is used, and its agent, before anything becomes of it; also when it is prompted, and when
    that is over."""

    async def __call__(
        self,
        session: Session,
        agent: str,
        *,
        prompted: bool = False,
        over: bool = False,
        error: LegationError | None = None,
    ) -> None: ...


async def _let_go(host: AcpHost, session: Session) -> None:
    """An agent that ends, since its own client has left, or that has ended, still has its sessions for a moment, in
    which nothing can be asked of either. Nor can it of one that another is taking up."""
    await host.until_left(session.agent_id)
    await session.decided()


class OpenedSessions:
    def __init__(self, agent: str, seat: Seat, opened: Opened) -> None:
        self._agent = agent
        self._seat = seat
        self._opened = opened
        # Of whoever waits for one: a client may name as many sessions that there are not as it likes.
        self._taking_up: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def known(self, session_id: str) -> Session | None:
        """Also one of an earlier server."""
        must_be_session_id(session_id)
        host = await self._seat.host()
        try:
            session = await host.restore_session(session_id)
        except NotFound:
            return None
        if session.meta.agent_definition_id != self._agent:
            raise InvalidParams(
                f"cannot use session {session_id} here: its agent is {session.meta.agent_definition_id}; "
                "connect with that"
            )
        await self._opened(session, self._agent)
        return session

    async def usable(
        self, session_id: str, place: Place | None = None, *, reopen: bool = False, foreign: bool = False
    ) -> Session:
        """With an agent that has it. `reopen` takes up a closed one, `foreign` one that only the agent knows."""
        lock = self._taking_up.setdefault(session_id, asyncio.Lock())
        async with lock:
            session = await self._found(session_id, reopen=reopen, foreign=foreign)
            if session is not None and session.status == "active":
                return session
            agent, host = await self._seat.ready(), await self._seat.host()
            # Again: meanwhile it may have been ended, or forgotten, or another has taken it up.
            session = await self._found(session_id, reopen=reopen, foreign=foreign)
            if session is not None and session.status == "active":
                return session
            return await self._take_up(host, agent, session_id, session, place)

    async def _found(self, session_id: str, *, reopen: bool, foreign: bool) -> Session | None:
        """One that may be used, as the host has it when this returns; None for one that only the agent can know."""
        host = await self._seat.host()
        session = await self.known(session_id)
        if session is None:
            await self._must_not_be_ours(host, session_id, foreign=foreign)
            return None
        await _let_go(host, session)
        if session.status == "deleted":
            raise was_deleted(session_id)
        if session.status == "closed" and not session.meta.reopens:
            raise SessionClosed(f"cannot use session {session_id}: it has ended; start another")
        if session.status == "closed" and not reopen:
            raise SessionClosed(f"cannot use session {session_id}: it is closed; load it, or start another")
        if host.get_session(session_id) is None:  # forgotten just now: the agent would be asked by our name
            return await self._found(session_id, reopen=reopen, foreign=foreign)
        return session

    async def _must_not_be_ours(self, host: AcpHost, session_id: str, *, foreign: bool) -> None:
        """One that was ended for good is no agent's: under our name it knows none, and what one that takes any name
        would tell must not replace the history."""
        stream = await host.log.find(session_id, host.options.workspace)
        if stream is not None and stream.deleted:
            raise was_deleted(session_id)
        if not foreign:
            raise NotFound(f"cannot find session {session_id}; check its id")
        if stream is not None and stream.info().state != "open":
            raise SessionClosed(f"cannot load session {session_id}: it has ended; start another")

    async def _take_up(
        self,
        host: AcpHost,
        agent: AgentUpdated,
        session_id: str,
        session: Session | None,
        place: Place | None,
    ) -> Session:
        mcp: tuple[McpServer, ...] = session.mcp if session else ()
        if place is not None and place.mcp_servers is not None:
            mcp = place.mcp_servers
        await host.resume_or_load(
            agent.agent_id,
            session_id,
            cwd=place.cwd if place else None,
            mcp_servers=mcp,
            additional_directories=(place.additional_directories or ()) if place else (),
            reopen=True,  # one that may not be was refused before
        )
        session = host.session(session_id)
        await self._opened(session, self._agent)
        return session
