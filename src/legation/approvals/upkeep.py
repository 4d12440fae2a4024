"""The upkeep of approvals: signs of life, expiries, dead waiters, changes made by other servers.

A server's folder belongs to one process at a time: any other waiter of the same server is a former process of it, and
dead. A waiter of another server is dead when it has not been seen for long.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from msgspec.structs import replace

from legation.approvals.admit import give_up
from legation.approvals.approval import Approval, read
from legation.approvals.grants import ids_in
from legation.approvals.policies import Policies
from legation.approvals.queue import ApprovalQueue, forget_attendance
from legation.approvals.request import OnCallEnded
from legation.approvals.trace.step import StepKind
from legation.clock import Clock
from legation.errors import LegationError
from legation.store import counters
from legation.store.database.transaction import Queries, Rows, Transaction, rows
from legation.tasks import TaskSet

SIGN_MS: Final = 10_000  # between two signs of life
DEAD_MS: Final = 120_000  # without one: as long as a database may be away without everything being superseded
EXPIRE_EVERY: Final = 5.0  # seconds; whoever waits does not wait for it
FORGET_EVERY: Final = 600.0
INTERVAL: Final = 0.5  # seconds: as late as an answer given at another server may come

_DOOR: Final = Queries("door")
_APPROVALS: Final = Queries("approvals")
# An effect is no change of an approval.
_TOLD: Final = frozenset(StepKind) - {StepKind.EXECUTED, StepKind.RETURNED, StepKind.UNASKED}

logger = logging.getLogger("legation.approvals")


@asynccontextmanager
async def approvals_upkeep(
    queue: ApprovalQueue, policies: Policies, ended: OnCallEnded | None = None
) -> AsyncIterator[None]:
    """Settle what dead processes left, then keep the approvals of a server in order."""
    await sign_of_life(queue)
    await supersede_dead_waiters(queue, ended)
    await queue.expire()
    await queue.supersede_revoked()
    clock, tasks = queue.clock, TaskSet("legation-upkeep")
    tasks.start(policies.follow(clock))
    tasks.start(_every(clock, SIGN_MS / 1000, partial(sign_of_life, queue)))
    tasks.start(_every(clock, EXPIRE_EVERY, queue.expire))
    tasks.start(_every(clock, EXPIRE_EVERY, queue.supersede_revoked))
    tasks.start(_every(clock, FORGET_EVERY, partial(_forget_old, queue)))
    try:
        if queue.ledger.database.dialect == "postgres":
            remote = RemoteChanges(queue)
            await remote.start()
            tasks.start(_every(clock, INTERVAL, remote.publish_new))
            tasks.start(_every(clock, DEAD_MS / 4000, partial(supersede_dead_waiters, queue, ended)))
        yield
    finally:
        await tasks.close()


async def sign_of_life(queue: ApprovalQueue) -> None:
    enroll = _DOOR.enroll(id=queue.waiter, server=queue.ledger.chain.server, now=queue.clock.now_ms())
    await queue.ledger.database.transact(rows, enroll)


async def supersede_dead_waiters(queue: ApprovalQueue, ended: OnCallEnded | None = None) -> int:
    """End what dead waiters waited for; what they had begun is of unknown outcome. Return how many were dead."""
    now, database, server = queue.clock.now_ms(), queue.ledger.database, queue.ledger.chain.server
    found = _DOOR.dead_waiters(id=queue.waiter, server=server, before=now - DEAD_MS)
    dead = [row["id"] for row in await database.read(rows, found)]
    if dead:
        await queue.supersede(dead)
        for workspace, trace_id in await give_up(queue.ledger, dead, now):
            if ended is not None:
                ended(workspace, trace_id)
        for waiter in dead:
            await database.transact(rows, _DOOR.forget_waiter(id=waiter))
    return len(dead)


class RemoteChanges:
    """The changes that other servers made to approvals: read from their chains, and published here as if it had happened here.

    Only with a shared database. One query asks where all chains end; only what is new is read. Grants stand in no chain:
    those that count are looked at where something waits.
    """

    def __init__(self, queue: ApprovalQueue) -> None:
        self._queue = queue
        self._read: dict[tuple[str, str], int] = {}
        self._granted: dict[str, dict[str, str | None]] = {}  # what counted in a workspace at the last look

    async def start(self) -> None:
        """Begin where the chains end now: what was before is on record."""
        for row in await self._heads():
            self._read[row["workspace_id"], row["server"]] = row["seq"]

    async def publish_new(self) -> int:
        """Publish what is new, and return how many changes there were."""
        count = 0
        for row in await self._heads():
            workspace, server, last = row["workspace_id"], row["server"], row["seq"]
            after = self._read.get((workspace, server), 0)
            if last > after:
                changes = await self._queue.ledger.database.read(_changes, workspace, server, after, last)
                for approval, step in changes:
                    self._queue.publish(approval, step)
                count += len(changes)
                self._read[workspace, server] = last
        await self._look_at_grants()
        return count

    async def _look_at_grants(self) -> None:
        """Ask once for all workspaces where something waits. It tells of grants of this server too, once more: that is
        one more reading for those that it may cover."""
        queue = self._queue
        waiting = {news.approval.workspace_id for news in queue.waits if news.approval}
        if not waiting:
            return
        counting = await queue.ledger.database.read(ids_in, waiting, queue.clock.now_ms())
        for workspace in waiting:
            before, now = self._granted.get(workspace, {}), counting.get(workspace, {})
            for session in {now[grant] for grant in now.keys() - before.keys()}:
                queue.granted(workspace, session)
            self._granted[workspace] = now

    async def _heads(self) -> Rows:
        ledger = self._queue.ledger
        return await ledger.database.read(rows, _DOOR.heads(server=ledger.chain.server))


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


async def _forget_old(queue: ApprovalQueue) -> None:
    now, database = queue.clock.now_ms(), queue.ledger.database
    await database.transact(forget_attendance, now)
    while await database.transact(counters.forget, now) == counters.FORGET_BATCH:
        pass


async def _every(clock: Clock, seconds: float, work: Callable[[], Awaitable[object]]) -> None:
    while True:
        await clock.sleep(seconds)
        try:
            await work()
        except LegationError as error:  # the next time may do what this one could not
            logger.warning("cannot look after approvals: %s", error)
