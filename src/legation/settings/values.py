"""The settings as the program uses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from legation.secret import Secret
from legation.settings.readers import LogLevel


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What each means stands in `FIELDS`, with its default as it is written; durations are seconds."""

    data_dir: Path
    stop_grace: float = 5.0
    start_timeout: float = 60.0
    idle_timeout: float = 600.0
    agent_rest: float = 1800.0
    permission_timeout: float = 600.0
    max_line_bytes: int = 32 * 2**20
    log_level: LogLevel = "warning"
    url: str | None = None
    host: str = "127.0.0.1"
    port: int = 4517
    token: Secret | None = None
    public_url: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    reader_timeout: float = 60.0
    max_body_bytes: int = 2**20
    database_url: Secret | None = None
    blobs: str | None = None
    vault_key: Secret | None = None
    token_pepper: Secret | None = None
    cookie_key: Secret | None = None
    policy: Path | None = None
    tools: Path | None = None
    expose_content: bool = True
    supervisor_wait: float = 30.0
    pending_per_agent: int = 25
    max_grant: float = 86400.0
    mesh_port: int | None = None
    mesh_with_agents: bool = False
    notify_webhook: Secret | None = None
    notify_webhook_secret: Secret | None = None
    notify_command: tuple[str, ...] = ()
    notify_smtp: Secret | None = None
    notify_from: str | None = None
    notify_to: tuple[str, ...] = ()
    otel_endpoint: str | None = None
    agents: Path | None = None
    folders: tuple[Path, ...] = ()
    processes: bool = False
    rehearsal_executes: bool = False
    sources: Mapping[str, str]  # of those that are no defaults

    def source(self, name: str) -> str:
        """Where the value came from, in words for a person."""
        return self.sources.get(name, "default")
