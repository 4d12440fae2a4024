"""A snapshot of a folder without git: a bounded copy of its files in memory.

Folders are walked by descriptor and files opened beside it, so that no link is followed at any level.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from legation.host.changes.patch import (
    LINK_MODE,
    OURS,
    Changes,
    FileChange,
    Side,
    Status,
    count_lines,
    section,
    shown,
    told,
)
from legation.store.forbidden import ForbiddenPlaces, Looked, identity

COPIED_FILES: Final = 5_000
COPIED_BYTES: Final = 64 * 1024 * 1024
FILE_BYTES: Final = 2 * 1024 * 1024
# The walk holds one descriptor a level.
DEPTH: Final = 100
SKIPPED: Final = frozenset({b".git", b".venv", b"node_modules", b"__pycache__"})


class _Copy(NamedTuple):
    """`content` is None for what was too large, unreadable or Legation's own; `mark` still tells whether it changed."""

    mode: int
    content: bytes | None
    mark: tuple[int, int, int, int]


@dataclass(slots=True)
class _Scan:
    """One walk over the folder, and what of it was left out."""

    folder: Path
    forbidden: Looked
    budget: int = COPIED_BYTES
    notes: set[str] = field(default_factory=set)

    def files(self) -> Iterator[tuple[bytes, _Copy]]:
        base = os.fsencode(self.folder)
        count = 0
        for here, folders, names, descriptor in os.fwalk(base, follow_symlinks=False):
            relative = here[len(base) :].lstrip(b"/")
            self._prune(relative, folders, descriptor)
            links = [name for name in folders if _is_link(name, descriptor)]
            for name in sorted([*names, *links]):
                copy = self._copy(name, descriptor)
                if copy is None:
                    continue
                if count == COPIED_FILES:
                    self.notes.add(f"not looked at: files beyond the first {COPIED_FILES:,}")
                    return
                count += 1
                yield (relative + b"/" + name if relative else name), copy

    def _prune(self, relative: bytes, folders: list[bytes], descriptor: int) -> None:
        self.notes.update(f"not looked into: {shown(name)}" for name in SKIPPED.intersection(folders))
        folders[:] = [name for name in sorted(set(folders) - SKIPPED) if not self._is_ours(name, descriptor)]
        if folders and relative.count(b"/") >= DEPTH:
            self.notes.add(f"not looked into: folders more than {DEPTH} deep")
            folders.clear()

    def _is_ours(self, name: bytes, descriptor: int) -> bool:
        try:
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        except OSError:
            return False
        if identity(status) not in self.forbidden.identities:
            return False
        self.notes.add(OURS)
        return True

    def _copy(self, name: bytes, descriptor: int) -> _Copy | None:
        try:
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                return _Copy(LINK_MODE, os.readlink(name, dir_fd=descriptor), _mark(status))
            if not stat.S_ISREG(status.st_mode):
                return None
            mode = 0o100755 if status.st_mode & stat.S_IXUSR else 0o100644
            return _Copy(mode, self._content(name, descriptor, status), _mark(status))
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

    def changes(self) -> Changes:
        scan = _Scan(self._folder, self._forbidden.look())
        pairs: dict[bytes, tuple[_Copy | None, _Copy | None]] = {}
        missing = dict(self._before)
        for path, after in scan.files():
            before = missing.pop(path, None)
            if before is None or _differ(before, after):
                pairs[path] = (before, after)
        pairs |= {path: (before, None) for path, before in missing.items()}
        seen = [_change(path, *pairs[path]) for path in sorted(pairs)]
        notes = told(self._notes | scan.notes)
        return Changes("".join(text for _, text in seen), tuple(change for change, _ in seen), notes)

    def close(self) -> None:
        self._before.clear()


def _is_link(name: bytes, descriptor: int) -> bool:
    """A link to a folder, which the walk counts among the folders and does not enter."""
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _mark(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _differ(before: _Copy, after: _Copy) -> bool:
    if before.content is None or after.content is None:
        return before.mode != after.mode or before.mark != after.mark
    return before[:2] != after[:2]


def _change(path: bytes, before: _Copy | None, after: _Copy | None) -> tuple[FileChange, str]:
    status: Status = "added" if before is None else "deleted" if after is None else "modified"
    text = _section(path, before, after)
    added, removed = count_lines(text.encode()) if text else (0, 0)
    return FileChange(shown(path), added, removed, status, binary=text is None), text or ""


def _section(path: bytes, before: _Copy | None, after: _Copy | None) -> str | None:
    sides: list[Side | None] = []
    for copy in (before, after):
        if copy is not None and copy.content is None:
            return None
        sides.append(None if copy is None or copy.content is None else Side(copy.mode, copy.content))
    return section(path, *sides)
