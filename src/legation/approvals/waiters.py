"""Which processes wait for approvals, and which of them are dead.

A server's folder belongs to one process at a time: any other waiter of the same server is a former process of it, and
dead. A waiter of another server is dead when it has not been seen for long.
"""

from __future__ import annotations

from typing import Final

from legation.approvals.execute import give_up
from legation.approvals.inbox import Inbox
from legation.approvals.request import Ended
from legation.store.database.queries import Queries
from legation.store.database.transaction import Rows, Transaction

SIGN_MS: Final = 10_000  # between two signs of life
DEAD_MS: Final = (
    120_000  # without one: the longest that a database may be away without everything being superseded
)

_SQL: Final = Queries("door")


async def sign(inbox: Inbox) -> None:
    await inbox.ledger.database.transact(_sign, inbox.waiter, inbox.ledger.chain.server, inbox.clock.now_ms())


async def bury(inbox: Inbox, ended: Ended | None = None) -> int:
    """What dead waiters waited for is superseded, what they had begun is of unknown outcome. How many were dead."""
    now = inbox.clock.now_ms()
    dead = await inbox.ledger.database.read(_dead, inbox.waiter, inbox.ledger.chain.server, now - DEAD_MS)
    if dead:
        await inbox.supersede(dead)
        for workspace, trace_id in await give_up(inbox.ledger, dead, now):
            if ended is not None:
                ended(workspace, trace_id)
        for waiter in dead:
            await inbox.ledger.database.transact(_forget, waiter)
    return len(dead)


def _sign(waiter: str, server: str, now_ms: int) -> Transaction[Rows]:
    return (yield _SQL.enroll(id=waiter, server=server, now=now_ms))


def _dead(waiter: str, server: str, before: int) -> Transaction[list[str]]:
    return [row["id"] for row in (yield _SQL.dead_waiters(id=waiter, server=server, before=before))]


def _forget(waiter: str) -> Transaction[Rows]:
    return (yield _SQL.forget_waiter(id=waiter))
