"""The driver of Claude Code: one process for each session, spoken to in its own stream of JSON lines."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Final
from uuid import uuid4

import msgspec

from legation.agents.claude.launch import ClaudeLaunch, ask_version, foreign_servers
from legation.agents.claude.session import ClaudeSession, SessionOpening
from legation.agents.driver import OnAnswer, OpenRequest, PromptBlocks
from legation.agents.native import DriverContext, NativeAgent, PendingReply, find_session, unknown_session
from legation.errors import AgentError, AgentExited, LegationError
from legation.proc import Exit
from legation.wire.acp.methods import (
    AgentCapabilities,
    Implementation,
    InitializeResponse,
    McpCapabilities,
    NewSessionResponse,
    PromptCapabilities,
    PromptResponse,
    SessionCapabilities,
    SessionSetup,
    SetConfigOptionResponse,
    Supported,
)
from legation.wire.acp.rpc import PROTOCOL_VERSION, AgentMethod

NAME: Final = "claude-code"
CLOSE_GRACE: Final = 5.0  # seconds for the process of a closed session to end: its time to write its record
OTHERS_GRACE: Final = 1.0  # seconds for the other sessions' processes to end when one crashed: their time
_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NEVER_RAN: Final = Exit(0, None)
_log: Final = logging.getLogger(__name__)


class ClaudeAgent(NativeAgent):
    """An agent of one process a session. When the first of them has ended by itself it has ended, and the others are stopped."""

    HELLO = InitializeResponse(
        protocol_version=PROTOCOL_VERSION,
        agent_info=Implementation(name=NAME, version="", title="Claude Code"),
        agent_capabilities=AgentCapabilities(
            prompt_capabilities=PromptCapabilities(image=True, embedded_context=True),
            mcp_capabilities=McpCapabilities(http=True, sse=True),
            session_capabilities=SessionCapabilities(
                resume=Supported(), close=Supported(), additional_directories=Supported()
            ),
        ),
    )
    takes_edits = True
    can_fork = True
    can_steer = True

    def __init__(self, context: DriverContext) -> None:
        super().__init__(context)
        self._sessions: dict[str, ClaudeSession] = {}
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._opening: set[asyncio.Task[ClaudeSession]] = set()
        self._over: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._ending = False
        self._last_words = ""

    # The connection.

    async def begin(self, timeout: float) -> None:
        """There is nothing to start before a session is, so that it only tells its version."""
        version, self._last_words = await ask_version(self._context, timeout)
        info = Implementation(name=NAME, version=version, title="Claude Code")
        self.hello = msgspec.structs.replace(self.hello, agent_info=info)

    @property
    def processes(self) -> tuple[int, ...]:
        return tuple(each.process.child.pid for each in self._sessions.values() if not each.process.ended)

    def stderr_tail(self) -> str:
        tails = [each.process.child.stderr_tail() for each in self._sessions.values()]
        return "\n".join(filter(None, tails)) or self._last_words

    async def wait(self) -> Exit:
        return await asyncio.shield(self._over)

    async def stop(self, grace: float) -> Exit:
        self._ending = True
        found = await self._stop_all(grace)
        watching = set(self._watching.values())
        if watching:
            await asyncio.wait(watching)
        if not self._over.done():
            self._over.set_result(found)
        return self._over.result()

    async def _stop_all(self, grace: float) -> Exit:
        """Each is stopped, though the end of another fails; the first one's exit stands for all."""
        for opening in self._opening:
            opening.cancel()
        if self._opening:
            await asyncio.wait(self._opening)
        stopping = (each.stop(grace) for each in tuple(self._sessions.values()))
        found = await asyncio.gather(*stopping, return_exceptions=True)
        for end in found:
            if isinstance(end, BaseException):
                raise end
        return next((end for end in found if isinstance(end, Exit)), _NEVER_RAN)

    async def _watch(self, session: ClaudeSession) -> None:
        found = await session.process.wait()
        if self._sessions.get(session.id) is not session or self._ending:
            return  # it was stopped
        self._ending = True
        try:
            await self._stop_all(OTHERS_GRACE)
        except LegationError:
            _log.exception("cannot stop all that %r started", self.name)
        if not self._over.done():
            self._over.set_result(found)

    # Sessions.

    async def new_session(
        self, request: OpenRequest, timeout: float, *, on_answer: OnAnswer[NewSessionResponse] = None
    ) -> NewSessionResponse:
        return await self._open_new(request, None, timeout, on_answer)

    async def resume_session(
        self, request: OpenRequest, timeout: float, *, on_answer: OnAnswer[SessionSetup] = None
    ) -> SessionSetup:
        method, session_id = AgentMethod.SESSION_RESUME, request.session_id
        _must_be_an_id(method, session_id)
        launch = self._launch(method, request, session_id, session_id)
        await self.close_session(session_id, timeout)  # one process at a time writes its record
        session = await self._open(SessionOpening(method, launch, on_answer), timeout)
        return session.setup()

    async def fork_session(self, request: OpenRequest, timeout: float) -> NewSessionResponse:
        _must_be_an_id(AgentMethod.SESSION_NEW, request.session_id)
        return await self._open_new(request, request.session_id, timeout, None)

    async def close_session(self, session_id: str, timeout: float) -> None:
        """A session that is not open is closed."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        await session.stop(min(timeout, CLOSE_GRACE))
        watching = self._watching.pop(session_id, None)
        if watching is not None:
            await asyncio.wait({watching})

    def _launch(
        self, method: AgentMethod, request: OpenRequest, session_id: str, resumes: str | None
    ) -> ClaudeLaunch:
        admitted, trusts = self._abilities.admit(method, request), self._context.trusts
        trusted = all(trusts(each) for each in (request.cwd, *request.additional_directories))
        return ClaudeLaunch(
            session_id=session_id,
            cwd=admitted.cwd,
            mcp=admitted.mcp_servers,
            directories=admitted.additional_directories,
            resumes=resumes,
            trusted=trusted,
            foreign_servers=trusted and foreign_servers(admitted.cwd, trusts),
            questions=self.can_ask_questions,
        )

    async def _open_new(
        self,
        request: OpenRequest,
        resumes: str | None,
        timeout: float,
        on_answer: OnAnswer[NewSessionResponse],
    ) -> NewSessionResponse:
        method = AgentMethod.SESSION_NEW
        launch = self._launch(method, request, str(uuid4()), resumes)
        made: list[NewSessionResponse] = []

        def named(setup: SessionSetup | AgentError) -> None:
            answer = setup if isinstance(setup, AgentError) else _named(launch.session_id, setup)
            if isinstance(answer, NewSessionResponse):
                made.append(answer)
            if on_answer is not None:
                on_answer(answer)

        await self._open(SessionOpening(method, launch, named), timeout)
        return made[0]

    async def _open(self, opening: SessionOpening, timeout: float) -> ClaudeSession:
        """Open a session in a task of its own, so that `stop` ends what is only beginning."""
        self._must_run(opening.method)
        task = asyncio.create_task(ClaudeSession.open(self, self._context, opening, timeout))
        self._opening.add(task)
        try:
            await asyncio.wait({task})
        finally:
            self._opening.discard(task)
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        if task.cancelled():
            self._must_run(opening.method)
        session = task.result()
        self._sessions[session.id] = session
        self._watching[session.id] = asyncio.create_task(
            self._watch(session), name=f"legation-claude-{session.id}"
        )
        return session

    def _must_run(self, method: AgentMethod) -> None:
        if self._ending:
            raise AgentExited(f"cannot complete {method}: {self.name!r} has ended; start it again")

    # A session's own.

    async def set_mode(self, session_id: str, mode_id: str, timeout: float) -> None:
        await self._session(AgentMethod.SESSION_SET_MODE, session_id).set_mode(mode_id, timeout)

    async def set_config_option(
        self, session_id: str, config_id: str, value: str | bool, timeout: float
    ) -> SetConfigOptionResponse:
        session = self._session(AgentMethod.SESSION_SET_CONFIG_OPTION, session_id)
        return SetConfigOptionResponse(config_options=await session.set_option(config_id, value, timeout))

    async def prompt(
        self, session_id: str, prompt: PromptBlocks, *, on_answer: OnAnswer[PromptResponse] = None
    ) -> PromptResponse:
        return await self._session(AgentMethod.SESSION_PROMPT, session_id).prompt(
            prompt, PendingReply(on_answer)
        )

    async def steer(self, session_id: str, prompt: PromptBlocks, timeout: float) -> None:
        await self._session(AgentMethod.SESSION_PROMPT, session_id).steer(prompt, timeout)

    async def cancel(self, session_id: str) -> None:
        self._session(AgentMethod.SESSION_CANCEL, session_id).cancel()

    def _session(self, method: AgentMethod, session_id: str) -> ClaudeSession:
        return find_session(self._sessions, method, session_id)


def _must_be_an_id(method: AgentMethod, session_id: str) -> None:
    """The program would take a path for one, and go on with whatever conversation that file has."""
    if _ID.fullmatch(session_id) is None:
        raise unknown_session(method)


def _named(session_id: str, setup: SessionSetup) -> NewSessionResponse:
    return NewSessionResponse(session_id=session_id, modes=setup.modes, config_options=setup.config_options)
