"""The watch over one pending approval, kept by the process that waits for it.

INV-V1  One that no supervisor is there for goes to a person after `supervisor_wait`, and so does one that supervisors
        left undecided for half of its time. The trace says which.
INV-V2  Whenever it needs a person, people are told, and once more before it expires.
INV-V3  At its expiry it is over: silence is never consent.
INV-V4  A database that is away for a while ends no wait: what is pending has somebody who waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from legation.approvals.approval import Approval
from legation.approvals.attendance import Attendance
from legation.approvals.inbox import Inbox, Wait, is_over
from legation.clock import Clock
from legation.errors import Conflict, StorageFailed, Unavailable
from legation.wire.principal import Principal

LOOK_MS: Final = 5_000  # between two looks whether a supervisor is there
AWAY_MS: Final = 2_000  # between two tries of a database that is away: its time to come back
REMIND_MS: Final = 600_000  # before the expiry, at most
WAIT_MS: Final = 30_000  # for a supervisor, unless the owner says otherwise

AWAY: Final = (StorageFailed, Unavailable)  # how a database is that may come back

Why: TypeAlias = Literal["policy", "escalated", "no-supervisor", "undecided"]
Moment: TypeAlias = Literal["asked", "reminder"]
Notify: TypeAlias = Callable[[Approval, Moment, Why], None]


def nobody(_approval: Approval, _moment: Moment, _why: Why) -> None:
    """For those whose people sit in front of it."""


@dataclass(slots=True)
class Vigil:
    """`keep` returns the approval when it is no longer pending, or None when whoever asked has gone.

    `recheck` looks at it anew whenever there is news, and gives the approval back if that ended it."""

    inbox: Inbox
    attendance: Attendance
    wait: Wait
    gone: asyncio.Event  # whoever asked has
    closing: asyncio.Event  # nobody is waited for any more
    recheck: Callable[[Approval], Awaitable[Approval | None]]
    notify: Notify = nobody
    supervisor_wait_ms: int = WAIT_MS
    _person_since: int | None = field(default=None, init=False)
    _reminded: bool = field(default=False, init=False)
    _why: Why = field(default="policy", init=False)

    async def keep(self, approval: Approval) -> Approval | None:
        if self.wait.approval is None:
            self.wait.approval = approval
        while not (self.gone.is_set() or self.closing.is_set()):
            self.wait.news.clear()
            approval = self.wait.approval
            if is_over(approval):
                return approval
            try:
                if (ended := await self._look_after(approval)) is not None:
                    return ended
            except AWAY:
                if approval.expires_at <= self._now():
                    raise  # nobody can answer it any more; whoever finds the database back expires it
                await self._rest(AWAY_MS)
                continue
            if not self.wait.news.is_set():
                await self._rest(self._next(self.wait.approval))
        return None

    async def _look_after(self, approval: Approval) -> Approval | None:
        if (ended := await self.recheck(approval)) is not None:
            return ended
        try:
            await self._act(approval)
        except Conflict:
            await self.inbox.look(approval)  # somebody was faster
        return None

    async def _act(self, approval: Approval) -> None:
        now = self._now()
        if approval.expires_at <= now:
            await self.inbox.expire()
            await self.inbox.look(approval)  # another server may have been faster
        elif approval.needs == "person":
            self._tell_people(approval, now)
        elif (reason := await self._why_a_person(approval, now)) is not None:
            self._why = reason
            await self.inbox.escalate(door_of(approval.workspace_id), approval.id, reason=reason)

    async def _why_a_person(
        self, approval: Approval, now: int
    ) -> Literal["no-supervisor", "undecided"] | None:
        if now >= self._half(approval):
            return "undecided"
        if now < approval.created_at + self.supervisor_wait_ms:
            return None
        last = await self.attendance.last(approval.workspace_id, approval.tool)
        absent_since = max(last, approval.created_at)
        return "no-supervisor" if now - absent_since >= self.supervisor_wait_ms else None

    def _tell_people(self, approval: Approval, now: int) -> None:
        if self._person_since is None:
            self._person_since = now
            if self._why == "policy" and approval.escalated_at is not None:
                self._why = "escalated"
            self.notify(approval, "asked", self._why)
        elif not self._reminded and now >= self._remind_at(approval):
            self._reminded = True
            self.notify(approval, "reminder", self._why)

    def _next(self, approval: Approval) -> int:
        """When there is something to do, if nothing happens before."""
        now, moments = self._now(), [approval.expires_at]
        if approval.needs == "supervisor":
            first = approval.created_at + self.supervisor_wait_ms
            moments += [self._half(approval), first if now < first else now + LOOK_MS]
        elif self._person_since is not None and not self._reminded:
            moments.append(self._remind_at(approval))
        return max(0, min(moments) - now)

    def _remind_at(self, approval: Approval) -> int:
        since = self._person_since or approval.created_at
        return approval.expires_at - min(REMIND_MS, (approval.expires_at - since) // 4)

    def _half(self, approval: Approval) -> int:
        """The other half is a person's; but a supervisor has its time in any case."""
        half = (approval.created_at + approval.expires_at) // 2
        return max(half, approval.created_at + self.supervisor_wait_ms)

    def _now(self) -> int:
        return self.inbox.clock.now_ms()

    async def _rest(self, ms: int) -> None:
        await first_of(self.inbox.clock, ms / 1000, self.wait.news, self.gone, self.closing)


async def first_of(clock: Clock, seconds: float, *events: asyncio.Event) -> None:
    """Until one of the events, or so long."""
    tasks = [asyncio.create_task(event.wait()) for event in events]
    sleep = asyncio.create_task(clock.sleep(seconds))
    try:
        await asyncio.wait([*tasks, sleep], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (*tasks, sleep):
            task.cancel()
        await asyncio.gather(*tasks, sleep, return_exceptions=True)


def door_of(workspace: str) -> Principal:
    """Who escalates what nobody decides."""
    return Principal(kind="legation", id="door", workspace=workspace, scopes=frozenset({"approve"}), level=2)
