"""Every setting: its name, default and meaning, the one text for `--help` and for the docs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from legation.secret import Secret
from legation.settings.readers import (
    Address,
    Duration,
    LogLevel,
    Number,
    Optional,
    SecretText,
    Size,
    Text,
    Words,
    command,
    folder,
    folders,
    log_level,
    port,
    truth,
)

PREFIX: Final = "LEGATION_"
_WEEK: Final = 7 * 86400
_HTTP: Final = r"https?://[A-Za-z0-9.:\[\]_-]+/?"


class Field(NamedTuple):
    name: str
    default: str
    read: Callable[[object], object]
    description: str  # the one text for --help and for the docs
    flag: bool = True  # False: only by variable or file, because everybody can read a command line


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def variable(name: str) -> str:
    return f"{PREFIX}{name.upper()}"


FIELDS: Final = (
    Field(
        "data_dir",
        "$XDG_DATA_HOME/legation",
        folder,
        "Folder that keeps sessions, their events and the agents' homes. Without XDG_DATA_HOME the default is "
        "~/.local/share/legation.",
    ),
    Field(
        "stop_grace",
        "5s",
        Duration(0, 300),
        "How long an agent told to stop may take before it is killed; a moment where Legation itself is stopped.",
    ),
    Field(
        "start_timeout",
        "60s",
        Duration(0.1, 3600),
        "How long an agent may take to start and open a session.",
    ),
    Field(
        "idle_timeout",
        "10m",
        Duration(0.1, _WEEK),
        "How long a prompt may go without a message from its agent before it counts as stuck.",
    ),
    Field(
        "agent_rest",
        "30m",
        Duration(0, _WEEK),
        "How long the agent of a session may have nothing to do before it is stopped until the next message; 0: it never is.",
        flag=False,
    ),
    Field(
        "permission_timeout",
        "10m",
        Duration(0.1, _WEEK),
        "How long a permission waits for an answer; without one it is denied.",
    ),
    Field("max_line_bytes", "32MiB", Size(2**16, 2**29), "The longest line an agent may send."),
    Field(
        "log_level",
        "warning",
        log_level,
        "The least severe log messages to show; a server without it shows `info` as well.",
    ),
    Field(
        "url",
        "",
        Optional(Address(_HTTP, "an address like https://legation.example.com")),
        "Server that commands talk to, with `token`. Without it they find the one of this machine by its data folder.",
    ),
    Field(
        "host",
        "127.0.0.1",
        Text(r"[A-Za-z0-9.:_-]+", "an address or a host name"),
        "Address that the server listens on. Anything but loopback needs `token`.",
    ),
    Field(
        "port",
        "4517",
        port,
        "Port that the server listens on; the one it once had is kept, unless this is set. 0 takes any free one.",
    ),
    Field(
        "token",
        "",
        Optional(SecretText("token")),
        "A token that the server accepts as its owner's, for as long as it runs; better given as a variable: "
        "everybody on the machine can read a command line.",
    ),
    Field(
        "public_url",
        "",
        Optional(Address(_HTTP, "an address like https://legation.example.com")),
        "The address under which others reach the server, for links and cookies; behind a reverse proxy.",
    ),
    Field("tls_cert", "", Optional(folder), "File with the TLS certificate and its chain (PEM)."),
    Field("tls_key", "", Optional(folder), "File with the private key of `tls_cert` (PEM)."),
    Field(
        "allowed_hosts",
        "",
        Words(Text(r"[A-Za-z0-9.\[\]:_-]+", "host names, separated by commas")),
        "Host names that requests may be addressed to, besides those of `host` and `public_url`.",
        flag=False,
    ),
    Field(
        "cors_origins",
        "",
        Words(
            Text(
                r"https?://[A-Za-z0-9.:\[\]_-]+", "origins like https://app.example.com, separated by commas"
            )
        ),
        "Web pages of these origins may call the server. None by default.",
        flag=False,
    ),
    Field(
        "trusted_proxies",
        "",
        Words(Text(r"[0-9A-Fa-f.:/]+", "addresses or networks, separated by commas")),
        "Reverse proxies whose X-Forwarded- headers are believed. None by default.",
        flag=False,
    ),
    Field(
        "reader_timeout",
        "1m",
        Duration(0.1, 3600),
        "How long a reader may take next to nothing (16 KiB) of what waits for it before its connection is dropped.",
        flag=False,
    ),
    Field("max_body_bytes", "1MiB", Size(2**10, 2**30), "The longest body of a request.", flag=False),
    Field(
        "database_url",
        "",
        Optional(SecretText("database_url", r"postgres(ql)?://\S+", "postgresql://user:password@host/name")),
        "postgresql://user:password@host/name. Without it the database is a file in the data folder.",
        flag=False,
    ),
    Field(
        "blobs",
        "",
        Optional(Text(r"s3://\S+", "an address like s3://bucket/prefix")),
        "Where files are kept: s3://bucket/prefix?endpoint=...&region=... with the usual AWS_ variables. Without it, "
        "a folder in the data folder.",
        flag=False,
    ),
    Field(
        "vault_key",
        "",
        Optional(SecretText("vault_key")),
        "Key that seals secrets; after a comma older ones, so that what they sealed opens. `legation keys new` "
        "makes one. With Postgres it is needed; else it is made and kept in the data folder.",
        flag=False,
    ),
    Field(
        "token_pepper",
        "",
        Optional(SecretText("token_pepper")),
        "Key under which tokens are hashed. As `vault_key`, but it cannot be changed.",
        flag=False,
    ),
    Field(
        "cookie_key",
        "",
        Optional(SecretText("cookie_key")),
        "Key that signs cookies and links. As `vault_key`.",
        flag=False,
    ),
    Field(
        "policy",
        "",
        Optional(folder),
        "File or folder with the rules for agents. Without it the starter `careful` holds: see `legation policy`.",
    ),
    Field(
        "tools",
        "",
        Optional(folder),
        "File that lists the tools that agents can call at `POST /tool/{name}`.",
    ),
    Field(
        "expose_content",
        "true",
        truth,
        "Whether supervisors see contents. With false they see size, digest and type in their place; people see all.",
        flag=False,
    ),
    Field(
        "supervisor_wait",
        "30s",
        Duration(0, _WEEK),
        "How long an approval waits for a supervisor to be there before it goes to a person.",
        flag=False,
    ),
    Field(
        "pending_per_agent",
        "25",
        Number(1, 1000),
        "How many tool calls of one agent in a workspace, by all its tokens together, may wait for an answer at once, "
        "and how many permissions of each session; further ones are refused until some are answered.",
        flag=False,
    ),
    Field(
        "max_grant", "24h", Duration(1, 365 * 86400), "The longest time that a grant may last.", flag=False
    ),
    Field(
        "mesh_port",
        "",
        Optional(port),
        "Port of 127.0.0.1 where whoever is on this machine decides approvals as `agent:supervisor`, without a "
        "credential. Off without it.",
    ),
    Field(
        "mesh_with_agents",
        "false",
        truth,
        "Serve `mesh_port` also while agents run outside of a jail, who could then approve themselves.",
        flag=False,
    ),
    Field(
        "notify_webhook",
        "",
        Optional(SecretText("notify_webhook", r"https?://\S+", "an address like https://example.com/hook")),
        "Address that is told, signed, of every approval that reaches a person.",
        flag=False,
    ),
    Field(
        "notify_webhook_secret",
        "",
        Optional(SecretText("notify_webhook_secret", r"\S{16,}", "at least 16 characters without spaces")),
        "Key that signs what `notify_webhook` is sent. Needed with it.",
        flag=False,
    ),
    Field(
        "notify_command",
        "",
        command,
        "Program that is run, with the notice as JSON on its standard input, for every approval that reaches a person.",
        flag=False,
    ),
    Field(
        "notify_smtp",
        "",
        Optional(
            SecretText(
                "notify_smtp", r"smtps?://\S+", "smtps://user:password@host:port, or smtp:// for STARTTLS"
            )
        ),
        "Mail server for notices of approvals that reach a person; needs `legation[mail]`.",
        flag=False,
    ),
    Field(
        "notify_from",
        "",
        Optional(Text(r"[^@\s,]+@[^@\s,]+", "a mail address")),
        "Sender of those mails.",
        flag=False,
    ),
    Field(
        "notify_to",
        "",
        Words(Text(r"[^@\s,]+@[^@\s,]+", "mail addresses, separated by commas")),
        "Who gets those mails.",
        flag=False,
    ),
    Field(
        "otel_endpoint",
        "",
        Optional(Text(_HTTP, "an address like http://127.0.0.1:4318")),
        "OpenTelemetry collector (OTLP over HTTP) that gets a span for every decided call; needs `legation[otel]`.",
        flag=False,
    ),
    Field(
        "agents",
        "",
        Optional(folder),
        "File with agents of your own, a stanza each. Without it, agents.toml in the data folder.",
        flag=False,
    ),
    Field(
        "folders",
        "",
        folders,
        "Folders in which sessions work, and whose files the file routes read and write; in the file a list, else "
        "separated by colons. Without it, the home folder of the user who runs the server.",
        flag=False,
    ),
    Field(
        "processes",
        "false",
        truth,
        "Whether operators may run programs on the server's machine through `/v1/processes`.",
        flag=False,
    ),
    Field(
        "rehearsal_executes",
        "false",
        truth,
        "Whether the rehearsal agent runs what the prompts of operators say, as the server's user: commands, the tests "
        "of a folder, files anywhere. `legation exec` and the demo need no setting.",
        flag=False,
    ),
)


# The settings as the program uses them.


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
