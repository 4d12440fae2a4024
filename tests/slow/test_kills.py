"""Chaos: the writer of a log is killed at random points, far more often than the daily tests do it."""

import asyncio
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.slow.seed import seed
from tests.store.backends import DURABLE, make_backend
from tests.store.test_crash import ROOT, append_until_killed, check

from legation.store.log import EventLog

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

KILLS = 1000  # of a writer that appends
KILLS_ON_ONE_LOG = 20  # then a new one is begun
CHANGE_KILLS = 300  # of a writer that also closes and replaces
LONGEST_LIFE = 0.2  # seconds a writer has at most before it is killed


@pytest.mark.parametrize("kind", DURABLE)
def test_a_thousand_kills_lose_and_double_nothing(kind: str, tmp_path: Path) -> None:
    chance = random.Random(seed())
    for number in range(KILLS):
        folder = tmp_path / str(number // KILLS_ON_ONE_LOG)
        folder.mkdir(exist_ok=True)
        batch, seconds = chance.choice([1, 7, 400]), chance.uniform(0, LONGEST_LIFE)
        acknowledged = append_until_killed(kind, folder, batch, seconds)
        assert acknowledged
        asyncio.run(check(kind, folder, acknowledged))


def change_until_killed(kind: str, folder: Path, seconds: float) -> tuple[int, int]:
    """The readable floor and the head that were acknowledged last."""
    changer = subprocess.Popen(
        [sys.executable, "-m", "tests.slow.changer_to_kill", kind, str(folder)],
        stdout=subprocess.PIPE,
        env={"PATH": os.environ["PATH"]},
        cwd=ROOT,
    )
    assert changer.stdout
    first = changer.stdout.readline()
    time.sleep(seconds)  # the random point: what is waited for is the kill itself
    changer.kill()
    lines = [first, *changer.stdout.read().splitlines(keepends=True)]
    changer.stdout.close()
    changer.wait()
    floor, head = [line for line in lines if line.endswith(b"\n")][-1].split()
    return int(floor), int(head)


async def check_changed(kind: str, folder: Path, floor: int, head: int) -> None:
    async with EventLog(make_backend(kind, folder)) as log:
        stream = await log.stream("ses_a")
        info = stream.info()
        seqs = [event.seq async for event in stream.subscribe(follow=False)]
    assert info.first_seq >= floor, "a replaced history came back"
    assert info.head >= head, "an acknowledged event is lost"
    assert seqs == list(range(info.first_seq, info.head + 1)), "the numbers are not dense"


@pytest.mark.parametrize("kind", DURABLE)
def test_a_replaced_history_is_the_old_or_the_new_one_whenever_it_is_killed(
    kind: str, tmp_path: Path
) -> None:
    chance = random.Random(seed())
    for _ in range(CHANGE_KILLS):
        floor, head = change_until_killed(kind, tmp_path, chance.uniform(0, LONGEST_LIFE))
        asyncio.run(check_changed(kind, tmp_path, floor, head))
