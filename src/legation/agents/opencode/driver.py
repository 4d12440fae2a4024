"""The driver of OpenCode: its sessions and turns, by the methods that the host calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, Final, TypeVar

from legation.agents.opencode.connection import OpenCodeConnection
from legation.agents.opencode.hello import HELLO
from legation.agents.opencode.options import offered
from legation.agents.opencode.server import OpenCodeServer
from legation.agents.opencode.session import OpenCodeSession
from legation.agents.opencode.states import SessionInfo
from legation.agents.rpc import AgentRefused
from legation.errors import AgentError, ConfigInvalid, InvalidParams, TimedOut
from legation.wire.acp import sessions as acp
from legation.wire.acp.capabilities import InitializeResponse
from legation.wire.acp.content import ContentBlock
from legation.wire.acp.mcp import McpServer
from legation.wire.acp.rpc import AgentMethod, ErrorCode
from legation.wire.acp.updates import Notice

LISTED: Final = 1000  # sessions in one list
END_LIMIT: Final = 5.0  # seconds to end a turn whose session is closed: the server's time

_T = TypeVar("_T")


class OpenCodeAgent(OpenCodeConnection):
    HELLO: ClassVar[InitializeResponse] = HELLO

    # Sessions.

    async def new_session(
        self,
        cwd: str,
        mcp: tuple[McpServer, ...],
        timeout: float,
        *,
        additional_directories: tuple[str, ...] = (),
        on_answer: Callable[[acp.NewSessionResponse | AgentError], None] | None = None,
    ) -> acp.NewSessionResponse:
        self._abilities.directories(AgentMethod.SESSION_NEW, additional_directories)

        async def opened() -> acp.NewSessionResponse:
            server = await self._server(cwd, mcp, timeout)
            info = await server.api.post("/session", {}, SessionInfo, directory=cwd, timeout=timeout)
            session = await self._open(server, info, mcp)
            return _new(session)

        return await _answered(AgentMethod.SESSION_NEW, opened(), timeout, on_answer)

    async def load_session(
        self,
        session_id: str,
        cwd: str,
        mcp: tuple[McpServer, ...],
        timeout: float,
        *,
        additional_directories: tuple[str, ...] = (),
        on_answer: Callable[[acp.SessionSetup | AgentError], None] | None = None,
    ) -> acp.SessionSetup:
        self._abilities.directories(AgentMethod.SESSION_LOAD, additional_directories)

        async def loaded() -> acp.SessionSetup:
            session = await self._take_up(session_id, cwd, mcp, timeout)
            await session.replay()
            return _setup(session)

        return await _answered(AgentMethod.SESSION_LOAD, loaded(), timeout, on_answer)

    async def resume_session(
        self,
        session_id: str,
        cwd: str,
        mcp: tuple[McpServer, ...],
        timeout: float,
        *,
        additional_directories: tuple[str, ...] = (),
        on_answer: Callable[[acp.SessionSetup | AgentError], None] | None = None,
    ) -> acp.SessionSetup:
        self._abilities.directories(AgentMethod.SESSION_RESUME, additional_directories)

        async def resumed() -> acp.SessionSetup:
            return _setup(await self._take_up(session_id, cwd, mcp, timeout))

        return await _answered(AgentMethod.SESSION_RESUME, resumed(), timeout, on_answer)

    @property
    def can_fork(self) -> bool:
        return True

    async def fork_session(
        self,
        session_id: str,
        cwd: str,
        mcp: tuple[McpServer, ...],
        timeout: float,
        *,
        additional_directories: tuple[str, ...] = (),
    ) -> acp.NewSessionResponse:
        self._abilities.directories(AgentMethod.SESSION_NEW, additional_directories)

        async def forked() -> acp.NewSessionResponse:
            server = await self._server(cwd, mcp, timeout)
            await self._found(server, session_id, cwd, timeout)
            path = f"/session/{session_id}/fork"
            info = await server.api.post(path, {}, SessionInfo, directory=cwd, timeout=timeout)
            return _new(await self._open(server, info, mcp))

        return await _answered(AgentMethod.SESSION_NEW, forked(), timeout, None)

    async def list_sessions(
        self, cwd: str | None, cursor: str | None, timeout: float
    ) -> acp.ListSessionsResponse:
        """All at once: there is no `cursor` to go on with."""
        if cursor is not None:
            return acp.ListSessionsResponse(sessions=())
        where = cwd or str(self._equipment.command.cwd)
        server = await self._server(where, (), timeout)
        listed = await server.api.get(
            "/session", tuple[SessionInfo, ...], directory=where, timeout=timeout, roots="true", limit=LISTED
        )
        return acp.ListSessionsResponse(
            sessions=tuple(_listed(each) for each in listed if cwd is None or each.directory == cwd)
        )

    async def close_session(self, session_id: str, timeout: float) -> None:
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        async with asyncio.timeout(timeout):
            await session.end(END_LIMIT)
            await session.close()
            session.server.forget(session_id)

    async def delete_session(self, session_id: str, timeout: float) -> None:
        """A session that OpenCode does not know is deleted."""
        known = self._sessions.get(session_id)
        where = known.directory if known else str(self._equipment.command.cwd)
        server = known.server if known else await self._server(where, (), timeout)
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
        self,
        session_id: str,
        prompt: tuple[ContentBlock, ...],
        *,
        on_answer: Callable[[acp.PromptResponse | AgentError], None] | None = None,
    ) -> acp.PromptResponse:
        """Has no limit of its own: whoever calls it watches for signs of life."""
        return await self._session(session_id).prompt(prompt, on_answer)

    async def cancel(self, session_id: str) -> None:
        session = self._sessions.get(session_id)
        if session is not None:
            await session.cancel()

    async def _take_up(
        self, session_id: str, cwd: str, mcp: tuple[McpServer, ...], timeout: float
    ) -> OpenCodeSession:
        server = await self._server(cwd, mcp, timeout)
        info = await self._found(server, session_id, cwd, timeout)
        session = await self._open(server, info, mcp)
        await session.quiet()
        return session

    async def _found(self, server: OpenCodeServer, session_id: str, cwd: str, timeout: float) -> SessionInfo:
        path = f"/session/{session_id}"
        info = await server.api.get(path, SessionInfo, directory=cwd, timeout=timeout)
        if not await asyncio.to_thread(_same, info.directory, cwd):
            raise InvalidParams(
                f"cannot take up session {session_id}: it is of another folder; open it there"
            )
        return info

    async def _open(
        self, server: OpenCodeServer, info: SessionInfo, mcp: tuple[McpServer, ...]
    ) -> OpenCodeSession:
        """What is asked here makes OpenCode load all that a turn needs, so that an early abort cannot poison it."""
        where = info.directory
        offers = await offered(server.api, info)
        if not offers.build_asks and not self._equipment.trusts(where):
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

    async def _server(self, cwd: str, mcp: tuple[McpServer, ...], timeout: float) -> OpenCodeServer:
        servers = self._abilities.servers(AgentMethod.SESSION_NEW, mcp)
        return await self._leases.server_in(cwd, servers, timeout)


def _same(one: str, other: str) -> bool:
    return Path(one).resolve() == Path(other).resolve()


def _new(session: OpenCodeSession) -> acp.NewSessionResponse:
    return acp.NewSessionResponse(
        session_id=session.id, modes=session.offers.modes, config_options=session.offers.options
    )


def _setup(session: OpenCodeSession) -> acp.SessionSetup:
    return acp.SessionSetup(modes=session.offers.modes, config_options=session.offers.options)


def _listed(info: SessionInfo) -> acp.SessionInfo:
    updated = datetime.fromtimestamp(info.time.updated / 1000, UTC).isoformat()
    return acp.SessionInfo(session_id=info.id, cwd=info.directory, title=info.title, updated_at=updated)


async def _answered(
    method: str,
    work: Awaitable[_T],
    timeout: float,
    on_answer: Callable[[_T | AgentError], None] | None,
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
