"""A session with Claude Code: a process of its own, for as long as the session is open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

from legation.agents.claude import messages as native
from legation.agents.claude.launch import ClaudeLaunch, command_for, write_servers
from legation.agents.claude.options import ClaudeOptions, read_greeting
from legation.agents.claude.permissions import HOOKS, ClaudePermissions, ControlProtocol
from legation.agents.claude.translate import ClaudeTranslator, available, blocks_of, error_of
from legation.agents.claude.turn import ClaudeTurns
from legation.agents.driver import OnAnswer, PromptBlocks
from legation.agents.native import DriverContext, NativeAgent, PendingReply, read_lines
from legation.agents.rpc import OUTBOX_LIMIT, WRITE_TIMEOUT, AgentListener, AgentRefused, Output, skipped
from legation.errors import Conflict, LegationError, TimedOut
from legation.proc import Child, Exit
from legation.wire.acp.methods import PromptResponse, SessionSetup
from legation.wire.acp.rpc import AgentMethod, ErrorCode, RpcError
from legation.wire.acp.updates import ConfigOption
from legation.wire.event_types import DiagnosticCode

_MISSING: Final = "No conversation found"


@dataclass(frozen=True, slots=True)
class SessionOpening:
    """A session to be opened: `method` is ours, `on_setup` is called in the answer's place."""

    method: AgentMethod
    launch: ClaudeLaunch
    on_setup: OnAnswer[SessionSetup] = None


class ClaudeSession:
    """A session and its process, made by `open`. Whoever opened it stops it."""

    def __init__(
        self, agent: NativeAgent, context: DriverContext, opening: SessionOpening, child: Child
    ) -> None:
        launch = opening.launch
        self.id = launch.session_id
        self.offers = ClaudeOptions()
        self._agent = agent
        self._listener = context.listener
        self._opening = opening
        self._translator = ClaudeTranslator()
        self._turns = ClaudeTurns()
        self._leaving = False  # the process is being stopped
        self._over: LegationError | None = None
        self._refusal: RpcError | None = None  # why it would not start
        self._opened: PendingReply[SessionSetup] = PendingReply(opening.on_setup)
        self._control = ControlProtocol(child)
        self._permissions = ClaudePermissions(
            self.id, agent, self._control, self._turns, can_ask=launch.questions
        )
        self.process = ClaudeProcess(child, self._listener, self._take, self._ended)

    @classmethod
    async def open(
        cls, agent: NativeAgent, context: DriverContext, opening: SessionOpening, timeout: float
    ) -> ClaudeSession:
        """The time is the program's to start. Nothing of it is left where this raises."""
        servers = await asyncio.to_thread(write_servers, context.command, opening.launch.mcp)
        try:
            command = command_for(context.command, opening.launch, servers)
            child = await context.launcher.spawn(command, context.pipes)
            session = cls(agent, context, opening, child)
            try:
                await session._greet(timeout)
            except BaseException:
                await session.stop(grace=0)
                raise
        finally:
            if servers is not None:  # it was read at the start
                await asyncio.to_thread(_remove, servers)
        return session

    async def _greet(self, timeout: float) -> None:
        request = {"subtype": "initialize", "hooks": HOOKS}
        self._control.send(request, self._greeted)
        try:
            async with asyncio.timeout(timeout):
                await self._opened.value()
        except TimeoutError:
            raise TimedOut(
                f"cannot complete {self._opening.method}: the agent did not answer within {timeout} s"
                f"{self.process.said()}; give it more time or run it by hand"
            ) from None

    def _greeted(self, answer: native.ControlAnswer) -> None:
        self.process.stray.settle()
        greeting = read_greeting(answer.response)
        if answer.subtype != "success" or greeting.hooks_applied is not True:
            said = answer.error or "it does not let itself be asked about every call of a tool"
            error = RpcError(ErrorCode.INTERNAL_ERROR, said)
            self._opened.give(AgentRefused(self._opening.method, error, "; update Claude Code"))
            return
        self.offers = ClaudeOptions(greeting.models)
        self._opened.give(self.setup())
        self._agent.say(self.id, available(greeting.commands))

    def setup(self) -> SessionSetup:
        return SessionSetup(modes=self.offers.modes(), config_options=self.offers.options())

    # The client speaks.

    async def prompt(self, prompt: PromptBlocks, reply: PendingReply[PromptResponse]) -> PromptResponse:
        """Run a turn. The prompt is written before anything is waited for."""
        content = blocks_of(prompt)
        self._must_live()
        uuid = str(uuid4())
        self._turns.begin(uuid, reply)
        self._write(content, uuid)
        return await reply.value()

    async def steer(self, prompt: PromptBlocks, timeout: float) -> None:
        """The model hears it after the tool that runs, else when it has spoken."""
        content = blocks_of(prompt)
        self._must_live()
        if not self._turns.running:
            raise Conflict(f"cannot steer {self._agent.name!r}: no turn runs; send it as a message")
        uuid = str(uuid4())
        taken = self._turns.add(uuid)
        self._write(content, uuid)
        try:
            async with asyncio.timeout(timeout):
                await taken
        except TimeoutError:
            raise TimedOut(f"cannot steer {self._agent.name!r}: it took nothing within {timeout} s") from None

    def _write(self, content: list[Mapping[str, object]], uuid: str) -> None:
        self._control.write(
            {
                "type": "user",
                "session_id": self.id,
                "parent_tool_use_id": None,
                "message": {"role": "user", "content": content},
                "uuid": uuid,
            }
        )

    def cancel(self) -> None:
        """Interrupt the turn. What was not begun is taken back too; what runs in the background ends with it."""
        self._must_live()
        self._turns.cancel()
        self._control.send({"subtype": "interrupt", "cancel_queued": True})

    async def set_mode(self, mode: str, timeout: float) -> None:
        await self._call(AgentMethod.SESSION_SET_MODE, self.offers.mode_request(mode), timeout)

    async def set_option(self, option: str, value: str | bool, timeout: float) -> tuple[ConfigOption, ...]:
        method = AgentMethod.SESSION_SET_CONFIG_OPTION
        await self._call(method, self.offers.request_for(option, value), timeout)
        self.offers.choose(option, str(value))
        return self.offers.options()

    async def _call(self, method: AgentMethod, request: Mapping[str, object], timeout: float) -> None:
        self._must_live()
        await self._control.call(method, request, timeout)

    def _must_live(self) -> None:
        if self._over is not None:
            raise self._over

    async def stop(self, grace: float) -> Exit:
        """A turn that runs is given up first, for with its input closed the program would finish it. What it says of
        that is no answer to the prompt: nobody cancelled it."""
        self._leaving = True
        if self._turns.running and self._over is None:
            with suppress(LegationError):  # it is ending already
                self.cancel()
        found = await self.process.stop(grace)
        await self._permissions.close()
        return found

    # The agent speaks.

    def _take(self, line: bytes, brief: bytes) -> None:
        if line.strip():
            self._agent.hear(self.id, self._hear, line, brief)

    def _hear(self, line: bytes, brief: bytes) -> None:
        heard = self._translator.take(brief)
        if heard.message is None:
            self.process.stray.add(line)
            self._listener.trouble(DiagnosticCode.AGENT_STRAY_LINE, skipped(line))
            return
        self._agent.say(self.id, *heard.updates, native=line if heard.known else b"")
        if not heard.known:
            self._agent.say_unknown(self.id, line)
        match heard.message:
            case native.ControlResponse(response=answer):
                self._control.take(answer)
            case native.ControlRequest():
                self._permissions.take(heard.message, is_cut=brief is not line)
            case native.ControlCancel(request_id=request_id):
                self._permissions.cancel(request_id)
            case native.CommandLifecycle(command_uuid=uuid, state=state) if not self._leaving:
                self._turns.moved(uuid, state)
            case native.UserLine(isReplay=True, uuid=uuid):
                self._turns.moved(uuid, "replayed")
            case native.Result() if not self._leaving:
                self._result(heard.message, heard.failure)

    def _result(self, result: native.Result, failure: str | None) -> None:
        if not self._turns.ended(result, failure) and not self._opened.given:
            self._refusal = error_of(result, failure)  # it ends before it begins: there is nothing to resume

    def _ended(self, error: LegationError) -> None:
        self._over = error
        self._permissions.cancel_all()
        self._control.close(error)
        self._turns.fail(error)
        self._opened.fail(self._startup_error() or error)

    def _startup_error(self) -> LegationError | None:
        if self._refusal is None:
            return None
        missing = _MISSING in self._refusal.message
        code = ErrorCode.RESOURCE_NOT_FOUND if missing else self._refusal.code
        return AgentRefused(self._opening.method, RpcError(code, self._refusal.message))


def _remove(file: Path) -> None:
    file.unlink(missing_ok=True)


class ClaudeProcess(Output):
    """`take` gets each line with what is to be decoded of it, `over` is called when there will be no more."""

    def __init__(
        self,
        child: Child,
        listener: AgentListener,
        take: Callable[[bytes, bytes], None],
        over: Callable[[LegationError], None],
    ) -> None:
        super().__init__(child, self._read, trouble=listener.trouble, over=over)
        self.child = child
        self._listener = listener
        self._take = take

    async def _read(self) -> None:
        await read_lines(self.child, self._take, self._room, self._listener.trouble)

    async def _room(self) -> None:
        await self._listener.room()
        if self.child.unsent > OUTBOX_LIMIT:
            await self.child.drain(WRITE_TIMEOUT)
