import asyncio
import time

from legation.clock import Clock, SystemClock

LONGEST_SLEEP = 5.0


def test_wall_time_is_in_milliseconds_since_the_epoch() -> None:
    before = time.time()
    now = SystemClock().now_ms()
    assert before * 1000 - 1 <= now <= time.time() * 1000 + 1


def test_monotonic_time_never_goes_back() -> None:
    clock: Clock = SystemClock()
    marks = [clock.monotonic() for _ in range(100)]
    assert marks == sorted(marks)


async def test_sleeping_takes_the_time_it_says() -> None:
    clock = SystemClock()
    start = clock.monotonic()
    await asyncio.wait_for(clock.sleep(0.02), LONGEST_SLEEP)
    assert clock.monotonic() - start >= 0.019
