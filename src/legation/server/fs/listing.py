"""What stands in a folder, and what one path is. Blocks: call it off the loop. Nothing is opened but folders."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from legation.errors import Conflict, TooLarge
from legation.server.fs.confined import Spot, walk
from legation.server.fs.failures import shown, told
from legation.server.fs.roots import Confinement
from legation.store.forbidden import ForbiddenPlaces
from legation.wire.api.fs import EntryType, FsEntry, FsStat

MOST_ENTRIES: Final = 100_000  # of one folder: the answer is one array, kept in memory


def entries(confinement: Confinement, path: str) -> list[FsEntry]:
    """In the order of their names. What is Legation's own is left out."""
    with told("list", path), walk(confinement, path) as spot:
        if not stat.S_ISDIR(spot.look().st_mode):
            raise Conflict(f"cannot list {shown(path)}: it is not a folder; read the file")
        at = spot.open_folder()
        try:
            found = _children(at, printable(spot.path), spot.forbidden)
        finally:
            os.close(at)
    return sorted(found, key=lambda entry: entry.name)


def describe(confinement: Confinement, path: str) -> FsStat:
    """Links are followed where they lead to what the caller may reach."""
    with told("look at", path), walk(confinement, path) as spot:
        return _described(spot)


def folder(confinement: Confinement, path: str) -> Path:
    """The folder that a path names, without links: what a session may work in, or take skills from."""
    with told("use", path), walk(confinement, path) as spot:
        if not stat.S_ISDIR(spot.look().st_mode):
            raise Conflict(f"cannot use {shown(path)}: it is not a folder; name one")
        os.close(spot.open_folder())  # may it be entered at all
        return Path(spot.path)


def printable(path: str) -> str:
    """As JSON can have it: bytes that are not UTF-8 become U+FFFD, and such a name cannot be sent back."""
    return os.fsencode(path).decode("utf-8", "replace")


def _described(spot: Spot) -> FsStat:
    status = spot.look()
    return FsStat(
        path=printable(spot.path),
        entry_type=_kind(status),
        size=status.st_size,
        modified=_time(status),
    )


def _children(at: int, folder: str, forbidden: ForbiddenPlaces) -> list[FsEntry]:
    found: list[FsEntry] = []
    own = forbidden.look().identities
    with os.scandir(at) as there:
        for entry in there:
            with suppress(FileNotFoundError):  # deleted meanwhile
                status = entry.stat(follow_symlinks=False)
                if (status.st_dev, status.st_ino) not in own:
                    found.append(_entry(folder, entry.name, status))
            if len(found) > MOST_ENTRIES:
                raise TooLarge(
                    f"cannot list a folder of more than {MOST_ENTRIES} entries; list those inside it"
                )
    return found


def _entry(folder: str, name: str, status: os.stat_result) -> FsEntry:
    said = printable(name)
    return FsEntry(
        name=said,
        path=f"{folder.rstrip('/')}/{said}",
        entry_type=_kind(status),
        size=status.st_size,
        modified=_time(status),
    )


def _kind(status: os.stat_result) -> EntryType:
    return "directory" if stat.S_ISDIR(status.st_mode) else "file"


def _time(status: os.stat_result) -> str | None:
    """None for a time that no calendar has: a file may claim any."""
    with suppress(ValueError, OverflowError, OSError):
        moment = datetime.fromtimestamp(status.st_mtime_ns // 1_000_000_000, UTC)
        return f"{moment:%Y-%m-%dT%H:%M:%S}.{status.st_mtime_ns // 1_000_000 % 1000:03}Z"
    return None
