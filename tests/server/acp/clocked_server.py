"""`legation` whose clock is moved by hand, for the idle stop. argv: seconds to begin with, a FIFO, and the rest.

Time goes on by itself too; a number that is written to the FIFO adds so many seconds.
"""

import asyncio
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from legation.cli.main import main
from legation.clock import SystemClock

ahead = float(sys.argv[1])
sleepers: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()


def now_ms(_clock: SystemClock) -> int:
    return time.time_ns() // 1_000_000 + round(ahead * 1000)


def monotonic(_clock: SystemClock) -> float:
    return time.monotonic() + ahead


async def sleep(clock: SystemClock, seconds: float) -> None:
    due = clock.monotonic() + seconds
    while True:
        moved = asyncio.Event()
        sleeper = asyncio.get_running_loop(), moved
        sleepers.add(sleeper)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, due - clock.monotonic())):
                    await moved.wait()
        finally:
            sleepers.discard(sleeper)
        if clock.monotonic() >= due:
            return


def move(fifo: Path) -> None:
    global ahead
    while True:
        with fifo.open() as lines:
            for line in lines:
                ahead += float(line)
                for loop, moved in list(sleepers):
                    with suppress(RuntimeError):  # it has ended
                        loop.call_soon_threadsafe(moved.set)


if __name__ == "__main__":
    for function in (now_ms, monotonic, sleep):
        setattr(SystemClock, function.__name__, function)
    threading.Thread(target=move, args=(Path(sys.argv[2]),), daemon=True).start()
    del sys.argv[1:3]
    main()
