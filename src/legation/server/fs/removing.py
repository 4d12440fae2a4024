"""Deleting: one entry, or a folder with everything in it. Links are removed, never followed. Blocks."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import Final

from legation.errors import Conflict, Forbidden
from legation.server.fs.confined import Spot, walk
from legation.server.fs.failures import shown, told
from legation.server.fs.roots import Confinement
from legation.store.forbidden import Looked

DEEPEST: Final = 128  # folders in folders, each of which is held open while what is in it goes
BATCH: Final = 1000  # names read at a time
VAIN_PASSES: Final = 20  # over a folder in which somebody replaces all that we are about to delete

_REPLACED: Final = (errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENOTEMPTY)
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove(confinement: Confinement, path: str, *, recursive: bool) -> str:
    """The path of what is gone. A folder with something in it goes only if that was asked for."""
    with told("delete", path), walk(confinement, path, follow=False) as spot:
        status = may_go(confinement, spot)
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(spot.name, dir_fd=spot.at)
        elif recursive:
            remove_tree(spot.at, spot.name, status.st_dev, confinement.forbidden.look())
        else:
            os.rmdir(spot.name, dir_fd=spot.at)
        return spot.path


def may_go(confinement: Confinement, spot: Spot) -> os.stat_result:
    """Whether what stands there may be moved or deleted at all; what it is."""
    if confinement.is_folder_itself(spot.parts):
        raise Forbidden(
            f"cannot move or delete {shown(spot.path)}: it is an allowed folder itself; name what is in it"
        )
    status = spot.look()
    if stat.S_ISDIR(status.st_mode):
        confinement.forbidden.check_tree(status)
    else:
        confinement.forbidden.check_above(spot.parts)  # it may be a link on the way to one of ours
    return status


def remove_tree(at: int, name: str, device: int, forbidden: Looked, depth: int = 0) -> None:
    if depth > DEEPEST:
        raise Conflict(
            f"cannot delete folders that are nested more than {DEEPEST} deep; delete the innermost first"
        )
    below = os.open(name, _FOLDER, dir_fd=at)
    try:
        status = os.fstat(below)
        forbidden.check(status)
        if status.st_dev != device:
            raise OSError(errno.EXDEV, "another file system is mounted in it")
        _empty(below, device, forbidden, depth)
    finally:
        os.close(below)
    with suppress(FileNotFoundError):
        os.rmdir(name, dir_fd=at)


def _empty(at: int, device: int, forbidden: Looked, depth: int) -> None:
    vain = 0
    while (names := _some_names(at)) and vain < VAIN_PASSES:
        gone = [_remove_one(at, name, is_folder, device, forbidden, depth) for name, is_folder in names]
        vain = 0 if any(gone) else vain + 1


def _remove_one(at: int, name: str, is_folder: bool, device: int, forbidden: Looked, depth: int) -> bool:
    """False if it was replaced since it was listed, a folder by a link or the other way: then it is looked at again."""
    try:
        if is_folder:
            remove_tree(at, name, device, forbidden, depth + 1)
        else:
            os.unlink(name, dir_fd=at)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in _REPLACED:
            raise
        return False
    return True


def _some_names(at: int) -> list[tuple[str, bool]]:
    found: list[tuple[str, bool]] = []
    with os.scandir(at) as entries:
        for entry in entries:
            found.append((entry.name, entry.is_dir(follow_symlinks=False)))
            if len(found) == BATCH:
                break
    return found
