"""Changes of an agent in a folder.

    async with await Snapshot.take(folder) as before:
        ...  # the agent works
        changes = await before.changes()

Only what changed after `take` counts: what was modified or untracked before is not the agent's. In a repository git tells
it (gittree.py); elsewhere a bounded copy of the files is kept in memory. For that folders are walked by descriptor and
files opened beside it, so that no link is followed at any level.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from legation.errors import Conflict, NotFound
from legation.host.changes.git import (
    LINK_MODE,
    OURS,
    FileChange,
    FolderChanges,
    GitFailed,
    Side,
    Status,
    count_lines,
    section,
    shown,
    told,
)
from legation.host.changes.gittree import GitTree
from legation.store.forbidden import ForbiddenPlaces, Looked, identity

COPIED_FILES: Final = 5_000
COPIED_BYTES: Final = 64 * 1024 * 1024
FILE_BYTES: Final = 2 * 1024 * 1024
# The walk holds one descriptor a level.
DEPTH: Final = 100
SKIPPED: Final = frozenset({b".git", b".venv", b"node_modules", b"__pycache__"})

_FOLDER_GONE: Final = "cannot compare the folder: it was removed or replaced by a link"
_FAILED: Final = "cannot compare the folder: git failed or took too long; look at it with git status"


class Snapshot:
    """A folder as it was; `changes` may be asked for as often as wanted until it is closed."""

    @classmethod
    async def take(cls, folder: Path, forbidden: ForbiddenPlaces | None = None) -> Self:
        """Take one. Nothing of `forbidden` is read: that it changed is told, and not how."""
        return cls(*await asyncio.to_thread(_take, folder, forbidden or ForbiddenPlaces()))

    def __init__(self, folder: Path, taken: GitTree | FolderCopy) -> None:
        self._folder = folder
        self._taken: GitTree | FolderCopy | None = taken
        self._turn = asyncio.Lock()

    async def changes(self) -> FolderChanges:
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

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _take(folder: Path, forbidden: ForbiddenPlaces) -> tuple[Path, GitTree | FolderCopy]:
    folder = folder.resolve()
    if not folder.is_dir():
        raise NotFound(f"cannot watch {folder}: it is not a folder; name one that is there")
    return folder, GitTree.take(folder, forbidden) or FolderCopy(folder, forbidden)


def _changes(folder: Path, taken: GitTree | FolderCopy) -> FolderChanges:
    if not folder.is_dir() or folder.resolve() != folder:
        return FolderChanges("", (), _FOLDER_GONE)
    try:
        return taken.changes()
    except (GitFailed, OSError):  # OSError: the temporary folder is full, or was cleaned away
        return FolderChanges("", (), _FAILED)


@dataclass(slots=True)
class _Scan:
    """Walk over the folder, and what of it was left out."""

    folder: Path
    forbidden: Looked
    budget: int = COPIED_BYTES
    notes: set[str] = field(default_factory=set)

    def files(self) -> Iterator[tuple[bytes, Side]]:
        base = os.fsencode(self.folder)
        count = 0
        for here, folders, names, descriptor in os.fwalk(base, follow_symlinks=False):
            relative = here[len(base) :].lstrip(b"/")
            for name in sorted([*names, *self._prune(relative, folders, descriptor)]):
                copy = self._copy(name, descriptor)
                if copy is None:
                    continue
                if count == COPIED_FILES:
                    self.notes.add(f"not looked at: files beyond the first {COPIED_FILES:,}")
                    return
                count += 1
                yield (relative + b"/" + name if relative else name), copy

    def _prune(self, relative: bytes, folders: list[bytes], descriptor: int) -> list[bytes]:
        """Leave those that are walked into; the links among them are not, and count as files."""
        self.notes.update(f"not looked into: {shown(name)}" for name in SKIPPED.intersection(folders))
        found = {name: _status(name, descriptor) for name in sorted(set(folders) - SKIPPED)}
        ours = {name for name, each in found.items() if each and identity(each) in self.forbidden.identities}
        self.notes.update([OURS] if ours else [])
        folders[:] = [name for name in found if name not in ours]
        if folders and relative.count(b"/") >= DEPTH:
            self.notes.add(f"not looked into: folders more than {DEPTH} deep")
            folders.clear()
        return [name for name in folders if (each := found[name]) and stat.S_ISLNK(each.st_mode)]

    def _copy(self, name: bytes, descriptor: int) -> Side | None:
        status = _status(name, descriptor)
        if status is None or not (stat.S_ISLNK(status.st_mode) or stat.S_ISREG(status.st_mode)):
            return None
        mark = status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
        try:
            if stat.S_ISLNK(status.st_mode):
                return Side(LINK_MODE, os.readlink(name, dir_fd=descriptor), mark)
            mode = 0o100755 if status.st_mode & stat.S_IXUSR else 0o100644
            return Side(mode, self._content(name, descriptor, status), mark)
        except OSError:  # gone while we looked
            return None

    def _content(self, name: bytes, descriptor: int, status: os.stat_result) -> bytes | None:
        if status.st_size > min(FILE_BYTES, self.budget):
            limits = f"{FILE_BYTES >> 20} MB each and {COPIED_BYTES >> 20} MB in all"
            self.notes.add(f"compared by size and time only: files beyond {limits}")
            return None
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            opened = os.open(name, flags, dir_fd=descriptor)
        except PermissionError:
            self.notes.add("compared by size and time only: files that cannot be read")
            return None
        with os.fdopen(opened, "rb") as file:
            if self.forbidden.refuses(os.fstat(opened)):
                self.notes.add(OURS)
                return None
            content = file.read(FILE_BYTES)
        self.budget -= len(content)
        return content


class FolderCopy:
    def __init__(self, folder: Path, forbidden: ForbiddenPlaces) -> None:
        self._folder = folder
        self._forbidden = forbidden
        scan = _Scan(folder, forbidden.look())
        self._before = dict(scan.files())
        self._notes = scan.notes

    def changes(self) -> FolderChanges:
        scan = _Scan(self._folder, self._forbidden.look())
        pairs: dict[bytes, tuple[Side | None, Side | None]] = {}
        missing = dict(self._before)
        for path, after in scan.files():  # one at a time: what is as it was is not kept twice
            before = missing.pop(path, None)
            if before is None or _differ(before, after):
                pairs[path] = (before, after)
        pairs |= {path: (before, None) for path, before in missing.items()}
        seen = [_change(path, *pairs[path]) for path in sorted(pairs)]
        notes = told(self._notes | scan.notes)
        return FolderChanges("".join(text for _, text in seen), tuple(change for change, _ in seen), notes)

    def close(self) -> None:
        self._before.clear()


def _status(name: bytes, descriptor: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=descriptor, follow_symlinks=False)
    except OSError:  # gone while we looked
        return None


def _differ(before: Side, after: Side) -> bool:
    if before.content is None or after.content is None:
        return before.mode != after.mode or before.mark != after.mark
    return before[:2] != after[:2]


def _change(path: bytes, before: Side | None, after: Side | None) -> tuple[FileChange, str]:
    status: Status = "added" if before is None else "deleted" if after is None else "modified"
    text = section(path, before, after)
    added, removed = count_lines(text.encode()) if text else (0, 0)
    return FileChange(shown(path), added, removed, status, binary=text is None), text or ""
