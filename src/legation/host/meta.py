"""What is kept of a session beside its events: enough to take it up again after the host restarts.

MCP servers are kept by name only: what they are given are secrets, and whoever resumes gives them again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from legation.errors import InvalidParams
from legation.host.options import AgentDefinition
from legation.wire.acp.mcp import McpServer
from legation.wire.action import MAX_PATH
from legation.wire.hoststream import McpServerNames, SessionUpdated
from legation.wire.lifecycle import Status


class SessionMeta(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    agent_session_id: str
    cwd: str
    additional_directories: tuple[str, ...] = ()
    agent_definition_id: str | None = None
    mcp_servers: tuple[McpServerNames, ...] = ()
    title: str | None = None
    updated_at: str | None = None
    details: Mapping[str, object] | None = None  # of whoever opened it: plain data, and no secret
    reopens: bool = False  # if it is closed: a later host knows it, and a load opens it again

    @classmethod
    def wanted(
        cls,
        definition: AgentDefinition,
        cwd: Path | str | None,
        mcp: Sequence[McpServer],
        directories: Sequence[Path | str],
    ) -> SessionMeta:
        """Of a session that its agent has not named yet. Without a folder it works where its agent does."""
        return cls(
            agent_session_id="",
            cwd=absolute(cwd) if cwd is not None else os.path.realpath(definition.cwd or "."),
            additional_directories=tuple(map(absolute, directories)),
            agent_definition_id=definition.name,
            mcp_servers=tuple(McpServerNames.from_server(server) for server in mcp),
        )

    def noted_as(self, other: SessionMeta) -> SessionMeta:
        """The same place, and what was noted of the session since."""
        return msgspec.structs.replace(
            self,
            title=other.title,
            updated_at=other.updated_at,
            details=other.details,
            reopens=other.reopens,
        )

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    def folders(self) -> list[Path]:
        """As they were when it began, without links: one that somebody puts in their place later moves nothing, not
        even when the session is taken up again."""
        return [Path(each) for each in (self.cwd, *self.additional_directories)]

    def snapshot(self, session_id: str, status: Status, agent_id: str | None) -> SessionUpdated:
        return SessionUpdated(
            session_id=session_id,
            status=status,
            cwd=self.cwd,
            additional_directories=self.additional_directories,
            agent_id=agent_id,
            agent_definition_id=self.agent_definition_id,
            mcp_servers=self.mcp_servers or None,
            title=self.title,
            updated_at=self.updated_at,
        )


def absolute(path: Path | str) -> str:
    return str(Path(path).absolute())


async def real_folder(path: Path | str) -> str:
    """As agent, policies and log have it: without `..`, `.`, doubled slashes and links. As text `link/..` is another
    folder than the one that the agent would work in."""
    if len(str(path)) > MAX_PATH:
        raise InvalidParams("cannot work in a folder whose path is too long to be opened; name another")
    try:
        return await asyncio.to_thread(os.path.realpath, path)
    except (OSError, ValueError):  # a NUL: whoever opens it says what is wrong with it
        return absolute(path)


def read_meta(raw: bytes) -> SessionMeta | None:
    """None for what was not written by a host, or cannot be read."""
    try:
        return msgspec.json.decode(raw, type=SessionMeta)
    except msgspec.MsgspecError:
        return None
