"""The clock that approvals, grants and credentials expire by: it neither runs backwards nor stands still.

It is a mark in the database plus the monotonic time since the mark was read. The wall clock moves it forward only: a
machine that slept, or whose clock was behind and is set right, has let time pass; one that is set back has not gained
any. So whoever changes the date of the machine makes things expire early, never late.

INV-K1  `now_ms` never goes back, in one process, over a restart, and from one server of a database to another, but for
        what passed since the last mark (`MARK_EVERY`).
INV-K2  While the wall clock stands still or is set back, it goes on at the pace of the monotonic one.
INV-K3  After a restart the wall clock is all there is: it begins at the later of the mark and the wall clock.
INV-K4  A jump of more than `JUMP_MS`, either way, is reported once.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeAlias

from legation.clock import Clock
from legation.errors import LegationError
from legation.store.database.transaction import Database, Queries, Transaction, only
from legation.tasks import TaskSet

MARK_EVERY: Final = 30.0  # seconds between two marks: what a clock set back during a restart can regain
JUMP_MS: Final = 3_600_000

Report: TypeAlias = Callable[[str], None]
"""Gets words on a jump."""

logger = logging.getLogger("legation.clock")

_SQL: Final = Queries("clock")


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

    async def keep(self, database: Database) -> None:
        """Raise the mark to now; where another server's is later, go on from that."""
        mark = await database.transact(_raise_mark, self.now_ms())
        if mark > self.now_ms():
            self._begin_at(mark)

    def _begin_at(self, mark: int) -> None:
        """From that mark, which was read now."""
        self._base = mark, round(self.monotonic() * 1000)


@asynccontextmanager
async def steady(database: Database, wall: Clock, report: Report) -> AsyncIterator[SteadyClock]:
    """For as long as the block lasts; it owns the task that keeps the mark."""
    clock = SteadyClock(wall, await database.transact(_raise_mark, wall.now_ms()))
    _tell(clock, report)
    tasks = TaskSet("legation-clock")
    tasks.start(_keep_again(clock, database, report))
    try:
        yield clock
    finally:
        await tasks.close()
        with suppress(LegationError):  # a mark that is half a minute old will do
            await clock.keep(database)


async def _keep_again(clock: SteadyClock, database: Database, report: Report) -> None:
    while True:
        await clock.sleep(MARK_EVERY)
        _tell(clock, report)
        try:
            await clock.keep(database)
        except LegationError as error:  # the next mark says the same
            logger.warning("cannot keep the time: %s", error)


def _tell(clock: SteadyClock, report: Report) -> None:
    if (words := clock.jump()) is not None:
        report(words)


def _raise_mark(now_ms: int) -> Transaction[int]:
    row = only((yield _SQL.raise_mark(now=now_ms)))
    assert row is not None  # it is made or changed, whichever
    mark: int = row["ms"]
    return mark


def _minutes(ms: int) -> str:
    minutes = ms // 60_000
    return f"{minutes // 60} h {minutes % 60} min"
