"""Children that do not want to end. What each may do is bounded by its own source, should we fail."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import pytest
from tests.proc.conftest import Python

from legation.proc import Child, ProcessLauncher

pytestmark = pytest.mark.heavy  # several processes for each test

Count = Callable[[], list[int]]
BOUND = 60.0  # seconds until a wait that does not end is a failure
LIFE = 30  # seconds until anything that we failed to end is ended by its alarm

BURST = f"""
import os, signal, sys
signal.alarm({LIFE})
for depth in range(6):  # 64 processes, each in a session of its own
    if os.fork() == 0: os.setsid(); signal.alarm({LIFE})
print("up", flush=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True: signal.pause()
"""
# Each is gone before it can be looked at, and has left the next one: a target that moves.
RELAY = f"""
import os, signal, sys, time
end = time.monotonic() + {LIFE}
if os.fork() == 0:
    os.setsid()
    while time.monotonic() < end:
        time.sleep(0.002)
        if os.fork(): os._exit(0)
    os._exit(0)
print("up", flush=True)
signal.alarm({LIFE})
sys.stdin.read()
"""
STOPPED = f"""
import os, signal, sys
signal.alarm({LIFE})
if os.fork() == 0: signal.alarm({LIFE}); os.kill(os.getpid(), signal.SIGSTOP)
print("up", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


async def up(child: Child, count: int) -> None:
    seen = 0
    async with asyncio.timeout(BOUND):
        async for lines in child.lines():
            seen += lines.count(b"up")
            if seen >= count:
                return


@pytest.mark.parametrize(
    ("source", "count"),
    [
        pytest.param(BURST, 64, id="burst"),
        pytest.param(STOPPED, 1, id="stopped"),
        pytest.param(RELAY, 1, id="relay", marks=pytest.mark.slow),  # a race that a busy machine may lose
    ],
)
async def test_it_ends_with_all_it_started(
    python: Python, tag: str, survivors: Count, source: str, count: int
) -> None:
    child = await ProcessLauncher().spawn(python(source, tag))
    await up(child, count)
    async with asyncio.timeout(BOUND):
        found = await child.stop(grace=0.1)
    assert survivors() == []
    assert child.survivors == ()
    assert (found.code, found.signal) in ((0, None), (None, signal.SIGKILL), (None, signal.SIGTERM))


async def test_a_child_that_is_stopped_while_it_is_being_ended_is_ended(
    python: Python, tag: str, survivors: Count
) -> None:
    obedient = f"import signal, sys; signal.alarm({LIFE}); print('up', flush=True); signal.pause()"
    child = await ProcessLauncher().spawn(python(obedient, tag))
    await up(child, 1)
    stopping = asyncio.create_task(child.stop(grace=0.2))
    await asyncio.sleep(0)
    os.kill(child.pid, signal.SIGSTOP)
    async with asyncio.timeout(BOUND):
        assert (await stopping).signal == signal.SIGKILL
    assert survivors() == []
