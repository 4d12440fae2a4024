"""The start of a session's process of Claude Code, and the version of the program.

INV-1  Nothing secret is in the arguments: MCP servers, which may hold keys, are in a file that only the agent can read.
INV-2  In a folder that is not trusted the repository's settings, hooks, allow rules, agents, commands and MCP servers
       have no effect.
INV-3  Nor have settings of the agent's own home, ever: whatever it was once allowed to write there would run unasked, and
       a hook on `PermissionRequest` would answer in our place.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from legation.agents.claude.tools import ASK
from legation.agents.native import DriverContext, pairs
from legation.agents.rpc import all_said
from legation.errors import AgentError, AgentExited, TimedOut
from legation.proc import Child, Command, Exit
from legation.wire import jsontext
from legation.wire.acp.methods import McpServer

_STREAMS: Final = (
    "--print",
    "--input-format=stream-json",
    "--output-format=stream-json",
    "--verbose",  # without it the stream may not be printed
    "--include-partial-messages",
    "--replay-user-messages",
    "--permission-prompt-tool=stdio",
    "--permission-mode=default",  # whatever the settings say: nothing is decided without us
)
_NO_SETTINGS: Final = ""
_FOLDERS_SETTINGS: Final = "project,local"
_SERVERS: Final = ".mcp.json"  # which it looks for in all folders above as well


@dataclass(frozen=True, slots=True)
class ClaudeLaunch:
    """`session_id` is the one it will have; `resumes` is one to go on with, or with another id to copy."""

    session_id: str
    cwd: str
    mcp: tuple[McpServer, ...] = ()
    directories: tuple[str, ...] = ()
    resumes: str | None = None
    trusted: bool = False
    foreign_servers: bool = False  # MCP servers of a folder above that is not trusted would be started
    questions: bool = False  # somebody can be asked


def command_for(base: Command, launch: ClaudeLaunch, mcp_file: Path | None) -> Command:
    argv = (*base.argv, *_STREAMS, *_session(launch), *_surroundings(launch, mcp_file))
    return replace(base, argv=argv, cwd=Path(launch.cwd))


def foreign_servers(cwd: str, trusts: Callable[[str], bool]) -> bool:
    """Tell whether a folder above that is not trusted names MCP servers. Blocks."""
    above = Path(cwd).resolve().parents
    return any(os.path.lexists(each / _SERVERS) and not trusts(str(each)) for each in above)


def write_servers(base: Command, servers: tuple[McpServer, ...]) -> Path | None:
    """Readable by the agent's user alone; whoever made it removes it."""
    if not servers:
        return None
    descriptor, name = tempfile.mkstemp(prefix="legation-mcp-", suffix=".json", dir=base.env.get("TMPDIR"))
    with os.fdopen(descriptor, "wb") as file:
        file.write(jsontext.write({"mcpServers": {server.name: _described(server) for server in servers}}))
    return Path(name)


def _session(launch: ClaudeLaunch) -> tuple[str, ...]:
    if launch.resumes is None:
        return (f"--session-id={launch.session_id}",)
    if launch.resumes == launch.session_id:
        return (f"--resume={launch.resumes}",)
    return (f"--resume={launch.resumes}", "--fork-session", f"--session-id={launch.session_id}")


def _surroundings(launch: ClaudeLaunch, mcp_file: Path | None) -> tuple[str, ...]:
    sources = _FOLDERS_SETTINGS if launch.trusted else _NO_SETTINGS
    own_servers = launch.trusted and not launch.foreign_servers
    return (
        f"--setting-sources={sources}",
        *(() if own_servers else ("--strict-mcp-config",)),
        *((f"--mcp-config={mcp_file}",) if mcp_file else ()),
        *(f"--add-dir={folder}" for folder in launch.directories),
        *(() if launch.questions else (f"--disallowed-tools={ASK}",)),
    )


def _described(server: McpServer) -> dict[str, object]:
    if server.type != "stdio":
        return {"type": server.type, "url": server.url, "headers": pairs(server.headers)}
    return {
        "type": "stdio",
        "command": server.command,
        "args": list(server.args or ()),
        "env": pairs(server.env),
    }


# Which Claude Code it is.


_PROGRAM: Final = "(Claude Code)"


async def ask_version(context: DriverContext, timeout: float) -> tuple[str, str]:
    """The version, and what it said on its standard error. The time is the program's to start."""
    base, name = context.command, context.command.name
    command = replace(base, argv=(*base.argv, "--version"))
    async with await context.launcher.spawn(command, context.pipes) as child:
        child.close_stdin()
        try:
            async with asyncio.timeout(timeout):
                text, found = await _version_said(child)
        except TimeoutError:
            raise TimedOut(
                f"cannot start {name!r}: it did not tell its version within {timeout} s; run it by hand"
            ) from None
        complained = child.stderr_tail()
    if found.code != 0:
        raise AgentExited(
            f"cannot start {name!r}: it ended with {found} when asked for its version; run it by hand",
            {"exitCode": found.code, "signal": found.signal},
        )
    if _PROGRAM not in text:
        raise AgentError(
            f"cannot use {name!r} as Claude Code: it calls itself something else; check what it is"
        )
    return text.split()[0], complained


async def _version_said(child: Child) -> tuple[str, Exit]:
    return (await all_said(child)).decode(errors="replace"), await child.wait()
