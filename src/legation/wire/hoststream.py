"""Events of the host's own stream: full projections of agents, sessions and permissions."""

from collections.abc import Mapping
from typing import Literal

from legation.wire.acp.mcp import McpServer, McpTransport
from legation.wire.ask import Outcome
from legation.wire.lifecycle import PermissionAsked, Status
from legation.wire.payload import Payload

AgentStatus = Literal["starting", "ready", "restarting", "exited", "disposed"]
PermissionState = Literal["pending", "answered", "superseded"]


class ExitStatus(Payload):
    code: int | None = None
    signal: int | None = None


class AgentUpdated(Payload):
    """An agent as it is now; capabilities and authMethods are those it announced, verbatim."""

    agent_id: str
    status: AgentStatus
    restart_count: int
    reason: str | None = None
    exit: ExitStatus | None = None
    capabilities: Mapping[str, object] | None = None
    auth_methods: tuple[Mapping[str, object], ...] | None = None


class AgentRemoved(Payload):
    """An agent was disposed of and is no longer listed."""

    agent_id: str


class McpServerNames(Payload):
    """An MCP server without its secrets: which variables or headers it gets, not their values."""

    name: str
    type: McpTransport
    env: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()

    @classmethod
    def from_server(cls, server: McpServer) -> "McpServerNames":
        env = tuple(variable.name for variable in server.env or ())
        headers = tuple(header.name for header in server.headers or ())
        return cls(name=server.name, type=server.type, env=env, headers=headers)


class SessionUpdated(Payload):
    """A session as it is now."""

    session_id: str
    status: Status
    cwd: str
    additional_directories: tuple[str, ...]
    agent_id: str | None = None
    agent_definition_id: str | None = None
    mcp_servers: tuple[McpServerNames, ...] | None = None
    title: str | None = None
    updated_at: str | None = None


class PermissionUpdated(Payload):
    """A permission of any session: pending with the question, then answered or superseded."""

    id: str
    session_id: str
    state: PermissionState
    ask: PermissionAsked | None = None
    outcome: Outcome | None = None
    by: str | None = None
