"""The door's housekeeping: signs of life, expiries, dead waiters, news from other servers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from legation.approvals import attendance, limits, waiters
from legation.approvals.elsewhere import INTERVAL, Elsewhere
from legation.approvals.inbox import Inbox
from legation.approvals.policies import Policies
from legation.approvals.request import Ended
from legation.clock import Clock
from legation.errors import LegationError
from legation.store.counters import FORGET_BATCH

EXPIRE_EVERY: Final = 5.0  # seconds; whoever waits does not wait for it
FORGET_EVERY: Final = 600.0

logger = logging.getLogger("legation.approvals")


@asynccontextmanager
async def keeping(inbox: Inbox, policies: Policies, ended: Ended | None = None) -> AsyncIterator[None]:
    """What dead processes left is settled before it begins."""
    await waiters.sign(inbox)
    await waiters.bury(inbox, ended)
    await inbox.expire()
    await inbox.supersede_revoked()
    clock, database = inbox.clock, inbox.ledger.database
    tasks = [
        asyncio.create_task(policies.follow(clock), name="legation-policies"),
        _every(clock, waiters.SIGN_MS / 1000, lambda: waiters.sign(inbox)),
        _every(clock, EXPIRE_EVERY, inbox.expire),
        _every(clock, EXPIRE_EVERY, inbox.supersede_revoked),
        _every(clock, FORGET_EVERY, lambda: _forget(inbox)),
    ]
    if database.dialect == "postgres":
        elsewhere = Elsewhere(inbox)
        await elsewhere.begin()
        tasks += [
            _every(clock, INTERVAL, elsewhere.look),
            _every(clock, waiters.DEAD_MS / 4000, lambda: waiters.bury(inbox, ended)),
        ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forget(inbox: Inbox) -> None:
    now = inbox.clock.now_ms()
    await inbox.ledger.database.transact(attendance.forget, now)
    while await inbox.ledger.database.transact(limits.forget, now) == FORGET_BATCH:
        pass


def _every(clock: Clock, seconds: float, work: Callable[[], Awaitable[object]]) -> asyncio.Task[None]:
    async def again() -> None:
        while True:
            await clock.sleep(seconds)
            try:
                await work()
            except LegationError as error:  # the next time may do what this one could not
                logger.warning("cannot look after approvals: %s", error)

    return asyncio.create_task(again(), name="legation-keeping")
