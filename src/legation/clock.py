"""Time is injected: whatever waits or stamps takes a `Clock`, so that tests move time by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall time in milliseconds since the epoch: for stamps, never for durations."""

    def monotonic(self) -> float:
        """Seconds that never go backwards: for durations and deadlines."""

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        import asyncio  # a command that never sleeps does not pay for the loop

        await asyncio.sleep(seconds)
