"""A session's things that take time to start and to end: a shelf is closed once, and nothing arrives on it unseen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

T = TypeVar("T")

SETTLE_LIMIT: Final = 30.0  # the time of those that were starting or ending when the shelf was closed
_log = logging.getLogger(__name__)


class Shelf(Generic[T]):
    def __init__(self) -> None:
        self.things: dict[str, T] = {}
        self.closed = False
        self._moving = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self.things) + self._moving

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Around the start of a thing, or the end of one that has been taken off; whoever finds the shelf closed
        at the end of a start puts the thing away."""
        self._moving += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._moving -= 1
            if not self._moving:
                self._idle.set()

    def close(self) -> list[T]:
        """What is on it, for the caller to put away."""
        self.closed = True
        things = [*self.things.values()]
        self.things.clear()
        return things

    async def settled(self) -> None:
        try:
            async with asyncio.timeout(SETTLE_LIMIT):
                await self._idle.wait()
        except TimeoutError:
            _log.warning("cannot wait any longer for %d starts and ends in a closed session", self._moving)
