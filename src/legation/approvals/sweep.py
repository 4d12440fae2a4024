"""The sweep over pending approvals: what time brings about, whoever asked and on whichever server.

Any server does it, and of many servers one does each thing once: what is due stands in the row (`look_at`,
`notified_at`), and whoever moves that on by a conditional update is the one that acts.

INV-V1  One that no supervisor is there for goes to a person after `supervisor_wait`, and so does one that supervisors
        left undecided for half of its time. The trace says which.
INV-V2  Whenever it needs a person, people are told, and once more before it expires.
INV-V3  At its expiry it is over: silence is never consent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Literal, TypeAlias

import msgspec

from legation.approvals.approval import Approval, NoticeKind, NoticeReason, label, read
from legation.approvals.queue import AWAY_MS, ApprovalQueue, Attendance, first_of
from legation.approvals.trace.step import StepKind
from legation.errors import Conflict, LegationError
from legation.store.database.transaction import Queries, only, rows
from legation.wire.principal import Principal

LOOK_MS: Final = 5_000  # between two looks whether a supervisor is there
REMIND_MS: Final = 600_000  # before the expiry, at most
WAIT_MS: Final = 30_000  # for a supervisor, unless the owner says otherwise
MOST_MS: Final = 5_000  # between two sweeps: another server may have gone that would have done it
LEAST_MS: Final = 50  # between two sweeps that found nothing to do, though something is due
BATCH: Final = 200

Notify: TypeAlias = Callable[[Approval, NoticeKind, NoticeReason], None]

_SQL: Final = Queries("approvals")
_TELLING: Final = (StepKind.PROPOSED, StepKind.DECIDED, StepKind.ESCALATED)

logger = logging.getLogger("legation.approvals")


class ApprovalSweep:
    """Escalate, notify and expire what is pending. `notify` None: there is no way to people from this server."""

    def __init__(
        self,
        queue: ApprovalQueue,
        attendance: Attendance,
        notify: Notify | None = None,
        supervisor_wait_ms: int = WAIT_MS,
    ) -> None:
        self._queue = queue
        self._attendance = attendance
        self._notify = notify
        self._supervisor_wait_ms = supervisor_wait_ms
        self._asked = asyncio.Event()
        queue.on_change(self._on_change)

    async def run(self) -> None:
        """Sweep whenever something is due or has changed, until cancelled."""
        while True:
            self._asked.clear()
            try:
                await self.once()
                pause = await self._pause_ms()
            except LegationError as error:  # the next time may do what this one could not
                logger.warning("cannot look after what is pending: %s", error)
                pause = AWAY_MS
            await first_of(self._queue.clock, pause / 1000, self._asked)

    async def once(self) -> None:
        queue = self._queue
        await queue.expire()
        now, later = queue.clock.now_ms(), list[str]()
        for approval in await self._due("supervisor", now):
            if (reason := await self._reason_to_escalate(approval, now)) is None:
                later.append(approval.id)
                continue
            with suppress(Conflict):  # somebody was faster
                await queue.escalate(door_principal(approval.workspace_id), approval.id, reason=reason)
        if later:
            ids, ahead = msgspec.json.encode(later).decode(), now + LOOK_MS
            await queue.ledger.database.transact(rows, _SQL.look_later(now=now, next=ahead, ids=ids))
        if self._notify is not None:
            for approval in await self._due("person", queue.clock.now_ms()):
                await self._tell(approval, self._notify)

    def _on_change(self, approval: Approval, happened: StepKind) -> None:
        if happened not in _TELLING or approval.look_at is None:
            return
        is_due = approval.look_at <= self._queue.clock.now_ms()
        if is_due and (self._notify is not None or approval.needs == "supervisor"):
            self._asked.set()

    async def _due(self, needs: Literal["supervisor", "person"], now: int) -> list[Approval]:
        due = _SQL.to_look_at(needs=needs, now=now, limit=BATCH)
        return [read(row) for row in await self._queue.ledger.database.read(rows, due)]

    async def _reason_to_escalate(
        self, approval: Approval, now: int
    ) -> Literal["no-supervisor", "undecided"] | None:
        if now >= _escalate_at(approval, self._supervisor_wait_ms):
            return "undecided"
        if now < approval.created_at + self._supervisor_wait_ms:
            return None
        last = await self._attendance.last(approval.workspace_id, approval.tool)
        absent_since = max(last, approval.created_at)
        return "no-supervisor" if now - absent_since >= self._supervisor_wait_ms else None

    async def _tell(self, due: Approval, notify: Notify) -> None:
        """Notify people of it, unless another server does. One that dies in between leaves the reminder."""
        now, first = self._queue.clock.now_ms(), due.notified_at is None
        ahead = due.expires_at - min(REMIND_MS, (due.expires_at - now) // 4) if first else None
        noted = _SQL.note_notice(
            workspace=due.workspace_id, id=due.id, look_at=due.look_at, next=ahead, now=now
        )
        row = only(await self._queue.ledger.database.transact(rows, noted))
        if row is not None:
            why = why_person(due, self._supervisor_wait_ms)
            notify(read(row), "asked" if first else "reminder", why)

    async def _pause_ms(self) -> int:
        row = only(await self._queue.ledger.database.read(rows, _SQL.next_look()))
        assert row is not None
        told = ("supervisor", "expiry", "person") if self._notify is not None else ("supervisor", "expiry")
        due = min((row[name] for name in told if row[name] is not None), default=None)
        ahead = MOST_MS if due is None else due - self._queue.clock.now_ms()
        return min(MOST_MS, max(LEAST_MS, ahead))


def why_person(approval: Approval, supervisor_wait_ms: int) -> NoticeReason:
    """Tell how it came to a person."""
    if approval.escalated_at is None:
        return "policy"
    if approval.escalated_by != label(door_principal("")):
        return "escalated"
    undecided = approval.escalated_at >= _escalate_at(approval, supervisor_wait_ms)
    return "undecided" if undecided else "no-supervisor"


def _escalate_at(approval: Approval, supervisor_wait_ms: int) -> int:
    half = (approval.created_at + approval.expires_at) // 2
    # The other half is a person's; but a supervisor has its time in any case.
    return max(half, approval.created_at + supervisor_wait_ms)


def door_principal(workspace: str) -> Principal:
    """Name the one who escalates what nobody decides."""
    return Principal(kind="legation", id="door", workspace=workspace, scopes=frozenset({"approve"}), level=2)
