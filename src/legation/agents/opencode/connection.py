"""An agent's part in its servers: how it comes and goes, and what of their words is for which of its sessions."""

from __future__ import annotations

import asyncio
from signal import SIGKILL

import msgspec

from legation.agents.native import Equipment, NativeAgent
from legation.agents.opencode.events import Event, SessionUpdated
from legation.agents.opencode.leases import Leases
from legation.agents.opencode.output import said
from legation.agents.opencode.session import OpenCodeSession
from legation.agents.rpc import AgentRefused
from legation.errors import AgentExited, LegationError
from legation.proc import Exit
from legation.wire.acp.rpc import AgentMethod, ErrorCode, RpcError
from legation.wire.diagnostic import DiagnosticCode


class OpenCodeConnection(NativeAgent):
    def __init__(self, equipment: Equipment) -> None:
        super().__init__(equipment)
        self._leases = Leases(equipment, self)
        self._sessions: dict[str, OpenCodeSession] = {}
        self._ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._stopping: asyncio.Task[Exit] | None = None

    async def begin(self, timeout: float) -> None:
        server = await self._leases.begin(timeout)
        assert self.HELLO.agent_info
        info = msgspec.structs.replace(self.HELLO.agent_info, version=server.version)
        self.hello = msgspec.structs.replace(self.HELLO, agent_info=info)

    @property
    def processes(self) -> tuple[int, ...]:
        return tuple(server.child.pid for server in self._leases.servers)

    def stderr_tail(self) -> str:
        return next((server.child.stderr_tail() for server in self._leases.servers), "")

    async def wait(self) -> Exit:
        """What is left to tidy up goes on behind it: nobody must take the agent for alive meanwhile."""
        found = await asyncio.shield(self._ended)
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(0, found), name=f"legation-tidy-{self.name}")
        return found

    async def stop(self, grace: float) -> Exit:
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(grace, None))
        return await asyncio.shield(self._stopping)

    async def _stop(self, grace: float, found: Exit | None) -> Exit:
        """A server whose turn had to be ended like this takes nobody any more."""
        leases = self._leases.take_all()
        stuck = {session.server for session in self._sessions.values() if session.running}
        gone = AgentExited(f"cannot complete the turn: {self.name!r} was stopped; prompt it again")
        for session in self._sessions.values():
            session.lost(gone)
            await session.close()
        for lease in leases:
            lease.server.part(self)
        for lease in leases:
            server = lease.server
            await lease.leave(grace, retire=server in stuck)
            if server.ended and found is None:
                killed = await server.wait()
                found = killed if killed.signal == SIGKILL else None
        found = found or Exit(0, None)
        if not self._ended.done():
            self._ended.set_result(found)
        return found

    # What its servers tell: `server.Listener`.

    def take(self, event: Event) -> None:
        own = next((each for each in self._sessions.values() if each.has(event.session_id)), None)
        if own is None and isinstance(event.body, SessionUpdated):  # a sub-agent's, which begins
            parent = event.body.info.parent_id
            own = next((each for each in self._sessions.values() if each.has(parent)), None)
        if own is not None:
            own.take(event)

    def trouble(self, code: DiagnosticCode, message: str) -> None:
        self._inbox.trouble(code, message)

    def lost(self, found: Exit) -> None:
        words = next((said(server.child) for server in self._leases.servers), "")
        for session in self._sessions.values():
            session.lost(
                AgentExited(
                    f"cannot complete {AgentMethod.SESSION_PROMPT}: {self.name!r} ended with {found}{words}",
                    {"exitCode": found.code, "signal": found.signal},
                )
            )
        if not self._ended.done():
            self._ended.set_result(found)

    async def catch_up(self) -> None:
        for session in tuple(self._sessions.values()):
            try:
                await session.catch_up()
            except LegationError as error:
                what = f"cannot fetch what was missed of session {session.id}: {error.message}"
                self.trouble(DiagnosticCode.AGENT_PROCESS_ERROR, what)

    async def forgotten(self, directory: str) -> None:
        for session in tuple(self._sessions.values()):
            if session.directory == directory and session.mcp:
                await session.server.prepare(directory, session.mcp)

    async def room(self) -> None:
        await self._inbox.room()

    @property
    def can_ask_questions(self) -> bool:
        return self._client.elicitation is not None and self._client.elicitation.form is not None

    def _session(self, session_id: str) -> OpenCodeSession:
        session = self._sessions.get(session_id)
        if session is None:
            raise AgentRefused(
                "session",
                RpcError(ErrorCode.RESOURCE_NOT_FOUND, f"no session {session_id} is open; resume it"),
            )
        return session
