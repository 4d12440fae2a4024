"""What did the agent change in this folder?

    async with await Snapshot.take(folder) as before:
        ...  # the agent works
        changes = await before.changes()

Only what changed after `take` counts: what was modified or untracked before is not the agent's.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from legation.errors import Conflict, NotFound
from legation.host.changes.foldercopy import FolderCopy
from legation.host.changes.git import GitFailed
from legation.host.changes.gittree import GitTree
from legation.host.changes.patch import Changes
from legation.store.forbidden import ForbiddenPlaces

_FOLDER_GONE: Final = "cannot compare the folder: it was removed or replaced by a link"
_FAILED: Final = "cannot compare the folder: git failed or took too long; look at it with git status"


class _Taken(Protocol):
    def changes(self) -> Changes: ...
    def close(self) -> object: ...


class Snapshot:
    """A folder as it was; `changes` may be asked for as often as wanted until it is closed."""

    @classmethod
    async def take(cls, folder: Path, forbidden: ForbiddenPlaces | None = None) -> Self:
        """Nothing of `forbidden` is read: that it changed is told, and not how."""
        return cls(*await asyncio.to_thread(_take, folder, forbidden or ForbiddenPlaces()))

    def __init__(self, folder: Path, taken: _Taken) -> None:
        self._folder = folder
        self._taken: _Taken | None = taken
        self._turn = asyncio.Lock()

    async def changes(self) -> Changes:
        async with self._turn:
            if self._taken is None:
                raise Conflict("cannot compare with a closed snapshot; take a new one")
            return await asyncio.to_thread(_changes, self._folder, self._taken)

    async def close(self) -> None:
        async with self._turn:
            if self._taken is not None:
                await asyncio.to_thread(self._taken.close)
                self._taken = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _take(folder: Path, forbidden: ForbiddenPlaces) -> tuple[Path, _Taken]:
    folder = folder.resolve()
    if not folder.is_dir():
        raise NotFound(f"cannot watch {folder}: it is not a folder; name one that is there")
    return folder, GitTree.take(folder, forbidden) or FolderCopy(folder, forbidden)


def _changes(folder: Path, taken: _Taken) -> Changes:
    if not folder.is_dir() or folder.resolve() != folder:
        return Changes("", (), _FOLDER_GONE)
    try:
        return taken.changes()
    except (GitFailed, OSError):  # OSError: the temporary folder is full, or was cleaned away
        return Changes("", (), _FAILED)
