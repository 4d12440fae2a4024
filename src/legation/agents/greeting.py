"""What an agent said of itself when it started, and what follows from that for its caller."""

from __future__ import annotations

from collections.abc import Mapping

from legation.agents.abilities import Abilities
from legation.errors import CapabilityUnsupported
from legation.wire.acp.capabilities import AgentCapabilities, AuthMethod, Implementation, InitializeResponse
from legation.wire.acp.content import ContentBlock
from legation.wire.acp.mcp import McpServer
from legation.wire.acp.rpc import AgentMethod
from legation.wire.acp.sessions import NewSessionResponse


class Greeted:
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

    async def fork_session(
        self,
        session_id: str,  # noqa: ARG002
        cwd: str,  # noqa: ARG002
        mcp: tuple[McpServer, ...],  # noqa: ARG002
        timeout: float,  # noqa: ARG002
        *,
        additional_directories: tuple[str, ...] = (),  # noqa: ARG002
    ) -> NewSessionResponse:
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
