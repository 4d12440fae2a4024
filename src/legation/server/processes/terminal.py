"""Our side of a pseudo-terminal: its size, and what is typed into it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios
from typing import Final

from legation.errors import Conflict

COLUMNS: Final = 80
ROWS: Final = 24


class TerminalInput:
    """Writes as far as the terminal takes it, and the rest as soon as it does. Does not own the descriptor: `close` it
    before whoever does."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        self._loop = asyncio.get_running_loop()
        self._waiting = bytearray()

    @property
    def unsent(self) -> int:
        return len(self._waiting)

    def write(self, data: bytes) -> None:
        if self._descriptor is None:
            raise Conflict("cannot write to the process: it has ended; start another")
        if not self._waiting:
            self._loop.add_writer(self._descriptor, self._flush)
        self._waiting += data
        self._flush()

    def resize(self, columns: int, rows: int) -> None:
        if self._descriptor is None:
            raise Conflict("cannot resize the terminal: its process has ended; start another")
        set_size(self._descriptor, columns, rows)

    def close(self) -> None:
        if self._descriptor is not None:
            self._loop.remove_writer(self._descriptor)
            self._descriptor = None
            self._waiting.clear()

    def _flush(self) -> None:
        if self._descriptor is None:
            return
        try:
            while self._waiting:
                del self._waiting[: os.write(self._descriptor, self._waiting)]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:  # the other side is gone: its exit tells the rest
            self._waiting.clear()
        self._loop.remove_writer(self._descriptor)


def open_terminal() -> tuple[int, int]:
    """Ours and the process's."""
    ours, theirs = os.openpty()
    set_size(ours, COLUMNS, ROWS)
    return ours, theirs


def set_size(descriptor: int, columns: int, rows: int) -> None:
    """The kernel tells the programs in it (SIGWINCH)."""
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
