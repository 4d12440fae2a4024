"""Leases of one process: claimed in batches, renewed all together, given back in groups, each row fenced by itself.

INV-L5  A step goes on for as long as its lease is known to hold. Where a renewal is refused, or no answer came for as long as the
        lease lasts, it is cancelled where it stands, and nothing of it is written any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from legation.clock import Clock, new_id
from legation.errors import LegationError
from legation.runs.run import (
    MOST_AT_ONCE,
    Change,
    LeaseLost,
    LeaseReturn,
    Run,
    claim,
    hold,
    release,
    renew,
    settle,
)
from legation.store.database.transaction import Database
from legation.tasks import Groups, TaskSet

RENEWALS: Final = 3  # in the time of a lease: two may fail

_log = logging.getLogger("legation.worker")

End = Change | LeaseReturn
_Kind = Literal["settle", "release"]


@dataclass(slots=True, eq=False)
class HeldRun:
    """A run under a lease of ours, the task that works on it, and until when, on the monotonic clock, the lease surely holds."""

    run: Run
    until: float
    task: asyncio.Task[None] | None = None
    lost: bool = False
    ending: bool = False  # it is being given back, and not renewed any more
    cut: bool = False  # its step was cut off, and will be done again


@dataclass(slots=True)
class RunLeases:
    """`async with RunLeases(...)`: leases of this process, renewed for as long as the block lasts."""

    database: Database
    clock: Clock
    owner: str
    machine: str
    seconds: float
    held: dict[str, HeldRun] = field(default_factory=dict)
    _ends: Groups[_Kind, End, bool] = field(init=False)
    _tasks: TaskSet = field(init=False)

    def __post_init__(self) -> None:
        self._ends = Groups("legation-lease-ends", self._write, MOST_AT_ONCE)
        self._tasks = TaskSet("legation-leases")

    async def __aenter__(self) -> RunLeases:
        self._tasks.start(self._renew_again())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.close()

    async def claim(self, limit: int, machine: str | None = None) -> list[HeldRun]:
        """Claim what is due here, or at another machine that is lost."""
        asked, now = self.clock.monotonic(), self.clock.now_ms()
        token = new_id("lse", now_ms=now)
        place = self.machine if machine is None else machine
        runs = await self.database.transact(
            claim, self.owner, place, token, limit, now_ms=now, until_ms=now + round(self.seconds * 1000)
        )
        found = [HeldRun(run, asked + self.seconds) for run in runs]
        self.held.update((each.run.id, each) for each in found)
        return found

    async def check(self, held: HeldRun) -> Run:
        """Find what was asked for meanwhile; `LeaseLost` where the lease no longer holds."""
        if held.lost or self.clock.monotonic() >= held.until:
            raise LeaseLost(
                f"cannot go on with {held.run.id}: its lease has run out; leave it to another worker"
            )
        held.run = await self.database.transact(hold, held.run, now_ms=self.clock.now_ms())
        return held.run

    async def end(self, held: HeldRun, end: End) -> None:
        """Write what a step has come to and give the lease back, together with others'; `LeaseLost` where it was another's."""
        held.ending = True
        if not await self._ends.add("settle" if isinstance(end, Change) else "release", end):
            raise LeaseLost(
                f"cannot keep what became of {held.run.id}: its lease is another's; leave it to them"
            )

    async def give_back(self) -> None:
        """Give back all that is left, due at once: a step that was cut off is begun again by whoever comes next."""
        now = self.clock.now_ms()
        if self.held:
            returns = [LeaseReturn(each.run, now) for each in self.held.values()]
            self.held.clear()
            await self.database.transact(release, returns, now_ms=now)

    def forget(self, held: HeldRun) -> None:
        if self.held.get(held.run.id) is held:
            del self.held[held.run.id]

    async def _write(self, kind: _Kind, ends: list[End]) -> Sequence[bool]:
        now = self.clock.now_ms()
        if kind == "settle":
            changes = [each for each in ends if isinstance(each, Change)]
            kept = {*await self.database.transact(settle, changes, now_ms=now)}
        else:
            returns = [each for each in ends if isinstance(each, LeaseReturn)]
            kept = await self.database.transact(release, returns, now_ms=now)
        return [each.run.id in kept for each in ends]

    async def _renew_again(self) -> None:
        while True:
            await self.clock.sleep(self.seconds / RENEWALS)
            try:
                await self.renew()
            except LegationError as error:  # the next one may get through
                _log.warning("cannot renew %d leases: %s", len(self.held), error)
                self._drop([each for each in self.held.values() if self.clock.monotonic() >= each.until])

    async def renew(self) -> None:
        """Prolong all leases; whatever is no longer ours stops at once."""
        asked, all_held = self.clock.monotonic(), [each for each in self.held.values() if not each.ending]
        for start in range(0, len(all_held), MOST_AT_ONCE):
            part, now = all_held[start : start + MOST_AT_ONCE], self.clock.now_ms()
            kept = await self.database.transact(
                renew, [each.run for each in part], now_ms=now, until_ms=now + round(self.seconds * 1000)
            )
            for each in part:
                if each.run.id in kept:
                    each.until = asked + self.seconds
            self._drop([each for each in part if each.run.id not in kept and not each.ending])

    def _drop(self, lost: list[HeldRun]) -> None:
        for each in lost:
            _log.warning("the lease of %s was lost: its step is stopped", each.run.id)
            each.lost = True
            self.forget(each)
            if each.task is not None:
                each.task.cancel()
