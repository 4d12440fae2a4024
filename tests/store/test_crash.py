"""Kill -9 at random points: what was acknowledged is there, once, under dense numbers."""

import asyncio
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.store.backends import DURABLE, make_backend

from legation.store.log import EventLog

# Of each ten on one growing log; the many find what comes once in a hundred.
KILLS = pytest.mark.parametrize("kills", [10, pytest.param(100, marks=pytest.mark.slow)])
ROOT = Path(__file__).parents[2]


def append_until_killed(kind: str, folder: Path, batch: int, seconds: float) -> dict[str, int]:
    """The highest acknowledged number of each stream."""
    writer = subprocess.Popen(
        [sys.executable, "-m", "tests.store.writer_to_kill", kind, str(folder), str(batch)],
        stdout=subprocess.PIPE,
        env={"PATH": os.environ["PATH"]},
        cwd=ROOT,
    )
    assert writer.stdout
    first = writer.stdout.readline()  # it is in the middle of it now
    time.sleep(seconds)  # the random point: what is waited for is the kill itself
    writer.kill()
    rest = writer.stdout.read().splitlines()
    writer.stdout.close()
    writer.wait()
    acknowledged: dict[str, int] = {}
    for line in (first, *rest):
        name, _, seq = line.decode().partition(" ")
        if seq.strip().isdigit():
            acknowledged[name] = int(seq)
    return acknowledged


async def check(kind: str, folder: Path, acknowledged: dict[str, int]) -> None:
    async with EventLog(make_backend(kind, folder)) as log:
        for name, seq in acknowledged.items():
            stream = await log.stream(name)
            events = [event async for event in stream.subscribe(follow=False)]
            assert [event.seq for event in events] == list(range(1, len(events) + 1)), "numbers are not dense"
            assert [event.raw for event in events] == [b"%d" % number for number in range(1, len(events) + 1)]
            assert len(events) >= seq, "an acknowledged event is lost"


@pytest.mark.heavy
@pytest.mark.timeout(600)
@KILLS
@pytest.mark.parametrize("kind", DURABLE)
def test_no_acknowledged_event_is_lost_or_doubled_by_kills(kind: str, kills: int, tmp_path: Path) -> None:
    chance = random.Random(11)
    for _ in range(kills // 10):
        folder = tmp_path / f"{chance.random()}"  # ten kills on one growing log, then a new one
        folder.mkdir()
        for _ in range(10):
            acknowledged = append_until_killed(
                kind, folder, chance.choice([1, 7, 400]), chance.uniform(0, 0.05)
            )
            assert acknowledged
            asyncio.run(check(kind, folder, acknowledged))
