"""The worker: claims what is due, does one step of each, gives it back. Any number of them may be at it, anywhere."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

import legation
from legation.clock import Clock
from legation.errors import LegationError
from legation.runs.lease import HeldRun, RunLeases
from legation.runs.provider import StepFailed, failure_of
from legation.runs.run import CHANGES, PACKING, SQL, TOPIC, Change, LeaseLost
from legation.runs.states import TABLE, ErrorClass, RunAct
from legation.runs.steps import BACKOFF_MS, BY_STATE, LOSE, Step, Tools, Unwanted, Work
from legation.store.database.transaction import Database, Transaction
from legation.tasks import TaskSet

BATCH: Final = 50  # runs of one claim
PACKERS: Final = 4  # runs whose events are packed at once
FORGOTTEN_MS: Final = 7 * 86_400_000  # after which a silent worker's row says nothing any more

_log = logging.getLogger("legation.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Times are seconds."""

    id: str
    concurrency: int = 20  # steps at once
    lease: float = 30.0
    poll: float = 1.0  # at most so long until something that is due is noticed by itself
    machine_lost: float = 120.0
    seen_every: float = 10.0  # between two signs of life
    drain: float = 30.0  # for the steps that are under way when it is told to stop


@dataclass(slots=True)
class WorkerFigures:
    """Counts of what was done, for `/metrics`."""

    claims: int = 0
    claimed: int = 0
    steps: int = 0
    failures: int = 0
    lost: int = 0


@dataclass(slots=True)
class Worker:
    """`await worker.run()`, until `drain` was called and what is under way has ended."""

    tools: Tools
    options: WorkerOptions
    figures: WorkerFigures = field(default_factory=WorkerFigures)
    random: Callable[[], float] = random.random
    leases: RunLeases = field(init=False)
    _steps: TaskSet = field(init=False)
    _wake: asyncio.Event = field(init=False)
    _draining: bool = False
    busy: int = 0  # steps under way

    def __post_init__(self) -> None:
        tools, options = self.tools, self.options
        self.leases = RunLeases(tools.database, tools.clock, options.id, tools.machine, options.lease)
        self._steps = TaskSet("legation-step")
        self._wake = asyncio.Event()

    @property
    def _database(self) -> Database:
        return self.tools.database

    @property
    def _clock(self) -> Clock:
        return self.tools.clock

    def drain(self) -> None:
        """Claim nothing more; `run` returns when the steps that are under way have ended, or their time is up."""
        self._draining = True
        self._wake.set()

    async def run(self) -> None:
        beside = TaskSet("legation-worker")
        try:
            async with self.leases:
                with self._database.listen(TOPIC) as told:
                    beside.start(self._pass_on(told))
                    beside.start(self._live())
                    if self.tools.packs is not None:
                        beside.start(self._pack_again())
                    while not self._draining:
                        await self._claim_and_wait()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.options.drain):
                        await self._steps.settle()
        finally:
            await beside.close()
            await self._steps.close()
            with suppress(LegationError):  # else they are free when their leases have run out
                await self.leases.give_back()

    async def _pass_on(self, told: asyncio.Event) -> None:
        while True:
            await told.wait()
            told.clear()
            self._wake.set()

    async def _claim_and_wait(self) -> None:
        """Claim until nothing is due; then wait for a notice, for a step's end where there is no room, or for the next look."""
        self._wake.clear()
        room, found = min(BATCH, self.options.concurrency - self.busy), 0
        if room > 0:
            try:
                found = len(await self._claim(room))
            except LegationError as error:
                _log.warning("cannot claim runs now: %s", error)
        if found == room and room > 0:
            return  # there may be more
        # Between a half and one and a half of the time: workers that began together look at different moments.
        pause = self.options.poll * (0.5 + self.random())
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._wake.wait()

    async def _claim(self, room: int, machine: str | None = None) -> list[HeldRun]:
        runs = await self.leases.claim(room, machine)
        self.figures.claims += 1
        self.figures.claimed += len(runs)
        self.busy += len(runs)
        for held in runs:
            is_lost = machine not in (None, PACKING) and held.run.machine == machine
            held.task = self._steps.start(self._step(held, LOSE if is_lost else None))
        return runs

    async def _pack_again(self) -> None:
        """Have the events of what has ended packed, a few at a time beside all other work."""
        while True:
            room, runs = min(PACKERS, self.options.concurrency - self.busy), list[HeldRun]()
            if room > 0 and not self._draining:
                try:
                    runs = await self._claim(room, PACKING)
                except LegationError as error:
                    _log.warning("cannot claim what is to be packed: %s", error)
            if under_way := [each.task for each in runs if each.task is not None]:
                await asyncio.wait(under_way)
            if len(runs) < PACKERS:
                await self._clock.sleep(self.options.seen_every)

    # One step.

    async def _step(self, held: HeldRun, step: Step | None) -> None:
        try:
            await self._do(held, step or BY_STATE.get(held.run.state))
            self.figures.steps += 1
        except asyncio.CancelledError:
            if not held.lost:
                held.cut = True  # the worker stops: it is given back with the others
            raise
        except LeaseLost as error:
            self.figures.lost += 1
            _log.warning("%s", error)
        except LegationError as error:  # it is due again when its lease has run out
            _log.warning("cannot give %s back: %s", held.run.id, error)
        except Exception:  # the task's boundary: one run takes no other along  # noqa: BLE001
            _log.exception("the step of %s failed: a defect", held.run.id)
        finally:
            if not held.cut:
                self.leases.forget(held)
            self.busy -= 1
            if self.busy == self.options.concurrency - 1:
                self._wake.set()  # there is room again

    async def _do(self, held: HeldRun, step: Step | None) -> None:
        if step is None:
            raise StepFailed(ErrorClass.INTERNAL, "state", f"there is no step for {held.run.state}")
        work = Work(self.tools, self.leases, held, step.name, step.yields)
        try:
            end = work.unwanted() if step.yields and held.run.is_unwanted else await step.work(work)
        except LeaseLost:
            raise
        except Unwanted:
            end = work.unwanted()
        except Exception as error:  # noqa: BLE001 - whatever it was, the run hears of it
            end = self._failed(work, failure_of(error))
            if end.run.error_class is ErrorClass.INTERNAL:
                _log.exception("%s of %s failed", step.name, held.run.id)
        await self.leases.end(held, end)
        if end.next_check_at is not None and end.next_check_at <= self._clock.now_ms():
            self._wake.set()
        if isinstance(end, Change):
            self._database.notify(CHANGES)
            if end.slot == "give":
                self._database.notify(TOPIC)  # it was handed on to a run that any worker may take

    def _failed(self, work: Work, failure: StepFailed) -> Change:
        """Try it again where its class allows, a few times; then the run fails. One without an end of that kind waits and tries on."""
        self.figures.failures += 1
        run = work.run
        _log.warning("%s of %s failed: %s", work.step, run.id, failure.reason)
        can_end = RunAct.END in TABLE[run.state]
        if can_end and not (failure.error_class.retries and run.tries < run.caps.retries):
            return work.failed(failure)
        pause = BACKOFF_MS[min(run.tries, len(BACKOFF_MS) - 1)]
        return Change(run, replace(run, tries=run.tries + 1), work.now + pause)

    # Signs of life, and machines without any.

    async def _live(self) -> None:
        while True:
            try:
                await self._database.transact(
                    _see_worker, self.options.id, self.tools.machine, self._clock.now_ms()
                )
                await self._look_after_lost()
            except LegationError as error:
                _log.warning("cannot give a sign of life: %s", error)
            await self._clock.sleep(self.options.seen_every)

    async def _look_after_lost(self) -> None:
        before = self._clock.now_ms() - round(self.options.machine_lost * 1000)
        for machine in await self._database.read(_lost_machines, before):
            room = min(BATCH, self.options.concurrency - self.busy)
            if machine != self.tools.machine and room > 0 and not self._draining:
                await self._claim(room, machine)
        await self._database.transact(_forget_workers, self._clock.now_ms() - FORGOTTEN_MS)


def _see_worker(worker: str, machine: str, now_ms: int) -> Transaction[None]:
    yield SQL.see_worker(id=worker, machine=machine, version=legation.__version__, now=now_ms)


def _lost_machines(before: int) -> Transaction[list[str]]:
    return [row["machine"] for row in (yield SQL.lost_machines(before=before))]


def _forget_workers(before: int) -> Transaction[None]:
    yield SQL.forget_workers(before=before)
