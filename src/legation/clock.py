"""Time, and the ids that are made of it. Whatever waits or stamps takes a `Clock`, so that tests move time by hand.

Approvals, grants and credentials expire by a `SteadyClock`, which neither runs backwards nor stands still. It is a mark,
which `server.installation` keeps in the database, plus the monotonic time since the mark was read. The wall clock moves it
forward only: a machine that slept, or whose clock was behind and is set right, has let time pass; one that is set back has
not gained any. So whoever changes the date of the machine makes things expire early, never late.

INV-K1  `now_ms` never goes back, in one process, over a restart, and from one server of a database to another, but for
        what passed since the last mark (`MARK_EVERY`).
INV-K2  While the wall clock stands still or is set back, it goes on at the pace of the monotonic one.
INV-K3  After a restart the wall clock is all there is: it begins at the later of the mark and the wall clock.
INV-K4  A jump of more than `JUMP_MS`, either way, is reported once.

An id is a prefix that says what it is, then 48 bits of time and 80 of chance, so that text order is time order.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol


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


JUMP_MS: Final = 3_600_000


class SteadyClock:
    """`wall` is the machine's clock, for what leaves the machine: signatures, dates of mails."""

    _base: tuple[int, int]  # a mark and when it was read, as one value: any thread may read it

    def __init__(self, wall: Clock, mark_ms: int = 0) -> None:
        self.wall = wall
        self.monotonic, self.sleep = wall.monotonic, wall.sleep
        self._begin_at(max(mark_ms, wall.now_ms()))
        self._jumped = 0  # ms, forward, that nobody was told of yet
        self._is_behind = False  # the wall clock, by more than a jump, and that was told

    def now_ms(self) -> int:
        mark, read = self._base
        at = round(self.monotonic() * 1000)  # so that differences add up to what the wall clock shows
        steady, wall = mark + max(0, at - read), self.wall.now_ms()
        if wall <= steady:
            return steady
        if wall - steady > JUMP_MS:
            self._jumped = wall - steady
        self._base = wall, at
        return wall

    def jump(self) -> str | None:
        """Words on a jump that nobody was told of yet."""
        now, wall = self.now_ms(), self.wall.now_ms()
        if self._jumped:
            forward, self._jumped = self._jumped, 0
            return (
                f"the machine's clock went forward by {_minutes(forward)} at once: it slept, or was set. What would have "
                "expired meanwhile has expired"
            )
        was, self._is_behind = self._is_behind, now - wall > JUMP_MS
        if self._is_behind and not was:
            return (
                f"the machine's clock is {_minutes(now - wall)} behind the time that Legation goes by: it was set back, or "
                "was ahead before. Nothing expires later for that; set it right (docs/server.md)"
            )
        return None

    def go_on_from(self, mark: int) -> None:
        """Go on from a mark that is later, as another server's may be."""
        if mark > self.now_ms():
            self._begin_at(mark)

    def _begin_at(self, mark: int) -> None:
        """From that mark, which was read now."""
        self._base = mark, round(self.monotonic() * 1000)


def _minutes(ms: int) -> str:
    minutes = ms // 60_000
    return f"{minutes // 60} h {minutes % 60} min"


# Ids.

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's: no i, l, o, u to misread
_PAIRS: Final = tuple(a + b for a in _ALPHABET for b in _ALPHABET)  # ten bits at a time: half the steps
_TIME_SHIFTS: Final = tuple(range(40, -1, -10))  # 10 characters
_CHANCE_BYTES: Final = 10  # 16 characters
_HALF: Final = (1 << 40) - 1
_DRAWN: Final = 4096  # random bytes at a time: for each id by itself, they are most of its time

_lock = threading.Lock()
_last = (0, "0" * 10, 0)  # millisecond, as it is written, and chance of the id made last
_drawn = memoryview(b"")  # random bytes that no id has yet


def _draw(count: int) -> bytes:
    global _drawn
    if len(_drawn) < count:
        _drawn = memoryview(os.urandom(_DRAWN))
    drawn, _drawn = bytes(_drawn[:count]), _drawn[count:]
    return drawn


def _begin_in_fork() -> None:
    """Leave what is drawn already to the process that was forked."""
    global _drawn, _lock
    _drawn, _lock = memoryview(b""), threading.Lock()


os.register_at_fork(after_in_child=_begin_in_fork)


def new_id(prefix: str, *, now_ms: int | None = None, random: Callable[[int], bytes] = _draw) -> str:
    """Make an id. Within one millisecond of one process later ids sort later; no id tells how many were made before it."""
    global _last
    ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    with _lock:
        before, stamp, chance = _last
        if ms == before:
            # A step by chance, not by one: forked processes share `_last` and must not make the same ids.
            chance += 1 + int.from_bytes(random(4))
        else:
            stamp = "".join([_PAIRS[ms >> shift & 1023] for shift in _TIME_SHIFTS])
            chance = int.from_bytes(random(_CHANCE_BYTES)) >> 1  # the upper half is room for steps
        _last = (ms, stamp, chance)
    pairs, high, low = _PAIRS, chance >> 40, chance & _HALF
    return (
        f"{prefix}_{stamp}{pairs[high >> 30]}{pairs[high >> 20 & 1023]}{pairs[high >> 10 & 1023]}{pairs[high & 1023]}"
        f"{pairs[low >> 30]}{pairs[low >> 20 & 1023]}{pairs[low >> 10 & 1023]}{pairs[low & 1023]}"
    )
