"""Begins a generation and is killed just before the given step of its writing. argv: kind folder number."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.store.backends import make_backend

from legation.store import files
from legation.store.log import EventLog
from legation.store.sqlite import SqliteBackend
from legation.wire.events import Draft


class Countdown:
    """Of steps to the death of this process."""

    def __init__(self, left: int) -> None:
        self._left = left

    def before(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return counted


def torn(real: Callable[..., None]) -> Callable[..., None]:
    """In two writes, the first of which ends between two lines if it can: so that a kill finds half of it."""

    def write(fd: int, data: bytes, offset: int) -> None:
        half = data.find(b"\n", len(data) // 2) + 1 or len(data) // 2
        real(fd, data[:half], offset)
        real(fd, data[half:], offset + half)

    return write


class Dying:
    """A connection to SQLite whose statements count."""

    def __init__(self, connection: Any, count: Countdown) -> None:
        self._connection = connection
        self.execute = count.before(connection.execute)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


async def main() -> None:
    kind, folder, number = sys.argv[1:]
    backend = make_backend(kind, Path(folder))
    async with EventLog(backend) as log:
        stream = await log.stream("ses_a")
        await stream.append([Draft("x", b"%d" % each) for each in range(1, 4)])
        await stream.set_meta(b'{"n":1}')
        count = Countdown(int(number))
        if isinstance(backend, SqliteBackend):
            backend._writer = Dying(backend._writer, count)  # type: ignore[assignment]
        else:
            files.write_all = torn(count.before(files.write_all))
            for name in ("fsync", "fdatasync", "truncate", "ftruncate"):
                setattr(os, name, count.before(getattr(os, name)))
            for name in ("replace", "unlink"):
                setattr(Path, name, count.before(getattr(Path, name)))
        await stream.replace([Draft("y", b"%d" % each) for each in range(4, 9)], meta=b'{"n":2}')
        count._left = 0
        print("begun", flush=True)  # noqa: T201 - to the test


asyncio.run(main())
