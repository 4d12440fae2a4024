"""How a server of one's own is started: the options, its command line and its environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from legation.errors import ConfigInvalid, Conflict
from legation.secret import Secret

TOKEN_BYTES: Final = 24
BINARY_VARIABLE: Final = "LEGATION_BIN"
TOKEN_VARIABLE: Final = "LEGATION_TOKEN"  # noqa: S105 - the name of it
DATA_DIR_VARIABLE: Final = "LEGATION_DATA_DIR"

# Where programs are, how text looks, where files go. No keys, no proxies: what else it needs goes in `env`.
INHERITED: Final = frozenset({"PATH", "HOME", "LANG", "TMPDIR", "TZ", "XDG_CONFIG_HOME"})
INHERITED_PREFIXES: Final = ("LC_", "LEGATION_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawn:
    """A server for this program alone; it ends with it."""

    host: str = "127.0.0.1"
    port: int | None = None  # None: a free one
    token: str | Secret | None = field(default=None, repr=False)  # None: a new one of 24 random bytes
    binary: str | Sequence[str] | None = None  # None: $LEGATION_BIN, else this Python's own legation
    data_dir: Path | None = None  # None: a private folder, removed afterwards
    log: Literal["inherit", "silent"] | Path = (
        "inherit"  # where its messages go: to our stderr, nowhere, a file
    )
    wait: float = 15.0  # seconds for it to become healthy
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold keys


def make_token(given: str | Secret | None) -> Secret:
    if isinstance(given, Secret):
        return given
    import secrets

    return Secret(secrets.token_urlsafe(TOKEN_BYTES) if given is None else given, "token")


def command(spawn: Spawn, port: int) -> list[str]:
    return [*_program(spawn), "server", "--host", spawn.host, "--port", str(port), "--exit-with-parent"]


def environment(spawn: Spawn, token: Secret, data_dir: Path, base: Mapping[str, str]) -> dict[str, str]:
    """The token goes here, not on the command line, which every user of the machine can read."""
    inherited = {name: value for name, value in base.items() if _is_inherited(name)}
    inherited.setdefault("PATH", os.defpath)
    return {**inherited, **spawn.env, TOKEN_VARIABLE: token.reveal(), DATA_DIR_VARIABLE: str(data_dir)}


def choose_port(spawn: Spawn) -> int:
    """A port that nobody listens on now: else the stranger there would be taken for our server, and get its token."""
    import socket

    family = socket.AF_INET6 if ":" in spawn.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((spawn.host, spawn.port or 0))
        except OSError as error:
            where = f"{spawn.host}:{spawn.port}" if spawn.port else spawn.host
            raise Conflict(
                f"cannot start a server on {where}: {error.strerror}; choose another port or let one be found"
            ) from error
        chosen: int = probe.getsockname()[1]
    return chosen


def url(spawn: Spawn, port: int) -> str:
    """Where to reach it from here; one that listens everywhere is reached on loopback too."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(spawn.host, spawn.host)  # noqa: S104 - read, not bound
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _program(spawn: Spawn) -> list[str]:
    if isinstance(spawn.binary, str):
        return [spawn.binary]
    if spawn.binary is not None:
        return [*spawn.binary]
    if chosen := os.environ.get(BINARY_VARIABLE):
        return [chosen]
    if not sys.executable:
        raise ConfigInvalid(f"cannot find the legation command: set {BINARY_VARIABLE} to its path")
    return [sys.executable, "-P", "-m", "legation"]  # -P: the current folder must not replace our modules


def _is_inherited(name: str) -> bool:
    return name != BINARY_VARIABLE and (name in INHERITED or name.startswith(INHERITED_PREFIXES))
