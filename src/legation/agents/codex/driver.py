"""The driver of Codex: its sessions and turns, and its part in the shared app server.

INV-1  An agent that is stopped leaves nothing running: its turns are interrupted, and a server that does not obey is
       stopped for everybody.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import ClassVar, Final

import msgspec

from legation.agents.codex.launch import overrides, refuse_orders, thread_settings
from legation.agents.codex.messages import (
    CodexNotification,
    CodexRequest,
    ItemList,
    ItemPage,
    OldThread,
    Opened,
    Thread,
    ThreadItem,
    ThreadList,
    ThreadNews,
    ThreadOf,
    ThreadPage,
    ThreadRead,
    ThreadSettings,
)
from legation.agents.codex.options import CodexOptions
from legation.agents.codex.permissions import declined
from legation.agents.codex.server import CodexServer
from legation.agents.codex.session import CodexSession
from legation.agents.codex.translate import user_input
from legation.agents.driver import OnAnswer, OpenRequest, PromptBlocks
from legation.agents.native import DriverContext, NativeAgent
from legation.agents.pool import Lease, pool_key
from legation.agents.rpc import AgentRefused
from legation.errors import AgentError, AgentExited, InvalidParams, LegationError, SessionClosed, TimedOut
from legation.proc import Exit
from legation.wire.acp.methods import (
    AgentCapabilities,
    Implementation,
    InitializeResponse,
    ListedSession,
    ListSessionsResponse,
    McpCapabilities,
    NewSessionResponse,
    PromptCapabilities,
    PromptResponse,
    SessionCapabilities,
    SessionSetup,
    SetConfigOptionResponse,
    Supported,
)
from legation.wire.acp.rpc import AgentMethod, ErrorCode

PAGE: Final = 100  # items or threads at once
_GONE: Final = ErrorCode.INVALID_REQUEST  # "no rollout found": the thread is not there
LEAVE_LIMIT: Final = 3.0  # seconds to interrupt a thread and let it go: the server's time


class CodexAgent(NativeAgent):
    """An agent of the host that shares its server with others; an `ThreadOwner` of threads there."""

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
    can_fork = True
    can_steer = True

    def __init__(self, context: DriverContext) -> None:
        super().__init__(context)
        self._lease: Lease[CodexServer] | None = None
        self._threads: dict[str, CodexSession] = {}
        self._roots: dict[str, str] = {}  # a sub-agent's thread -> the session that it is of
        self._left = asyncio.Event()
        self._exit = Exit(None, None)
        self._stopping: asyncio.Task[Exit] | None = None

    async def begin(self, timeout: float) -> None:
        command = self._context.command
        await asyncio.to_thread(refuse_orders, command.env)
        key = pool_key(command, *overrides(command.env))
        start = partial(CodexServer.start, self._context, timeout)
        self._lease = await self._context.pool.lease(key, command, start)
        self._server.join(self)

    @property
    def _server(self) -> CodexServer:
        if self._lease is None:
            raise AgentExited(f"cannot use {self.name!r}: it was not started")
        return self._lease.server

    @property
    def processes(self) -> tuple[int, ...]:
        return (self._server.pid,) if self._lease else ()

    def stderr_tail(self) -> str:
        return self._server.stderr_tail() if self._lease else ""

    async def wait(self) -> Exit:
        ended = asyncio.ensure_future(self._server.wait())
        left = asyncio.ensure_future(self._left.wait())
        try:
            await asyncio.wait({ended, left}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            left.cancel()
        if self._left.is_set() or self._lease is None:
            return self._exit
        await self._lease.leave(grace=0)  # what it had in its temporary folder is of no use any more
        return ended.result()

    async def stop(self, grace: float) -> Exit:
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(grace), name=f"legation-codex-stop-{self.name}")
        return await asyncio.shield(self._stopping)

    async def _stop(self, grace: float) -> Exit:
        if self._lease is None:
            return self._exit
        server = self._server
        obeyed = server.ended or self._lease.alone or await self._leave_all()
        self._close_all(AgentExited(f"cannot go on: {self.name!r} was stopped; start it again"))
        server.leave(self)
        if not obeyed:
            await server.stop(grace)
        await self._lease.leave(grace, retire=not obeyed)
        self._exit = await server.wait() if server.ended else Exit(0, None)
        self._left.set()
        return self._exit

    async def _leave_all(self) -> bool:
        """The threads of other agents go on."""
        return all(await asyncio.gather(*(each.leave(LEAVE_LIMIT) for each in self._threads.values())))

    def _close_all(self, error: LegationError) -> None:
        for thread in self._threads.values():
            thread.close(error)
        self._threads.clear()
        self._roots.clear()

    # What the server says: this is an `ThreadOwner` of it.

    def heard(self, thread_id: str, heard: CodexNotification) -> None:
        thread = self._threads.get(self._roots.get(thread_id, thread_id))
        if thread is not None:
            thread.heard(thread_id, heard)
            for sub_agent in thread.translator.sub_agents():
                self.adopt(sub_agent, thread.id)

    def asked(self, thread_id: str, asked: CodexRequest) -> None:
        thread = self._threads.get(self._roots.get(thread_id, thread_id))
        if thread is None:
            asked.answer(declined(asked))
        else:
            thread.asked(thread_id, asked)

    def adopt(self, thread_id: str, parent: str) -> None:
        root = self._roots.get(parent, parent)
        if root in self._threads and thread_id not in self._roots:
            self._roots[thread_id] = root
            self._server.own(thread_id, self)

    def heard_of_all(self, heard: CodexNotification) -> None:
        if heard.method == "thread/started":
            self._adopt_started(heard)
        for thread in self._threads.values():
            thread.heard(thread.id, heard)

    def lost(self, error: LegationError) -> None:
        self._close_all(error)

    async def room(self) -> None:
        await self._listener.room()

    # Sessions.

    async def new_session(
        self, request: OpenRequest, timeout: float, *, on_answer: OnAnswer[NewSessionResponse] = None
    ) -> NewSessionResponse:
        settings = self._settings(AgentMethod.SESSION_NEW, request)
        return await self._open("thread/start", settings, timeout, on_answer)

    async def fork_session(self, request: OpenRequest, timeout: float) -> NewSessionResponse:
        settings = await self._old_settings(AgentMethod.SESSION_NEW, request, timeout)
        return await self._open("thread/fork", settings, timeout, None)

    async def resume_session(
        self, request: OpenRequest, timeout: float, *, on_answer: OnAnswer[SessionSetup] = None
    ) -> SessionSetup:
        settings = await self._old_settings(AgentMethod.SESSION_RESUME, request, timeout)
        return await self._open("thread/resume", settings, timeout, on_answer)

    async def load_session(
        self, request: OpenRequest, timeout: float, *, on_answer: OnAnswer[SessionSetup] = None
    ) -> SessionSetup:
        session_id = request.session_id
        settings = await self._old_settings(AgentMethod.SESSION_LOAD, request, timeout)
        past = await self._history(session_id, timeout)

        def replayed(answer: NewSessionResponse | AgentError) -> None:
            thread = self._threads.get(session_id)
            if thread is not None:
                for item in past:
                    self.say(session_id, *thread.translator.replay(item))
            if on_answer:
                on_answer(answer)

        return await self._open("thread/resume", settings, timeout, replayed)

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
        """Choose the mode, which is said with the next turn."""
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
        self, session_id: str, prompt: PromptBlocks, *, on_answer: OnAnswer[PromptResponse] = None
    ) -> PromptResponse:
        return await self._thread(session_id).prompt(user_input(prompt), on_answer)

    async def steer(self, session_id: str, prompt: PromptBlocks, timeout: float) -> None:
        await self._thread(session_id).steer(user_input(prompt), timeout)

    async def cancel(self, session_id: str) -> None:
        thread = self._threads.get(session_id)
        if thread is not None:
            thread.cancel()

    # Threads.

    def _thread(self, session_id: str) -> CodexSession:
        thread = self._threads.get(session_id)
        if thread is None:
            raise InvalidParams(f"cannot use session {session_id}: the agent has it not; resume it first")
        return thread

    def _adopt_started(self, heard: CodexNotification) -> None:
        with suppress(ValueError, RecursionError):
            started = msgspec.json.decode(heard.params, type=ThreadNews).thread
            self.adopt(started.id, started.parent_thread_id or "")

    def _forget(self, session_id: str) -> None:
        self._server.disown(session_id)
        for thread_id in [each for each, root in self._roots.items() if root == session_id]:
            del self._roots[thread_id]
            self._server.disown(thread_id)

    def _settings(
        self, method: AgentMethod, request: OpenRequest, model: str | None = None
    ) -> ThreadSettings:
        admitted = self._abilities.admit(method, request)
        return thread_settings(admitted, self._context.command.env, self._context.trusts, model)

    async def _old_settings(self, method: AgentMethod, request: OpenRequest, timeout: float) -> OldThread:
        """Keep the model that it spoke with last: a thread that is taken up with settings would else get the one of new
        threads."""
        thread_id = request.session_id
        found = await self._server.call("thread/read", ThreadOf(thread_id=thread_id), ThreadRead, timeout)
        settings = self._settings(method, request, found.thread.model)
        return OldThread(**msgspec.structs.asdict(settings), thread_id=thread_id, exclude_turns=True)

    async def _open(
        self,
        method: str,
        settings: ThreadSettings,
        timeout: float,
        on_answer: OnAnswer[NewSessionResponse],
    ) -> NewSessionResponse:
        await asyncio.to_thread(refuse_orders, self._context.command.env)
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
        """Make the session, in the answer's place: all that follows finds it."""
        choice = CodexOptions(opened.model, opened.reasoning_effort)
        thread = CodexSession(self, self._server, opened.thread.id, choice)
        before = self._threads.get(thread.id)
        if before is not None:  # it is taken up once more
            before.close(_closed(thread.id))
        self._threads[thread.id] = thread
        self._server.own(thread.id, self)
        options = choice.options(self._server.models)
        return NewSessionResponse(session_id=thread.id, modes=choice.modes(), config_options=options)


def _closed(session_id: str) -> SessionClosed:
    return SessionClosed(f"cannot go on with session {session_id}: it was closed; resume it")


def _info(thread: Thread) -> ListedSession:
    updated = datetime.fromtimestamp(thread.updated_at, UTC).isoformat()
    return ListedSession(
        session_id=thread.id, cwd=thread.cwd, title=thread.name or thread.preview or None, updated_at=updated
    )
