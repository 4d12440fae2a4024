"""What the file routes never touch, although it lies in an allowed folder: Legation's own data folder and keys, and the
files that say what agents may do.

INV-F3  It is known by what it is on the disk (device and inode), not only by its name: a bind mount, another
        spelling on a disk that ignores case, or a hard link to a key is refused all the same.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from legation.errors import Forbidden

Identity = tuple[int, int]
Parts = tuple[str, ...]

# They hold the environment and the memory of processes, and whatever else the kernel tells; none is a file.
KERNEL: Final = ("/proc", "/sys", "/dev")


class ForbiddenPlaces:
    """Blocks: call it off the loop. Looked up anew each time, because a folder may be made or replaced."""

    def __init__(self, places: Sequence[Path], but: Parts | None = None) -> None:
        """`but` is a folder in one of them that may be used all the same."""
        self._but = but
        # By both names: whoever could replace a link would replace what it leads to.
        named = (name for place in places for name in (os.path.abspath(place), os.path.realpath(place)))  # noqa: PTH100
        self._places = tuple(dict.fromkeys(map(Path, named)))
        self._parts = tuple(place.parts for place in self._places)
        kernel = {found.st_dev for place in KERNEL if (found := _look(Path(place)))}
        self._kernel = kernel - {Path("/").stat().st_dev}  # where there is no such mount, it is the disk's

    def but(self, parts: Parts) -> ForbiddenPlaces:
        return ForbiddenPlaces(self._places, parts)

    def check_name(self, parts: Parts) -> None:
        if self._but is not None and parts[: len(self._but)] == self._but:
            return
        if any(parts[: len(own)] == own for own in self._parts):
            raise _refusal()

    def check_above(self, parts: Parts) -> None:
        """Of a name that is to be given to something: what is in it would be one of ours by its name."""
        if any(own[: len(parts)] == parts for own in self._parts):
            raise _refusal()

    def check(self, status: os.stat_result) -> None:
        """Of what is there. A file with several names may be one of ours under another."""
        if status.st_dev in self._kernel or identity(status) in self.identities():
            raise _refusal()
        linked = status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode)
        if linked and identity(status) in set(self._files()):
            raise _refusal()

    def check_tree(self, status: os.stat_result) -> None:
        """Of a folder that is to go, with everything in it: none of ours may be in there."""
        self.check(status)
        above = {
            identity(found) for place in self._places for parent in place.parents if (found := _look(parent))
        }
        if identity(status) in above:
            raise Forbidden("cannot move or delete this folder: Legation's own data is in it; choose another")

    def identities(self) -> frozenset[Identity]:
        return frozenset(identity(found) for place in self._places if (found := _look(place)))

    def _files(self) -> Iterator[Identity]:
        """Those right in the folders: databases, keys, the file with the server's token."""
        for place in self._places:
            with suppress(OSError), os.scandir(place) as entries:
                yield from (identity(entry.stat(follow_symlinks=False)) for entry in entries)


def identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


def _look(place: Path) -> os.stat_result | None:
    with suppress(OSError):
        return place.stat()
    return None


def _refusal() -> Forbidden:
    return Forbidden("cannot use this path: it is Legation's own or the system's; choose another")
