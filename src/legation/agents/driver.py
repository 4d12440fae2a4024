"""The seam between a host and its agents: what a host asks of a running agent, whatever that speaks.

The vocabulary is ACP's. A driver of another protocol translates: its agent's messages become session updates, handed to
the host's `AgentListener` in the order in which they came, with the agent's own line beside them; what its agent asks becomes
`session/request_permission` or `elicitation/create` there.

INV-D1  An answer keeps its place among the updates: `on_answer` is called where the agent's answer stood.
INV-D2  Every request of the agent is answered, whatever becomes of it.
INV-D3  After `stop` nothing that it started runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, TypeVar

import msgspec

from legation.errors import AgentError, CapabilityUnsupported, Forbidden
from legation.proc import Exit
from legation.store.trust import is_repository_root
from legation.wire.acp.methods import (
    AgentCapabilities,
    AuthMethod,
    ClientCapabilities,
    Implementation,
    InitializeResponse,
    ListSessionsResponse,
    McpServer,
    NewSessionResponse,
    PromptResponse,
    SessionSetup,
    SetConfigOptionResponse,
)
from legation.wire.acp.rpc import AgentMethod
from legation.wire.acp.updates import ContentBlock

DriverName = Literal["acp", "claude", "codex", "opencode", "amp"]


_T = TypeVar("_T")

OnAnswer: TypeAlias = Callable[[_T | AgentError], None] | None
"""Called in the answer's place among the updates, with what is returned or raised later (INV-D1)."""


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A session to be opened, with all that it needs. `session_id`, which a new one has not, is the agent's name of the
    session that is to be loaded, resumed or forked."""

    cwd: str
    mcp_servers: tuple[McpServer, ...] = ()
    additional_directories: tuple[str, ...] = ()
    session_id: str = ""


class Driver(Protocol):
    """Limits are in seconds and the agent's time. What the agent cannot do raises `CapabilityUnsupported`, what it
    refuses `AgentRefused`, and its end `AgentExited` or `TransportClosed` for whoever waits for an answer."""

    name: str
    announced: Mapping[str, object]

    @property
    def takes_edits(self) -> bool:
        """Whether it acts on the arguments that a permission was answered with."""

    @property
    def version(self) -> int: ...
    @property
    def capabilities(self) -> AgentCapabilities: ...
    @property
    def auth_methods(self) -> tuple[AuthMethod, ...]: ...
    @property
    def info(self) -> Implementation | None: ...
    @property
    def can_load(self) -> bool: ...
    @property
    def can_resume(self) -> bool: ...
    @property
    def can_list(self) -> bool: ...
    @property
    def can_close(self) -> bool: ...
    @property
    def can_delete(self) -> bool: ...
    @property
    def can_fork(self) -> bool:
        """Whether a session can begin with what was said in another, which need not be open."""

    @property
    def can_steer(self) -> bool:
        """Whether it takes something in while a turn of its runs."""

    @property
    def processes(self) -> tuple[int, ...]:
        """The pids of what it started, its main one first; a shared server's too."""

    def stderr_tail(self) -> str: ...

    async def initialize(self, capabilities: ClientCapabilities, timeout: float) -> None: ...
    async def wait(self) -> Exit: ...
    async def stop(self, grace: float) -> Exit: ...
    async def authenticate(self, method_id: str, timeout: float) -> None: ...
    async def logout(self, timeout: float) -> None: ...
    async def pass_on(self, method: str, params: object, timeout: float | None) -> bytes: ...
    async def tell(self, method: str, params: object) -> None: ...

    async def new_session(
        self, request: OpenRequest, timeout: float, *, on_answer: OnAnswer[NewSessionResponse] = None
    ) -> NewSessionResponse: ...

    async def fork_session(self, request: OpenRequest, timeout: float) -> NewSessionResponse:
        """A session of its own that begins with what was said in the other, which goes on as it is."""

    async def load_session(
        self, request: OpenRequest, timeout: float, *, on_answer: OnAnswer[SessionSetup] = None
    ) -> SessionSetup: ...

    async def resume_session(
        self, request: OpenRequest, timeout: float, *, on_answer: OnAnswer[SessionSetup] = None
    ) -> SessionSetup: ...

    async def list_sessions(
        self, cwd: str | None, cursor: str | None, timeout: float
    ) -> ListSessionsResponse: ...
    async def close_session(self, session_id: str, timeout: float) -> None: ...
    async def delete_session(self, session_id: str, timeout: float) -> None: ...
    async def set_mode(self, session_id: str, mode_id: str, timeout: float) -> None: ...
    async def set_config_option(
        self, session_id: str, config_id: str, value: str | bool, timeout: float
    ) -> SetConfigOptionResponse: ...
    async def prompt(
        self,
        session_id: str,
        prompt: tuple[ContentBlock, ...],
        *,
        on_answer: OnAnswer[PromptResponse] = None,
    ) -> PromptResponse: ...
    async def steer(self, session_id: str, prompt: tuple[ContentBlock, ...], timeout: float) -> None:
        """Say something to the turn that runs; returns when the agent has it."""

    async def cancel(self, session_id: str) -> None: ...


class DriverBase:
    """The part of a driver that is known after the handshake. `announced` is the answer to it as it came."""

    def __init__(self, name: str, hello: InitializeResponse) -> None:
        self.name = name
        self.hello = hello
        self.announced: Mapping[str, object] = {}

    @property
    def version(self) -> int:
        """Of the protocol, as agreed for this connection."""
        return self.hello.protocol_version

    @property
    def capabilities(self) -> AgentCapabilities:
        return self.hello.agent_capabilities

    @property
    def auth_methods(self) -> tuple[AuthMethod, ...]:
        return self.hello.auth_methods

    @property
    def info(self) -> Implementation | None:
        return self.hello.agent_info

    @property
    def can_load(self) -> bool:
        return self._abilities.can(AgentMethod.SESSION_LOAD)

    @property
    def can_resume(self) -> bool:
        return self._abilities.can(AgentMethod.SESSION_RESUME)

    @property
    def can_list(self) -> bool:
        return self._abilities.can(AgentMethod.SESSION_LIST)

    @property
    def can_close(self) -> bool:
        return self._abilities.can(AgentMethod.SESSION_CLOSE)

    @property
    def can_delete(self) -> bool:
        return self._abilities.can(AgentMethod.SESSION_DELETE)

    @property
    def can_fork(self) -> bool:
        """ACP has no stable way to fork a session."""
        return False

    async def fork_session(self, request: OpenRequest, timeout: float) -> NewSessionResponse:  # noqa: ARG002
        raise CapabilityUnsupported(
            f"cannot fork a session of {self.name!r}: it cannot begin one with what was said in another; start a new one"
        )

    @property
    def can_steer(self) -> bool:
        """ACP has no way to say something to a turn that runs: an agent that has one says so."""
        return False

    async def steer(self, session_id: str, prompt: tuple[ContentBlock, ...], timeout: float) -> None:  # noqa: ARG002
        raise CapabilityUnsupported(
            f"cannot steer {self.name!r}: it takes nothing while a turn runs; send it as the next message"
        )

    @property
    def _abilities(self) -> Abilities:
        return Abilities(self.name, self.capabilities)


@dataclass(frozen=True, slots=True)
class _Need:
    capability: str
    declared: Callable[[AgentCapabilities], bool]
    advice: str


_NEEDS: Mapping[AgentMethod, _Need] = {
    AgentMethod.SESSION_LOAD: _Need(
        "loadSession", lambda can: can.load_session, "resume the session, or start a new one"
    ),
    AgentMethod.SESSION_RESUME: _Need(
        "sessionCapabilities.resume",
        lambda can: can.session_capabilities.resume is not None,
        "load the session, or start a new one",
    ),
    AgentMethod.SESSION_LIST: _Need(
        "sessionCapabilities.list",
        lambda can: can.session_capabilities.list is not None,
        "use the sessions that Legation has recorded",
    ),
    AgentMethod.SESSION_CLOSE: _Need(
        "sessionCapabilities.close",
        lambda can: can.session_capabilities.close is not None,
        "let the session end with the agent",
    ),
    AgentMethod.SESSION_DELETE: _Need(
        "sessionCapabilities.delete",
        lambda can: can.session_capabilities.delete is not None,
        "delete it with the agent's own tools",
    ),
    AgentMethod.LOGOUT: _Need(
        "auth.logout", lambda can: can.auth.logout is not None, "sign out with the agent's own tools"
    ),
}


@dataclass(frozen=True, slots=True)
class Abilities:
    agent: str
    declared: AgentCapabilities

    def can(self, method: AgentMethod) -> bool:
        need = _NEEDS.get(method)
        return need is None or need.declared(self.declared)

    def require(self, method: AgentMethod) -> None:
        if not self.can(method):
            need = _NEEDS[method]
            raise self._lacking(method, need.capability, need.advice)

    def admit(self, method: AgentMethod, request: OpenRequest) -> OpenRequest:
        """The request as the agent is to be given it: nothing is dropped, and lists that must be there are."""
        directories = self.declared.session_capabilities.additional_directories
        if request.additional_directories and directories is None:
            advice = "leave the additional folders out, or use another agent"
            raise self._lacking(method, "sessionCapabilities.additionalDirectories", advice)
        for server in request.mcp_servers:
            if not self._reaches(server.type):
                what = f"give it MCP server {server.name!r} by {server.type}"
                advice = "use a stdio server, or leave it out"
                raise self._lacking(method, f"mcpCapabilities.{server.type}", advice, what)
        return replace(request, mcp_servers=tuple(map(_complete, request.mcp_servers)))

    def _reaches(self, transport: str) -> bool:
        can = self.declared.mcp_capabilities
        return transport == "stdio" or (transport == "http" and can.http) or (transport == "sse" and can.sse)

    def _lacking(
        self, method: AgentMethod, capability: str, advice: str, what: str = ""
    ) -> CapabilityUnsupported:
        doing = f"call {method} and {what}" if what else f"call {method}"
        return CapabilityUnsupported(
            f"cannot {doing}: {self.agent!r} does not declare {capability}; {advice}",
            {"method": method.value, "capability": capability},
        )


def _complete(server: McpServer) -> McpServer:
    if server.type == "stdio":
        return msgspec.structs.replace(server, args=server.args or (), env=server.env or ())
    return msgspec.structs.replace(server, headers=server.headers or ())


# The start of a session in a folder, where Legation knows more of the agent than its protocol says.


@dataclass(frozen=True, slots=True)
class AskingModes:
    """Modes of one agent, by what it calls them: in which it asks, the best first, and in which it does not. For names
    that do not say it themselves (`host/modes.py` knows those that do)."""

    asking: tuple[str, ...] = ()
    unasking: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionStart:
    """Of sessions by ACP.

    `meta` is the `_meta` of `session/new`, `session/load` and `session/resume`. With `mode` a session that begins in
    another one is put into that, unless the other is among `keeps`. None begins in a folder that has what it `obeys`.
    """

    meta: Mapping[str, object] = field(default_factory=dict)
    mode: str | None = None
    keeps: tuple[str, ...] = ()
    obeys: tuple[str, ...] = ()


def require_no_agent_config(folder: Path, patterns: tuple[str, ...]) -> None:
    """There is nothing in the folder, or above it in its repository, that an agent would act on unasked. Blocks."""
    if not patterns:
        return
    for place in _to_the_root(folder):
        for pattern in patterns:
            if found := next(iter(place.glob(pattern)), None):
                raise Forbidden(
                    f"cannot start it in {folder}: it would act on {found}, whatever it is told; look at that, then "
                    "trust the folder with `legation trust`, or use another agent"
                )


def _to_the_root(folder: Path) -> Iterator[Path]:
    """The folder and those above it, up to the root of the repository; all of them where there is none."""
    real = folder.resolve()
    for place in (real, *real.parents):
        yield place
        if is_repository_root(place):
            return
