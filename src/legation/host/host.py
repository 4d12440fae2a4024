"""The host: owns agent processes and their sessions, in this process.

INV-1  An event is committed before anybody sees it.   INV-2  `subscribe` gives the exact suffix.
INV-3  Everything public is plain data.                INV-4  Unknown updates are kept verbatim.
INV-5  A failing store disturbs no live stream.        INV-6  What is offered to agents is what is served.
INV-7  Diagnostics name variables, never values.       INV-8  A permission is answered exactly once.

INV-O1  While a session of a name is being made, nobody else makes one of that name.
INV-O2  What the store has of a new session is all of it: one commit makes it, and from then on nobody who is cancelled
        gives it up.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Self, TypeAlias

import msgspec

from legation.agents.driver import Driver, OpenRequest
from legation.agents.modes import Offers, OpenedSession, put_into_asking
from legation.agents.pool import Pool
from legation.errors import AlreadyAnswered, Conflict, InvalidParams, LegationError, NotFound
from legation.host.agent import Agent, AgentHomes
from legation.host.lifecycle import (
    HOST_STREAM,
    HostStream,
    Listener,
    Listeners,
    must_be_free,
    must_be_unused,
    must_not_be_anothers,
    must_not_have_ended,
)
from legation.host.options import (
    MAX_DIRECTORIES,
    AgentDefinition,
    HostOptions,
    Limits,
    SessionMeta,
    SessionPlace,
    read_meta,
    real_folder,
    resolve_agent_definition,
    resolve_host_options,
)
from legation.host.requests.asks import decision_of
from legation.host.requests.handlers import Reverse
from legation.host.requests.services import DefaultFs, DefaultTerminals
from legation.host.resume import ResumeOrLoad
from legation.host.session import Session, Settle, State
from legation.host.turn import CutWords, PromptResult
from legation.proc import ProcessLauncher, Registry, child_environment
from legation.store.codec import MemoryBackend
from legation.store.forbidden import ForbiddenPlaces
from legation.store.log import EventLog
from legation.store.stream import Receipt, Stream, Subscription
from legation.tasks import finish
from legation.wire.acp.methods import ListSessionsResponse, McpServer, PermissionOutcome
from legation.wire.acp.updates import ConfigOption, ContentBlock
from legation.wire.event_types import (
    AgentRemoved,
    AgentUpdated,
    Diagnostic,
    DiagnosticCode,
    SessionUpdated,
)
from legation.wire.events import Event
from legation.wire.snapshot import SnapshotFold

Prepare: TypeAlias = Callable[[OpenedSession], Awaitable[Mapping[str, object] | None]]
"""Given what the agent has opened, to set it; returns what is to be kept with the session."""

DRAIN_LIMIT = 5.0  # seconds that callbacks have to take what is left when the host is disposed of: their time

_log = logging.getLogger(__name__)


class AcpHost:
    """`async with AcpHost(options) as host`: at the end no agent is left, and all events are saved."""

    def __init__(
        self, options: HostOptions | Mapping[str, object] | None = None, *, log: EventLog | None = None
    ) -> None:
        """`log` is one that somebody else opened and will close; its trouble is told to them."""
        resolved = resolve_host_options(options)
        self.options = resolved
        self.limits: Limits = resolved.limits
        self.clock = log.clock if log else resolved.clock
        self.stream = HostStream()
        self.pool = Pool()
        self.sessions: dict[str, Session] = {}
        self._claimed: set[str] = set()
        self._given_log = log
        self.agents: dict[str, Agent] = {}
        self._listeners = Listeners(self.stream)
        self._last_agent = 0
        self._entered = False
        self._disposing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        options = self.options
        self.homes = homes = await asyncio.to_thread(AgentHomes.open, options.data_dir, options.workspace)
        try:
            if (log := self._given_log) is None:
                backend = options.storage or MemoryBackend()
                log = await EventLog(backend, clock=self.clock, report=self.stream.trouble).__aenter__()
            self.log = log
        except BaseException:
            await asyncio.to_thread(homes.close)
            raise
        self.stream.open(await self.log.stream(HOST_STREAM, options.workspace))
        self.launcher = options.launcher or ProcessLauncher(registry=Registry(homes.children))
        self.forbidden = forbidden = options.forbidden or ForbiddenPlaces([homes.data])
        fs = DefaultFs() if options.fs == "default" else options.fs
        if isinstance(fs, DefaultFs):
            fs.bind(self.folders_of, forbidden)
        if isinstance(options.terminal, DefaultTerminals):
            options.terminal.bind(self.folders_of, forbidden, self.launcher, self._environment_of)
        self.reverse = Reverse(fs, options.terminal, options.questions)
        self._entered = True
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.dispose()

    def folders_of(self, session_id: str) -> Sequence[Path] | None:
        session = self.sessions.get(session_id)
        return session.folders if session else None

    def _environment_of(self, session_id: str) -> dict[str, str]:
        """Return that of a terminal: the agent's home, and nothing of ours but what every program gets."""
        home = self.session(session_id).home or self.homes.data
        return child_environment({}, home=Path(home), tmp=Path(tempfile.gettempdir()))

    # Agents.

    async def spawn_agent(
        self, definition: AgentDefinition | Mapping[str, object], *, terminals: bool = False
    ) -> AgentUpdated:
        """Start an agent; with `terminals` it is offered those of a handler that is not offered to every agent."""
        self._must_be_open()
        resolved = resolve_agent_definition(definition)
        self._last_agent += 1
        agent = Agent(f"agent-{self._last_agent}", resolved, self, terminals=terminals)
        self.agents[agent.id] = agent
        try:
            await agent.start()
        except asyncio.CancelledError:
            if agent.live is not None:  # it was ready just then, and nobody else knows of it
                await asyncio.shield(self.dispose_agent(agent.id))
            raise
        return agent.snapshot()

    def get_agent(self, agent_id: str) -> AgentUpdated | None:
        agent = self.agents.get(agent_id)
        return agent.snapshot() if agent else None

    def get_agents(self) -> list[AgentUpdated]:
        return [agent.snapshot() for agent in self.agents.values()]

    async def dispose_agent(self, agent_id: str) -> None:
        """Idempotent. Its sessions are disconnected, their history stays."""
        agent = self.agents.get(agent_id)
        if agent is None:
            return
        await agent.dispose()
        if self.agents.pop(agent_id, None):
            self.stream.publish(AgentRemoved(agent_id=agent_id))

    async def until_ended(self, agent_id: str) -> AgentUpdated:
        """Return the agent when no process of it runs or follows, also one that is disposed of meanwhile."""
        return await self._agent(agent_id).until_ended()

    async def authenticate(self, agent_id: str, method_id: str) -> None:
        """Sign in. Somebody may have to do something for that, so it takes a person's time."""
        await self.driver(agent_id).authenticate(method_id, self.limits.permission)

    async def logout(self, agent_id: str) -> None:
        await self.driver(agent_id).logout(self.limits.start)

    def driver(self, agent_id: str) -> Driver:
        """The agent's process itself, for what is none of ours; `AgentExited` where none is ready."""
        return self._agent(agent_id).running()

    # Sessions.

    async def create_session(
        self,
        agent_id: str,
        *,
        cwd: Path | str | None = None,
        mcp_servers: Sequence[McpServer] = (),
        additional_directories: Sequence[Path | str] = (),
        session_id: str | None = None,
        title: str | None = None,
        prepare: Prepare | None = None,
        forks: str | None = None,
    ) -> SessionUpdated:
        """`session_id` is Legation's id of it; without one it is the agent's. `prepare` sets up what the agent has
        opened before anybody knows of it: where it raises, there is no session. `forks` is what the agent calls a
        session with whose history it begins. Whoever is cancelled may find that it is there, all of it."""
        agent = self._agent(agent_id)
        place = await self.checked(SessionPlace(cwd, tuple(mcp_servers), additional_directories))
        live, limit, modes = agent.running(), self.limits.start, agent.definition.modes
        meta = place.meta(agent.definition)

        async def make(name: str) -> tuple[Session, Receipt | None]:
            """Store its metadata, or there is no session."""
            stream = await self.session_stream(name)
            must_be_unused(stream)
            session = Session(stream, meta, self)
            await session.keep(meta)
            self.sessions[session.id] = session
            active = session.attach(agent, live, opened, place.mcp)
            agent.serve(session, live)
            return session, active

        with ExitStack() as claims:
            claims.enter_context(agent.router.expecting())
            if session_id is not None:
                claims.enter_context(self.claim(session_id))
                if (former := await self.find(session_id)) is not None:
                    must_be_unused(former)
            request = OpenRequest(meta.cwd, place.mcp, meta.additional_directories, forks or "")
            opened = await (live.new_session if forks is None else live.fork_session)(request, limit)
            opening = OpenedSession(live, opened.session_id, Offers.of(opened), limit, modes)
            puts = await put_into_asking(opening, modes)
            details = None if prepare is None else await prepare(opening)
            opened = opening.offers.told_in(opened)
            if session_id is None:
                session_id = opened.session_id
                claims.enter_context(self.claim(session_id))
            agent.router.must_be_free(opened.session_id)
            meta = msgspec.structs.replace(
                meta, agent_session_id=opened.session_id, title=title, details=details
            )
            session, active = await finish(make(session_id))
            session.tell_modes(puts, "opened")
        if active:
            await active
        return session.snapshot()

    async def load_session(
        self,
        agent_id: str,
        session_id: str,
        *,
        cwd: Path | str | None = None,
        mcp_servers: Sequence[McpServer] = (),
        additional_directories: Sequence[Path | str] = (),
    ) -> SessionUpdated:
        """Have the agent tell its history again: a new generation, unless it is what is recorded."""
        agent, place = self._agent(agent_id), SessionPlace(cwd, tuple(mcp_servers), additional_directories)
        async with self.taking_up(agent, session_id, place, to_load=True) as taken:
            return await taken.load()

    async def resume_session(
        self,
        agent_id: str,
        session_id: str,
        *,
        cwd: Path | str | None = None,
        mcp_servers: Sequence[McpServer] = (),
        additional_directories: Sequence[Path | str] = (),
    ) -> SessionUpdated:
        """The agent goes on where it was; what is recorded stays."""
        agent, place = self._agent(agent_id), SessionPlace(cwd, tuple(mcp_servers), additional_directories)
        async with self.taking_up(agent, session_id, place, to_load=False) as taken:
            return await taken.resume()

    async def resume_or_load(
        self,
        agent_id: str,
        session_id: str,
        place: SessionPlace | None = None,
        *,
        reopen: bool = False,
        to_load: bool | None = None,
    ) -> SessionUpdated:
        """Resume a session, or load it where that is refused. What is shown stays, unless the agent tells something else
        that is no shorter. `reopen`: also one that was closed, which only a load does. One that only the agent knows is
        loaded, for its history; who wants none of that says so by `to_load=False`."""
        agent, place = self._agent(agent_id), place or SessionPlace()
        async with self.taking_up(agent, session_id, place, to_load=to_load, reopen=reopen) as taken:
            return await taken.resume_or_load()

    async def prompt(self, session_id: str, prompt: Sequence[ContentBlock]) -> PromptResult:
        return await self.session(session_id).prompt(tuple(prompt))

    async def cancel(self, session_id: str) -> None:
        await self.session(session_id).cancel()

    def cut_turns(self, why: CutWords) -> None:
        """Let the turns that run say that they are ended with the host."""
        for session in list(self.sessions.values()):
            session.talk.cut(why)

    async def close_session(
        self, session_id: str, *, reopens: bool = False, settle: Settle | None = None
    ) -> None:
        """A load opens it again, here; with `reopens` also in a later host, which restores it closed. To close it again
        without takes that back. `settle` is called when it is closed, before anybody can open it again."""
        session = self.session(session_id)
        agent = self.agents.get(session.agent_id or "")
        live = agent.live if agent and session.status == "active" else None
        try:
            await session.end("closed", reopens=reopens, last=settle)
        finally:
            if session.status == "closed":
                await self._free(session, agent)
        if live is not None and live.can_close:
            await self._tell_agent(live, session, "closed")

    async def delete_session(self, agent_id: str, session_id: str, *, settle: Settle | None = None) -> None:
        """Here for good; at the agent where it can. A session that only the agent knows is deleted there, one of an
        earlier host here too. `settle` is called when nothing of it happens any more, before its record goes."""
        session = await self.restore(session_id, ended=True)
        if session is None:
            stream = await self.find(session_id)
            if stream is None or not stream.deleted:
                await self.driver(agent_id).delete_session(session_id, self.limits.start)
            return
        if session.status == "deleted":
            return
        must_not_be_anothers(agent_id, session)
        agent = self.agents.get(agent_id)
        live = agent.live if agent else None

        async def part() -> None:
            await self._free(session, agent)
            if live is not None and (live.can_delete or live.can_close):
                await self._tell_agent(live, session, "deleted" if live.can_delete else "closed")
            if settle is not None:
                await settle()

        # It is told first where there is something to settle, for it may be stopped there.
        await session.end("deleted", last=part if settle else None)
        if settle is None:
            await part()

    async def list_sessions(
        self, agent_id: str, *, cursor: str | None = None, cwd: Path | str | None = None
    ) -> ListSessionsResponse:
        where = await real_folder(cwd) if cwd is not None else None
        return await self.driver(agent_id).list_sessions(where, cursor, self.limits.start)

    async def set_mode(self, session_id: str, mode_id: str) -> None:
        await self.session(session_id).set_mode(mode_id)

    async def set_config_option(
        self, session_id: str, config_id: str, value: str | bool
    ) -> tuple[ConfigOption, ...]:
        return await self.session(session_id).set_option(config_id, value)

    def get_session(self, session_id: str) -> SessionUpdated | None:
        session = self.sessions.get(session_id)
        return session.snapshot() if session else None

    def get_sessions(self) -> list[SessionUpdated]:
        return [session.snapshot() for session in self.sessions.values()]

    def session(self, session_id: str) -> Session:
        session = self.sessions.get(session_id)
        if session is None:
            raise NotFound(f"cannot find session {session_id}; check its id")
        return session

    async def restore_sessions(self) -> list[SessionUpdated]:
        """The sessions of earlier hosts on the same store, disconnected until they are resumed or loaded."""
        self._must_be_open()
        restored: list[SessionUpdated] = []
        for info in await self.log.streams(self.options.workspace):
            meta = read_meta(info.meta)
            if info.state == "open" and meta is not None and info.name not in self.sessions:
                restored.append(self.restored(await self.session_stream(info.name), meta).snapshot())
        return restored

    async def restore_session(self, session_id: str) -> Session:
        """Return one of them, or the one that is known already."""
        self._must_be_open()
        return await self.restore(session_id) or self.session(session_id)

    async def until_settled(self, session_id: str) -> Session:
        """The session, restored if need be, when nobody takes it up and no agent that leaves, or has ended, still has it:
        what is asked of it before ends with that agent. What ended meanwhile is returned as it is."""
        while True:
            session = await self.restore_session(session_id)
            agent = self.agents.get(session.agent_id or "")
            if agent is not None and agent.leaving:  # its sessions are with it until its process has ended
                await agent.dispose()
            await session.decided()
            await session.until_not_ending()
            if session.status in ("closed", "deleted"):
                return session
            agent = self.agents.get(session.agent_id or "")
            leaves = agent is not None and agent.leaving and session.status == "active"
            # Forgotten meanwhile, another is restored: what happens to this one nobody would hear of.
            if not leaves and self.sessions.get(session_id) is session:
                return session

    def forget_session(self, session_id: str) -> None:
        """Forget one that no agent has: its record stays, by which `restore_session` knows it again."""
        session = self.sessions.get(session_id)
        if session is not None and session.status in ("disconnected", "closed", "deleted"):
            del self.sessions[session_id]

    # Sessions that an agent already has.

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
        if known is not None:
            must_be_free(agent.id, known, to_load=to_load)
        elif stream is not None:
            must_not_have_ended(session_id, stream.info().state, to_load=to_load)
        meta = place.meta(agent.definition, known.meta if known else None, agent_session_id=session_id)
        with self.claim(session_id) if known is None else nullcontext():
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
                self._complain(
                    session,
                    f"not taken up again: {error.message}",
                    DiagnosticCode.SESSION_RECOVERY_SKIPPED,
                )

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

    def _complain(
        self, session: Session, what: str, code: DiagnosticCode = DiagnosticCode.AGENT_PROCESS_ERROR
    ) -> None:
        told = Diagnostic(code=code, message=what, agent_id=session.agent_id, session_id=session.id)
        self.stream.publish(told)

    # Events and permissions.

    def subscribe(self, session_id: str | None, from_seq: int, callback: Listener) -> Callable[[], None]:
        """`callback` gets every event above `from_seq` of a session, or of the host; returns what ends it."""
        return self._listeners.add(self._stream_of(session_id).stream, from_seq, callback)

    def events(self, session_id: str | None = None, from_seq: int = 0) -> Subscription:
        """Iterate over the same events."""
        return self._stream_of(session_id).stream.subscribe(from_seq)

    async def snapshots(
        self, session_id: str, from_seq: int = 0
    ) -> AsyncIterator[tuple[Event, SnapshotFold]]:
        """Iterate over the same events of a session, each with the snapshot of what was said up to it: `write` it
        before the next one is taken, or leave it, which costs nothing."""
        snapshot, stream = SnapshotFold(), self.session(session_id).stream
        async for event in stream.subscribe(0):
            snapshot.take(event)
            if event.seq > from_seq:
                yield event, snapshot

    def respond_permission(self, request_id: str, outcome: PermissionOutcome, *, by: str = "client") -> None:
        """The first answer counts, a second one is refused (INV-8). Where there is an approver nobody else answers."""
        told = self.stream.pending.get(request_id)
        if self.options.approver is None and told is not None and told.ask is not None:
            decision = decision_of(told.ask.options, outcome, by)
            self.session(told.session_id).talk.permissions.settle(request_id, decision)
        elif self.options.approver is None and request_id in self.stream.answered:
            raise AlreadyAnswered(
                f"cannot answer permission {request_id}: it was answered or withdrawn before"
            )
        else:
            raise NotFound(f"cannot find permission {request_id}; check its id")

    def hurry(self) -> None:
        """This process is ending: agents that are stopped, now or later, have a moment for it, and not `kill_timeout_ms`."""
        if self._entered and isinstance(self.launcher, ProcessLauncher):  # a recorded one has no processes
            self.launcher.hurry()

    async def dispose(self) -> None:
        """Stop every agent, save every event. A caller that gives up, or calls twice, changes nothing."""
        if self._disposing is None:
            self._disposing = asyncio.create_task(self._dispose(), name="legation-dispose")
        await asyncio.shield(self._disposing)

    async def _dispose(self) -> None:
        if not self._entered:
            return
        agents = list(self.agents.values())
        outcomes = await asyncio.gather(*[agent.dispose() for agent in agents], return_exceptions=True)
        for session in list(self.sessions.values()):
            session.disconnect("disposed")
            await self.release_terminals(session)
            await session.saved()
        await self._listeners.finish(DRAIN_LIMIT)
        if self._given_log is None:
            await self.log.__aexit__(None, None, None)
        await asyncio.to_thread(self.homes.close)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    # Finding things.

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

    def sessions_of(self, agent: Agent) -> list[Session]:
        return [session for session in self.sessions.values() if session.agent_id == agent.id]

    async def checked(self, place: SessionPlace) -> SessionPlace:
        """Resolve it. A session may work in nothing of Legation's own, but in the folder that was made for it."""
        if len(place.directories) > MAX_DIRECTORIES:
            raise InvalidParams(
                f"cannot work in more than {MAX_DIRECTORIES} additional folders; name one above them"
            )
        cwd = None if place.cwd is None else await real_folder(place.cwd)
        directories = [await real_folder(each) for each in place.directories]
        named = [Path(each) for each in (cwd, *directories) if each is not None]
        await asyncio.to_thread(self.forbidden.check_session, named)
        return SessionPlace(cwd, place.mcp, directories)

    async def find(self, session_id: str) -> Stream | None:
        return await self.log.find(session_id, self.options.workspace)

    async def session_stream(self, session_id: str) -> Stream:
        return await self.log.stream(session_id, self.options.workspace)

    def _must_be_open(self) -> None:
        if not self._entered:
            raise Conflict("cannot use the host before it is entered; use `async with`")
        if self._disposing:
            raise Conflict("cannot start anything: the host is being disposed of; make a new one")

    def _agent(self, agent_id: str) -> Agent:
        self._must_be_open()
        agent = self.agents.get(agent_id)
        if agent is None:
            raise NotFound(f"cannot find agent {agent_id}; `get_agents` lists them")
        return agent

    def _stream_of(self, session_id: str | None) -> Session | HostStream:
        return self.stream if session_id is None else self.session(session_id)
