"""Taking up a session that an agent already has: by loading its history, or by going on where it was.

Staged: until the agent has agreed and the store has it, nobody sees a change but `resuming`, and of a session
that was not known here nobody sees anything.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from legation.agents.driver import Driver
from legation.errors import AgentExited, LegationError, SessionClosed, TransportClosed
from legation.host.agent import Agent
from legation.host.leftover import left_open
from legation.host.meta import SessionMeta
from legation.host.modes import Opening, Put, put_into_asking
from legation.host.offers import TYPES as OFFER_TYPES
from legation.host.offers import Offers
from legation.host.router import Held
from legation.host.session import Session
from legation.host.stream import HostStream
from legation.wire import codec
from legation.wire.acp.mcp import McpServer
from legation.wire.acp.sessions import SessionSetup
from legation.wire.diagnostic import DiagnosticCode
from legation.wire.events import Draft
from legation.wire.hoststream import SessionUpdated
from legation.wire.lifecycle import SessionReset

# What a resumed agent may say of its state before it answers; anything else would be history.
_STATE = frozenset(
    (
        "available-commands-update",
        "current-mode-update",
        "config-option-update",
        "session-info-update",
        "usage-update",
    )
)


class TakeUp:
    def __init__(
        self,
        *,
        agent: Agent,
        known: Session | None,
        make: Callable[[], Awaitable[Session]],
        add: Callable[[Session], None],
        meta: SessionMeta,
        mcp: tuple[McpServer, ...],
        limit: float,
        host: HostStream,
    ) -> None:
        """`make` makes a session that is not `known`, and `add` shows it, once there is something to show."""
        self._agent = agent
        self._known = known
        self._make = make
        self._add = add
        self._meta = meta
        self._mcp = mcp
        self._limit = limit
        self._host = host

    async def load(self) -> SessionUpdated:
        live = self._agent.running()
        async with self._staged() as held:
            try:
                setup = await live.load_session(
                    self._meta.agent_session_id,
                    self._meta.cwd,
                    self._mcp,
                    self._limit,
                    additional_directories=self._meta.additional_directories,
                    on_answer=held.mark,
                )
                setup, puts = await self._put_right(live, setup)
                session = await self._session()
                await session.stream.replace([codec.draft(SessionReset(reason="loaded")), *held.replay])
            except LegationError as error:
                self._tell_load_failed(error)
                raise
            await self._commit(session, live, setup, puts)
        return session.snapshot()

    async def resume(self) -> SessionUpdated:
        live = self._agent.running()
        async with self._staged() as held:
            setup = await live.resume_session(
                self._meta.agent_session_id,
                self._meta.cwd,
                self._mcp,
                self._limit,
                additional_directories=self._meta.additional_directories,
                on_answer=held.mark,
            )
            setup, puts = await self._put_right(live, setup)
            session = await self._session()
            if session.stream.info().state != "open":
                raise SessionClosed(f"cannot resume session {session.id}: it is closed; load it to reopen it")
            if session.agent_id is None:  # the record is of an earlier host
                for end in await left_open(session.stream):
                    session.note_permission(end)
            kept = [draft for draft in held.replay if draft.type in _STATE]
            await self._commit(session, live, setup, puts, kept)
        return session.snapshot()

    async def _put_right(self, live: Driver, setup: SessionSetup) -> tuple[SessionSetup, list[Put]]:
        """An agent that comes back may be in another mode than it was: in one in which it asks, before anybody speaks to
        it. One that does not say which it is in is told."""
        modes, said = self._agent.definition.modes, Offers.of(setup)
        unsaid = self._known.offers.modes if self._known is not None and said.modes is None else None
        opening = Opening(
            live,
            self._meta.agent_session_id,
            said if unsaid is None else Offers(unsaid, said.options),
            self._limit,
            modes,
        )
        puts = await put_into_asking(opening, modes)
        if unsaid is not None and opening.offers.modes == unsaid and not puts:
            try:
                await opening.set_mode(unsaid.current_mode_id)
            except (AgentExited, TransportClosed):
                raise
            except LegationError as error:
                puts = [
                    Put(
                        unsaid.current_mode_id,
                        None,
                        f"it is not known whether it is still in it: {error.message}",
                    )
                ]
        return opening.offers.told_in(setup) if puts else setup, puts

    @asynccontextmanager
    async def _staged(self) -> AsyncIterator[Held]:
        name = self._meta.agent_session_id
        self._agent.router.must_not_be_shared(name, self._known)
        held = self._agent.router.hold(name)
        if self._known is not None:
            self._known.show(resuming=True)
        try:
            yield held
        except BaseException:
            self._agent.router.drop(name)
            if self._known is not None and self._known.status == "resuming":
                self._known.show()
            raise

    async def _session(self) -> Session:
        if self._known is None:
            return await self._make()
        self._must_be_wanted(self._known)
        return self._known

    def _must_be_wanted(self, session: Session) -> None:
        """Whoever has ended it meanwhile, or does so now, comes first."""
        if session.status != "resuming" or session.ending:
            raise SessionClosed(
                f"cannot take up session {session.id}: it was closed meanwhile; start another"
            )

    async def _commit(
        self,
        session: Session,
        live: Driver,
        setup: SessionSetup,
        puts: Sequence[Put],
        kept: Sequence[Draft] = (),
    ) -> None:
        await session.keep(self._meta)
        if self._known is None:
            self._add(session)
        else:
            self._must_be_wanted(session)
        active = session.attach(self._agent.id, live, setup, self._mcp, self._agent.definition.modes)
        session.tell_modes(puts, "opened")
        if puts:  # what it said of its mode before is no longer so
            kept = [draft for draft in kept if draft.type not in OFFER_TYPES]
        if kept:
            session.updates([*kept])
        self._agent.serve(session, live)
        self._agent.router.release(self._meta.agent_session_id)
        if active:
            await active

    def _tell_load_failed(self, error: LegationError) -> None:
        session_id = self._known.id if self._known else self._meta.agent_session_id
        self._host.diagnose(
            DiagnosticCode.SESSION_LOAD_FAILED, error.message, agent_id=self._agent.id, session_id=session_id
        )
