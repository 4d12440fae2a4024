"""The driver of agents that speak ACP v1: their methods by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from legation.agents.answers import fit
from legation.agents.beginning import Beginning, must_not_be_obeyed
from legation.agents.connection import AcpConnection
from legation.agents.rpc import AgentRefused, Inbox
from legation.errors import AgentError
from legation.proc import Child
from legation.wire.acp.content import ContentBlock
from legation.wire.acp.mcp import McpServer
from legation.wire.acp.rpc import AgentMethod, ErrorCode
from legation.wire.acp.sessions import (
    ListSessionsRequest,
    ListSessionsResponse,
    LoadSessionRequest,
    NewSessionRequest,
    NewSessionResponse,
    PromptRequest,
    PromptResponse,
    ResumeSessionRequest,
    SessionRequest,
    SessionSetup,
    SetConfigOptionRequest,
    SetConfigOptionResponse,
    SetModeRequest,
)

_Setup = TypeVar("_Setup", bound=SessionSetup)


class AcpAgent(AcpConnection):
    """A running agent; from `start`, one that has answered the handshake.

    What the agent did not declare is refused with `CapabilityUnsupported` before it is asked. Limits are in
    seconds; a call that outlasts its own is cancelled at the agent and raises `TimedOut`. Where a method has
    `on_answer`, that is called in the answer's place among the updates with what is returned or raised later.
    """

    def __init__(self, child: Child, inbox: Inbox, beginning: Beginning | None = None) -> None:
        super().__init__(child, inbox)
        self._beginning = beginning or Beginning()

    async def new_session(
        self,
        cwd: str,
        mcp: tuple[McpServer, ...],
        timeout: float,
        *,
        additional_directories: tuple[str, ...] = (),
        on_answer: Callable[[NewSessionResponse | AgentError], None] | None = None,
    ) -> NewSessionResponse:
        method, can = AgentMethod.SESSION_NEW, self._abilities
        await self._look_at(cwd)
        request = NewSessionRequest(
            cwd=cwd,
            mcp_servers=can.servers(method, mcp),
            additional_directories=can.directories(method, additional_directories),
            meta=self._beginning.meta or None,
        )
        opened = await self._call(method, request, NewSessionResponse, timeout, on_answer)
        return await self._begun(opened.session_id, opened, timeout)

    async def load_session(
        self,
        session_id: str,
        cwd: str,
        mcp: tuple[McpServer, ...],
        timeout: float,
        *,
        additional_directories: tuple[str, ...] = (),
        on_answer: Callable[[SessionSetup | AgentError], None] | None = None,
    ) -> SessionSetup:
        """The agent replays the history as updates, and answers after the last of them."""
        method, can = AgentMethod.SESSION_LOAD, self._abilities
        can.require(method)
        await self._look_at(cwd)
        request = LoadSessionRequest(
            session_id=session_id,
            cwd=cwd,
            mcp_servers=can.servers(method, mcp),
            additional_directories=can.directories(method, additional_directories),
            meta=self._beginning.meta or None,
        )
        setup = await self._call(method, request, SessionSetup, timeout, on_answer)
        return await self._begun(session_id, setup, timeout)

    async def resume_session(
        self,
        session_id: str,
        cwd: str,
        mcp: tuple[McpServer, ...],
        timeout: float,
        *,
        additional_directories: tuple[str, ...] = (),
        on_answer: Callable[[SessionSetup | AgentError], None] | None = None,
    ) -> SessionSetup:
        """As load, with nothing replayed."""
        method, can = AgentMethod.SESSION_RESUME, self._abilities
        can.require(method)
        await self._look_at(cwd)
        request = ResumeSessionRequest(
            session_id=session_id,
            cwd=cwd,
            mcp_servers=can.servers(method, mcp),
            additional_directories=can.directories(method, additional_directories),
            meta=self._beginning.meta or None,
        )
        setup = await self._call(method, request, SessionSetup, timeout, on_answer)
        return await self._begun(session_id, setup, timeout)

    async def _look_at(self, cwd: str) -> None:
        if self._beginning.obeys:
            await asyncio.to_thread(must_not_be_obeyed, Path(cwd), self._beginning.obeys)

    async def _begun(self, session_id: str, setup: _Setup, timeout: float) -> _Setup:
        """In the mode that it is to begin in, before anybody says anything in it."""
        wanted, modes = self._beginning.mode, setup.modes
        if wanted is None or modes is None or modes.current_mode_id in (wanted, *self._beginning.keeps):
            return setup
        await self.set_mode(session_id, wanted, timeout)
        return replace(setup, modes=replace(modes, current_mode_id=wanted))

    async def list_sessions(
        self, cwd: str | None, cursor: str | None, timeout: float
    ) -> ListSessionsResponse:
        """One page; the next with the `next_cursor` of this one."""
        self._abilities.require(AgentMethod.SESSION_LIST)
        request = ListSessionsRequest(cwd=cwd, cursor=cursor)
        return await self._call(AgentMethod.SESSION_LIST, request, ListSessionsResponse, timeout)

    async def close_session(self, session_id: str, timeout: float) -> None:
        """A session that the agent does not know is closed."""
        await self._end_session(AgentMethod.SESSION_CLOSE, session_id, timeout)

    async def delete_session(self, session_id: str, timeout: float) -> None:
        """A session that the agent does not know is deleted."""
        await self._end_session(AgentMethod.SESSION_DELETE, session_id, timeout)

    async def _end_session(self, method: AgentMethod, session_id: str, timeout: float) -> None:
        self._abilities.require(method)
        try:
            await self._do(method, SessionRequest(session_id=session_id), timeout)
        except AgentRefused as refused:
            if refused.error.code != ErrorCode.RESOURCE_NOT_FOUND:
                raise

    async def set_mode(self, session_id: str, mode_id: str, timeout: float) -> None:
        """Only for a session that has named its modes; the caller knows."""
        request = SetModeRequest(session_id=session_id, mode_id=mode_id)
        await self._do(AgentMethod.SESSION_SET_MODE, request, timeout)

    async def set_config_option(
        self, session_id: str, config_id: str, value: str | bool, timeout: float
    ) -> SetConfigOptionResponse:
        """All options as they are now; none where the agent did not say, as some do not."""
        request = SetConfigOptionRequest(
            session_id=session_id,
            config_id=config_id,
            value=value,
            type="boolean" if isinstance(value, bool) else None,
        )
        method = AgentMethod.SESSION_SET_CONFIG_OPTION
        answer: object = await self._call(method, request, object, timeout)
        options = fit(answer, SessionSetup).config_options if isinstance(answer, dict) else None
        return SetConfigOptionResponse(config_options=options or ())

    # A turn.

    async def prompt(
        self,
        session_id: str,
        prompt: tuple[ContentBlock, ...],
        *,
        on_answer: Callable[[PromptResponse | AgentError], None] | None = None,
    ) -> PromptResponse:
        """Has no limit of its own: whoever calls it watches for signs of life."""
        request = PromptRequest(session_id=session_id, prompt=prompt)
        return await self._call(AgentMethod.SESSION_PROMPT, request, PromptResponse, None, on_answer)

    async def cancel(self, session_id: str) -> None:
        await self._process.notify(AgentMethod.SESSION_CANCEL, SessionRequest(session_id=session_id))
