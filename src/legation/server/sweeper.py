"""The sweeper: forgets, now and then, what is of no use to anybody any more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from legation.clock import Clock
from legation.errors import LegationError
from legation.store.buckets import FORGET_BATCH, forget_full
from legation.store.database.transaction import Database

INTERVAL: Final = 600.0  # seconds between two sweeps

logger = logging.getLogger("legation.server")


@asynccontextmanager
async def sweeping(database: Database, clock: Clock) -> AsyncIterator[None]:
    """For as long as the block lasts; owns its task."""
    task = asyncio.create_task(_sweep_again(database, clock), name="legation-sweeper")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _sweep_again(database: Database, clock: Clock) -> None:
    while True:
        await clock.sleep(INTERVAL)
        try:
            await sweep(database, clock.now_ms())
        except LegationError as error:  # the next sweep does what this one could not
            logger.warning("cannot sweep: %s", error)


async def sweep(database: Database, now_ms: int) -> int:
    """Rate limits that are full again, as good as never used. How many."""
    forgotten = found = await database.transact(forget_full, now_ms)
    while found == FORGET_BATCH:
        found = await database.transact(forget_full, now_ms)
        forgotten += found
    return forgotten
