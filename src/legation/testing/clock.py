"""A clock that moves by hand."""

from __future__ import annotations

import asyncio
from typing import Final

# The test's time: how long it waits, in real seconds, for its code to fall asleep.
SLEEPER_WAIT: Final = 10.0


class FakeClock:
    """Time stands still until `advance`; wall and monotonic time move together, unless `set_wall` parts them.

    A test first awaits `until_sleeping`, so that advancing cannot come before the sleep it should end.
    """

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._start_ms = now_ms
        self._elapsed = 0.0
        self._sleepers: dict[asyncio.Future[None], float] = {}
        self._changed = asyncio.Event()

    def now_ms(self) -> int:
        return self._start_ms + round(self._elapsed * 1000)

    def monotonic(self) -> float:
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            return await asyncio.sleep(0)
        alarm = asyncio.get_running_loop().create_future()
        self._sleepers[alarm] = self._elapsed + seconds
        self._changed.set()
        try:
            await alarm
        finally:
            self._sleepers.pop(alarm, None)

    def advance(self, seconds: float) -> None:
        """Move on and wake whoever is due, by deadline, then in the order they fell asleep."""
        if seconds < 0:
            raise ValueError("cannot turn a clock back: advance by zero or more seconds")
        self._elapsed += seconds
        due = [alarm for alarm, deadline in self._sleepers.items() if deadline <= self._elapsed]
        for alarm in sorted(due, key=self._sleepers.__getitem__):
            del self._sleepers[alarm]
            if not alarm.done():
                alarm.set_result(None)

    def set_wall(self, now_ms: int) -> None:
        """Change the date of the machine: monotonic time does not notice."""
        self._start_ms = now_ms - round(self._elapsed * 1000)

    async def until_sleeping(self, count: int = 1) -> None:
        """Return once at least `count` tasks sleep on this clock."""
        async with asyncio.timeout(SLEEPER_WAIT):
            while len(self._sleepers) < count:
                self._changed.clear()
                await self._changed.wait()
