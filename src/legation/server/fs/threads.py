"""File work off the loop: a bounded number of threads at a time, so that a slow disk does not take them all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, ParamSpec, TypeVar

FILE_THREADS: Final = 4  # at once; the other threads of the loop are the database's and everybody's

_P = ParamSpec("_P")
_T = TypeVar("_T")


class FileThreads:
    def __init__(self, most: int = FILE_THREADS) -> None:
        self._slots = asyncio.Semaphore(most)

    async def run(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        async with self._slots:
            return await run_to_end(work, *args, **kwargs)


async def run_to_end(work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Who is cancelled waits for the thread all the same, because it uses a descriptor that is closed next. That is
    the time of one piece of work on the disk."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # looked at; the cancellation is what is told
        raise
