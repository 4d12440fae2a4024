"""initialize and authenticate: what each side can do. A capability that is an object counts by being there."""

from collections.abc import Mapping
from typing import TypeAlias

from legation.wire.acp.shape import Shape


class Supported(Shape):
    """An empty object: present means supported, absent or null means not."""


class Implementation(Shape):
    name: str
    version: str
    title: str | None = None


class FileSystemCapabilities(Shape):
    read_text_file: bool = False
    write_text_file: bool = False


class ConfigOptionsCapabilities(Shape):
    boolean: Supported | None = None


class ClientSessionCapabilities(Shape):
    compaction: Supported | None = None
    config_options: ConfigOptionsCapabilities | None = None
    notices: Supported | None = None


class ClientAuthCapabilities(Shape):
    terminal: bool = False


class ElicitationCapabilities(Shape):
    form: Supported | None = None
    url: Supported | None = None


class ClientCapabilities(Shape):
    fs: FileSystemCapabilities = FileSystemCapabilities()
    terminal: bool = False
    session: ClientSessionCapabilities | None = None
    auth: ClientAuthCapabilities = ClientAuthCapabilities()
    elicitation: ElicitationCapabilities | None = None


class PromptCapabilities(Shape):
    image: bool = False
    audio: bool = False
    embedded_context: bool = False


class McpCapabilities(Shape):
    """stdio servers need no capability: every agent must take them."""

    http: bool = False
    sse: bool = False


class SessionCapabilities(Shape):
    list: Supported | None = None
    delete: Supported | None = None
    additional_directories: Supported | None = None
    resume: Supported | None = None
    close: Supported | None = None


class AgentAuthCapabilities(Shape):
    logout: Supported | None = None


class AgentCapabilities(Shape):
    load_session: bool = False
    prompt_capabilities: PromptCapabilities = PromptCapabilities()
    mcp_capabilities: McpCapabilities = McpCapabilities()
    session_capabilities: SessionCapabilities = SessionCapabilities()
    auth: AgentAuthCapabilities = AgentAuthCapabilities()


AuthMethodType: TypeAlias = str
AUTH_METHOD_TYPES = ("agent", "terminal")


class AuthMethod(Shape):
    """`terminal` methods run the agent again with `args` and `env` in a terminal of the user's."""

    id: str
    name: str
    type: AuthMethodType = "agent"
    description: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}


class InitializeRequest(Shape):
    protocol_version: int
    client_capabilities: ClientCapabilities = ClientCapabilities()
    client_info: Implementation | None = None


class InitializeResponse(Shape):
    protocol_version: int
    agent_capabilities: AgentCapabilities = AgentCapabilities()
    auth_methods: tuple[AuthMethod, ...] = ()
    agent_info: Implementation | None = None


class AuthenticateRequest(Shape):
    method_id: str
