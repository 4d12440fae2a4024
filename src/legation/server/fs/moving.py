"""Moving and renaming; making folders. Names are changed, nothing is opened but folders. Blocks."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Final

from legation.errors import Conflict, InvalidParams
from legation.server.fs.confined import Spot, walk
from legation.server.fs.failures import shown, told
from legation.server.fs.removing import may_go, remove_tree
from legation.server.fs.roots import Confinement
from legation.server.fs.writing import new_name
from legation.store.datafolder import new_mode
from legation.store.forbidden import identity

_NO_REPLACE: Final = 1  # RENAME_NOREPLACE of renameat2
_NOT_KNOWN: Final = (errno.ENOSYS, errno.EINVAL)  # of a kernel or file system without it


def make_folder(confinement: Confinement, path: str) -> str:
    """With those above it. One that is there already is fine."""
    with told("make", path), walk(confinement, path, make=True) as spot:
        with suppress(FileExistsError):
            os.mkdir(spot.name, new_mode(spot.at), dir_fd=spot.at)
        if not stat.S_ISDIR(spot.look().st_mode):
            raise Conflict(f"cannot make {shown(path)}: a file stands there; choose another name")
        return spot.path


def move(confinement: Confinement, source: str, target: str, *, overwrite: bool) -> tuple[str, str]:
    """Both paths, without links on the way. A link is moved itself, not what it leads to."""
    with told("move", source), walk(confinement, source, follow=False) as here:
        moved = may_go(confinement, here)
        with told("move to", target), walk(confinement, target, follow=False, make=True) as there:
            confinement.forbidden.check_above(there.parts)
            if _inside(here, there) or _inside(there, here):
                raise InvalidParams(
                    "cannot move a folder into itself or onto one above it; choose another place"
                )
            if not overwrite:
                _move_to_nothing(here, there, target)
            else:
                _replace(confinement, here, there, moved)
            return here.path, there.path


def _inside(one: Spot, other: Spot) -> bool:
    return len(one.parts) < len(other.parts) and other.parts[: len(one.parts)] == one.parts


def _move_to_nothing(here: Spot, there: Spot, target: str) -> None:
    try:
        _rename_to_nothing(here, there)
    except FileExistsError:
        raise Conflict(
            f"cannot move to {shown(target)}: something stands there; choose another name, or send overwrite"
        ) from None


def _rename_to_nothing(here: Spot, there: Spot) -> None:
    if (rename := _renameat2()) is not None:
        failed = rename(here.at, os.fsencode(here.name), there.at, os.fsencode(there.name), _NO_REPLACE)
        number = ctypes.get_errno() if failed else 0
        if not number:
            return
        if number not in _NOT_KNOWN:
            raise OSError(number, os.strerror(number))
    if there.look_if_there() is not None:
        raise FileExistsError(errno.EEXIST, "something stands there")
    os.rename(here.name, there.name, src_dir_fd=here.at, dst_dir_fd=there.at)


@cache
def _renameat2() -> Callable[[int, bytes, int, bytes, int], int] | None:
    """Python has no name for the one call that never replaces anything."""
    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


def _replace(confinement: Confinement, here: Spot, there: Spot, moved: os.stat_result) -> None:
    """A file takes the place of a file in one step. A folder is put aside first, and deleted when all went well."""
    old = there.look_if_there()
    if old is not None:
        may_go(confinement, there)
        if stat.S_ISDIR(old.st_mode) or stat.S_ISDIR(moved.st_mode):
            if identity(old) != identity(moved):
                _swap(confinement, here, there, old)
            return
    os.rename(here.name, there.name, src_dir_fd=here.at, dst_dir_fd=there.at)


def _swap(confinement: Confinement, here: Spot, there: Spot, old: os.stat_result) -> None:
    aside = new_name("old")
    os.rename(there.name, aside, src_dir_fd=there.at, dst_dir_fd=there.at)
    try:
        os.rename(here.name, there.name, src_dir_fd=here.at, dst_dir_fd=there.at)
    except OSError:
        os.rename(aside, there.name, src_dir_fd=there.at, dst_dir_fd=there.at)
        raise
    if stat.S_ISDIR(old.st_mode):
        remove_tree(there.at, aside, old.st_dev, confinement.forbidden.look())
    else:
        os.unlink(aside, dir_fd=there.at)
