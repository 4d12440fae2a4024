"""The driver of Codex: its sessions and turns, by the methods that the host calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import ClassVar, Final

import msgspec

from legation.agents.codex.connection import LEAVE_LIMIT, CodexConnection
from legation.agents.codex.home import refuse_orders
from legation.agents.codex.items import ThreadItem
from legation.agents.codex.launch import thread_settings
from legation.agents.codex.messages import ItemPage, Opened, Thread, ThreadPage, ThreadRead
from legation.agents.codex.options import Choice
from legation.agents.codex.prompting import user_input
from legation.agents.codex.sent import ItemList, OldThread, ThreadList, ThreadOf, ThreadSettings
from legation.agents.codex.session import CodexThread
from legation.agents.rpc import AgentRefused
from legation.errors import AgentError, SessionClosed, TimedOut
from legation.wire.acp.capabilities import (
    AgentCapabilities,
    Implementation,
    InitializeResponse,
    McpCapabilities,
    PromptCapabilities,
    SessionCapabilities,
    Supported,
)
from legation.wire.acp.content import ContentBlock
from legation.wire.acp.mcp import McpServer
from legation.wire.acp.rpc import AgentMethod, ErrorCode
from legation.wire.acp.sessions import (
    ListSessionsResponse,
    NewSessionResponse,
    PromptResponse,
    SessionInfo,
    SessionSetup,
    SetConfigOptionResponse,
)

PAGE: Final = 100  # items or threads at once
_GONE: Final = ErrorCode.INVALID_REQUEST  # "no rollout found": the thread is not there


class CodexAgent(CodexConnection):
    HELLO: ClassVar = InitializeResponse(
        protocol_version=1,
        agent_capabilities=AgentCapabilities(
            load_session=True,
            prompt_capabilities=PromptCapabilities(image=True, embedded_context=True),
            mcp_capabilities=McpCapabilities(http=True),
            session_capabilities=SessionCapabilities(
                list=Supported(),
                delete=Supported(),
                additional_directories=Supported(),
                resume=Supported(),
                close=Supported(),
            ),
        ),
        agent_info=Implementation(name="codex", version="app-server", title="Codex"),
    )

    # Sessions.

    async def new_session(
        self,
        cwd: str,
        mcp: tuple[McpServer, ...],
        timeout: float,
        *,
        additional_directories: tuple[str, ...] = (),
        on_answer: Callable[[NewSessionResponse | AgentError], None] | None = None,
    ) -> NewSessionResponse:
        settings = self._settings(AgentMethod.SESSION_NEW, cwd, mcp, additional_directories)
        return await self._open("thread/start", settings, timeout, on_answer)

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
    ) -> NewSessionResponse:
        model = await self._model(session_id, timeout)
        settings = self._settings(AgentMethod.SESSION_NEW, cwd, mcp, additional_directories, model)
        return await self._open("thread/fork", _old(settings, session_id), timeout, None)

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
        model = await self._model(session_id, timeout)
        settings = self._settings(AgentMethod.SESSION_RESUME, cwd, mcp, additional_directories, model)
        return await self._open("thread/resume", _old(settings, session_id), timeout, on_answer)

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
        model = await self._model(session_id, timeout)
        settings = self._settings(AgentMethod.SESSION_LOAD, cwd, mcp, additional_directories, model)
        past = await self._history(session_id, timeout)

        def replayed(answer: NewSessionResponse | AgentError) -> None:
            thread = self._threads.get(session_id)
            if thread is not None:
                for item in past:
                    self.say(session_id, *thread.translation.replay(item))
            if on_answer:
                on_answer(answer)

        return await self._open("thread/resume", _old(settings, session_id), timeout, replayed)

    async def _model(self, session_id: str, timeout: float) -> str | None:
        """That it spoke with last; a thread that is taken up with settings would else get the one of new threads."""
        found = await self._server.call("thread/read", ThreadOf(thread_id=session_id), ThreadRead, timeout)
        return found.thread.model

    async def _history(self, session_id: str, timeout: float) -> list[ThreadItem]:
        """The time is the server's for all pages: one that turns in circles is not followed for ever."""
        found: list[ThreadItem] = []
        cursor: str | None = None
        try:
            async with asyncio.timeout(timeout):
                while True:
                    wanted = ItemList(thread_id=session_id, sort_direction="asc", cursor=cursor, limit=PAGE)
                    page = await self._server.call("thread/items/list", wanted, ItemPage, timeout)
                    found += [entry.item for entry in page.data]
                    if page.next_cursor is None or not page.data:
                        return found
                    cursor = page.next_cursor
        except TimeoutError:
            what = (
                f"cannot load session {session_id}: it was not told in whole within {timeout:g} s; resume it"
            )
            raise TimedOut(what) from None

    async def list_sessions(
        self, cwd: str | None, cursor: str | None, timeout: float
    ) -> ListSessionsResponse:
        wanted = ThreadList(model_providers=(), cwd=cwd, cursor=cursor, limit=PAGE)
        page = await self._server.call("thread/list", wanted, ThreadPage, timeout)
        listed = (_info(each) for each in page.data if each.parent_thread_id is None)
        return ListSessionsResponse(sessions=tuple(listed), next_cursor=page.next_cursor)

    async def close_session(self, session_id: str, timeout: float) -> None:
        thread = self._threads.pop(session_id, None)
        if thread is not None:
            await thread.leave(min(timeout, LEAVE_LIMIT))
            thread.close(_closed(session_id))
            self._forget(session_id)

    async def delete_session(self, session_id: str, timeout: float) -> None:
        """A session that it does not know is deleted."""
        await self.close_session(session_id, timeout)
        try:
            await self._server.call("thread/delete", ThreadOf(thread_id=session_id), object, timeout)
        except AgentRefused as refused:
            if refused.error.code != _GONE:
                raise

    async def set_mode(self, session_id: str, mode_id: str, timeout: float) -> None:  # noqa: ARG002
        """Said with the next turn."""
        thread = self._thread(session_id)
        thread.choice = thread.choice.in_mode(mode_id)

    async def set_config_option(
        self,
        session_id: str,
        config_id: str,
        value: str | bool,
        timeout: float,  # noqa: ARG002
    ) -> SetConfigOptionResponse:
        thread, models = self._thread(session_id), self._server.models
        thread.choice = thread.choice.with_option(config_id, value, models)
        return SetConfigOptionResponse(config_options=thread.choice.options(models))

    # A turn.

    async def prompt(
        self,
        session_id: str,
        prompt: tuple[ContentBlock, ...],
        *,
        on_answer: Callable[[PromptResponse | AgentError], None] | None = None,
    ) -> PromptResponse:
        return await self._thread(session_id).prompt(user_input(prompt), on_answer)

    async def steer(self, session_id: str, prompt: tuple[ContentBlock, ...], timeout: float) -> None:
        await self._thread(session_id).steer(user_input(prompt), timeout)

    async def cancel(self, session_id: str) -> None:
        thread = self._threads.get(session_id)
        if thread is not None:
            thread.cancel()

    # Threads.

    def _settings(
        self,
        method: AgentMethod,
        cwd: str,
        mcp: tuple[McpServer, ...],
        directories: tuple[str, ...],
        model: str | None = None,
    ) -> ThreadSettings:
        servers = self._abilities.servers(method, mcp)
        env, trusts = self._equipment.command.env, self._equipment.trusts
        return thread_settings(cwd, servers, env, trusts, directories, model)

    async def _open(
        self,
        method: str,
        settings: ThreadSettings,
        timeout: float,
        on_answer: Callable[[NewSessionResponse | AgentError], None] | None,
    ) -> NewSessionResponse:
        await asyncio.to_thread(refuse_orders, self._equipment.command.env)
        found: list[NewSessionResponse] = []

        def opened(answer: Opened | AgentError) -> None:
            told = answer if isinstance(answer, AgentError) else self._take(answer)
            if isinstance(told, NewSessionResponse):
                found.append(told)
            if on_answer:
                on_answer(told)

        await self._server.call(method, settings, Opened, timeout, opened)
        return found[0]

    def _take(self, opened: Opened) -> NewSessionResponse:
        """In the answer's place: all that follows finds its session."""
        choice = Choice(opened.model, opened.reasoning_effort)
        thread = CodexThread(self, self._server, opened.thread.id, choice)
        before = self._threads.get(thread.id)
        if before is not None:  # it is taken up once more
            before.close(_closed(thread.id))
        self._threads[thread.id] = thread
        self._server.own(thread.id, self)
        options = choice.options(self._server.models)
        return NewSessionResponse(session_id=thread.id, modes=choice.modes(), config_options=options)


def _closed(session_id: str) -> SessionClosed:
    return SessionClosed(f"cannot go on with session {session_id}: it was closed; resume it")


def _old(settings: ThreadSettings, thread_id: str) -> OldThread:
    return OldThread(**msgspec.structs.asdict(settings), thread_id=thread_id, exclude_turns=True)


def _info(thread: Thread) -> SessionInfo:
    updated = datetime.fromtimestamp(thread.updated_at, UTC).isoformat()
    return SessionInfo(
        session_id=thread.id, cwd=thread.cwd, title=thread.name or thread.preview or None, updated_at=updated
    )
