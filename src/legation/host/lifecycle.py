"""The sessions of a host: how it comes by them (new ones, ones that an agent already has, ones of an earlier host), who may
have which, and how they end: here for certain, at their agent as far as it can be told.

INV-O1  While a session of a name is being made, nobody else makes one of that name.
INV-O2  What the store has of a new session is all of it: one commit makes it, and from then on nobody who is cancelled
        gives it up.

What becomes of them, of agents and of permissions is told on the host's own stream, to whoever listens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

from legation.agents.driver import Driver
from legation.agents.pool import Pool
from legation.agents.rpc import UNWRITABLE
from legation.clock import Clock
from legation.errors import Conflict, InvalidParams, LegationError, SessionClosed
from legation.host.agent import Agent, AgentHomes
from legation.host.options import HostOptions, SessionMeta, SessionPlace, read_meta
from legation.host.requests.handlers import Reverse
from legation.host.resume import ResumeOrLoad
from legation.host.session import Session, State
from legation.proc import Launcher
from legation.store.codec import StorageTrouble
from legation.store.forbidden import ForbiddenPlaces
from legation.store.log import EventLog
from legation.store.stream import Stream, Subscription
from legation.wire import event_types
from legation.wire.event_types import Diagnostic, DiagnosticCode, PermissionUpdated
from legation.wire.events import Event, Payload

HOST_STREAM = "host"
REMEMBERED = 10_000  # answered permissions, so that a second answer is told from an unknown id

_log = logging.getLogger(__name__)


class HostStream:
    def __init__(self) -> None:
        self._stream: Stream | None = None  # until the log is open, and for what its opening found
        self._waiting: list[Payload] = []

    @property
    def stream(self) -> Stream:
        if self._stream is None:
            raise Conflict("cannot use the host before it is entered; use `async with`")
        return self._stream

    def open(self, stream: Stream) -> None:
        self._stream = stream
        waiting, self._waiting = self._waiting, []
        for payload in waiting:
            self.publish(payload)

    def publish(self, payload: Payload) -> None:
        """Append it; that it could not be taken is reported, but never twice over."""
        if self._stream is None:
            self._waiting.append(payload)
            return
        try:
            self._stream.append([event_types.draft(payload)])
        except UNWRITABLE as error:
            self.reject(payload, error)
        except LegationError as error:
            _log.warning("cannot publish %s: %s", payload.event_type(), error.message)

    def diagnose(
        self,
        code: DiagnosticCode,
        message: str,
        *,
        agent_id: str | None = None,
        session_id: str | None = None,
        data: Mapping[str, object] | None = None,
    ) -> None:
        self.publish(
            Diagnostic(code=code, message=message, agent_id=agent_id, session_id=session_id, data=data)
        )

    def trouble(self, trouble: StorageTrouble) -> None:
        """The store's word; kept out of the store's way where it is the store that fails (INV-5)."""
        self.diagnose(DiagnosticCode(trouble.code), trouble.message, session_id=trouble.stream)

    def reject(self, payload: Payload, error: Exception, *, session_id: str | None = None) -> None:
        """Report what cannot be written as JSON, without the payload."""
        if isinstance(payload, Diagnostic) and payload.code == DiagnosticCode.EVENT_UNSERIALIZABLE:
            return
        agent_id = getattr(payload, "agent_id", None)
        self.diagnose(
            DiagnosticCode.EVENT_UNSERIALIZABLE,
            f"an event of type {payload.event_type()} was rejected: {type(error).__name__}",
            agent_id=agent_id if isinstance(agent_id, str) else None,
            session_id=session_id,
        )


Listener = Callable[[Event], None]


class Listeners:
    """Subscriptions by callback. One that fails is reported and goes on; it disturbs nobody else."""

    def __init__(self, host: HostStream) -> None:
        self._host = host
        self._tasks: dict[asyncio.Task[None], tuple[Stream, Subscription]] = {}

    def add(self, stream: Stream, after: int, listener: Listener) -> Callable[[], None]:
        """Every event above `after`, then those to come, in order (INV-2); returns what ends it."""
        events = stream.subscribe(after)
        task = asyncio.create_task(self._run(stream.name, events, listener))
        self._tasks[task] = stream, events
        task.add_done_callback(lambda ended: self._tasks.pop(ended, None))

        def unsubscribe() -> None:
            task.cancel()
            self._tasks.pop(task, None)  # nothing is told from here on

        return unsubscribe

    async def finish(self, limit: float) -> None:
        """Let them take what has been published so far, and end them."""
        reading = [asyncio.create_task(_caught_up(task, *of)) for task, of in self._tasks.items()]
        if reading:
            await asyncio.wait(reading, timeout=limit)
        for task in (*reading, *self._tasks):
            task.cancel()

    async def _run(self, name: str, events: Subscription, listener: Listener) -> None:
        task = asyncio.current_task()
        try:
            async for event in events:
                if task in self._tasks:
                    self._tell(name, event, listener)
        except LegationError as error:
            _log.warning("cannot go on reading %s for a subscriber: %s", name, error.message)

    def _tell(self, name: str, event: Event, listener: Listener) -> None:
        try:
            listener(event)
        except Exception as error:  # noqa: BLE001 - a subscriber's own fault, isolated and told
            if not _is_subscriber_error(event):  # else it would go round for ever
                what = f"a subscriber of {name} failed on event {event.seq}: {type(error).__name__}"
                self._host.diagnose(DiagnosticCode.SUBSCRIBER_ERROR, what)


async def _caught_up(task: asyncio.Task[None], stream: Stream, events: Subscription) -> None:
    """A batch is told in one go, so that whoever has taken it has told it by the next step."""
    with suppress(LegationError):  # what could not be stored was shown from memory
        await stream.durable(stream.info().head)
    while not task.done() and events.seq < stream.visible:  # noqa: ASYNC110 - the reader tells nobody
        await asyncio.sleep(0)
    await asyncio.sleep(0)


def _is_subscriber_error(event: Event) -> bool:
    if event.type != Diagnostic.event_type():
        return False
    payload = event_types.decode(event)
    return isinstance(payload, Diagnostic) and payload.code == DiagnosticCode.SUBSCRIBER_ERROR


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
    """Refuse, before an agent is asked, what an earlier host has ended."""
    state = stream.info().state
    if state == "deleted":
        raise SessionClosed(f"cannot take up session {stream.name}: it was deleted; start another")
    if state == "closed" and not to_load:
        raise SessionClosed(f"cannot take up session {stream.name}: it is closed; load it to reopen it")


def must_be_free(agent_id: str, session: Session, *, to_load: bool) -> None:
    """Refuse what cannot be taken up. A closed session is reopened by a load; a deleted one by nothing."""
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


class HostCore:
    """Parts of a host that its agents and sessions use, and what it does with its sessions."""

    log: EventLog
    homes: AgentHomes
    launcher: Launcher
    reverse: Reverse
    forbidden: ForbiddenPlaces

    def __init__(self, options: HostOptions, clock: Clock) -> None:
        self.options = options
        self.clock = clock
        self.stream = HostStream()
        self.waiting: dict[str, PermissionUpdated] = {}  # permissions without an answer
        self.answered: dict[str, None] = {}  # the last ones that have one
        self.pool = Pool()
        self.sessions: dict[str, Session] = {}
        self._claimed: set[str] = set()

    @contextmanager
    def claim(self, session_id: str) -> Iterator[None]:
        """While a session of that name is being made, nobody else makes one."""
        if session_id in self.sessions or session_id in self._claimed or session_id == HOST_STREAM:
            raise Conflict(f"cannot create session {session_id}: there is one of that name; give another")
        self._claimed.add(session_id)
        try:
            yield
        finally:
            self._claimed.discard(session_id)

    def permission_answered(self, permission_id: str) -> None:
        if self.waiting.pop(permission_id, None) is not None:
            self.answered[permission_id] = None
            if len(self.answered) > REMEMBERED:
                del self.answered[next(iter(self.answered))]

    def sessions_of(self, agent: Agent) -> list[Session]:
        return [session for session in self.sessions.values() if session.agent_id == agent.id]

    async def checked(self, place: SessionPlace) -> SessionPlace:
        """Resolved. A session may work in nothing of Legation's own, but in the folder that was made for it."""
        place = await place.resolved()
        named = place.directories if place.cwd is None else (place.cwd, *place.directories)
        await asyncio.to_thread(self.forbidden.check_session, [Path(each) for each in named])
        return place

    async def find(self, session_id: str) -> Stream | None:
        return await self.log.find(session_id, self.options.workspace)

    async def session_stream(self, session_id: str) -> Stream:
        return await self.log.stream(session_id, self.options.workspace)

    # Ones that an agent already has.

    @asynccontextmanager
    async def taking_up(
        self,
        agent: Agent,
        session_id: str,
        place: SessionPlace,
        *,
        to_load: bool | None = None,
        reopen: bool = False,
    ) -> AsyncIterator[ResumeOrLoad]:
        """Keep others from taking it up meanwhile. Unless `to_load` is said, one that only the agent knows is loaded,
        and so is a closed one that may be opened again (`reopen`)."""
        found = self.sessions.get(session_id)
        place = await self.checked(place)
        stream = await self.find(session_id) if found is None else None
        # From here on nothing is awaited until it is shown that it is taken up. Meanwhile whoever has no agent for it may have
        # forgotten it: one that was known is known now, or the agent would be asked for it by our name.
        if found is not None and session_id not in self.sessions:
            self.sessions[session_id] = found
        known = self.sessions.get(session_id)
        if to_load is None:
            to_load = known is None or (reopen and known.status == "closed")
        with ExitStack() as claims:
            if known is not None:
                must_be_free(agent.id, known, to_load=to_load)
                meta = place.meta(agent.definition, known.meta)
            else:
                if stream is not None:
                    must_not_have_ended(stream, to_load=to_load)
                claims.enter_context(self.claim(session_id))
                meta = place.meta(agent.definition, agent_session_id=session_id)
            yield ResumeOrLoad(self, agent, session_id, known, meta, place.mcp, resumes=not to_load)

    async def ready_again(self, agent: Agent) -> None:
        """Take up what its last process had, one after the other: one that was just restarted is not flooded."""
        for session in self.sessions_of(agent):
            if session.status != "disconnected":
                continue
            try:
                async with self.taking_up(agent, session.id, SessionPlace(mcp=session.mcp)) as taken:
                    await taken.resume_or_load()
            except LegationError as error:
                code, what = DiagnosticCode.SESSION_RECOVERY_SKIPPED, f"not taken up again: {error.message}"
                self.stream.diagnose(code, what, agent_id=agent.id, session_id=session.id)

    # Ones of an earlier host.

    async def restore(self, session_id: str, *, ended: bool = False) -> Session | None:
        """The one that is known, or that the store has: open, or closed to be opened again; `ended`: or closed for good."""
        if (known := self.sessions.get(session_id)) is not None:
            return known
        stream = await self.find(session_id)
        meta = read_meta(stream.info().meta) if stream else None
        if stream is None or meta is None or stream.deleted:
            return None
        return self.restored(stream, meta) if ended or meta.reopens or not stream.closed else None

    def restored(self, stream: Stream, meta: SessionMeta) -> Session:
        """Restore it at once: whoever wants the same one finds it."""
        if (known := self.sessions.get(stream.name)) is not None:
            return known
        ended = State.CLOSED if meta.reopens else State.TERMINATED
        state = ended if stream.closed else State.DISCONNECTED
        with self.claim(stream.name):
            session = Session(stream, meta, self, state)
            self.sessions[session.id] = session
        if session.status != "closed":  # that it is was told when it was closed
            session.publish()
        return session

    # How they end.

    async def lost(self, agent: Agent) -> None:
        """Disconnect the sessions of an agent whose process has ended, at once."""
        for session in self.sessions_of(agent):
            await session.lose_agent(agent.how_it_ended())
            await self._free(session, agent)

    async def _free(self, session: Session, agent: Agent | None) -> None:
        await self.release_terminals(session)
        if agent is not None:
            agent.router.forget(session)

    async def release_terminals(self, session: Session) -> None:
        """Release its terminals. An application's faulty handler keeps no session open and no host alive."""
        terminals = self.reverse.terminal
        try:
            if terminals is not None:
                await terminals.cleanup_session(session.id)
        except Exception as error:  # noqa: BLE001 - the handler's own fault, isolated and told
            _log.exception("cannot release the terminals of session %s", session.id)
            self._complain(session, f"its terminals could not be released: {type(error).__name__}")

    async def _tell_agent(self, live: Driver, session: Session, status: str) -> None:
        """Best effort: ours is ended whatever the agent says."""
        tell = live.delete_session if status == "deleted" else live.close_session
        try:
            await tell(session.meta.agent_session_id, self.options.limits.start)
        except LegationError as error:
            self._complain(session, f"the agent could not be told that it is {status}: {error.message}")

    def _complain(self, session: Session, what: str) -> None:
        code = DiagnosticCode.AGENT_PROCESS_ERROR
        self.stream.diagnose(code, what, agent_id=session.agent_id, session_id=session.id)
