import asyncio
from pathlib import Path

import pytest
from tests.store.database.databases import make, opened

from legation.server.instance import SWEEP_INTERVAL, sweep, sweeper
from legation.store.counters import Limit, take
from legation.store.database.transaction import Transaction, parse
from legation.testing.clock import FakeClock

(COUNT,) = parse("-- name: count\nselect count(*) as n from bucket;")


def count() -> Transaction[int]:
    (row,) = yield COUNT()
    return int(row["n"])


async def test_what_is_full_again_is_forgotten(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    clock = FakeClock()
    async with opened(make("sqlite", tmp_path, request)) as database:
        for number in range(3):
            await database.transact(take, "local", f"token:{number}", Limit(10, 60), clock.now_ms())
        assert await sweep(database, clock.now_ms()) == 0
        async with sweeper(database, clock):
            async with asyncio.timeout(20):
                while await database.read(count):
                    clock.advance(SWEEP_INTERVAL)
                    await asyncio.sleep(0)
