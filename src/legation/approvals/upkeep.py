"""The upkeep of approvals: signs of life, holders that are gone, changes made by other servers.

INV-H1  A server's folder belongs to one process at a time: any other holder of the same server is a former process of it,
        and gone. Any other holder is gone when it has signed off, or was silent for `waiter_dead`.
INV-H2  Silence is counted in the time in which the database answered (`pulse`): every sign of life moves that on, by two
        pauses between them at most. So a database that was away, or servers that all were, make nobody silent.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from legation.approvals.admit import give_up
from legation.approvals.approval import Approval, read
from legation.approvals.grants import ids_in
from legation.approvals.policies import Policies
from legation.approvals.queue import CHANGES, ApprovalQueue, first_of, forget_attendance
from legation.approvals.request import OnCallEnded
from legation.approvals.sweep import ApprovalSweep
from legation.approvals.trace.step import StepKind
from legation.clock import Clock
from legation.errors import LegationError
from legation.store import counters
from legation.store.database.transaction import Queries, Rows, Transaction, rows
from legation.tasks import TaskSet

DEAD_MS: Final = 120_000  # without a sign of life, unless the owner says otherwise: then it is gone
SIGN_MS: Final = 5_000  # between two signs of life, at most
SIGNS: Final = 12  # in the time after which it is gone, at least
GRACE: Final = 3  # pauses between signs: after so many nobody relies on it, until it is heard of again
REVOKED_EVERY: Final = 5.0  # seconds; whoever revokes does not wait for it
FORGET_EVERY: Final = 600.0
FORGET_BATCH: Final = 500
INTERVAL: Final = 2.0  # seconds: as late as another server's answer may come where its notice was lost

_DOOR: Final = Queries("door")
_APPROVALS: Final = Queries("approvals")
_CALLS: Final = Queries("calls")
# An effect is no change of an approval.
_TOLD: Final = frozenset(StepKind) - {StepKind.EXECUTED, StepKind.RETURNED, StepKind.UNASKED}

logger = logging.getLogger("legation.approvals")


class SignsOfLife(msgspec.Struct, frozen=True):
    """Signs of life of holders: how often, and how long one may be silent, in milliseconds."""

    dead_ms: int = DEAD_MS

    @property
    def sign_ms(self) -> int:
        return min(SIGN_MS, self.dead_ms // SIGNS)

    async def sign(self, queue: ApprovalQueue) -> None:
        """Tell that this process is there, and with it everything that it holds."""
        now, server = queue.clock.now_ms(), queue.ledger.chain.server
        grace = GRACE * self.sign_ms
        await queue.ledger.database.transact(_sign, queue.holder, server, grace, now, 2 * self.sign_ms)

    async def sign_for(self, queue: ApprovalQueue, holder: str) -> None:
        """Tell that a program is there which waits by itself: its answers are kept for it until it is gone."""
        sign = _DOOR.sign(id=holder, server=None, grace=self.dead_ms)
        await queue.ledger.database.transact(rows, sign)


def _sign(holder: str, server: str, grace: int, now_ms: int, most: int) -> Transaction[None]:
    yield _DOOR.tick(now=now_ms, most=most)
    yield _DOOR.sign(id=holder, server=server, grace=grace)


@asynccontextmanager
async def approvals_upkeep(
    queue: ApprovalQueue,
    policies: Policies,
    sweep: ApprovalSweep,
    signs: SignsOfLife | None = None,
    ended: OnCallEnded | None = None,
) -> AsyncIterator[None]:
    """Settle what processes left that are gone, then keep the approvals of a server in order."""
    signs = signs or SignsOfLife()
    await signs.sign(queue)
    await supersede_lost(queue, signs, ended)
    await queue.supersede_revoked()
    clock, tasks = queue.clock, TaskSet("legation-upkeep")
    tasks.start(policies.follow(clock))
    tasks.start(_every(clock, signs.sign_ms / 1000, partial(signs.sign, queue)))
    tasks.start(sweep.run())
    tasks.start(_every(clock, signs.dead_ms / 4000, partial(supersede_lost, queue, signs, ended)))
    tasks.start(_every(clock, REVOKED_EVERY, queue.supersede_revoked))
    tasks.start(_every(clock, FORGET_EVERY, partial(_forget_old, queue)))
    try:
        if queue.ledger.database.dialect == "postgres":
            remote = RemoteChanges(queue)
            await remote.start()
            tasks.start(remote.follow())
        yield
    finally:
        await tasks.close()
        with suppress(LegationError):  # what outlives it is another's at once, not after `waiter_dead`
            await queue.ledger.database.transact(rows, _DOOR.sign_off(id=queue.holder))


async def supersede_lost(queue: ApprovalQueue, signs: SignsOfLife, ended: OnCallEnded | None = None) -> int:
    """End what ends with holders that are gone; what they had begun is of unknown outcome. Return how many had any."""
    now, database, server = queue.clock.now_ms(), queue.ledger.database, queue.ledger.chain.server
    who = {"id": queue.holder, "server": server, "dead": signs.dead_ms}
    gone = [row["holder"] for row in await database.read(rows, _DOOR.lost_holders(**who))]
    if gone:
        await queue.supersede(gone)
        for workspace, trace_id in await give_up(queue.ledger, gone, now):
            if ended is not None:
                ended(workspace, trace_id)
    await database.transact(rows, _DOOR.forget_holders(**who))
    return len(gone)


class RemoteChanges:
    """The changes that other servers made to approvals: read from their chains, and published here as if it had happened here.

    Only with a shared database. One query asks where all chains end; only what is new is read. Grants stand in no chain:
    those that count are looked at where something waits. The other servers' notices say when to look; that every look
    finds all there is, and comes in any case, is what can be relied on.
    """

    def __init__(self, queue: ApprovalQueue) -> None:
        self._queue = queue
        self._read: dict[tuple[str, str], int] = {}
        self._granted: dict[str, dict[str, str | None]] = {}  # what counted in a workspace at the last look

    async def start(self) -> None:
        """Begin where the chains end now: what was before is on record."""
        for row in await self._heads():
            self._read[row["workspace_id"], row["server"]] = row["seq"]

    async def follow(self) -> None:
        """Look whenever another server says so, and now and then."""
        queue = self._queue
        with queue.ledger.database.listen(CHANGES) as told:
            while True:
                await first_of(queue.clock, INTERVAL, told)
                told.clear()  # before the look: what comes meanwhile is another one
                try:
                    await self.publish_new()
                except LegationError as error:  # the next time may do what this one could not
                    logger.warning("cannot look at what other servers did: %s", error)

    async def publish_new(self) -> int:
        """Publish what is new, and return how many changes there were."""
        count = 0
        for row in await self._heads():
            workspace, server, last = row["workspace_id"], row["server"], row["seq"]
            after = self._read.get((workspace, server), 0)
            if last > after:
                changes = await self._queue.ledger.database.read(_changes, workspace, server, after, last)
                for approval, step in changes:
                    self._queue.publish(approval, step, remote=True)
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
                queue.granted(workspace, session, remote=True)
            self._granted[workspace] = now

    async def _heads(self) -> Rows:
        ledger = self._queue.ledger
        return await ledger.database.read(rows, _DOOR.heads(server=ledger.chain.server))


def _forget_calls(now_ms: int) -> Transaction[int]:
    """Forget a batch of calls under keys that nobody came back for. Return how many."""
    return len((yield _CALLS.forget_calls(now=now_ms, limit=FORGET_BATCH)))


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
    while await database.transact(_forget_calls, now) == FORGET_BATCH:
        pass
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
