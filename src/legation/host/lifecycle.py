"""The sessions of a host: how it comes by them (new ones, ones that an agent already has, ones of an earlier host), who may
have which, and how they end: here for certain, at their agent as far as it can be told.

INV-O1  While a session of a name is being made, nobody else makes one of that name.
INV-O2  What the store has of a new session is all of it: one commit makes it, and from then on nobody who is cancelled
        gives it up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from legation.agents.driver import Driver, OpenRequest
from legation.errors import Conflict, InvalidParams, LegationError, NotFound, SessionClosed
from legation.host.agent import Agent
from legation.host.modes import Offers, Opening, put_into_asking
from legation.host.options import SessionMeta, read_meta, real_folder
from legation.host.requests.handlers import OwnedTerminals
from legation.host.resume import ResumeOrLoad
from legation.host.session import Session, Surroundings
from legation.host.session import State as SessionState
from legation.host.stream import HOST_STREAM
from legation.store.backend import State
from legation.store.forbidden import ForbiddenPlaces
from legation.store.log import EventLog
from legation.store.stream import Receipt, Stream
from legation.wire.acp.methods import McpServer, NewSessionResponse
from legation.wire.event_types import DiagnosticCode, SessionUpdated


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

_log = logging.getLogger(__name__)

MAX_DIRECTORIES: Final = 100  # each is looked up on the disk, for the session and for what it opens

Details: TypeAlias = Mapping[str, object] | Callable[[], Mapping[str, object]] | None
"""A function is asked when the session is prepared."""

Prepare: TypeAlias = Callable[[Driver, NewSessionResponse], Awaitable[NewSessionResponse]]
"""Given what the agent has opened; returns what it is like then."""


Settle: TypeAlias = Callable[[], Awaitable[None]]
"""Ends what must not outlive a session's record."""


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


@dataclass(frozen=True, slots=True)
class Lifecycle:
    sessions: Sessions
    log: EventLog
    workspace: str
    around: Surroundings
    forbidden: ForbiddenPlaces
    terminals: OwnedTerminals | None

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
        live, limit = agent.running(), self.around.limits.start
        meta = place.meta(agent)
        with ExitStack() as claims:
            claims.enter_context(agent.router.expecting())
            if session_id is not None:
                claims.enter_context(self.sessions.claim(session_id))
                if (former := await self.log.find(session_id, self.workspace)) is not None:
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
                claims.enter_context(self.sessions.claim(opened.session_id))
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
        await asyncio.to_thread(self.forbidden.check_session, [Path(each) for each in named])

    async def _make(
        self,
        agent: Agent,
        live: Driver,
        session_id: str,
        meta: SessionMeta,
        opened: NewSessionResponse,
        mcp: tuple[McpServer, ...],
    ) -> tuple[Session, Receipt | None]:
        stream = await self.log.stream(session_id, self.workspace)
        session = await new_session(stream, meta, self.around)
        self.sessions.add(session)
        active = session.attach(agent.id, live, opened, mcp, agent.definition.modes)
        agent.serve(session, live)
        return session, active

    # Ones that an agent already has.

    @asynccontextmanager
    async def taking_up(
        self,
        agent: Agent,
        session_id: str,
        place: Place,
        *,
        to_load: bool | None = None,
        reopen: bool = False,
    ) -> AsyncIterator[ResumeOrLoad]:
        """While it is taken up nobody else does that. What was ended is refused before the agent is asked. Unless the caller
        says whether `to_load` it, one that only the agent knows can but be loaded, and so can a closed one if it may be
        opened again (`reopen`)."""
        found = self.sessions.find(session_id)
        place = await place.resolved()
        await self._must_be_allowed(place)
        stream = await self.log.find(session_id, self.workspace) if found is None else None
        # From here on nothing is awaited until it is shown that it is taken up. Meanwhile whoever has no agent for it may have
        # forgotten it: one that was known is known now, or the agent would be asked for it by our name.
        if found is not None and session_id not in self.sessions:
            self.sessions.add(found)
        known = self.sessions.find(session_id)
        if to_load is None:
            to_load = known is None or (reopen and known.status == "closed")
        with ExitStack() as claims:
            if known is not None:
                must_be_free(agent.id, known, to_load=to_load)
                meta = place.meta(agent, known.meta).noted_as(known.meta)
                meta = msgspec.structs.replace(meta, agent_session_id=known.meta.agent_session_id)
            else:
                if stream is not None:
                    must_not_have_ended(stream, to_load=to_load)
                claims.enter_context(self.sessions.claim(session_id))
                meta = msgspec.structs.replace(place.meta(agent), agent_session_id=session_id)
            yield ResumeOrLoad(
                agent=agent,
                known=known,
                resumes=not to_load,
                make=partial(self._made, session_id, meta),
                add=self.sessions.add,
                meta=meta,
                mcp=place.mcp,
                limit=self.around.limits.start,
                host=self.around.host,
            )

    async def ready_again(self, agent: Agent) -> None:
        """Its next process takes up what the last one had. One after the other: an agent that was just restarted is not
        flooded."""
        for session in self.sessions.of(agent.id):
            if session.status != "disconnected":
                continue
            try:
                as_it_was = Place(None, session.mcp, ())
                async with self.taking_up(agent, session.id, as_it_was) as taken:
                    await taken.resume_or_load()
            except LegationError as error:
                code, what = DiagnosticCode.SESSION_RECOVERY_SKIPPED, f"not taken up again: {error.message}"
                self.around.host.diagnose(code, what, agent_id=agent.id, session_id=session.id)

    async def _made(self, session_id: str, meta: SessionMeta) -> Session:
        return Session(await self.log.stream(session_id, self.workspace), meta, self.around)

    # Ones of an earlier host.

    async def restore_all(self) -> list[SessionUpdated]:
        restored: list[SessionUpdated] = []
        for info in await self.log.streams(self.workspace):
            meta = read_meta(info.meta)
            if info.state != "open" or meta is None or info.name in self.sessions:
                continue
            stream = await self.log.stream(info.name, self.workspace)
            restored.append(self._restored(stream, meta).snapshot())
        return restored

    async def restore(self, session_id: str) -> Session:
        if (known := self.sessions.find(session_id)) is not None:
            return known
        stream = await self.log.find(session_id, self.workspace)
        meta = read_meta(stream.info().meta) if stream else None
        if stream is None or meta is None or not _is_known(stream.info().state, meta):
            raise NotFound(f"cannot find session {session_id}; check its id")
        return self._restored(stream, meta)

    async def recorded(self, session_id: str) -> Session | None:
        """Whatever became of it, but for one that was deleted; None where there is no record of it."""
        stream = await self.log.find(session_id, self.workspace)
        meta = read_meta(stream.info().meta) if stream else None
        return None if stream is None or meta is None or stream.deleted else self._restored(stream, meta)

    async def is_deleted(self, session_id: str) -> bool:
        stream = await self.log.find(session_id, self.workspace)
        return stream is not None and stream.deleted

    def _restored(self, stream: Stream, meta: SessionMeta) -> Session:
        """At once: whoever wants the same one has it restored before, or finds this one."""
        if (known := self.sessions.find(stream.name)) is not None:
            return known
        with self.sessions.claim(stream.name):
            session = Session(stream, meta, self.around, _recorded_state(stream, meta))
            self.sessions.add(session)
        if session.status != "closed":  # that it is was told when it was closed
            session.publish()
        return session

    # How they end.

    async def close(
        self, session: Session, agent: Agent | None, *, reopens: bool, settle: Settle | None = None
    ) -> None:
        live = agent.live if agent and session.status == "active" else None
        try:
            await session.end("closed", reopens=reopens, last=settle)
        finally:
            if session.status == "closed":
                await self._free(session, agent)
        if live is not None and live.can_close:
            await self._tell_agent(live, session, "closed")

    async def delete(self, session: Session, agent: Agent | None, settle: Settle | None = None) -> None:
        """`agent` is one that may have it, open or not. Whoever has something to `settle` has decided for good: then its
        agent is told first, for it may be stopped there."""
        live = agent.live if agent else None

        async def part() -> None:
            await self._free(session, agent)
            if live is not None and (live.can_delete or live.can_close):
                await self._tell_agent(live, session, "deleted" if live.can_delete else "closed")

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
        for session in self.sessions.of(agent.id):
            await session.lose_agent(agent.how_it_ended())
            await self._free(session, agent)

    async def _free(self, session: Session, agent: Agent | None) -> None:
        await self.release_terminals(session)
        if agent is not None:
            agent.router.forget(session)

    async def release_terminals(self, session: Session) -> None:
        """What a handler of the application's does wrong keeps no session open and no host alive."""
        if self.terminals is None:
            return
        try:
            await self.terminals.cleanup_session(session.id)
        except Exception as error:  # noqa: BLE001 - the handler's own fault, isolated and told
            _log.exception("cannot release the terminals of session %s", session.id)
            self._complain(session, f"its terminals could not be released: {type(error).__name__}")

    async def _tell_agent(self, live: Driver, session: Session, status: str) -> None:
        """Best effort: ours is ended whatever the agent says."""
        tell = live.delete_session if status == "deleted" else live.close_session
        try:
            await tell(session.meta.agent_session_id, self.around.limits.start)
        except LegationError as error:
            self._complain(session, f"the agent could not be told that it is {status}: {error.message}")

    def _complain(self, session: Session, what: str) -> None:
        self.around.host.diagnose(
            DiagnosticCode.AGENT_PROCESS_ERROR, what, agent_id=session.agent_id, session_id=session.id
        )


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
