"""The seam between a host and its agents: what a host asks of a running agent, whatever that speaks.

The vocabulary is ACP's. A driver of another protocol translates: its agent's messages become session updates, handed to
the host's `AgentListener` in the order in which they came, with the agent's own line beside them; what its agent asks becomes
`session/request_permission` or `elicitation/create` there.

INV-D1  An answer keeps its place among the updates: `on_answer` is called where the agent's answer stood.
INV-D2  Every request of the agent is answered, whatever becomes of it.
INV-D3  After `stop` nothing that it started runs.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import msgspec

from legation.errors import AgentError, CapabilityUnsupported, Forbidden
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

if TYPE_CHECKING:
    from legation.proc import Exit  # processes load with the first agent that is started

_T = TypeVar("_T")

PromptBlocks: TypeAlias = tuple[ContentBlock, ...]
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


class Driver(ABC):
    """One running agent, whatever it speaks. `announced` is its answer to the handshake as it came.

    Limits are in seconds and the agent's time. What the agent cannot do raises `CapabilityUnsupported`, what it refuses
    `AgentRefused`, and its end `AgentExited` or `TransportClosed` for whoever waits for an answer. Where a method has
    `on_answer`, that is called in the answer's place among the updates with what is returned or raised later.
    """

    takes_edits: bool = False  # it acts on the arguments that a permission was answered with
    can_fork: bool = False  # a session can begin with what was said in another, which need not be open
    can_steer: bool = False  # it takes something in while a turn of its runs

    def __init__(self, name: str, hello: InitializeResponse) -> None:
        self.name = name
        self.hello = hello
        self.announced: Mapping[str, object] = {}

    @property
    def version(self) -> int:
        """The version of the protocol, as agreed for this connection."""
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
    def _abilities(self) -> Abilities:
        return Abilities(self.name, self.capabilities)

    # The connection.

    @abstractmethod
    async def initialize(self, capabilities: ClientCapabilities, timeout: float) -> None:
        """Start the agent as far as no session is needed. Whoever made the driver stops it if this fails."""

    @property
    @abstractmethod
    def processes(self) -> tuple[int, ...]:
        """The pids of what it started, its main one first; a shared server's too."""

    @abstractmethod
    def stderr_tail(self) -> str: ...

    @abstractmethod
    async def wait(self) -> Exit:
        """Return when it has ended and everything that it said was handed on."""

    @abstractmethod
    async def stop(self, grace: float) -> Exit:
        """Stop it, so that nothing of it is left (INV-D3). Idempotent."""

    @abstractmethod
    async def authenticate(self, method_id: str, timeout: float) -> None: ...

    @abstractmethod
    async def logout(self, timeout: float) -> None: ...

    @abstractmethod
    async def pass_on(self, method: str, params: object, timeout: float | None) -> bytes:
        """Make a call that is none of ours, as it is; its raw result."""

    @abstractmethod
    async def tell(self, method: str, params: object) -> None:
        """Send a notification that is none of ours."""

    # Sessions.

    @abstractmethod
    async def new_session(
        self, request: OpenRequest, timeout: float, *, on_answer: OnAnswer[NewSessionResponse] = None
    ) -> NewSessionResponse: ...

    async def fork_session(self, request: OpenRequest, timeout: float) -> NewSessionResponse:  # noqa: ARG002
        """Open a session of its own that begins with what was said in the other, which goes on as it is. ACP has no stable
        way to do so."""
        raise CapabilityUnsupported(
            f"cannot fork a session of {self.name!r}: it cannot begin one with what was said in another; start a new one"
        )

    @abstractmethod
    async def load_session(
        self, request: OpenRequest, timeout: float, *, on_answer: OnAnswer[SessionSetup] = None
    ) -> SessionSetup:
        """Take a session up. The agent replays the history as updates, and answers after the last of them."""

    @abstractmethod
    async def resume_session(
        self, request: OpenRequest, timeout: float, *, on_answer: OnAnswer[SessionSetup] = None
    ) -> SessionSetup:
        """Take a session up, with nothing replayed."""

    @abstractmethod
    async def list_sessions(
        self, cwd: str | None, cursor: str | None, timeout: float
    ) -> ListSessionsResponse:
        """Return one page; the next with the `next_cursor` of this one."""

    @abstractmethod
    async def close_session(self, session_id: str, timeout: float) -> None:
        """Close a session; one that the agent does not know is closed."""

    @abstractmethod
    async def delete_session(self, session_id: str, timeout: float) -> None:
        """Delete a session; one that the agent does not know is deleted."""

    @abstractmethod
    async def set_mode(self, session_id: str, mode_id: str, timeout: float) -> None:
        """Choose a mode of a session that has named its modes; the caller knows."""

    @abstractmethod
    async def set_config_option(
        self, session_id: str, config_id: str, value: str | bool, timeout: float
    ) -> SetConfigOptionResponse:
        """Return all options as they are now; none where the agent did not say, as some do not."""

    # A turn.

    @abstractmethod
    async def prompt(
        self, session_id: str, prompt: PromptBlocks, *, on_answer: OnAnswer[PromptResponse] = None
    ) -> PromptResponse:
        """Run a turn. It has no limit of its own: whoever calls it watches for signs of life."""

    async def steer(self, session_id: str, prompt: PromptBlocks, timeout: float) -> None:  # noqa: ARG002
        """Say something to the turn that runs; returns when the agent has it. ACP has no way to do so."""
        raise CapabilityUnsupported(
            f"cannot steer {self.name!r}: it takes nothing while a turn runs; send it as the next message"
        )

    @abstractmethod
    async def cancel(self, session_id: str) -> None: ...


# By method: the capability that an agent must have declared, and what to do where it has not.
_NEEDS: Final[Mapping[AgentMethod, tuple[str, str]]] = {
    AgentMethod.SESSION_LOAD: ("load_session", "resume the session, or start a new one"),
    AgentMethod.SESSION_RESUME: ("session_capabilities.resume", "load the session, or start a new one"),
    AgentMethod.SESSION_LIST: ("session_capabilities.list", "use the sessions that Legation has recorded"),
    AgentMethod.SESSION_CLOSE: ("session_capabilities.close", "let the session end with the agent"),
    AgentMethod.SESSION_DELETE: ("session_capabilities.delete", "delete it with the agent's own tools"),
    AgentMethod.LOGOUT: ("auth.logout", "sign out with the agent's own tools"),
}


@dataclass(frozen=True, slots=True)
class Abilities:
    agent: str
    declared: AgentCapabilities

    def can(self, method: AgentMethod) -> bool:
        return method not in _NEEDS or attrgetter(_NEEDS[method][0])(self.declared) not in (None, False)

    def require(self, method: AgentMethod) -> None:
        if not self.can(method):
            capability, advice = _NEEDS[method]
            on_the_wire = re.sub("_([a-z])", lambda found: found[1].upper(), capability)
            raise self._lacking(method, on_the_wire, advice)

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
    that do not say it themselves (`modes.py` knows those that do). `left_alone`: its owner has allowed all, and it
    stays in whatever it is in."""

    asking: tuple[str, ...] = ()
    unasking: tuple[str, ...] = ()
    left_alone: bool = False


@dataclass(frozen=True, slots=True)
class SessionStart:
    """The start of sessions by ACP.

    `meta` is the `_meta` of `session/new`, `session/load` and `session/resume`. With `mode` a session that begins in
    another one is put into that, unless the other is among `keeps`. None begins in a folder that has what it `obeys`.
    """

    meta: Mapping[str, object] = field(default_factory=dict)
    mode: str | None = None
    keeps: tuple[str, ...] = ()
    obeys: tuple[str, ...] = ()


def require_no_agent_config(folder: Path, patterns: tuple[str, ...]) -> None:
    """Refuse a folder that has, or has above it in its repository, what an agent would act on unasked. Blocks."""
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
