"""Sorts the files of a work tree: what git may read, what is compared by its status, what is left out."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from legation.host.changes.gitindex import is_plain_path
from legation.host.changes.patch import OURS
from legation.store.forbidden import Looked

LARGE_BYTES: Final = 50 * 1024 * 1024
# What one comparison may copy into the temporary folder.
COPIED_BYTES: Final = 1024 * 1024 * 1024

_BEYOND: Final = f"compared by size and time only: files beyond {COPIED_BYTES >> 20} MB in all"


class StandIn(NamedTuple):
    """Takes the place of a file that git does not read; it differs when the file's status does."""

    path: bytes
    mode: str
    content: bytes


@dataclass(slots=True)
class Sorting:
    root: Path
    named: Callable[[bytes], str]
    budget: int
    gone: list[bytes]
    forbidden: Looked
    readable: list[bytes] = field(default_factory=list)
    opaque: list[StandIn] = field(default_factory=list)
    notes: set[str] = field(default_factory=set)

    def add(self, paths: Iterable[bytes]) -> None:
        root = os.fsencode(self.root) + b"/"
        ours = tuple(os.fsencode(each) + b"/" for each in self.forbidden.data)
        for path in paths:
            if (root + path).startswith(ours):
                self.notes.add(OURS)
            elif path.endswith(b"/"):
                self.notes.add(f"not looked into: nested repository {self.named(path)}")
            elif (status := _status(root + path)) is not None:
                self._add(path, root + path, status)

    def _add(self, path: bytes, full: bytes, status: os.stat_result) -> None:
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
            self.gone.append(path)  # a folder, pipe, socket or device stands in the place of a file
        elif not _is_takeable(path, status):
            self.notes.add(f"not looked at: {self.named(path)}, which git does not take")
        elif (reason := self._obstacle(full, status)) is not None:
            self.opaque.append(StandIn(path, _mode(status), _mark(status)))
            self.notes.update([reason] if reason else [])
        else:
            self.budget -= status.st_size
            self.readable.append(path)

    def _obstacle(self, full: bytes, status: os.stat_result) -> str | None:
        """Why git should not read it: None when it may, and nothing to say of a file that is just large."""
        if self.forbidden.refuses(status):
            return OURS
        if status.st_size > LARGE_BYTES:
            return ""
        if status.st_size > self.budget:
            return _BEYOND
        if not os.access(full, os.R_OK, follow_symlinks=False):
            return "compared by size and time only: files that cannot be read"
        return None


def _status(path: bytes) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:  # gone while we looked
        return None


def _is_takeable(path: bytes, status: os.stat_result) -> bool:
    is_linked_list = stat.S_ISLNK(status.st_mode) and path.lower().endswith(b".gitmodules")
    return is_plain_path(path) and not is_linked_list


def _mode(status: os.stat_result) -> str:
    return "100755" if status.st_mode & stat.S_IXUSR else "100644"


def _mark(status: os.stat_result) -> bytes:
    # The zero byte makes it binary.
    return b"\0%d %d %d %d" % (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
