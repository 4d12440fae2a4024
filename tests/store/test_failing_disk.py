import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.store.backends import DURABLE, make_backend

from legation.store.log import EventLog

pytestmark = pytest.mark.heavy  # a process or more for each test

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", DURABLE)
def test_a_full_disk_pauses_the_agent_and_loses_nothing(kind: str, tmp_path: Path) -> None:
    """The live stream goes on from memory (INV-5), the trouble is told once, strict commits are refused,
    and when there is room again everything is saved in order."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.store.full_disk", kind, str(tmp_path)],
        capture_output=True,
        env={"PATH": os.environ["PATH"]},
        cwd=ROOT,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    saw = json.loads(done.stdout)
    assert saw["paused"]
    assert saw["seen_while_full"] == list(range(1, saw["appended_while_full"] + 1))
    assert (saw["strict"], saw["state"]) == ("legation/storage-failed", "open")
    assert saw["codes"] == ["storage/write-failed", "storage/recovered"]
    assert saw["seen"] == list(range(1, saw["last"] + 1))

    async def stored() -> list[int]:
        async with EventLog(make_backend(kind, tmp_path)) as log:
            stream = await log.stream("ses_a")
            return [event.seq async for event in stream.subscribe(follow=False)]

    assert asyncio.run(stored()) == saw["seen"]
