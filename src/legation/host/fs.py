"""The files that agents get unless the owner injects a handler of his own: those in their session's folders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from legation.agents.rpc import RpcFault
from legation.host.files import SessionFiles
from legation.store.forbidden import ForbiddenPlaces
from legation.wire.acp.reverse import ReadTextFileRequest, ReadTextFileResponse, WriteTextFileRequest
from legation.wire.acp.rpc import ErrorCode

FoldersOf: TypeAlias = Callable[[str], Sequence[Path] | None]
"""A session's folders, links resolved when it began; None if there is no such session."""


class DefaultFs:
    def __init__(self, folders_of: FoldersOf, forbidden: ForbiddenPlaces) -> None:
        self._folders_of = folders_of
        self._forbidden = forbidden

    async def read_text_file(self, request: ReadTextFileRequest) -> ReadTextFileResponse:
        folders = outermost(session_folders(self._folders_of, request.session_id))
        return await asyncio.to_thread(lambda: SessionFiles(folders, self._forbidden).read(request))

    async def write_text_file(self, request: WriteTextFileRequest) -> None:
        folders = outermost(session_folders(self._folders_of, request.session_id))
        await asyncio.to_thread(lambda: SessionFiles(folders, self._forbidden).write(request))


def create_default_fs_handler(folders_of: FoldersOf, forbidden: ForbiddenPlaces) -> DefaultFs:
    """`forbidden` is what no agent gets, although it lies in its session's folders."""
    return DefaultFs(folders_of, forbidden)


def session_folders(folders_of: FoldersOf, session_id: str) -> Sequence[Path]:
    folders = folders_of(session_id)
    if folders is None:
        raise RpcFault(ErrorCode.INVALID_PARAMS, "there is no such session")
    return folders


def outermost(folders: Sequence[Path]) -> list[Path]:
    """Without those inside another, which holds them anyway: an agent that may write in a folder may put a link
    in the place of one within it, and must not move the boundary by that."""
    return [each for each in folders if not any(other in each.parents for other in folders)]
