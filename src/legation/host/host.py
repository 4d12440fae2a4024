"""The host: owns agent processes and their sessions, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from legation.agents.acp import AcpAgent
from legation.errors import Conflict, InvalidParams, LegationError
from legation.host.files import SessionFiles
from legation.host.router import Router
from legation.host.session import Limits, Session
from legation.ids import new_id
from legation.proc import Command, Launcher, Pipes
from legation.proc.lines import Redact, unchanged
from legation.store.log import EventLog
from legation.wire.acp.capabilities import ClientCapabilities, FileSystemCapabilities
from legation.wire.acp.mcp import McpServer
from legation.wire.ask import Approver
from legation.wire.diagnostic import Diagnostic, DiagnosticCode
from legation.wire.lifecycle import AgentExited, SessionStatus

TELL_LIMIT = 5.0  # seconds from an agent's end to the event that says so: the loop's time
CLOSE_LIMIT = 30.0  # seconds to close one session: the store's time

# What we serve, and nothing else (INV-6).
CAPABILITIES = ClientCapabilities(fs=FileSystemCapabilities(read_text_file=True, write_text_file=True))


def _ignore(_: Diagnostic) -> None: ...


class AcpHost:
    """`async with AcpHost(...)`: at the end no agent is left."""

    def __init__(
        self,
        *,
        log: EventLog,
        launcher: Launcher,
        approver: Approver,
        limits: Limits | None = None,
        max_line: int = 32 * 1024 * 1024,
        redact: Redact = unchanged,
        report: Callable[[Diagnostic], None] = _ignore,
    ) -> None:
        self._log = log
        self._launcher = launcher
        self._approver = approver
        self._limits = limits or Limits()
        self._max_line = max_line
        self._redact = redact
        self._report = report
        self._routers: dict[AcpAgent, Router] = {}
        self._starting: set[asyncio.Task[AcpAgent]] = set()
        self._watching: list[asyncio.Task[None]] = []
        self._sessions: list[Session] = []
        self._disposing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.dispose()

    async def spawn_agent(self, command: Command) -> AcpAgent:
        self._must_be_open()
        router = Router(self._log, self._report)

        def too_long(size: int) -> None:
            router.trouble(DiagnosticCode.AGENT_LINE_TOO_LONG, f"skipped a line of {size} bytes")

        starting = asyncio.create_task(
            AcpAgent.start(
                self._launcher,
                command,
                router,
                pipes=Pipes(max_line=self._max_line, redact=self._redact, on_line_too_long=too_long),
                capabilities=CAPABILITIES,
                timeout=self._limits.start,
            )
        )
        self._starting.add(starting)
        starting.add_done_callback(partial(self._started, router))
        return await starting

    def _started(self, router: Router, starting: asyncio.Task[AcpAgent]) -> None:
        """At once, so that no agent is ever without an owner."""
        self._starting.discard(starting)
        if not starting.cancelled() and not starting.exception():
            agent = starting.result()
            self._routers[agent] = router
            self._watching.append(asyncio.create_task(_tell_exit(agent, router)))

    def _must_be_open(self) -> None:
        if self._disposing:
            raise Conflict("cannot start anything: the host is being disposed of; make a new one")

    async def create_session(
        self, agent: AcpAgent, cwd: Path, *, mcp: tuple[McpServer, ...] = (), session_id: str | None = None
    ) -> Session:
        self._must_be_open()
        if not cwd.is_absolute():
            raise InvalidParams(f"cannot open a session in {cwd}: give the folder's absolute path")
        opened = await agent.new_session(str(cwd), mcp, self._limits.start)
        stream = await self._log.stream(session_id or new_id("ses"))
        session = Session(
            agent=agent,
            agent_session_id=opened.session_id,
            stream=stream,
            cwd=str(cwd),
            approver=self._approver,
            clock=self._log.clock,
            limits=self._limits,
        )
        self._sessions.append(session)
        active = session.note(SessionStatus(status="active"))
        self._routers[agent].open(session, SessionFiles([cwd]))
        if active:
            await active
        return session

    async def dispose(self) -> None:
        """Stop every agent, close every session. A caller that gives up, or calls twice, changes nothing."""
        if self._disposing is None:
            self._disposing = asyncio.create_task(self._dispose(), name="legation-dispose")
        await asyncio.shield(self._disposing)

    async def _dispose(self) -> None:
        for starting in self._starting:
            starting.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        stops = [agent.stop(self._limits.stop) for agent in self._routers]
        stopped = await asyncio.gather(*stops, return_exceptions=True)
        if self._watching:
            _, stuck = await asyncio.wait(self._watching, timeout=TELL_LIMIT)
            for watching in stuck:
                watching.cancel()
        for session in self._sessions:
            await self._close(session)
        for outcome in stopped:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _close(self, session: Session) -> None:
        """A failing disk must not keep the others open: what it could not take is reported."""
        try:
            async with asyncio.timeout(CLOSE_LIMIT):
                await session.close()
        except TimeoutError:
            self._report_unclosed(session, f"the store did not answer within {CLOSE_LIMIT:g} s")
        except LegationError as error:
            self._report_unclosed(session, error.message)

    def _report_unclosed(self, session: Session, why: str) -> None:
        message = f"session {session.id} could not be closed: {why}"
        self._report(
            Diagnostic(code=DiagnosticCode.STORAGE_WRITE_FAILED, message=message, session_id=session.id)
        )


async def _tell_exit(agent: AcpAgent, router: Router) -> None:
    """When an agent's process ends, its sessions say so."""
    found = await agent.wait()
    tail = agent.child.stderr_tail().strip() or None
    router.exited(AgentExited(code=found.code, signal=found.signal, stderr_tail=tail))
