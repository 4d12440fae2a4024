"""The sessions of a host: how it comes by them (new ones, ones that an agent already has, ones of an earlier host), who may
have which, and how they end: here for certain, at their agent as far as it can be told.

INV-O1  While a session of a name is being made, nobody else makes one of that name.
INV-O2  What the store has of a new session is all of it: one commit makes it, and from then on nobody who is cancelled
        gives it up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from legation.agents.driver import Driver, OpenRequest
from legation.errors import Conflict, InvalidParams, LegationError, NotFound, SessionClosed
from legation.host.agent import Agent
from legation.host.handlers import OwnedTerminals
from legation.host.meta import SessionMeta, read_meta, real_folder
from legation.host.modes import Offers, Opening, put_into_asking
from legation.host.resume import TakeUp
from legation.host.session import Session, Surroundings
from legation.host.session import State as SessionState
from legation.host.stream import HOST_STREAM, HostStream
from legation.store.backend import State
from legation.store.forbidden import ForbiddenPlaces
from legation.store.log import EventLog
from legation.store.stream import Receipt, Stream
from legation.wire.acp.mcp import McpServer
from legation.wire.acp.sessions import NewSessionResponse
from legation.wire.diagnostic import DiagnosticCode
from legation.wire.hoststream import SessionUpdated


class Sessions:
    def __init__(self) -> None:
        self._known: dict[str, Session] = {}
        self._claimed: set[str] = set()

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._known.values()))

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._known

    def of(self, agent_id: str) -> list[Session]:
        return [session for session in self if session.agent_id == agent_id]

    def find(self, session_id: str) -> Session | None:
        return self._known.get(session_id)

    def get(self, session_id: str) -> Session:
        session = self._known.get(session_id)
        if session is None:
            raise NotFound(f"cannot find session {session_id}; check its id")
        return session

    def snapshots(self) -> list[SessionUpdated]:
        return [session.snapshot() for session in self]

    def add(self, session: Session) -> None:
        self._known[session.id] = session

    def remove(self, session: Session) -> None:
        if self._known.get(session.id) is session:
            del self._known[session.id]

    @contextmanager
    def claim(self, session_id: str) -> Iterator[None]:
        """While a session of that name is being made, nobody else makes one."""
        if session_id in self._known or session_id in self._claimed or session_id == HOST_STREAM:
            raise Conflict(f"cannot create session {session_id}: there is one of that name; give another")
        self._claimed.add(session_id)
        try:
            yield
        finally:
            self._claimed.discard(session_id)


async def new_session(stream: Stream, meta: SessionMeta, around: Surroundings) -> Session:
    """Strict: its metadata are stored, or it is not there."""
    must_be_unused(stream)
    session = Session(stream, meta, around)
    await session.keep(meta)
    return session


def must_be_unused(stream: Stream) -> None:
    info = stream.info()
    if info.state == "deleted":
        raise Conflict(
            f"cannot create session {stream.name}: one of that name was deleted, and no name is used again; give another"
        )
    if info.head or info.state != "open":
        raise Conflict(
            f"cannot create session {stream.name}: there is a record of that name; load or resume it"
        )


def must_not_have_ended(stream: Stream, *, to_load: bool) -> None:
    """To be taken up by a host that does not know it: what an earlier one ended is refused before an agent is asked."""
    state = stream.info().state
    if state == "deleted":
        raise SessionClosed(f"cannot take up session {stream.name}: it was deleted; start another")
    if state == "closed" and not to_load:
        raise SessionClosed(f"cannot take up session {stream.name}: it is closed; load it to reopen it")


def must_be_free(agent_id: str, session: Session, *, to_load: bool) -> None:
    """To be taken up. A closed session is reopened by a load; a deleted one by nothing."""
    if session.status == "deleted" or (session.status == "closed" and not to_load):
        advice = "load it to reopen it" if session.status == "closed" else "start another"
        raise SessionClosed(f"cannot take up session {session.id}: it is {session.status}; {advice}")
    if session.ending:
        raise SessionClosed(f"cannot take up session {session.id}: it is being ended; wait for that")
    if session.status == "resuming":
        raise Conflict(f"cannot take up session {session.id}: it is being taken up already; wait for that")
    if session.busy:
        raise Conflict(f"cannot take up session {session.id}: a turn is running; wait or cancel it")
    must_not_be_anothers(agent_id, session)


def must_not_be_anothers(agent_id: str, session: Session) -> None:
    """An agent that is gone owns nothing any more."""
    if session.status == "active" and session.agent_id != agent_id:
        raise InvalidParams(f"cannot use session {session.id} with {agent_id}: it is another agent's")


T = TypeVar("T")

MAX_DIRECTORIES: Final = 100  # each is looked up on the disk, for the session and for what it opens

Details: TypeAlias = Mapping[str, object] | Callable[[], Mapping[str, object]] | None
"""A function is asked when the session is prepared."""

Prepare: TypeAlias = Callable[[Driver, NewSessionResponse], Awaitable[NewSessionResponse]]
"""Given what the agent has opened; returns what it is like then."""


class Place(NamedTuple):
    """Where a session works, and with what; a caller that says nothing leaves it as it is."""

    cwd: Path | str | None
    mcp: tuple[McpServer, ...]
    directories: Sequence[Path | str]

    async def resolved(self) -> Place:
        if len(self.directories) > MAX_DIRECTORIES:
            raise InvalidParams(
                f"cannot work in more than {MAX_DIRECTORIES} additional folders; name one above them"
            )
        cwd = None if self.cwd is None else await real_folder(self.cwd)
        return Place(cwd, self.mcp, [await real_folder(each) for each in self.directories])

    def meta(self, agent: Agent, known: SessionMeta | None = None) -> SessionMeta:
        cwd = known.cwd if known and self.cwd is None else self.cwd
        directories = self.directories or (known.additional_directories if known else ())
        return SessionMeta.wanted(agent.definition, cwd, self.mcp, directories)


class Openings:
    def __init__(
        self,
        sessions: Sessions,
        log: EventLog,
        workspace: str,
        around: Surroundings,
        forbidden: ForbiddenPlaces,
    ) -> None:
        self._forbidden = forbidden
        self._sessions = sessions
        self._log = log
        self._workspace = workspace
        self._around = around

    async def create(
        self,
        agent: Agent,
        place: Place,
        *,
        session_id: str | None,
        title: str | None,
        details: Details,
        prepare: Prepare | None,
        forks: str | None,
    ) -> SessionUpdated:
        place = await place.resolved()
        await self._must_be_allowed(place)
        live, limit = agent.running(), self._around.limits.start
        meta = place.meta(agent)
        with ExitStack() as claims:
            claims.enter_context(agent.router.expecting())
            if session_id is not None:
                claims.enter_context(self._sessions.claim(session_id))
                if (former := await self._log.find(session_id, self._workspace)) is not None:
                    must_be_unused(former)
            request = OpenRequest(meta.cwd, place.mcp, meta.additional_directories, forks or "")
            begin = live.new_session if forks is None else live.fork_session
            opened = await begin(request, limit)
            opening = Opening(live, opened.session_id, Offers.of(opened), limit, agent.definition.modes)
            puts = await put_into_asking(opening, agent.definition.modes)
            opened = opening.offers.told_in(opened)
            if prepare is not None:
                opened = await prepare(live, opened)
            if session_id is None:
                claims.enter_context(self._sessions.claim(opened.session_id))
            agent.router.must_be_free(opened.session_id)
            known = details() if callable(details) else details
            meta = msgspec.structs.replace(
                meta, agent_session_id=opened.session_id, title=title, details=known
            )
            making = self._make(agent, live, session_id or opened.session_id, meta, opened, place.mcp)
            session, active = await _unbroken(making)
            session.tell_modes(puts, "opened")
        if active:
            await active
        return session.snapshot()

    async def _must_be_allowed(self, place: Place) -> None:
        """What a session may work in: nothing of Legation's own, but the folder that was made for it."""
        named = place.directories if place.cwd is None else (place.cwd, *place.directories)
        await asyncio.to_thread(self._forbidden.check_session, [Path(each) for each in named])

    async def _make(
        self,
        agent: Agent,
        live: Driver,
        session_id: str,
        meta: SessionMeta,
        opened: NewSessionResponse,
        mcp: tuple[McpServer, ...],
    ) -> tuple[Session, Receipt | None]:
        stream = await self._log.stream(session_id, self._workspace)
        session = await new_session(stream, meta, self._around)
        self._sessions.add(session)
        active = session.attach(agent.id, live, opened, mcp, agent.definition.modes)
        agent.serve(session, live)
        return session, active

    # Ones that an agent already has.

    async def load(self, agent: Agent, session_id: str, place: Place) -> SessionUpdated:
        place = await self._resolved(session_id, place)
        await self._must_not_have_ended(session_id, to_load=True)
        with self._free(agent, session_id, to_load=True):
            return await self._taken_up(agent, session_id, place).load()

    async def resume(self, agent: Agent, session_id: str, place: Place) -> SessionUpdated:
        place = await self._resolved(session_id, place)
        await self._must_not_have_ended(session_id, to_load=False)
        with self._free(agent, session_id, to_load=False):
            return await self._taken_up(agent, session_id, place).resume()

    async def resume_or_load(
        self, agent: Agent, session_id: str, place: Place, *, reopen: bool
    ) -> SessionUpdated:
        """One that only the agent knows can but be loaded, and so can a closed one: nothing else opens it again."""
        place = await self._resolved(session_id, place)
        known = self._sessions.find(session_id)
        resumes = known is not None and not (reopen and known.status == "closed")
        with self._free(agent, session_id, to_load=not resumes):
            return await self._taken_up(agent, session_id, place).resume_or_load(resumes=resumes)

    async def _resolved(self, session_id: str, place: Place) -> Place:
        """While the disk is asked, whoever has no agent for a session may forget it; one that was known then is known now,
        or the agent would be asked for it by our name."""
        known = self._sessions.find(session_id)
        place = await place.resolved()
        await self._must_be_allowed(place)
        if known is not None and session_id not in self._sessions:
            self._sessions.add(known)
        return place

    async def _must_not_have_ended(self, session_id: str, *, to_load: bool) -> None:
        """One that is known here is looked at by `must_be_free`, without waiting in between."""
        if session_id not in self._sessions:
            stream = await self._log.find(session_id, self._workspace)
            if stream is not None:
                must_not_have_ended(stream, to_load=to_load)

    async def ready_again(self, agent: Agent) -> None:
        """Its next process takes up what the last one had. One after the other: an agent that was just restarted is not
        flooded."""
        for session in self._sessions.of(agent.id):
            if session.status != "disconnected":
                continue
            try:
                as_it_was = Place(None, session.mcp, ())
                await self.resume_or_load(agent, session.id, as_it_was, reopen=False)
            except LegationError as error:
                self._around.host.diagnose(
                    DiagnosticCode.SESSION_RECOVERY_SKIPPED,
                    f"not taken up again: {error.message}",
                    agent_id=agent.id,
                    session_id=session.id,
                )

    @contextmanager
    def _free(self, agent: Agent, session_id: str, *, to_load: bool) -> Iterator[None]:
        known = self._sessions.find(session_id)
        if known is not None:
            must_be_free(agent.id, known, to_load=to_load)
            yield
        else:
            with self._sessions.claim(session_id):
                yield

    def _taken_up(self, agent: Agent, session_id: str, place: Place) -> TakeUp:
        """A known session stays where it is unless the caller says otherwise, and keeps what was noted of it."""
        known = self._sessions.find(session_id)
        if known is None:
            meta = msgspec.structs.replace(place.meta(agent), agent_session_id=session_id)
        else:
            name = known.meta.agent_session_id
            meta = place.meta(agent, known.meta).noted_as(known.meta)
            meta = msgspec.structs.replace(meta, agent_session_id=name)
        return TakeUp(
            agent=agent,
            known=known,
            make=partial(self._made, session_id, meta),
            add=self._sessions.add,
            meta=meta,
            mcp=place.mcp,
            limit=self._around.limits.start,
            host=self._around.host,
        )

    async def _made(self, session_id: str, meta: SessionMeta) -> Session:
        return Session(await self._log.stream(session_id, self._workspace), meta, self._around)

    # Ones of an earlier host.

    async def restore_all(self) -> list[SessionUpdated]:
        restored: list[SessionUpdated] = []
        for info in await self._log.streams(self._workspace):
            meta = read_meta(info.meta)
            if info.state != "open" or meta is None or info.name in self._sessions:
                continue
            stream = await self._log.stream(info.name, self._workspace)
            restored.append(self._restored(stream, meta).snapshot())
        return restored

    async def restore(self, session_id: str) -> Session:
        if (known := self._sessions.find(session_id)) is not None:
            return known
        stream = await self._log.find(session_id, self._workspace)
        meta = read_meta(stream.info().meta) if stream else None
        if stream is None or meta is None or not _is_known(stream.info().state, meta):
            raise NotFound(f"cannot find session {session_id}; check its id")
        return self._restored(stream, meta)

    async def recorded(self, session_id: str) -> Session | None:
        """Whatever became of it, but for one that was deleted; None where there is no record of it."""
        stream = await self._log.find(session_id, self._workspace)
        meta = read_meta(stream.info().meta) if stream else None
        return None if stream is None or meta is None or stream.deleted else self._restored(stream, meta)

    async def is_deleted(self, session_id: str) -> bool:
        stream = await self._log.find(session_id, self._workspace)
        return stream is not None and stream.deleted

    def _restored(self, stream: Stream, meta: SessionMeta) -> Session:
        """At once: whoever wants the same one has it restored before, or finds this one."""
        if (known := self._sessions.find(stream.name)) is not None:
            return known
        with self._sessions.claim(stream.name):
            session = Session(stream, meta, self._around, _recorded_state(stream, meta))
            self._sessions.add(session)
        if session.status != "closed":  # that it is was told when it was closed
            session.publish()
        return session


async def _unbroken(work: Coroutine[object, object, T]) -> T:
    """To its end, whoever is cancelled while he waits for it; he hears of that then."""
    task, cut = asyncio.create_task(work), None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cut = error
    if cut is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # nobody is left to tell
    raise cut


def _recorded_state(stream: Stream, meta: SessionMeta) -> SessionState:
    if stream.info().state == "open":
        return SessionState.DISCONNECTED
    return SessionState.CLOSED if meta.reopens else SessionState.TERMINATED


def _is_known(state: State, meta: SessionMeta) -> bool:
    """To a later host."""
    return state == "open" or (state == "closed" and meta.reopens)


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
