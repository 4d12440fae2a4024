"""One regular file, being read. Blocks: call it off the loop, one call at a time."""

from __future__ import annotations

import os
import stat
from typing import Final

from legation.errors import Conflict, StorageFailed
from legation.server.fs.confined import Spot, walk
from legation.server.fs.failures import shown, told
from legation.server.fs.roots import Confinement

PIECE: Final = 256 * 1024  # bytes for each trip to a thread

# A pipe must not hold us up, although none is opened: one may take the file's place in this very moment.
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class OpenFile:
    """`size` is what it had when it was opened: as much of it is read, and no more."""

    def __init__(self, confinement: Confinement, path: str) -> None:
        self._path = path
        self._fd = -1
        with told("read", path), walk(confinement, path) as spot:
            must_be_regular(spot.look(), path)  # before opening: to open a device is to use it
            self._fd = os.open(spot.name, _READ, dir_fd=spot.at)
            try:
                self._left = self.size = self._size(spot)
            except BaseException:
                self.close()
                raise

    def read(self) -> bytes:
        """Nothing at its end, and when it is closed."""
        if self._fd < 0 or not self._left:
            return b""
        with told("read", self._path):
            piece = os.read(self._fd, min(PIECE, self._left))
        if not piece:
            raise StorageFailed(
                f"cannot read the rest of {shown(self._path)}: it became shorter; read it again"
            )
        self._left -= len(piece)
        return piece

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()  # whoever was cancelled while it was opened never had it

    def _size(self, spot: Spot) -> int:
        status = spot.forbidden.check_open(self._fd)
        must_be_regular(status, self._path)
        return status.st_size


def must_be_regular(status: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise Conflict(
            f"cannot use {shown(path)}: it is not a regular file but a folder, a pipe, a socket or a device; "
            "name a file"
        )
