"""What comes out of a pipe or a terminal, taken as it comes: nobody's slowness ever stops the process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

PIECE_BYTES: Final = 64 * 1024  # of one read
LAST_BYTES: Final = 2 * 1024 * 1024  # read at most after the process tree's end: more than a pipe holds


class OutputReader:
    """Owns the descriptor. `take` gets every piece, in order; after `finish` there are no more."""

    def __init__(self, descriptor: int, take: Callable[[bytes], None]) -> None:
        self._descriptor: int | None = descriptor
        self._take = take
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    def finish(self) -> None:
        """Whoever could write is dead: what they wrote is all there is."""
        left = LAST_BYTES
        while left > 0 and (size := self._read()):
            left -= size
        self.close()

    def close(self) -> None:
        if self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def _read(self) -> int:
        if self._descriptor is None:
            return 0
        try:
            data = os.read(self._descriptor, PIECE_BYTES)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:  # EIO: nobody has the terminal open any more
            data = b""
        if data:
            self._take(data)
        else:
            self._loop.remove_reader(
                self._descriptor
            )  # closed by `finish`: of a terminal it is also where one writes
        return len(data)
