"""The driver of OpenCode: its sessions and turns, and its part in the servers that several agents share.

INV-O15 Two sessions share a server only if both their folders are trusted, or neither is, and they have the same MCP
        servers: a server's settings count for all of its folders, and a folder's MCP servers for all of its sessions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from signal import SIGKILL
from typing import ClassVar, Final, TypeVar

import msgspec

from legation.agents.driver import OnAnswer, OpenRequest, PromptBlocks
from legation.agents.native import DriverContext, NativeAgent
from legation.agents.opencode.launch import home_must_bring_no_code, must_bring_no_code
from legation.agents.opencode.messages import OpenCodeEvent, OpenCodeSessionInfo, SessionChanged
from legation.agents.opencode.options import offered
from legation.agents.opencode.server import OpenCodeServer, ServerListener
from legation.agents.opencode.session import OpenCodeSession
from legation.agents.pool import Lease, pool_key
from legation.agents.rpc import AgentRefused, exited, last_words
from legation.errors import AgentError, AgentExited, ConfigInvalid, InvalidParams, LegationError, TimedOut
from legation.proc import Exit
from legation.wire import jsontext
from legation.wire.acp import methods as acp
from legation.wire.acp.methods import (
    AgentCapabilities,
    Implementation,
    InitializeResponse,
    McpCapabilities,
    McpServer,
    PromptCapabilities,
    SessionCapabilities,
    Supported,
)
from legation.wire.acp.rpc import PROTOCOL_VERSION, AgentMethod, ErrorCode, RpcError
from legation.wire.acp.updates import Notice
from legation.wire.event_types import DiagnosticCode

LISTED: Final = 1000  # sessions in one list
END_LIMIT: Final = 5.0  # seconds to end a turn whose session is closed: the server's time

_T = TypeVar("_T")


class OpenCodeAgent(NativeAgent):
    """An agent of the host with sessions on one or more servers; a `ServerListener` of those."""

    HELLO: ClassVar = InitializeResponse(
        protocol_version=PROTOCOL_VERSION,
        agent_capabilities=AgentCapabilities(
            load_session=True,
            prompt_capabilities=PromptCapabilities(image=True, audio=True, embedded_context=True),
            mcp_capabilities=McpCapabilities(http=True, sse=True),
            session_capabilities=SessionCapabilities(
                list=Supported(), delete=Supported(), resume=Supported(), close=Supported()
            ),
        ),
        agent_info=Implementation(name="opencode", title="OpenCode", version="unknown"),
    )
    can_fork = True

    def __init__(self, context: DriverContext) -> None:
        super().__init__(context)
        self._leases = ServerLeases(context, self)
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
        """Return when it has ended. What is left to tidy up goes on behind it: nobody must take the agent for alive meanwhile."""
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
            lease.server.leave(self)
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

    # What its servers tell: `server.ServerListener`.

    def take(self, event: OpenCodeEvent) -> None:
        own = next((each for each in self._sessions.values() if each.has(event.session_id)), None)
        if own is None and isinstance(event.body, SessionChanged):  # a sub-agent's, which begins
            parent = event.body.info.parent_id
            own = next((each for each in self._sessions.values() if each.has(parent)), None)
        if own is not None:
            own.take(event)

    def lost(self, found: Exit) -> None:
        words = next((last_words(server.child) for server in self._leases.servers), "")
        for session in self._sessions.values():
            session.lost(exited(f"complete {AgentMethod.SESSION_PROMPT}", self.name, found, words))
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
        await self._listener.room()

    def _session(self, session_id: str) -> OpenCodeSession:
        session = self._sessions.get(session_id)
        if session is None:
            raise AgentRefused(
                "session",
                RpcError(ErrorCode.RESOURCE_NOT_FOUND, f"no session {session_id} is open; resume it"),
            )
        return session

    # Sessions.

    async def new_session(
        self, request: OpenRequest, timeout: float, *, on_answer: OnAnswer[acp.NewSessionResponse] = None
    ) -> acp.NewSessionResponse:
        admitted = self._abilities.admit(AgentMethod.SESSION_NEW, request)

        async def opened() -> acp.NewSessionResponse:
            server = await self._leases.server_for(admitted, timeout)
            return _new(await self._begin("/session", server, admitted, timeout))

        return await _answered(AgentMethod.SESSION_NEW, opened(), timeout, on_answer)

    async def load_session(
        self, request: OpenRequest, timeout: float, *, on_answer: OnAnswer[acp.SessionSetup] = None
    ) -> acp.SessionSetup:
        admitted = self._abilities.admit(AgentMethod.SESSION_LOAD, request)

        async def loaded() -> acp.SessionSetup:
            session = await self._take_up(admitted, timeout)
            await session.replay()
            return _setup(session)

        return await _answered(AgentMethod.SESSION_LOAD, loaded(), timeout, on_answer)

    async def resume_session(
        self, request: OpenRequest, timeout: float, *, on_answer: OnAnswer[acp.SessionSetup] = None
    ) -> acp.SessionSetup:
        admitted = self._abilities.admit(AgentMethod.SESSION_RESUME, request)

        async def resumed() -> acp.SessionSetup:
            return _setup(await self._take_up(admitted, timeout))

        return await _answered(AgentMethod.SESSION_RESUME, resumed(), timeout, on_answer)

    async def fork_session(self, request: OpenRequest, timeout: float) -> acp.NewSessionResponse:
        admitted = self._abilities.admit(AgentMethod.SESSION_NEW, request)

        async def forked() -> acp.NewSessionResponse:
            server = await self._leases.server_for(admitted, timeout)
            await self._found(server, admitted, timeout)
            return _new(await self._begin(f"/session/{admitted.session_id}/fork", server, admitted, timeout))

        return await _answered(AgentMethod.SESSION_NEW, forked(), timeout, None)

    async def list_sessions(
        self, cwd: str | None, cursor: str | None, timeout: float
    ) -> acp.ListSessionsResponse:
        """All at once: there is no `cursor` to go on with."""
        if cursor is not None:
            return acp.ListSessionsResponse(sessions=())
        where = cwd or str(self._context.command.cwd)
        server = await self._leases.server_for(OpenRequest(where), timeout)
        listed = await server.api.get(
            "/session",
            tuple[OpenCodeSessionInfo, ...],
            directory=where,
            timeout=timeout,
            roots="true",
            limit=LISTED,
        )
        return acp.ListSessionsResponse(
            sessions=tuple(_listed(each) for each in listed if cwd is None or each.directory == cwd)
        )

    async def close_session(self, session_id: str, timeout: float) -> None:
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        async with asyncio.timeout(timeout):
            await session.cancel_and_wait(END_LIMIT)
            await session.close()
            session.server.forget(session_id)

    async def delete_session(self, session_id: str, timeout: float) -> None:
        """A session that OpenCode does not know is deleted."""
        known = self._sessions.get(session_id)
        where = known.directory if known else str(self._context.command.cwd)
        server = known.server if known else await self._leases.server_for(OpenRequest(where), timeout)
        await self.close_session(session_id, timeout)
        try:
            await server.api.do("DELETE", f"/session/{session_id}", directory=where, timeout=timeout)
        except AgentRefused as refused:
            if refused.error.code != ErrorCode.RESOURCE_NOT_FOUND:
                raise

    async def set_mode(self, session_id: str, mode_id: str, timeout: float) -> None:  # noqa: ARG002 - said with a prompt
        session = self._session(session_id)
        session.offers = session.offers.in_mode(mode_id)

    async def set_config_option(
        self,
        session_id: str,
        config_id: str,
        value: str | bool,
        timeout: float,  # noqa: ARG002 - said with a prompt
    ) -> acp.SetConfigOptionResponse:
        session = self._session(session_id)
        session.offers = session.offers.with_option(config_id, value)
        return acp.SetConfigOptionResponse(config_options=session.offers.options)

    async def prompt(
        self, session_id: str, prompt: PromptBlocks, *, on_answer: OnAnswer[acp.PromptResponse] = None
    ) -> acp.PromptResponse:
        """Has no limit of its own: whoever calls it watches for signs of life."""
        return await self._session(session_id).prompt(prompt, on_answer)

    async def cancel(self, session_id: str) -> None:
        session = self._sessions.get(session_id)
        if session is not None:
            await session.cancel()

    async def _begin(
        self, path: str, server: OpenCodeServer, request: OpenRequest, timeout: float
    ) -> OpenCodeSession:
        info = await server.api.post(path, {}, OpenCodeSessionInfo, directory=request.cwd, timeout=timeout)
        return await self._open(server, info, request.mcp_servers)

    async def _take_up(self, request: OpenRequest, timeout: float) -> OpenCodeSession:
        server = await self._leases.server_for(request, timeout)
        info = await self._found(server, request, timeout)
        session = await self._open(server, info, request.mcp_servers)
        await session.quiet()
        return session

    async def _found(
        self, server: OpenCodeServer, request: OpenRequest, timeout: float
    ) -> OpenCodeSessionInfo:
        path = f"/session/{request.session_id}"
        info = await server.api.get(path, OpenCodeSessionInfo, directory=request.cwd, timeout=timeout)
        if not await asyncio.to_thread(_same, info.directory, request.cwd):
            raise InvalidParams(
                f"cannot take up session {request.session_id}: it is of another folder; open it there"
            )
        return info

    async def _open(
        self, server: OpenCodeServer, info: OpenCodeSessionInfo, mcp: tuple[McpServer, ...]
    ) -> OpenCodeSession:
        """Make the session. What is asked here makes OpenCode load all that a turn needs, so that an early abort cannot poison it."""
        where = info.directory
        offers = await offered(server.api, info)
        if not offers.build_asks and not self._context.trusts(where):
            raise ConfigInvalid(
                f"cannot open a session of {self.name!r}: OpenCode's own settings in its home let it act without asking;"
                " remove their permissions"
            )
        failed = await server.prepare(where, mcp)
        before = self._sessions.get(info.id)
        if before is not None:
            await before.close()
        session = OpenCodeSession(self, server, info, offers, mcp)
        self._sessions[info.id] = session
        server.listen(info.id, self)
        for name, why in failed.items():
            what = f"MCP server {name!r} is not connected: {why}"
            self.say(info.id, Notice(severity="warning", title="An MCP server is missing", description=what))
        return session


def _same(one: str, other: str) -> bool:
    return Path(one).resolve() == Path(other).resolve()


def _new(session: OpenCodeSession) -> acp.NewSessionResponse:
    return acp.NewSessionResponse(
        session_id=session.id, modes=session.offers.modes, config_options=session.offers.options
    )


def _setup(session: OpenCodeSession) -> acp.SessionSetup:
    return acp.SessionSetup(modes=session.offers.modes, config_options=session.offers.options)


def _listed(info: OpenCodeSessionInfo) -> acp.ListedSession:
    updated = datetime.fromtimestamp(info.time.updated / 1000, UTC).isoformat()
    return acp.ListedSession(session_id=info.id, cwd=info.directory, title=info.title, updated_at=updated)


async def _answered(
    method: str,
    work: Awaitable[_T],
    timeout: float,
    on_answer: OnAnswer[_T],
) -> _T:
    try:
        async with asyncio.timeout(timeout):
            answer = await work
    except TimeoutError:
        raise TimedOut(f"cannot complete {method}: OpenCode did not answer within {timeout:g} s") from None
    except AgentError as error:
        if on_answer is not None:
            on_answer(error)
        raise
    if on_answer is not None:
        on_answer(answer)
    return answer


class ServerLeases:
    """`listener` joins every server that is leased."""

    def __init__(self, context: DriverContext, listener: ServerListener) -> None:
        self._context = context
        self._listener = listener
        self._held: dict[str, Lease[OpenCodeServer]] = {}
        self._first: Lease[OpenCodeServer] | None = None  # until a session says which server it needs
        self._opening = asyncio.Lock()

    @property
    def servers(self) -> tuple[OpenCodeServer, ...]:
        return tuple(lease.server for lease in self._held.values())

    async def begin(self, timeout: float) -> OpenCodeServer:
        """A server for the folder of the command, which is where the first session mostly is."""
        await asyncio.to_thread(home_must_bring_no_code, self._context.command.env)
        lease = await self._lease(OpenRequest(str(self._context.command.cwd)), timeout)
        self._first = lease
        return lease.server

    async def server_for(self, request: OpenRequest, timeout: float) -> OpenCodeServer:
        """Lease a server for what names the folder, which OpenCode then looks into."""
        await asyncio.to_thread(home_must_bring_no_code, self._context.command.env)
        if not self._context.trusts(request.cwd):
            await asyncio.to_thread(must_bring_no_code, request.cwd)
        lease = await self._lease(request, timeout)
        first, self._first = self._first, None
        if first is not None and first is not lease:  # it began with another than it needs
            self._held = {key: each for key, each in self._held.items() if each is not first}
            first.server.leave(self._listener)
            await first.leave(0)
        return lease.server

    def take_all(self) -> tuple[Lease[OpenCodeServer], ...]:
        """Hand them over: whoever takes them parts from their servers and leaves them."""
        leases, self._held = tuple(self._held.values()), {}
        return leases

    async def _lease(self, request: OpenRequest, timeout: float) -> Lease[OpenCodeServer]:
        """Lease a server that such sessions share (INV-O15)."""
        context, command = self._context, self._context.command
        trusted = context.trusts(request.cwd)
        servers = jsontext.write(request.mcp_servers).decode()
        key = pool_key(command, "trusted" if trusted else "untrusted", servers)
        async with self._opening:
            if key not in self._held:
                start = partial(
                    OpenCodeServer.start, context.launcher, context.pipes, timeout, trusted=trusted
                )
                self._held[key] = await context.pool.lease(key, command, start)
                self._held[key].server.join(self._listener)
            return self._held[key]
