"""The settings as the program uses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from legation.secret import Secret
from legation.settings.readers import LogLevel


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What each means stands in `FIELDS`; durations are seconds."""

    data_dir: Path
    stop_grace: float
    start_timeout: float
    idle_timeout: float
    agent_rest: float
    permission_timeout: float
    max_line_bytes: int
    log_level: LogLevel
    url: str | None
    host: str
    port: int
    token: Secret | None
    public_url: str | None
    tls_cert: Path | None
    tls_key: Path | None
    allowed_hosts: tuple[str, ...]
    cors_origins: tuple[str, ...]
    trusted_proxies: tuple[str, ...]
    reader_timeout: float
    max_body_bytes: int
    database_url: Secret | None
    blobs: str | None
    vault_key: Secret | None
    token_pepper: Secret | None
    cookie_key: Secret | None
    policy: Path | None
    tools: Path | None
    expose_content: bool
    supervisor_wait: float
    pending_per_agent: int
    max_grant: float
    mesh_port: int | None
    mesh_with_agents: bool
    notify_webhook: Secret | None
    notify_webhook_secret: Secret | None
    notify_command: tuple[str, ...]
    notify_smtp: Secret | None
    notify_from: str | None
    notify_to: tuple[str, ...]
    otel_endpoint: str | None
    agents: Path | None
    folders: tuple[Path, ...]
    processes: bool
    rehearsal_executes: bool
    sources: Mapping[str, str]

    def source(self, name: str) -> str:
        """Where the value came from, in words for a person."""
        return self.sources[name]
