"""The seam between a host and its agents: what a host asks of a running agent, whatever that speaks.

The vocabulary is ACP's. A driver of another protocol translates: its agent's messages become session updates, handed to
the host's `Inbox` in the order in which they came, with the agent's own line beside them; what its agent asks becomes
`session/request_permission` or `elicitation/create` there.

INV-D1  An answer keeps its place among the updates: `on_answer` is called where the agent's answer stood.
INV-D2  Every request of the agent is answered, whatever becomes of it.
INV-D3  After `stop` nothing that it started runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, Protocol

from legation.errors import AgentError
from legation.proc import Exit
from legation.wire.acp.capabilities import (
    AgentCapabilities,
    AuthMethod,
    ClientCapabilities,
    Implementation,
)
from legation.wire.acp.content import ContentBlock
from legation.wire.acp.mcp import McpServer
from legation.wire.acp.sessions import (
    ListSessionsResponse,
    NewSessionResponse,
    PromptResponse,
    SessionSetup,
    SetConfigOptionResponse,
)

DriverName = Literal["acp", "claude", "codex", "opencode", "amp"]


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
        self,
        cwd: str,
        mcp: tuple[McpServer, ...],
        timeout: float,
        *,
        additional_directories: tuple[str, ...] = (),
        on_answer: Callable[[NewSessionResponse | AgentError], None] | None = None,
    ) -> NewSessionResponse: ...

    async def fork_session(
        self,
        session_id: str,
        cwd: str,
        mcp: tuple[McpServer, ...],
        timeout: float,
        *,
        additional_directories: tuple[str, ...] = (),
    ) -> NewSessionResponse:
        """A session of its own that begins with what was said in the other, which goes on as it is."""

    async def load_session(
        self,
        session_id: str,
        cwd: str,
        mcp: tuple[McpServer, ...],
        timeout: float,
        *,
        additional_directories: tuple[str, ...] = (),
        on_answer: Callable[[SessionSetup | AgentError], None] | None = None,
    ) -> SessionSetup: ...

    async def resume_session(
        self,
        session_id: str,
        cwd: str,
        mcp: tuple[McpServer, ...],
        timeout: float,
        *,
        additional_directories: tuple[str, ...] = (),
        on_answer: Callable[[SessionSetup | AgentError], None] | None = None,
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
        on_answer: Callable[[PromptResponse | AgentError], None] | None = None,
    ) -> PromptResponse: ...
    async def steer(self, session_id: str, prompt: tuple[ContentBlock, ...], timeout: float) -> None:
        """Say something to the turn that runs; returns when the agent has it."""

    async def cancel(self, session_id: str) -> None: ...
