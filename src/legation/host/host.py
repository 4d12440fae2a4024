"""The host: owns agent processes and their sessions, in this process.

INV-1  An event is committed before anybody sees it.   INV-2  `subscribe` gives the exact suffix.
INV-3  Everything public is plain data.                INV-4  Unknown updates are kept verbatim.
INV-5  A failing store disturbs no live stream.        INV-6  What is offered to agents is what is served.
INV-7  Diagnostics name variables, never values.       INV-8  A permission is answered exactly once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from legation.agents.acp import AcpAgent
from legation.clock import Clock
from legation.errors import (
    CapabilityUnsupported,
    Conflict,
    InvalidParams,
    LegationError,
    NotFound,
    SessionClosed,
)
from legation.host.agent import Agent, Surroundings
from legation.host.fs import create_default_fs_handler
from legation.host.handlers import FsHandler, QuestionHandler
from legation.host.listeners import Listener, Listeners
from legation.host.meta import SessionMeta, read_meta
from legation.host.options import (
    AgentDefinition,
    HostOptions,
    Limits,
    resolve_agent_definition,
    resolve_host_options,
)
from legation.host.pending import Pending
from legation.host.places import Places
from legation.host.reverse import Reverse
from legation.host.router import Router
from legation.host.session import Session
from legation.host.stream import HOST_STREAM, HostStream
from legation.host.takeup import TakeUp
from legation.host.turn import PromptResult
from legation.proc import ProcessLauncher
from legation.store.log import EventLog
from legation.store.memory import MemoryBackend
from legation.store.subscription import Subscription
from legation.wire.acp.config import ConfigOption
from legation.wire.acp.content import ContentBlock
from legation.wire.acp.mcp import McpServer
from legation.wire.acp.permission import PermissionOutcome
from legation.wire.acp.sessions import ListSessionsResponse
from legation.wire.ask import Approver
from legation.wire.diagnostic import DiagnosticCode
from legation.wire.hoststream import AgentRemoved, AgentUpdated, McpServerNames, SessionUpdated
from legation.wire.payload import Payload

DRAIN_LIMIT = 5.0  # seconds that callbacks have to take what is left when the host is disposed of: their time
CLOSE_LIMIT = 5.0  # seconds the store has for a session's last word


class AcpHost:
    """`async with AcpHost(options) as host`: at the end no agent is left, and all events are saved."""

    def __init__(
        self, options: HostOptions | Mapping[str, object] | None = None, *, log: EventLog | None = None
    ) -> None:
        self.options = resolve_host_options(options)
        self.clock: Clock = log.clock if log else self.options.clock
        self.limits: Limits = self.options.limits
        self.question_handler: QuestionHandler | None = self.options.questions
        self._pending = Pending()
        self.approver: Approver = self.options.approver or self._pending
        self._stream = HostStream()
        self._given_log = log
        self._agents: dict[str, Agent] = {}
        self._sessions: dict[str, Session] = {}
        self._listeners = Listeners(self._stream)
        self._last_agent = 0
        self._disposing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._places = await asyncio.to_thread(Places.open, self.options.data_dir)
        self._launcher = self.options.launcher or ProcessLauncher(registry=self._places.registry)
        self.log = (
            self._given_log
            or await EventLog(
                self.options.storage or MemoryBackend(), clock=self.clock, report=self._stream.trouble
            ).__aenter__()
        )
        self._stream.open(await self.log.stream(HOST_STREAM))
        self._reverse = Reverse(self._fs(), self.options.terminal, self.options.questions)
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.dispose()

    def _fs(self) -> FsHandler | None:
        return (
            create_default_fs_handler(self._folders_of) if self.options.fs == "default" else self.options.fs
        )

    def _folders_of(self, session_id: str) -> Sequence[Path] | None:
        session = self._sessions.get(session_id)
        return session.folders if session else None

    # Agents.

    async def spawn_agent(self, definition: AgentDefinition | Mapping[str, object]) -> AgentUpdated:
        self._must_be_open()
        resolved = resolve_agent_definition(definition)
        self._last_agent += 1
        agent = Agent(f"agent-{self._last_agent}", resolved, self._surroundings())
        self._agents[agent.id] = agent
        await agent.start()
        return agent.snapshot()

    def _surroundings(self) -> Surroundings:
        return Surroundings(
            options=self.options,
            launcher=self._launcher,
            clock=self.clock,
            stream=self._stream,
            capabilities=self._reverse.capabilities,
            command=self._places.command,
            new_router=lambda agent_id: Router(agent_id, self.log, self._stream, self._reverse),
            lost=self._lost,
            ready_again=self._ready_again,
        )

    def get_agent(self, agent_id: str) -> AgentUpdated | None:
        agent = self._agents.get(agent_id)
        return agent.snapshot() if agent else None

    def get_agents(self) -> list[AgentUpdated]:
        return [agent.snapshot() for agent in self._agents.values()]

    async def dispose_agent(self, agent_id: str) -> None:
        """Idempotent. Its sessions are disconnected, their history stays."""
        agent = self._agents.get(agent_id)
        if agent is None:
            return
        await agent.dispose()
        if self._agents.pop(agent_id, None):
            self._stream.publish(AgentRemoved(agent_id=agent_id))

    async def authenticate(self, agent_id: str, method_id: str) -> None:
        await self._live(agent_id).authenticate(method_id, self.limits.start)

    async def logout(self, agent_id: str) -> None:
        await self._live(agent_id).logout(self.limits.start)

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
    ) -> SessionUpdated:
        """`session_id` is Legation's id of it; without one it is the agent's."""
        agent, live = self._agent(agent_id), self._live(agent_id)
        meta = self._meta(agent, "", cwd, mcp_servers, additional_directories, title)
        opened = await live.new_session(
            meta.cwd,
            tuple(mcp_servers),
            self.limits.start,
            additional_directories=meta.additional_directories,
        )
        name = session_id or opened.session_id
        self._must_be_new(name)
        agent.router.must_be_free(opened.session_id)
        stream = await self.log.stream(name)
        session = Session(stream, _named(meta, opened.session_id), self)
        self._sessions[name] = session
        active = session.attach(agent_id, live, opened, tuple(mcp_servers))
        agent.router.open(session)
        await session.keep(session.meta)
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
        """The agent tells the whole history again; it replaces the recorded one, under fresh numbers."""
        meta = self._meta_to_take_up(agent_id, session_id, cwd, mcp_servers, additional_directories)
        return await self._take_up(agent_id, session_id, meta, tuple(mcp_servers)).load()

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
        meta = self._meta_to_take_up(agent_id, session_id, cwd, mcp_servers, additional_directories)
        return await self._take_up(agent_id, session_id, meta, tuple(mcp_servers)).resume()

    async def prompt(self, session_id: str, prompt: Sequence[ContentBlock]) -> PromptResult:
        return await self.session(session_id).prompt(tuple(prompt))

    async def cancel(self, session_id: str) -> None:
        await self.session(session_id).cancel()

    async def close_session(self, session_id: str) -> None:
        session = self.session(session_id)
        if session.status in ("closed", "deleted"):
            return
        await self._end(session, "closed")

    async def delete_session(self, agent_id: str, session_id: str) -> None:
        """Here for good; at the agent where it can. A session that only the agent knows is deleted there."""
        session = self._sessions.get(session_id)
        if session is None:
            await self._live(agent_id).delete_session(session_id, self.limits.start)
        elif session.status != "deleted":
            self._must_own(agent_id, session)
            await self._end(session, "deleted")

    async def _end(self, session: Session, status: str) -> None:
        live = self._live_of(session)
        await session.end("closed" if status == "closed" else "deleted")
        if self._reverse.terminal is not None:
            await self._reverse.terminal.cleanup_session(session.id)
        agent = self._agents.get(session.agent_id or "")
        if agent:
            agent.router.forget(session)
        if live is not None:
            await self._end_at_agent(live, session, status)

    async def _end_at_agent(self, live: AcpAgent, session: Session, status: str) -> None:
        """Best effort: ours is ended whatever the agent says."""
        name = session.meta.agent_session_id
        try:
            if status == "deleted" and live.can_delete:
                await live.delete_session(name, self.limits.start)
            elif live.can_close:
                await live.close_session(name, self.limits.start)
        except LegationError as error:
            what = f"the agent could not be told that its session is {status}: {error.message}"
            self._stream.diagnose(
                DiagnosticCode.AGENT_PROCESS_ERROR, what, agent_id=session.agent_id, session_id=session.id
            )

    async def list_sessions(
        self, agent_id: str, *, cursor: str | None = None, cwd: Path | str | None = None
    ) -> ListSessionsResponse:
        where = _absolute(cwd) if cwd is not None else None
        return await self._live(agent_id).list_sessions(where, cursor, self.limits.start)

    async def set_mode(self, session_id: str, mode_id: str) -> None:
        session = self.session(session_id)
        if not session.has_modes:
            raise CapabilityUnsupported(
                f"cannot set the mode of session {session_id}: its agent named no modes"
            )
        await session.agent.set_mode(session.meta.agent_session_id, mode_id, self.limits.start)

    async def set_config_option(
        self, session_id: str, config_id: str, value: str | bool
    ) -> tuple[ConfigOption, ...]:
        session = self.session(session_id)
        if not session.has_config:
            raise CapabilityUnsupported(f"cannot configure session {session_id}: its agent named no options")
        name = session.meta.agent_session_id
        answer = await session.agent.set_config_option(name, config_id, value, self.limits.start)
        return answer.config_options

    def get_session(self, session_id: str) -> SessionUpdated | None:
        session = self._sessions.get(session_id)
        return session.snapshot() if session else None

    def get_sessions(self) -> list[SessionUpdated]:
        return [session.snapshot() for session in self._sessions.values()]

    def session(self, session_id: str) -> Session:
        session = self._sessions.get(session_id)
        if session is None:
            raise NotFound(f"cannot find session {session_id}; check its id")
        return session

    async def restore_sessions(self) -> list[SessionUpdated]:
        """The sessions of earlier hosts on the same store, disconnected until they are resumed or loaded."""
        restored: list[SessionUpdated] = []
        for info in await self.log.streams():
            meta = read_meta(info.meta)
            if info.state == "open" and meta and info.name not in self._sessions:
                session = self._sessions[info.name] = Session(await self.log.stream(info.name), meta, self)
                session.show("disconnected")
                restored.append(session.snapshot())
        return restored

    # Events and permissions.

    def subscribe(self, session_id: str | None, from_seq: int, callback: Listener) -> Callable[[], None]:
        """`callback` gets every event above `from_seq` of a session, or of the host; returns what ends it."""
        return self._listeners.add(self._stream_of(session_id).stream, from_seq, callback)

    def events(self, session_id: str | None = None, from_seq: int = 0) -> Subscription:
        """The same as an asynchronous iterator."""
        return self._stream_of(session_id).stream.subscribe(from_seq)

    def respond_permission(self, request_id: str, outcome: PermissionOutcome, *, by: str = "client") -> None:
        self._pending.respond(request_id, outcome, by)

    async def dispose(self) -> None:
        """Stop every agent, save every event. A caller that gives up, or calls twice, changes nothing."""
        if self._disposing is None:
            self._disposing = asyncio.create_task(self._dispose(), name="legation-dispose")
        await asyncio.shield(self._disposing)

    async def _dispose(self) -> None:
        outcomes = await asyncio.gather(
            *[agent.dispose() for agent in self._agents.values()], return_exceptions=True
        )
        for session in self._sessions.values():
            session.disconnect("disposed")
            if self._reverse.terminal is not None:
                await self._reverse.terminal.cleanup_session(session.id)
        if self._given_log is None:
            await self.log.__aexit__(None, None, None)
        await self._listeners.finish(DRAIN_LIMIT if self._given_log is None else 0)
        await asyncio.to_thread(self._places.close)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    # For sessions.

    def publish(self, payload: Payload) -> object:
        return self._stream.publish(payload)

    async def replace_agent(self, session: Session, why: str) -> None:
        agent = self._agents.get(session.agent_id or "")
        if agent:
            await agent.restart(why)

    # Agents tell.

    async def _lost(self, agent: Agent) -> None:
        for session in list(self._sessions.values()):
            if session.agent_id == agent.id:
                await session.lose_agent(agent.how_it_ended())

    async def _ready_again(self, agent: Agent) -> None:
        """Crash recovery: by resuming, else by loading, else not, and that is said."""
        live = agent.running()
        for session in list(self._sessions.values()):
            if session.agent_id != agent.id or session.status != "disconnected":
                continue
            take_up = self._take_up(agent.id, session.id, session.meta, session.mcp)
            try:
                if live.can_resume:
                    await take_up.resume()
                elif live.can_load:
                    await take_up.load()
                else:
                    self._skip(session, "the agent can neither resume nor load sessions")
            except LegationError as error:
                self._skip(session, error.message)

    def _skip(self, session: Session, why: str) -> None:
        code = DiagnosticCode.SESSION_RECOVERY_SKIPPED
        self._stream.diagnose(
            code, f"not taken up again: {why}", agent_id=session.agent_id, session_id=session.id
        )

    # Finding things.

    def _must_be_open(self) -> None:
        if self._disposing:
            raise Conflict("cannot start anything: the host is being disposed of; make a new one")

    def _agent(self, agent_id: str) -> Agent:
        self._must_be_open()
        agent = self._agents.get(agent_id)
        if agent is None:
            raise NotFound(f"cannot find agent {agent_id}; `get_agents` lists them")
        return agent

    def _live(self, agent_id: str) -> AcpAgent:
        return self._agent(agent_id).running()

    def _live_of(self, session: Session) -> AcpAgent | None:
        agent = self._agents.get(session.agent_id or "")
        return agent.live if agent and session.status == "active" else None

    def _stream_of(self, session_id: str | None) -> Session | HostStream:
        return self._stream if session_id is None else self.session(session_id)

    def _must_be_new(self, session_id: str) -> None:
        if session_id in self._sessions or session_id == HOST_STREAM:
            raise Conflict(f"cannot create session {session_id}: there is one of that name; give another")

    def _must_own(self, agent_id: str, session: Session) -> None:
        if session.agent_id is not None and session.agent_id != agent_id:
            raise InvalidParams(f"cannot use session {session.id} with {agent_id}: it is another agent's")

    def _meta(
        self,
        agent: Agent,
        agent_session_id: str,
        cwd: Path | str | None,
        mcp: Sequence[McpServer],
        directories: Sequence[Path | str],
        title: str | None = None,
    ) -> SessionMeta:
        return SessionMeta(
            agent_session_id=agent_session_id,
            cwd=_absolute(cwd) if cwd is not None else str(agent.definition.cwd),
            additional_directories=tuple(map(_absolute, directories)),
            agent_definition_id=agent.definition.name,
            mcp_servers=tuple(McpServerNames.from_server(server) for server in mcp),
            title=title,
        )

    def _meta_to_take_up(
        self,
        agent_id: str,
        session_id: str,
        cwd: Path | str | None,
        mcp: Sequence[McpServer],
        directories: Sequence[Path | str],
    ) -> SessionMeta:
        known = self._sessions.get(session_id)
        name = known.meta.agent_session_id if known else session_id
        place = cwd if cwd is not None or known is None else known.meta.cwd
        meta = self._meta(self._agent(agent_id), name, place, mcp, directories)
        return _titled(meta, known.meta) if known else meta

    def _take_up(
        self, agent_id: str, session_id: str, meta: SessionMeta, mcp: tuple[McpServer, ...]
    ) -> TakeUp:
        known = self._sessions.get(session_id)
        if known is not None:
            self._must_be_free(agent_id, known)

        async def make() -> Session:
            self._must_be_new(session_id)
            session = Session(await self.log.stream(session_id), meta, self)
            self._sessions[session_id] = session
            return session

        return TakeUp(
            agent=self._agent(agent_id),
            known=known,
            make=make,
            meta=meta,
            mcp=mcp,
            limits=self.limits,
            host=self._stream,
        )

    def _must_be_free(self, agent_id: str, session: Session) -> None:
        if session.status == "deleted":
            raise SessionClosed(f"cannot take up session {session.id}: it is deleted")
        if session.status == "resuming":
            raise Conflict(
                f"cannot take up session {session.id}: it is being taken up already; wait for that"
            )
        if session.busy:
            raise Conflict(f"cannot take up session {session.id}: a turn is running; wait or cancel it")
        if session.status == "active":
            self._must_own(agent_id, session)


def _absolute(path: Path | str) -> str:
    return str(Path(path).absolute())


def _named(meta: SessionMeta, agent_session_id: str) -> SessionMeta:
    return msgspec.structs.replace(meta, agent_session_id=agent_session_id)


def _titled(meta: SessionMeta, known: SessionMeta) -> SessionMeta:
    return msgspec.structs.replace(meta, title=known.title, updated_at=known.updated_at)


def create_acp_host(options: HostOptions | Mapping[str, object] | None = None) -> AcpHost:
    return AcpHost(options)
