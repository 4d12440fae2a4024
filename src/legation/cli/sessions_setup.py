"""What `legation sessions new` gives a session besides its folder: MCP servers from a file, skills from folders.

The file is the one that agents use for themselves: `{"mcpServers": {"name": {"command": ..., "args": [...]}}}`. Keys
stand in it, never on the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from legation.cli.connection import server_path
from legation.errors import InvalidParams
from legation.wire.api.sessions import LocalMcp, RemoteMcp, Skills, SkillSource


class _Server(msgspec.Struct, rename="camel"):
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    type: str | None = None
    url: str | None = None
    headers: Mapping[str, str] | None = None


class _File(msgspec.Struct, rename="camel"):
    mcp_servers: dict[str, _Server]


def read_mcp(path: Path | None) -> dict[str, LocalMcp | RemoteMcp] | None:
    if path is None:
        return None
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_File)
    except OSError as error:
        raise InvalidParams(f"cannot read {path}: {error.strerror}; give a file with mcpServers") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidParams(f"cannot read {path} as MCP servers: {error}; correct it") from None
    return {name: _server(path, name, server) for name, server in found.mcp_servers.items()}


def _server(path: Path, name: str, server: _Server) -> LocalMcp | RemoteMcp:
    if server.command and not server.url:
        return LocalMcp(command=server.command, args=server.args, env=server.env, cwd=server.cwd)
    if server.url and not server.command:
        transport: Literal["http", "sse"] = "sse" if server.type == "sse" else "http"
        return RemoteMcp(url=server.url, transport=transport, headers=server.headers)
    raise InvalidParams(f"cannot use MCP server {name!r} of {path}: give it a command or a url, not both")


def skills_of(folders: Sequence[Path]) -> Skills | None:
    if not folders:
        return None
    return Skills(sources=[SkillSource(type="local", source=server_path(folder)) for folder in folders])
