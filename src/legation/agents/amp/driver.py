"""The driver of Amp: its agent runs on Amp's own server, and each turn here is a process of its own."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from legation.agents.amp.launch import probe, refuse_untrusted
from legation.agents.amp.options import Flags, chosen_mode, config_options
from legation.agents.amp.permissions import install_plugin, must_be_gated
from legation.agents.amp.session import AmpSession, AmpTurn, Threads
from legation.agents.amp.translate import text_of
from legation.agents.driver import OnAnswer, OpenRequest, PromptBlocks
from legation.agents.native import DriverContext, NativeAgent, PendingReply, find_session, unknown_session
from legation.errors import AgentExited, InvalidParams, Unavailable
from legation.proc import Exit
from legation.wire.acp.methods import (
    AgentCapabilities,
    Implementation,
    InitializeResponse,
    McpCapabilities,
    NewSessionResponse,
    PromptResponse,
    SessionCapabilities,
    SessionSetup,
    SetConfigOptionResponse,
    Supported,
)
from legation.wire.acp.rpc import PROTOCOL_VERSION, AgentMethod

NAME: Final = "amp"
_ENDED: Final = Exit(0, None)
_log: Final = logging.getLogger(__name__)


class AmpAgent(NativeAgent):
    """An agent without a process between turns, which ends when it is stopped. A turn's crash is that turn's."""

    HELLO = InitializeResponse(
        protocol_version=PROTOCOL_VERSION,
        agent_info=Implementation(name=NAME, version="", title="Amp"),
        agent_capabilities=AgentCapabilities(
            mcp_capabilities=McpCapabilities(http=True),
            session_capabilities=SessionCapabilities(resume=Supported(), close=Supported()),
        ),
    )

    def __init__(self, context: DriverContext) -> None:
        super().__init__(context)
        self._home = Path(context.command.env.get("HOME", str(context.command.cwd)))
        self._threads = Threads(self._home)
        self.flags = Flags(frozenset(), frozenset())
        self._sessions: dict[str, AmpSession] = {}
        self._over: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()

    # The connection.

    async def begin(self, timeout: float) -> None:
        program = await probe(self._context, timeout)
        must_be_gated(self.name, program.flags)
        self.flags = program.flags
        self.takes_edits = program.flags.has_plugins
        await asyncio.to_thread(self.set_up_gate)
        info = Implementation(name=NAME, version=program.version, title="Amp")
        self.hello = msgspec.structs.replace(self.hello, agent_info=info)

    @property
    def processes(self) -> tuple[int, ...]:
        return tuple(turn.pid for turn in self._turns() if turn.pid is not None)

    def stderr_tail(self) -> str:
        return "\n".join(filter(None, (turn.stderr_tail() for turn in self._turns())))

    def _turns(self) -> list[AmpTurn]:
        return [each.turn for each in self._sessions.values() if each.turn is not None]

    async def wait(self) -> Exit:
        return await asyncio.shield(self._over)

    async def stop(self, grace: float) -> Exit:  # noqa: ARG002 - a turn that is not awaited has nothing to finish
        await asyncio.gather(*(each.stop() for each in tuple(self._sessions.values())))
        if not self._over.done():
            self._over.set_result(_ENDED)
        return self._over.result()

    # What its turns need.

    def set_up_gate(self) -> None:
        """Blocks."""
        if self.flags.has_plugins:
            install_plugin(self._home)

    def forget(self, option: str) -> None:
        """Drop an option that this Amp does not take, whatever its help says."""
        self.flags = self.flags.without(option)

    async def began(self, session_id: str, thread: str) -> None:
        session = self._sessions.get(session_id)
        if session is not None and session.thread != thread:
            session.thread = thread
            try:
                await asyncio.to_thread(self._threads.keep, session_id, thread)
            except Unavailable as error:  # it goes on, and cannot be resumed in another process
                _log.warning("%s", error)

    # Sessions.

    async def new_session(
        self,
        request: OpenRequest,
        timeout: float,  # noqa: ARG002 - nothing is started
        *,
        on_answer: OnAnswer[NewSessionResponse] = None,
    ) -> NewSessionResponse:
        admitted = await self._admit(AgentMethod.SESSION_NEW, request)
        session_id = await asyncio.to_thread(self._threads.begin)
        session = self._sessions[session_id] = AmpSession(replace(admitted, session_id=session_id), None)
        answer = NewSessionResponse(
            session_id=session_id, config_options=config_options(self.flags, session.mode)
        )
        if on_answer:
            on_answer(answer)
        return answer

    async def resume_session(
        self, request: OpenRequest, timeout: float, *, on_answer: OnAnswer[SessionSetup] = None
    ) -> SessionSetup:
        """Take a session up by its thread. Whether that is still there Amp's server says at the next prompt."""
        method, session_id = AgentMethod.SESSION_RESUME, request.session_id
        admitted = await self._admit(method, request)
        thread = await asyncio.to_thread(self._threads.find, session_id)
        if thread is None:
            raise unknown_session(method)
        await self.close_session(session_id, timeout)
        session = self._sessions[session_id] = AmpSession(admitted, thread or None)
        answer = SessionSetup(config_options=config_options(self.flags, session.mode))
        if on_answer:
            on_answer(answer)
        return answer

    async def _admit(self, method: AgentMethod, request: OpenRequest) -> OpenRequest:
        if self._over.done():
            raise AgentExited(f"cannot complete {method}: {self.name!r} was stopped; start it again")
        admitted = self._abilities.admit(method, request)
        if not self._context.trusts(request.cwd):
            await asyncio.to_thread(refuse_untrusted, Path(request.cwd))
        return admitted

    async def close_session(self, session_id: str, timeout: float) -> None:  # noqa: ARG002 - see `stop`
        """A session that is not open is closed."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            await session.stop()

    # A session's own.

    async def set_mode(self, session_id: str, mode_id: str, timeout: float) -> None:  # noqa: ARG002
        self._session(AgentMethod.SESSION_SET_MODE, session_id)
        raise InvalidParams(f"cannot set mode {mode_id!r} of Amp: it has none to choose from; leave it out")

    async def set_config_option(
        self,
        session_id: str,
        config_id: str,
        value: str | bool,
        timeout: float,  # noqa: ARG002
    ) -> SetConfigOptionResponse:
        session = self._session(AgentMethod.SESSION_SET_CONFIG_OPTION, session_id)
        session.mode = chosen_mode(self.flags, config_id, value)
        return SetConfigOptionResponse(config_options=config_options(self.flags, session.mode))

    async def prompt(
        self, session_id: str, prompt: PromptBlocks, *, on_answer: OnAnswer[PromptResponse] = None
    ) -> PromptResponse:
        session = self._session(AgentMethod.SESSION_PROMPT, session_id)
        text = text_of(prompt)
        return await session.prompt(
            AmpTurn(self, self._context, session.request, PendingReply(on_answer)), text
        )

    async def cancel(self, session_id: str) -> None:
        turn = self._session(AgentMethod.SESSION_CANCEL, session_id).turn
        if turn:
            turn.cancel()

    def _session(self, method: AgentMethod, session_id: str) -> AmpSession:
        return find_session(self._sessions, method, session_id)
