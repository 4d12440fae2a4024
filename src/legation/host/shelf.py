"""A session's things that take time to start: a shelf is closed once, and nothing arrives on it unseen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

T = TypeVar("T")

SETTLE_LIMIT: Final = 30.0  # the time of those that were starting when the shelf was closed
_log = logging.getLogger(__name__)


class Shelf(Generic[T]):
    def __init__(self) -> None:
        self.things: dict[str, T] = {}
        self.closed = False
        self._starting = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self.things) + self._starting

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Around the start of a thing; whoever finds the shelf closed at the end of it puts the thing away."""
        self._starting += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._starting -= 1
            if not self._starting:
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
            _log.warning("cannot wait any longer for %d starts in a closed session", self._starting)
