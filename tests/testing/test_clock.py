import asyncio

import pytest

from legation.clock import Clock
from legation.testing import clock as clock_module
from legation.testing.clock import FakeClock

WAIT = 5.0  # the test's patience, in real seconds


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(now_ms=1000)


def test_time_stands_still_until_it_is_advanced(clock: FakeClock) -> None:
    real: Clock = clock
    assert (real.now_ms(), real.monotonic()) == (1000, 0.0)
    clock.advance(2.5)
    assert (real.now_ms(), real.monotonic()) == (3500, 2.5)


async def test_sleepers_wake_by_deadline_then_by_arrival(clock: FakeClock) -> None:
    woken: list[str] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(name)

    async with asyncio.timeout(WAIT), asyncio.TaskGroup() as tasks:
        for name, seconds in (("late", 3), ("first", 1), ("second", 1), ("middle", 2)):
            tasks.create_task(sleeper(name, seconds))
        await clock.until_sleeping(4)
        clock.advance(3)
    assert woken == ["first", "second", "middle", "late"]


async def test_a_sleeper_is_not_woken_before_its_time(clock: FakeClock) -> None:
    task = asyncio.create_task(clock.sleep(2))
    await clock.until_sleeping()
    clock.advance(1.9)
    await asyncio.sleep(0)
    assert not task.done()
    clock.advance(0.1)
    await asyncio.wait_for(task, WAIT)


async def test_a_loop_that_sleeps_again_can_be_followed(clock: FakeClock) -> None:
    ticks: list[float] = []

    async def ticker() -> None:
        while len(ticks) < 3:
            await clock.sleep(10)
            ticks.append(clock.monotonic())

    task = asyncio.create_task(ticker())
    for _ in range(3):
        await clock.until_sleeping()
        clock.advance(10)
    await asyncio.wait_for(task, WAIT)
    assert ticks == [10, 20, 30]


async def test_a_cancelled_sleeper_is_forgotten(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_module, "SLEEPER_WAIT", 0.01)
    task = asyncio.create_task(clock.sleep(1))
    await clock.until_sleeping()
    task.cancel()
    await asyncio.wait([task], timeout=WAIT)
    with pytest.raises(TimeoutError):
        await clock.until_sleeping()


async def test_a_sleeper_cancelled_just_before_it_is_due_stays_cancelled(clock: FakeClock) -> None:
    task = asyncio.create_task(clock.sleep(1))
    await clock.until_sleeping()
    task.cancel()
    clock.advance(1)
    await asyncio.wait([task], timeout=WAIT)
    assert task.cancelled()


async def test_sleeping_for_nothing_needs_no_advance(clock: FakeClock) -> None:
    await asyncio.wait_for(clock.sleep(0), WAIT)


def test_a_clock_is_not_turned_back(clock: FakeClock) -> None:
    with pytest.raises(ValueError, match="cannot turn a clock back"):
        clock.advance(-1)
