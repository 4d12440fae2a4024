"""The driver of agents that speak ACP v1: a process, a connection, and its methods by name."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import msgspec

import legation
from legation.agents.rpc import AgentRefused, Inbox, RpcPeer
from legation.errors import AgentError, AgentExited, LegationError, TimedOut, TransportClosed
from legation.proc import Child, Command, Exit, Launcher, Pipes
from legation.wire import jsontext
from legation.wire.acp.capabilities import (
    ClientCapabilities,
    Implementation,
    InitializeRequest,
    InitializeResponse,
)
from legation.wire.acp.content import ContentBlock
from legation.wire.acp.mcp import McpServer
from legation.wire.acp.rpc import AgentMethod, RpcError
from legation.wire.acp.sessions import (
    NewSessionRequest,
    NewSessionResponse,
    PromptRequest,
    PromptResponse,
    SessionRequest,
)
from legation.wire.acp.shape import PROTOCOL_VERSION

CLIENT = Implementation(name="legation", version=legation.__version__, title="Legation")
EXIT_LIMIT = 10.0  # seconds from the end of an agent's output to its exit: the kernel's and the sweep's time
REST_LIMIT = 5.0  # seconds for a stopped agent's last words to be taken: the store's time
STDERR_SHOWN = 2000  # characters of it in an error

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


def _ignore(_: bytes | RpcError) -> None: ...


class AcpAgent:
    """A running agent that has answered the handshake. `async with`, or `stop`."""

    def __init__(self, child: Child, inbox: Inbox) -> None:
        self.child = child
        self._peer = RpcPeer(child, inbox)
        self._reading = asyncio.create_task(self._read(), name=f"legation-acp-{child.pid}")
        self._mute = False  # it closed its output and did not end
        self.hello = InitializeResponse(protocol_version=PROTOCOL_VERSION)

    @classmethod
    async def start(
        cls,
        launcher: Launcher,
        command: Command,
        inbox: Inbox,
        *,
        pipes: Pipes,
        capabilities: ClientCapabilities,
        timeout: float,
    ) -> AcpAgent:
        agent = cls(await launcher.spawn(command, pipes), inbox)
        try:
            await agent._initialize(capabilities, timeout)
        except BaseException:
            await agent.stop(grace=0)
            raise
        return agent

    async def _initialize(self, capabilities: ClientCapabilities, timeout: float) -> None:
        request = InitializeRequest(
            protocol_version=PROTOCOL_VERSION, client_capabilities=capabilities, client_info=CLIENT
        )
        try:
            self.hello = await self._call(AgentMethod.INITIALIZE, request, InitializeResponse, timeout)
        except TimedOut as error:
            raise TimedOut(f"{error.message}{self._said()}; give it more time or run it by hand") from None
        if self.hello.protocol_version != PROTOCOL_VERSION:
            raise AgentError(
                f"cannot talk to {self.child.name!r}: it speaks version {self.hello.protocol_version} of the"
                f" protocol, not {PROTOCOL_VERSION}; use another version of the agent"
            )

    async def new_session(self, cwd: str, mcp: tuple[McpServer, ...], timeout: float) -> NewSessionResponse:
        request = NewSessionRequest(cwd=cwd, mcp_servers=mcp)
        return await self._call(AgentMethod.SESSION_NEW, request, NewSessionResponse, timeout)

    async def prompt(
        self,
        session_id: str,
        prompt: tuple[ContentBlock, ...],
        *,
        on_answer: Callable[[PromptResponse | AgentError], None] | None = None,
    ) -> PromptResponse:
        """Has no limit of its own: whoever calls it watches for signs of life. `on_answer` is called in the
        answer's place among the updates, with what is returned or raised later."""

        def answered(raw: bytes | RpcError) -> None:
            if on_answer:
                on_answer(self._read_answer(AgentMethod.SESSION_PROMPT, raw, PromptResponse))

        request = PromptRequest(session_id=session_id, prompt=prompt)
        return await self._call(AgentMethod.SESSION_PROMPT, request, PromptResponse, None, answered)

    async def cancel(self, session_id: str) -> None:
        await self._peer.notify(AgentMethod.SESSION_CANCEL, SessionRequest(session_id=session_id))

    async def wait(self) -> Exit:
        """Until the process has ended and everything it said was handed on."""
        found = await self.child.wait()
        await asyncio.wait({self._reading})
        return found

    async def stop(self, grace: float) -> Exit:
        found = await self.child.stop(grace)
        await asyncio.wait({self._reading}, timeout=REST_LIMIT)
        if not self._reading.done():
            _log.warning("cannot keep the last output of %r: the store takes no more", self.child.name)
            self._reading.cancel()
            await asyncio.wait({self._reading})
        return found

    async def _read(self) -> None:
        """An agent that can say nothing any more has ended, or is made to."""
        try:
            await self._peer.run()
        except Exception:  # noqa: BLE001 - a task boundary; whoever waits for an answer is told by the peer
            _log.exception("cannot go on reading the output of %r", self.child.name)
        ending = asyncio.ensure_future(self.child.wait())
        await asyncio.wait({ending}, timeout=EXIT_LIMIT)
        if not ending.done():
            self._mute = True
            with suppress(TimedOut):  # stuck in the kernel; whoever stops it is told
                await self.child.stop(grace=0)

    async def _call(
        self,
        method: AgentMethod,
        params: object,
        answer: type[_T],
        timeout: float | None,
        on_answer: Callable[[bytes | RpcError], None] = _ignore,
    ) -> _T:
        try:
            raw = await self._peer.call(method, params, timeout=timeout, on_answer=on_answer)
        except TransportClosed:
            raise await self._exited(method) from None
        found = self._read_answer(method, raw, answer)
        if isinstance(found, AgentError):
            raise found
        return found

    def _read_answer(self, method: AgentMethod, raw: bytes | RpcError, answer: type[_T]) -> _T | AgentError:
        if isinstance(raw, RpcError):
            return AgentRefused(method, raw)
        try:
            return msgspec.convert(jsontext.read(raw), answer)
        except jsontext.READ_ERRORS as error:
            return AgentError(f"cannot understand the answer of {self.child.name!r} to {method}: {error}")

    async def _exited(self, method: AgentMethod) -> LegationError:
        await asyncio.wait({self._reading})
        if self._mute:
            return TransportClosed(
                f"cannot complete {method}: {self.child.name!r} closed its output and went on"
                f"{self._said()}; it was stopped: start it again"
            )
        found = await self.child.wait()
        return AgentExited(
            f"cannot complete {method}: {self.child.name!r} ended with {found}{self._said()}",
            {"exitCode": found.code, "signal": found.signal},
        )

    def _said(self) -> str:
        tail = self.child.stderr_tail().strip()[-STDERR_SHOWN:]
        return f", having said:\n{tail}\n" if tail else ""
