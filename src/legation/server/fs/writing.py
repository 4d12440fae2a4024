"""A file being written: under a name of its own beside its place, which it takes when it is whole.

INV-F4  Whoever looks at the path sees what was there before or all that was sent, never a part: on a full disk, a
        cut connection or two writers at once. What else has a hard link to the old file keeps the old file.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from typing import Final

from legation.errors import Conflict
from legation.server.fs.confined import Spot, walk
from legation.server.fs.failures import shown, told
from legation.server.fs.reading import must_be_regular
from legation.server.fs.roots import Confinement

_MAKE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def new_name(ending: str) -> str:
    return f".legation-{secrets.token_hex(8)}.{ending}"


class Draft:
    """Blocks: call it off the loop, one call at a time. `drop` ends it in any case."""

    def __init__(self, confinement: Confinement, path: str) -> None:
        self._confinement = confinement
        self._path = path
        self._name = new_name("part")
        self._at = self._fd = -1
        self.bytes_written = 0

    def start(self, mode: int = 0o666) -> None:
        """`mode` is what a new file gets, less the umask; one that is replaced hands on its own."""
        with told("write", self._path), walk(self._confinement, self._path, make=True) as spot:
            there = _replaceable(spot, self._path)
            self._at = os.dup(spot.at)
            self._fd = os.open(self._name, _MAKE, mode if there is None else 0o600, dir_fd=self._at)

    def write(self, block: bytes | memoryview) -> None:
        view = memoryview(block)
        with told("write", self._path):
            while view:
                count = os.write(self._fd, view)
                self.bytes_written += count
                view = view[count:]

    def place(self, *, durable: bool = True, modified: int | None = None) -> str:
        """It takes its place; the path, without links. The way is walked again: in the time of an upload its folder
        may have been moved out of where files may be written."""
        with told("write", self._path), walk(self._confinement, self._path) as spot:
            if not os.path.samestat(os.fstat(spot.at), os.fstat(self._at)):
                raise Conflict(
                    f"cannot write {shown(self._path)}: its folder was replaced meanwhile; write it again"
                )
            there = _replaceable(spot, self._path)
            if there is not None:
                self._take_over(there)
            if modified is not None:
                os.utime(self._fd, (modified, modified))
            if durable:
                os.fsync(self._fd)
            os.rename(self._name, spot.name, src_dir_fd=spot.at, dst_dir_fd=spot.at)
            self._name = ""
            if durable:
                os.fsync(spot.at)
            return spot.path

    def drop(self) -> None:
        """Where it was not placed, nothing is left of it."""
        if self._fd >= 0:
            os.close(self._fd)
            with suppress(OSError):
                if self._name:
                    os.unlink(self._name, dir_fd=self._at)
        if self._at >= 0:
            os.close(self._at)
        self._at = self._fd = -1

    def _take_over(self, there: os.stat_result) -> None:
        with suppress(OSError):  # only root can give a file away
            os.fchown(self._fd, there.st_uid, there.st_gid)
        os.fchmod(self._fd, stat.S_IMODE(there.st_mode) & 0o777)  # no new program may run as another user


def _replaceable(spot: Spot, path: str) -> os.stat_result | None:
    there = spot.look_if_there()
    if there is not None:
        must_be_regular(there, path)
    return there
