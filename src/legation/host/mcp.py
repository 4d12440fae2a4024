"""MCP servers of a session: as a client gives them, and as the agent gets them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from legation.errors import InvalidParams
from legation.wire.acp.mcp import McpServer, NameValue
from legation.wire.api.sessions import LocalMcp, RemoteMcp

MOST: Final = 64  # servers of one session
_IN_FOLDER: Final = 'cd "$0" && exec "$@"'  # ACP has no folder for a server: a shell goes there first


def servers_of(given: Mapping[str, LocalMcp | RemoteMcp] | None) -> tuple[McpServer, ...]:
    """Those that are enabled, in the order given."""
    if given and len(given) > MOST:
        raise InvalidParams(f"cannot give a session more than {MOST} MCP servers; leave some out")
    return tuple(
        _local(name, each) if isinstance(each, LocalMcp) else _remote(name, each)
        for name, each in (given or {}).items()
        if each.enabled is not False
    )


def _local(name: str, given: LocalMcp) -> McpServer:
    words = [given.command] if isinstance(given.command, str) else list(given.command)
    if not words or not words[0]:
        raise InvalidParams(f"cannot start MCP server {name[:40]!r}: there is no command; give one")
    words += given.args
    if given.cwd is not None:
        words = ["/bin/sh", "-c", _IN_FOLDER, given.cwd, *words]
    return McpServer.stdio(name, words[0], tuple(words[1:]), given.env)


def _remote(name: str, given: RemoteMcp) -> McpServer:
    if not given.url.startswith(("http://", "https://")):
        raise InvalidParams(f"cannot reach MCP server {name[:40]!r}: give a URL of http or https")
    if given.bearer_token_env_var is not None or given.env_headers or given.oauth not in (None, False):
        raise InvalidParams(
            f"cannot use bearerTokenEnvVar, envHeaders or oauth of MCP server {name[:40]!r}: they would send variables of"
            " the server to an address of the caller's choice; give `headers`"
        )
    headers = tuple(NameValue(name=key, value=value) for key, value in (given.headers or {}).items())
    return McpServer(name=name, type=given.transport or "http", url=given.url, headers=headers)
