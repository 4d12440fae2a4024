"""A new session: its folder, its skills, its MCP servers, its agent. There is all of it, or nothing."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, TypeAlias

from msgspec.structs import replace

from legation.clock import Clock
from legation.errors import InvalidParams, StorageFailed
from legation.server.hosting import Hosting
from legation.server.sessions.details import Details
from legation.server.sessions.mode_grants import until_granted
from legation.server.sessions.names import must_be_session_id
from legation.server.sessions.record import Record
from legation.server.sessions.records import Records
from legation.server.sessions.sealing import Sealing
from legation.store.datafolder import WORK, make_folder
from legation.store.forbidden import ForbiddenPlaces
from legation.wire.acp.mcp import McpServer
from legation.wire.api.sessions import NewSession
from legation.wire.universal.facts import Metadata

if TYPE_CHECKING:
    from legation.server.sessions.attaching import Attaching

FolderOf: TypeAlias = Callable[[str], Awaitable[Path]]
"""The real path of a folder that somebody named, if sessions may work there."""


logger = logging.getLogger("legation.sessions")


class Making:
    def __init__(
        self,
        *,
        hosting: Hosting,
        attaching: Callable[[], Attaching],
        records: Records,
        sealing: Sealing,
        clock: Clock,
        data_dir: Path,
        folder_of: FolderOf,
        forbidden: ForbiddenPlaces,
    ) -> None:
        """`forbidden` is never read for anybody, wherever it lies."""
        self._hosting = hosting
        self._attaching = attaching
        self._records = records
        self._sealing = sealing
        self._clock = clock
        self._data_dir = data_dir
        self._folder_of = folder_of
        self._forbidden = forbidden

    async def create(self, workspace: str, session_id: str, new: NewSession) -> Record:
        from legation.host.mcp import servers_of
        from legation.host.skills import put_in_place

        must_be_session_id(session_id)
        if new.fork is not None and new.continues is not None:
            raise InvalidParams(
                "cannot fork one session and continue another; give `fork` or `continues`",
                {"path": "$.continues"},
            )
        servers = servers_of(new.mcp)
        with self._records.claim(workspace, session_id):
            agent = (await self._hosting.launcher.entry(new.agent)).name
            former = self._forked(workspace, agent, new.fork)
            continued = None if new.continues is None else self._records.get(workspace, new.continues)
            if continued is not None and continued.details.agent == agent:
                new = _set_as(new, continued.details)
                if new.mcp is None:
                    servers = await self._attaching().servers(continued)
            cwd, own = await self._place(workspace, session_id, new.directory, former or continued)
            try:
                skills = await put_in_place(new.skills, cwd, self._folder_of, self._forbidden)
                details = self._details(new, agent, skills, servers)
                record = await self._create(workspace, session_id, new, details, cwd, servers, former)
            except BaseException:
                # With the skills that were put there: the name may be another's next.
                if own and not self._is_made(workspace, session_id):
                    await asyncio.shield(asyncio.to_thread(rmtree, cwd, ignore_errors=True))
                raise
            if continued is not None:
                await self._records.save(continued, replace(continued.details, continued_by=session_id))
            return record

    async def _create(
        self,
        workspace: str,
        session_id: str,
        new: NewSession,
        details: Details,
        cwd: Path,
        servers: tuple[McpServer, ...],
        former: Record | None,
    ) -> Record:
        is_made = partial(self._is_made, workspace, session_id)
        async with self._sealing.sealed(workspace, servers, is_made) as sealed:
            return await self._attaching().create(
                workspace,
                session_id,
                replace(details, sealed=sealed),
                cwd,
                servers,
                title=new.title,
                version=new.agent_version,
                forks=former.meta.agent_session_id if former else None,
            )

    def _is_made(self, workspace: str, session_id: str) -> bool:
        """Whoever is cut off after that leaves it as it is: whole."""
        return self._records.known(workspace, session_id) is not None

    async def remove_folder(self, record: Record) -> None:
        """One that was made for it, and that no other session works in: it is served with a session alone."""
        folder = Path(record.meta.cwd)
        work = await asyncio.to_thread(os.path.realpath, self._data_dir / WORK / record.workspace)
        used = any(
            each.is_relative_to(folder)
            for other in self._records
            if other is not record and other.status != "deleted"
            for each in other.folders
        )
        if folder.parent == Path(work) and not used:
            await asyncio.to_thread(_remove, folder)

    def _forked(self, workspace: str, agent: str, session_id: str | None) -> Record | None:
        if session_id is None:
            return None
        former = self._records.get(workspace, session_id)
        if former.details.agent != agent:
            raise InvalidParams(
                f"cannot fork session {session_id} for {agent}: it is of {former.details.agent}; name that agent",
                {"path": "$.fork"},
            )
        return former

    def _details(
        self, new: NewSession, agent: str, skills: Sequence[str], servers: Sequence[McpServer]
    ) -> Details:
        """A mode that takes a grant is noted when that is given."""
        now, asked = self._clock.now_ms(), new.permission_mode or "default"
        agent_mode = new.agent_mode or "build"
        return Details(
            agent=agent,
            given=Metadata(agent, agent_mode, new.model, asked, new.variant),
            created_at=now,
            updated_at=now,
            agent_mode=agent_mode,
            permission_mode=until_granted(asked),
            model=new.model,
            variant=new.variant,
            mcp=tuple(server.name for server in servers),
            skills=tuple(skills),
            continues=new.continues,
            untold=new.continues is not None,
        )

    async def _place(
        self, workspace: str, session_id: str, directory: str | None, former: Record | None
    ) -> tuple[Path, bool]:
        """Where it works, and whether that is a folder of its own that was made for it now."""
        if directory is not None:
            return await self._folder_of(directory), False
        if former is not None:
            return Path(former.meta.cwd), False
        own = self._data_dir / WORK / workspace / session_id
        try:
            await asyncio.to_thread(make_folder, own.parent)
            await asyncio.to_thread(own.mkdir, mode=0o700)
        except FileExistsError:
            return own, False
        except OSError as error:
            raise StorageFailed(
                f"cannot make a folder for session {session_id}: {error.strerror}; mend that, or give a directory"
            ) from error
        return own, True


def _remove(folder: Path) -> None:
    """With folders in it that are read-only: package managers leave such ones."""
    for place, folders, _ in os.walk(folder):
        for each in (Path(place, name) for name in folders):
            with suppress(OSError):
                if not each.is_symlink():
                    each.chmod(0o700)
    rmtree(folder, ignore_errors=True)
    if folder.exists():
        logger.warning("cannot remove all of %s, the folder of a deleted session; remove it", folder)


def _set_as(new: NewSession, former: Details) -> NewSession:
    """What is not said is as it was there. The permission mode is not: it may be a grant, which was for that one."""
    return replace(
        new,
        model=new.model or former.model,
        variant=new.variant or former.variant,
        agent_mode=new.agent_mode or former.agent_mode,
    )
