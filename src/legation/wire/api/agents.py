"""Agents over HTTP: the union of what sandbox-agent 0.1 and 0.4 send, and what we add."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from legation.wire.api.approvals import Value
from legation.wire.api.shape import RequestBody, ResponseBody

AgentName = Annotated[str, Meta(min_length=1, max_length=256)]


class AgentAbilities(ResponseBody):
    """What a session with it can show and do."""

    command_execution: bool = True
    error_events: bool = True
    file_attachments: bool = True
    file_changes: bool = True
    images: bool = False  # messages are text and links to files
    item_started: bool = True
    mcp_tools: bool = True
    permissions: bool = True
    plan_mode: bool = True
    questions: bool = True
    reasoning: bool = True
    session_lifecycle: bool = True
    shared_process: bool = False  # one server of the agent for several sessions
    status: bool = True
    streaming_deltas: bool = True
    text_messages: bool = True
    tool_calls: bool = True
    tool_results: bool = True


class Liveness(ResponseBody):
    """Of the agent's processes in this workspace; `uptimeMs` is that of the oldest."""

    status: Literal["running", "stopped", "error"]
    restart_count: int
    last_error: str | None = None
    uptime_ms: int | None = None
    processes: int = 0


class AgentInfo(ResponseBody):
    """`problem` says why it cannot be started, and what to do; null: it can. `configOptions` is for whoever asks for it."""

    id: str
    installed: bool
    credentials_available: bool
    capabilities: AgentAbilities
    version: str | None = None
    path: str | None = None
    server_status: Liveness | None = None
    config_options: list[Mapping[str, Value]] | None = None
    config_error: str | None = None
    title: str = ""
    aliases: list[str] = msgspec.field(default_factory=list)
    sign_in: str = ""
    wanted_version: str | None = None
    problem: str | None = None
    key_providers: list[str] = msgspec.field(default_factory=list)  # whose key a run of it needs: one of them


class AgentList(ResponseBody):
    agents: list[AgentInfo]


class AgentInstall(RequestBody):
    """`reinstall` fetches it again; what is there otherwise stays. Versions are those of the lock."""

    reinstall: bool | None = None
    agent_version: AgentName | None = None
    agent_process_version: AgentName | None = None


class InstalledArtifact(ResponseBody):
    kind: Literal["native_agent", "agent_process"]
    path: str
    source: Literal["registry", "fallback", "local_path", "builtin"]
    version: str | None = None


class AgentInstalled(ResponseBody):
    already_installed: bool = msgspec.field(name="already_installed")
    artifacts: list[InstalledArtifact]


class ModeInfo(ResponseBody):
    id: str
    name: str
    description: str


class ModeList(ResponseBody):
    modes: list[ModeInfo]


class ModelInfo(ResponseBody):
    id: str
    name: str | None = None
    variants: list[str] | None = None
    default_variant: str | None = None


class ModelList(ResponseBody):
    models: list[ModelInfo]
    default_model: str | None = None
