"""Methods of ACP v1, both ways: what a client asks of an agent, what an agent asks of its client, and the answers."""

from collections.abc import Mapping
from typing import TypeAlias

from msgspec import UNSET, Raw, UnsetType

from legation.wire.acp.rpc import Json, RequestId, Shape
from legation.wire.acp.updates import ConfigOption, ContentBlock, SessionModeState, ToolCallPatch

# initialize and authenticate: what each side can do. A capability that is an object counts by being there.


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


# MCP servers that a session is given. Values of `env` and `headers` are secrets: never log these shapes.

McpTransport: TypeAlias = str
MCP_TRANSPORTS = ("stdio", "http", "sse")


class NameValue(Shape):
    """An environment variable or a header."""

    name: str
    value: str


class McpServer(Shape):
    """A stdio server has command, args and env, and no `type` on the wire; the others have url and headers."""

    name: str
    type: McpTransport = "stdio"
    command: str | None = None
    args: tuple[str, ...] | None = None
    env: tuple[NameValue, ...] | None = None
    url: str | None = None
    headers: tuple[NameValue, ...] | None = None

    @classmethod
    def stdio(
        cls, name: str, command: str, args: tuple[str, ...] = (), env: Mapping[str, str] | None = None
    ) -> "McpServer":
        # The protocol requires args and env even when empty.
        return cls(name=name, command=command, args=args, env=_pairs(env))

    @classmethod
    def http(cls, name: str, url: str, headers: Mapping[str, str] | None = None) -> "McpServer":
        return cls(name=name, type="http", url=url, headers=_pairs(headers))


def _pairs(values: Mapping[str, str] | None) -> tuple[NameValue, ...]:
    return tuple(NameValue(name=name, value=value) for name, value in (values or {}).items())


# session/*: what a client asks of an agent, and the answers.

StopReason: TypeAlias = str
STOP_REASONS = ("end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled")


class NewSessionRequest(Shape):
    cwd: str
    mcp_servers: tuple[McpServer, ...]
    additional_directories: tuple[str, ...] = ()


class LoadSessionRequest(Shape):
    """The agent replays the whole history as updates before it answers."""

    session_id: str
    cwd: str
    mcp_servers: tuple[McpServer, ...]
    additional_directories: tuple[str, ...] = ()


class ResumeSessionRequest(Shape):
    """As load, without a replay."""

    session_id: str
    cwd: str
    mcp_servers: tuple[McpServer, ...] = ()
    additional_directories: tuple[str, ...] = ()


class SessionSetup(Shape):
    """The answer to load and resume. `models` is an older form that agents still send."""

    modes: SessionModeState | None = None
    config_options: tuple[ConfigOption, ...] | None = None
    models: Json | UnsetType = UNSET


class NewSessionResponse(SessionSetup, kw_only=True):
    session_id: str


class ListSessionsRequest(Shape):
    cwd: str | None = None
    cursor: str | None = None


class ListedSession(Shape):
    session_id: str
    cwd: str
    additional_directories: tuple[str, ...] = ()
    title: str | None = None
    updated_at: str | None = None


class ListSessionsResponse(Shape):
    sessions: tuple[ListedSession, ...]
    next_cursor: str | None = None


class SessionRequest(Shape):
    """session/close, session/delete and session/cancel carry nothing but the id."""

    session_id: str


class SessionNotification(Shape):
    """session/update. The update stays as the bytes it came in."""

    session_id: str
    update: Raw


class SetModeRequest(Shape):
    session_id: str
    mode_id: str


class SetConfigOptionRequest(Shape):
    """`type` is "boolean" for a boolean `value`, and absent for the id of a choice."""

    session_id: str
    config_id: str
    value: str | bool
    type: str | None = None


class SetConfigOptionResponse(Shape):
    config_options: tuple[ConfigOption, ...]


class PromptRequest(Shape):
    session_id: str
    prompt: tuple[ContentBlock, ...]


class Usage(Shape):
    """Tokens of one turn. Not yet stable in ACP v1, but agents send it."""

    total_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    thought_tokens: int | None = None
    cached_read_tokens: int | None = None
    cached_write_tokens: int | None = None


class PromptResponse(Shape):
    stop_reason: StopReason
    usage: Usage | None = None


# session/request_permission: what an agent asks, and the answers there are.

PermissionOptionKind: TypeAlias = str
PERMISSION_OPTION_KINDS = ("allow_once", "allow_always", "reject_once", "reject_always")


class PermissionOption(Shape):
    """One answer the agent offers."""

    option_id: str
    name: str
    kind: PermissionOptionKind


class RequestPermissionRequest(Shape):
    session_id: str
    tool_call: ToolCallPatch
    options: tuple[PermissionOption, ...]


class SelectedOutcome(Shape, tag="selected", tag_field="outcome"):
    option_id: str


class CancelledOutcome(Shape, tag="cancelled", tag_field="outcome"):
    """The turn was cancelled, or nobody can answer any more; a refusal is a selected reject option."""


PermissionOutcome: TypeAlias = SelectedOutcome | CancelledOutcome


class RequestPermissionResponse(Shape):
    outcome: PermissionOutcome


# elicitation/create: an agent asks its user a question, by a form or by a page to visit.

ElicitationMode: TypeAlias = str
ELICITATION_MODES = ("form", "url")
ElicitationAction: TypeAlias = str
ELICITATION_ACTIONS = ("accept", "decline", "cancel")
ElicitationValue: TypeAlias = str | int | float | bool | tuple[str, ...]


class CreateElicitationRequest(Shape):
    """A `form` has `requested_schema`; a `url` has `url` and `elicitation_id`; other modes are not to be shown.

    It belongs to a session (`session_id`, maybe `tool_call_id`) or to a request (`request_id`).
    """

    mode: ElicitationMode
    message: str
    requested_schema: Mapping[str, Json] | None = None
    elicitation_id: str | None = None
    url: str | None = None
    session_id: str | None = None
    tool_call_id: str | None = None
    request_id: RequestId = None


class CreateElicitationResponse(Shape):
    action: ElicitationAction
    content: Mapping[str, ElicitationValue] | None = None


class CompleteElicitationNotification(Shape):
    elicitation_id: str


# fs/* and terminal/*: what an agent asks of its client.


class ReadTextFileRequest(Shape):
    """`line` counts from 1."""

    session_id: str
    path: str
    line: int | None = None
    limit: int | None = None


class ReadTextFileResponse(Shape):
    content: str


class WriteTextFileRequest(Shape):
    session_id: str
    path: str
    content: str


class CreateTerminalRequest(Shape):
    session_id: str
    command: str
    args: tuple[str, ...] = ()
    env: tuple[NameValue, ...] = ()
    cwd: str | None = None
    output_byte_limit: int | None = None


class CreateTerminalResponse(Shape):
    terminal_id: str


class TerminalRequest(Shape):
    """terminal/output, wait_for_exit, kill and release name nothing but the terminal."""

    session_id: str
    terminal_id: str


class TerminalExitStatus(Shape):
    """Also the answer to terminal/wait_for_exit."""

    exit_code: int | None = None
    signal: str | None = None


class TerminalOutputResponse(Shape):
    output: str
    truncated: bool
    exit_status: TerminalExitStatus | None = None
