"""Standard input as lines, standard output as bytes: neither holds up the loop, or the end of the process."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Final, NamedTuple

CHUNK: Final = 64 * 1024
LONGEST: Final = 64 * 1024 * 1024  # bytes of one message, as the server has it


class TooLong(NamedTuple):
    """A line of more than that, which nobody keeps."""

    beginning: bytes


class InputLines:
    """Reads in a thread of its own, from the descriptor itself: a buffer's lock would outlive the process's will."""

    def __init__(self, fd: int = 0) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[bytes | TooLong | None] = asyncio.Queue()
        self._room = threading.Semaphore(1_000)  # lines that wait; then the client does
        threading.Thread(target=self._read, name="legation-stdin", daemon=True).start()

    async def next(self) -> bytes | TooLong | None:
        """None at the end."""
        line = await self._lines.get()
        self._room.release()
        return line

    def _read(self) -> None:
        rest: list[bytes] = []
        size = 0
        while chunk := self._chunk():
            *lines, last = chunk.split(b"\n")
            for line in lines:
                self._put(_whole([*rest, line], size + len(line)))
                rest, size = [], 0
            if last:
                rest.append(last)
                size += len(last)
            if size > LONGEST:
                del rest[1:]  # no end of it is in sight
        if rest:
            self._put(_whole(rest, size))
        self._put(None)

    def _chunk(self) -> bytes:
        try:
            return os.read(self._fd, CHUNK)
        except OSError:
            return b""

    def _put(self, line: bytes | TooLong | None) -> None:
        if not isinstance(line, bytes) or line.strip():
            self._room.acquire()
            try:
                self._loop.call_soon_threadsafe(self._lines.put_nowait, line)
            except RuntimeError:  # the loop is closed: nobody reads any more
                return


def _whole(pieces: list[bytes], size: int) -> bytes | TooLong:
    return TooLong(pieces[0]) if size > LONGEST else b"".join(pieces)


def write_line(fd: int, line: bytes) -> None:
    """Raises BrokenPipeError where nobody reads any more."""
    data = memoryview(line + b"\n")
    while data:
        data = data[os.write(fd, data) :]
