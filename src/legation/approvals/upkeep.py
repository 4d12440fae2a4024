"""The door's housekeeping: signs of life, expiries, dead waiters, news from other servers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from msgspec.structs import replace

from legation.approvals import limits, queue
from legation.approvals.approval import Approval, read
from legation.approvals.execute import give_up
from legation.approvals.grants import ids_in
from legation.approvals.policies import Policies
from legation.approvals.queue import ApprovalQueue
from legation.approvals.request import OnCallEnded
from legation.approvals.trace.step import StepKind
from legation.clock import Clock
from legation.errors import LegationError
from legation.store.counters import FORGET_BATCH
from legation.store.database.transaction import Queries, Rows, Transaction

# Which processes wait for approvals, and which of them are dead.
#
# A server's folder belongs to one process at a time: any other waiter of the same server is a former process of it, and
# dead. A waiter of another server is dead when it has not been seen for long.

SIGN_MS: Final = 10_000  # between two signs of life
DEAD_MS: Final = (
    120_000  # without one: the longest that a database may be away without everything being superseded
)

_SQL: Final = Queries("door")


async def sign(inbox: ApprovalQueue) -> None:
    await inbox.ledger.database.transact(
        _enroll, inbox.waiter, inbox.ledger.chain.server, inbox.clock.now_ms()
    )


async def bury(inbox: ApprovalQueue, ended: OnCallEnded | None = None) -> int:
    """What dead waiters waited for is superseded, what they had begun is of unknown outcome. How many were dead."""
    now = inbox.clock.now_ms()
    dead = await inbox.ledger.database.read(_dead, inbox.waiter, inbox.ledger.chain.server, now - DEAD_MS)
    if dead:
        await inbox.supersede(dead)
        for workspace, trace_id in await give_up(inbox.ledger, dead, now):
            if ended is not None:
                ended(workspace, trace_id)
        for waiter in dead:
            await inbox.ledger.database.transact(_forget_waiter, waiter)
    return len(dead)


def _enroll(waiter: str, server: str, now_ms: int) -> Transaction[Rows]:
    return (yield _SQL.enroll(id=waiter, server=server, now=now_ms))


def _dead(waiter: str, server: str, before: int) -> Transaction[list[str]]:
    return [row["id"] for row in (yield _SQL.dead_waiters(id=waiter, server=server, before=before))]


def _forget_waiter(waiter: str) -> Transaction[Rows]:
    return (yield _SQL.forget_waiter(id=waiter))


# What other servers did to approvals: read from their chains, and told here as if it had happened here.
#
# Only with a shared database. One query asks where all chains end; only what is new is read. Grants stand in no chain: those
# that count are looked at where something waits.

INTERVAL: Final = 0.5  # seconds: as late as an answer given at another server may come

_DOOR: Final = Queries("door")
_APPROVALS: Final = Queries("approvals")
# An effect is no change of an approval.
_TOLD: Final = frozenset(StepKind) - {StepKind.EXECUTED, StepKind.RETURNED, StepKind.UNASKED}


class RemoteChanges:
    def __init__(self, inbox: ApprovalQueue) -> None:
        self._inbox = inbox
        self._read: dict[tuple[str, str], int] = {}
        self._granted: dict[str, dict[str, str | None]] = {}  # what counted in a workspace at the last look

    async def begin(self) -> None:
        """From here on: what was before is on record."""
        for row in await self._heads():
            self._read[row["workspace_id"], row["server"]] = row["seq"]

    async def look(self) -> int:
        """How many changes there were."""
        count = 0
        for row in await self._heads():
            workspace, server, last = row["workspace_id"], row["server"], row["seq"]
            after = self._read.get((workspace, server), 0)
            if last > after:
                changes = await self._inbox.ledger.database.read(_changes, workspace, server, after, last)
                for approval, step in changes:
                    self._inbox.tell(approval, step)
                count += len(changes)
                self._read[workspace, server] = last
        await self._look_at_grants()
        return count

    async def _look_at_grants(self) -> None:
        """One query for all workspaces where something waits. It tells of grants of this server too, once more: that is
        one more reading for those that it may cover."""
        inbox = self._inbox
        waiting = {wait.approval.workspace_id for wait in inbox.waits if wait.approval}
        if not waiting:
            return
        counting = await inbox.ledger.database.read(ids_in, waiting, inbox.clock.now_ms())
        for workspace in waiting:
            before, now = self._granted.get(workspace, {}), counting.get(workspace, {})
            for session in {now[grant] for grant in now.keys() - before.keys()}:
                inbox.granted(workspace, session)
            self._granted[workspace] = now

    async def _heads(self) -> Rows:
        return await self._inbox.ledger.database.read(_heads, self._inbox.ledger.chain.server)


def _heads(server: str) -> Transaction[Rows]:
    return (yield _DOOR.heads(server=server))


def _changes(
    workspace: str, server: str, after: int, last: int
) -> Transaction[list[tuple[Approval, StepKind]]]:
    steps = yield _DOOR.steps_after(workspace=workspace, server=server, after=after, last=last)
    newest = {row["approval_id"]: row for row in steps if StepKind(row["step"]) in _TOLD}
    found = []
    for approval_id, step in newest.items():
        rows = yield _APPROVALS.get(workspace=workspace, id=approval_id)
        found += [(replace(read(row), reason=step["reason"]), StepKind(step["step"])) for row in rows]
    return found


EXPIRE_EVERY: Final = 5.0  # seconds; whoever waits does not wait for it
FORGET_EVERY: Final = 600.0

logger = logging.getLogger("legation.approvals")


@asynccontextmanager
async def approvals_upkeep(
    inbox: ApprovalQueue, policies: Policies, ended: OnCallEnded | None = None
) -> AsyncIterator[None]:
    """What dead processes left is settled before it begins."""
    await sign(inbox)
    await bury(inbox, ended)
    await inbox.expire()
    await inbox.supersede_revoked()
    clock, database = inbox.clock, inbox.ledger.database
    tasks = [
        asyncio.create_task(policies.follow(clock), name="legation-policies"),
        _every(clock, SIGN_MS / 1000, lambda: sign(inbox)),
        _every(clock, EXPIRE_EVERY, inbox.expire),
        _every(clock, EXPIRE_EVERY, inbox.supersede_revoked),
        _every(clock, FORGET_EVERY, lambda: _forget_old(inbox)),
    ]
    if database.dialect == "postgres":
        elsewhere = RemoteChanges(inbox)
        await elsewhere.begin()
        tasks += [
            _every(clock, INTERVAL, elsewhere.look),
            _every(clock, DEAD_MS / 4000, lambda: bury(inbox, ended)),
        ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forget_old(inbox: ApprovalQueue) -> None:
    now = inbox.clock.now_ms()
    await inbox.ledger.database.transact(queue.forget_attendance, now)
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
