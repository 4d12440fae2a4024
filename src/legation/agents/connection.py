"""A connection to an agent that speaks ACP: the handshake, what was agreed in it, and signing in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Self, TypeVar

from legation.agents import handshake
from legation.agents.answers import READ_ERRORS, read_answer
from legation.agents.greeting import Greeted
from legation.agents.process import AgentProcess
from legation.agents.rpc import OUTBOX_LIMIT, AgentRefused, Inbox
from legation.errors import AgentError, InvalidParams, TimedOut, Unavailable
from legation.proc import Child, Command, Exit, Launcher, Pipes
from legation.wire.acp.capabilities import (
    AuthenticateRequest,
    AuthMethod,
    ClientCapabilities,
    InitializeResponse,
)
from legation.wire.acp.rpc import AgentMethod, ErrorCode, RpcError

_T = TypeVar("_T")


class AcpConnection(Greeted):
    takes_edits = False  # it acts on the arguments that it asked about, whatever it is answered

    def __init__(self, child: Child, inbox: Inbox) -> None:
        super().__init__(child.name, InitializeResponse(protocol_version=handshake.SUPPORTED_VERSIONS[0]))
        self.child = child
        self._process = AgentProcess(child, inbox)

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
    ) -> Self:
        agent = cls(await launcher.spawn(command, pipes), inbox)
        try:
            await agent.initialize(capabilities, timeout)
        except BaseException:
            await agent.stop(grace=0)
            raise
        return agent

    # The connection.

    async def initialize(self, capabilities: ClientCapabilities, timeout: float) -> None:
        """`start` has done it. Whoever spawned the child stops it if this fails."""
        method = AgentMethod.INITIALIZE
        try:
            announced = await self._call(method, handshake.offer(capabilities), dict[str, object], timeout)
        except TimedOut as error:
            said = self._process.said()
            raise TimedOut(f"{error.message}{said}; give it more time or run it by hand") from None
        self.hello = handshake.read_hello(self.name, announced)
        self.announced = announced

    @property
    def processes(self) -> tuple[int, ...]:
        return (self.child.pid,)

    def stderr_tail(self) -> str:
        return self.child.stderr_tail()

    async def wait(self) -> Exit:
        """Until the process has ended and everything it said was handed on."""
        return await self._process.wait()

    async def stop(self, grace: float) -> Exit:
        return await self._process.stop(grace)

    async def authenticate(self, method_id: str, timeout: float) -> None:
        """The limit is the person's who signs in."""
        self._must_be_callable(method_id)
        await self._do(AgentMethod.AUTHENTICATE, AuthenticateRequest(method_id=method_id), timeout)

    async def logout(self, timeout: float) -> None:
        self._abilities.require(AgentMethod.LOGOUT)
        await self._do(AgentMethod.LOGOUT, {}, timeout)

    async def pass_on(self, method: str, params: object, timeout: float | None) -> bytes:
        """A call that is none of ours, as it is; its raw result."""

        def read(raw: bytes | RpcError) -> bytes | AgentError:
            return AgentRefused(method, raw) if isinstance(raw, RpcError) else raw

        return await self._process.call(method, params, read, timeout)

    async def tell(self, method: str, params: object) -> None:
        """A notification that is none of ours. Whoever sends it may send more than the agent reads."""
        if self._process.child.unsent > OUTBOX_LIMIT:
            raise Unavailable(
                f"cannot send {method}: the agent does not read what it was sent; try again later"
            )
        await self._process.notify(method, params)

    # Calls and their answers.

    async def _call(
        self,
        method: AgentMethod,
        params: object,
        shape: type[_T],
        timeout: float | None,
        on_answer: Callable[[_T | AgentError], None] | None = None,
    ) -> _T:
        read = partial(self._read, method, shape)
        return await self._process.call(method, params, read, timeout, on_answer)

    async def _do(self, method: AgentMethod, params: object, timeout: float) -> None:
        """That it answered is all there is to know."""

        def read(raw: bytes | RpcError) -> AgentError | None:
            return self._refusal(method, raw) if isinstance(raw, RpcError) else None

        await self._process.call(method, params, read, timeout)

    def _read(self, method: AgentMethod, shape: type[_T], raw: bytes | RpcError) -> _T | AgentError:
        if isinstance(raw, RpcError):
            return self._refusal(method, raw)
        try:
            return read_answer(raw, shape)
        except READ_ERRORS as error:
            return AgentError(f"cannot understand the answer of {self.name!r} to {method}: {error}")

    def _refusal(self, method: AgentMethod, error: RpcError) -> AgentRefused:
        if error.code != ErrorCode.AUTH_REQUIRED:
            return AgentRefused(method, error)
        ways = ", ".join(f"{way.name!r} ({way.id})" for way in self.auth_methods)
        advice = f"sign in first with one of {ways}" if ways else "sign in with the agent's own tools first"
        described = [_described(way) for way in self.auth_methods]
        return AgentRefused(method, error, f"; {advice}", {"authMethods": described})

    def _must_be_callable(self, method_id: str) -> None:
        way = next((each for each in self.auth_methods if each.id == method_id), None)
        if way is None:
            known = ", ".join(each.id for each in self.auth_methods) or "none at all"
            raise InvalidParams(
                f"cannot sign in to {self.name!r} with {method_id!r}: it offers {known}; choose one of those"
            )
        if way.type == "terminal":  # the protocol forbids to pass these on
            raise InvalidParams(
                f"cannot sign in to {self.name!r} with {method_id!r} from here: run the agent in a terminal"
                f" with the arguments that it names"
            )


def _described(way: AuthMethod) -> Mapping[str, object]:
    """Without the variables it would set: their values are not ours to show."""
    described = {"id": way.id, "name": way.name, "type": way.type}
    return {**described, "description": way.description} if way.description else described
