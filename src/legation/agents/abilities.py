"""What an agent declared that it can do. What it did not declare is refused here, before it is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from legation.errors import CapabilityUnsupported
from legation.wire.acp.capabilities import AgentCapabilities
from legation.wire.acp.mcp import McpServer
from legation.wire.acp.rpc import AgentMethod


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

    def directories(self, method: AgentMethod, directories: tuple[str, ...]) -> tuple[str, ...]:
        if directories and self.declared.session_capabilities.additional_directories is None:
            advice = "leave the additional folders out, or use another agent"
            raise self._lacking(method, "sessionCapabilities.additionalDirectories", advice)
        return directories

    def servers(self, method: AgentMethod, servers: tuple[McpServer, ...]) -> tuple[McpServer, ...]:
        """As the agent is to be given them: none is dropped, and lists that must be there are."""
        for server in servers:
            if not self._reaches(server.type):
                what = f"give it MCP server {server.name!r} by {server.type}"
                advice = "use a stdio server, or leave it out"
                raise self._lacking(method, f"mcpCapabilities.{server.type}", advice, what)
        return tuple(_complete(server) for server in servers)

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
