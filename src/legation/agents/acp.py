"""The driver of agents that speak ACP v1: the process, the handshake and what was agreed in it, and their methods by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Self, TypedDict, TypeVar

from msgspec.structs import replace

import legation
from legation.agents.driver import (
    Driver,
    OnAnswer,
    OpenRequest,
    PromptBlocks,
    SessionStart,
    require_no_agent_config,
)
from legation.agents.messages import READ_ERRORS, fit, read_answer
from legation.agents.rpc import OUTBOX_LIMIT, AgentListener, AgentRefused, Output, RpcPeer, Stray, raw_answer
from legation.errors import AgentError, InvalidParams, TimedOut, TransportClosed, Unavailable
from legation.proc import Child, Command, Exit, Launcher, Pipes
from legation.wire.acp.methods import (
    AuthenticateRequest,
    AuthMethod,
    ClientCapabilities,
    Implementation,
    InitializeRequest,
    InitializeResponse,
    ListSessionsRequest,
    ListSessionsResponse,
    LoadSessionRequest,
    McpServer,
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
from legation.wire.acp.rpc import PROTOCOL_VERSION, AgentMethod, ErrorCode, RpcError

_T = TypeVar("_T")
_Setup = TypeVar("_Setup", bound=SessionSetup)


class _SessionParams(TypedDict):
    cwd: str
    mcp_servers: tuple[McpServer, ...]
    additional_directories: tuple[str, ...]
    meta: Mapping[str, object] | None


class AcpAgent(Driver):
    """A running agent; from `start`, one that has answered the handshake.

    What the agent did not declare is refused before it is asked. A call that outlasts its limit is cancelled at the agent
    and raises `TimedOut`.
    """

    def __init__(self, child: Child, listener: AgentListener, beginning: SessionStart | None = None) -> None:
        super().__init__(child.name, InitializeResponse(protocol_version=SUPPORTED_VERSIONS[0]))
        self.child = child
        stray = Stray()
        self._peer = RpcPeer(child, listener, stray)
        self._output = Output(
            child, self._peer.run, trouble=listener.trouble, stray=stray
        )  # reads from now on
        self._beginning = beginning or SessionStart()

    @classmethod
    async def start(
        cls,
        launcher: Launcher,
        command: Command,
        listener: AgentListener,
        *,
        pipes: Pipes,
        capabilities: ClientCapabilities,
        timeout: float,
    ) -> Self:
        agent = cls(await launcher.spawn(command, pipes), listener)
        try:
            await agent.initialize(capabilities, timeout)
        except BaseException:
            await agent.stop(grace=0)
            raise
        return agent

    # The connection.

    async def initialize(self, capabilities: ClientCapabilities, timeout: float) -> None:
        method = AgentMethod.INITIALIZE
        try:
            announced = await self._call(method, initialize_request(capabilities), dict[str, object], timeout)
        except TimedOut as error:
            said = self._output.said()
            raise TimedOut(f"{error.message}{said}; give it more time or run it by hand") from None
        self.hello = read_hello(self.name, announced)
        self.announced = announced

    @property
    def processes(self) -> tuple[int, ...]:
        return (self.child.pid,)

    def stderr_tail(self) -> str:
        return self.child.stderr_tail()

    async def wait(self) -> Exit:
        return await self._output.wait()

    async def stop(self, grace: float) -> Exit:
        return await self._output.stop(grace)

    async def authenticate(self, method_id: str, timeout: float) -> None:
        """The limit is the person's who signs in."""
        self._must_be_callable(method_id)
        await self._do(AgentMethod.AUTHENTICATE, AuthenticateRequest(method_id=method_id), timeout)

    async def logout(self, timeout: float) -> None:
        self._abilities.require(AgentMethod.LOGOUT)
        await self._do(AgentMethod.LOGOUT, {}, timeout)

    async def pass_on(self, method: str, params: object, timeout: float | None) -> bytes:
        return await self._exchange(method, params, partial(raw_answer, method), timeout)

    async def tell(self, method: str, params: object) -> None:
        # Whoever sends it may send more than the agent reads.
        if self.child.unsent > OUTBOX_LIMIT:
            raise Unavailable(
                f"cannot send {method}: the agent does not read what it was sent; try again later"
            )
        await self._peer.notify(method, params)

    # Calls and their answers.

    async def _call(
        self,
        method: AgentMethod,
        params: object,
        shape: type[_T],
        timeout: float | None,
        on_answer: OnAnswer[_T] = None,
    ) -> _T:
        read = partial(self._read, method, shape)
        return await self._exchange(method, params, read, timeout, on_answer)

    async def _do(self, method: AgentMethod, params: object, timeout: float) -> None:
        """Call where all there is to know is that it answered."""

        def read(raw: bytes | RpcError) -> AgentError | None:
            return self._refusal(method, raw) if isinstance(raw, RpcError) else None

        await self._exchange(method, params, read, timeout)

    async def _exchange(
        self,
        method: str,
        params: object,
        read: Callable[[bytes | RpcError], _T | AgentError],
        timeout: float | None,
        on_answer: OnAnswer[_T] = None,
    ) -> _T:
        try:
            return await self._peer.calls.ask(method, params, read, timeout, on_answer)
        except TransportClosed:
            raise await self._output.end(f"complete {method}") from None

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

    # Sessions.

    async def new_session(
        self, request: OpenRequest, timeout: float, *, on_answer: OnAnswer[NewSessionResponse] = None
    ) -> NewSessionResponse:
        method = AgentMethod.SESSION_NEW
        params = NewSessionRequest(**await self._params(method, request))
        opened = await self._call(method, params, NewSessionResponse, timeout, on_answer)
        return await self._begun(opened.session_id, opened, timeout)

    async def load_session(
        self, request: OpenRequest, timeout: float, *, on_answer: OnAnswer[SessionSetup] = None
    ) -> SessionSetup:
        method = AgentMethod.SESSION_LOAD
        params = LoadSessionRequest(session_id=request.session_id, **await self._params(method, request))
        setup = await self._call(method, params, SessionSetup, timeout, on_answer)
        return await self._begun(request.session_id, setup, timeout)

    async def resume_session(
        self, request: OpenRequest, timeout: float, *, on_answer: OnAnswer[SessionSetup] = None
    ) -> SessionSetup:
        method = AgentMethod.SESSION_RESUME
        params = ResumeSessionRequest(session_id=request.session_id, **await self._params(method, request))
        setup = await self._call(method, params, SessionSetup, timeout, on_answer)
        return await self._begun(request.session_id, setup, timeout)

    async def _params(self, method: AgentMethod, request: OpenRequest) -> _SessionParams:
        """Members that all three have."""
        self._abilities.require(method)
        if self._beginning.obeys:
            await asyncio.to_thread(require_no_agent_config, Path(request.cwd), self._beginning.obeys)
        admitted = self._abilities.admit(method, request)
        return {
            "cwd": admitted.cwd,
            "mcp_servers": admitted.mcp_servers,
            "additional_directories": admitted.additional_directories,
            "meta": self._beginning.meta or None,
        }

    async def _begun(self, session_id: str, setup: _Setup, timeout: float) -> _Setup:
        """Put a session into the mode that it is to begin in, before anybody says anything in it."""
        wanted, modes = self._beginning.mode, setup.modes
        if wanted is None or modes is None or modes.current_mode_id in (wanted, *self._beginning.keeps):
            return setup
        await self.set_mode(session_id, wanted, timeout)
        return replace(setup, modes=replace(modes, current_mode_id=wanted))

    async def list_sessions(
        self, cwd: str | None, cursor: str | None, timeout: float
    ) -> ListSessionsResponse:
        self._abilities.require(AgentMethod.SESSION_LIST)
        request = ListSessionsRequest(cwd=cwd, cursor=cursor)
        return await self._call(AgentMethod.SESSION_LIST, request, ListSessionsResponse, timeout)

    async def close_session(self, session_id: str, timeout: float) -> None:
        await self._end_session(AgentMethod.SESSION_CLOSE, session_id, timeout)

    async def delete_session(self, session_id: str, timeout: float) -> None:
        await self._end_session(AgentMethod.SESSION_DELETE, session_id, timeout)

    async def _end_session(self, method: AgentMethod, session_id: str, timeout: float) -> None:
        self._abilities.require(method)
        try:
            await self._do(method, SessionRequest(session_id=session_id), timeout)
        except AgentRefused as refused:
            if refused.error.code != ErrorCode.RESOURCE_NOT_FOUND:
                raise

    async def set_mode(self, session_id: str, mode_id: str, timeout: float) -> None:
        request = SetModeRequest(session_id=session_id, mode_id=mode_id)
        await self._do(AgentMethod.SESSION_SET_MODE, request, timeout)

    async def set_config_option(
        self, session_id: str, config_id: str, value: str | bool, timeout: float
    ) -> SetConfigOptionResponse:
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
        self, session_id: str, prompt: PromptBlocks, *, on_answer: OnAnswer[PromptResponse] = None
    ) -> PromptResponse:
        request = PromptRequest(session_id=session_id, prompt=prompt)
        return await self._call(AgentMethod.SESSION_PROMPT, request, PromptResponse, None, on_answer)

    async def cancel(self, session_id: str) -> None:
        await self._peer.notify(AgentMethod.SESSION_CANCEL, SessionRequest(session_id=session_id))


def _described(way: AuthMethod) -> Mapping[str, object]:
    """Describe a way to sign in, without the variables it would set: their values are not ours to show."""
    described = {"id": way.id, "name": way.name, "type": way.type}
    return {**described, "description": way.description} if way.description else described


# The handshake: which version of ACP both speak, and what each side can do.


CLIENT = Implementation(name="legation", version=legation.__version__, title="Legation")

# The newest first: it is offered, and the agent may answer with any other of them.
SUPPORTED_VERSIONS: tuple[int, ...] = (PROTOCOL_VERSION,)


def initialize_request(capabilities: ClientCapabilities) -> InitializeRequest:
    return InitializeRequest(
        protocol_version=SUPPORTED_VERSIONS[0], client_capabilities=capabilities, client_info=CLIENT
    )


def read_hello(agent: str, announced: Mapping[str, object]) -> InitializeResponse:
    try:
        hello = fit(announced, InitializeResponse)
    except READ_ERRORS as error:
        raise AgentError(
            f"cannot understand the answer of {agent!r} to {AgentMethod.INITIALIZE}: {error}"
        ) from None
    if hello.protocol_version not in SUPPORTED_VERSIONS:
        spoken = ", ".join(map(str, SUPPORTED_VERSIONS))
        raise AgentError(
            f"cannot talk to {agent!r}: it speaks version {hello.protocol_version} of the protocol, not"
            f" {spoken}; use another version of the agent"
        )
    return hello
