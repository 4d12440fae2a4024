"""The wait for one pending approval, by the process that asked for it.

INV-V1  One that no supervisor is there for goes to a person after `supervisor_wait`, and so does one that supervisors
        left undecided for half of its time. The trace says which.
INV-V2  Whenever it needs a person, people are told, and once more before it expires.
INV-V3  At its expiry it is over: silence is never consent.
INV-V4  A database that is away for a while ends no wait: what is pending has somebody who waits for it.
INV-V5  Under other policies, and after a grant, it is decided anew: it is asked about all the same, or it is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

from legation.approvals.admit import DoorTransactions, Evaluated, OverLimit, lifting, over_limit, result_of
from legation.approvals.approval import Approval, ApprovalState, NoticeKind, NoticeReason
from legation.approvals.policies import Policies, evaluate
from legation.approvals.policy.rules import PolicySet
from legation.approvals.queue import AWAY, AWAY_MS, ApprovalNews, ApprovalQueue, Attendance, first_of
from legation.approvals.request import LIFTED, POLICY, DoorResult
from legation.approvals.trace.step import StepKind
from legation.approvals.transitions import Revoked
from legation.errors import AlreadyAnswered, Conflict
from legation.store.database.transaction import Transaction
from legation.wire.principal import Principal

LOOK_MS: Final = 5_000  # between two looks whether a supervisor is there
REMIND_MS: Final = 600_000  # before the expiry, at most
WAIT_MS: Final = 30_000  # for a supervisor, unless the owner says otherwise

Notify: TypeAlias = Callable[[Approval, NoticeKind, NoticeReason], None]


@dataclass(slots=True, kw_only=True)
class ApprovalWait:
    """Wait for the end of one pending approval; meanwhile escalate it, notify people, expire it (INV-V1 to V5). Where the
    rules or a grant ended it, `result` says how, and `evaluated` is what they say."""

    queue: ApprovalQueue
    attendance: Attendance
    policies: Policies
    transactions: DoorTransactions
    evaluated: Evaluated
    news: ApprovalNews  # what the queue has told of it since it was asked
    caller_gone: asyncio.Event
    door_closing: asyncio.Event
    notify: Notify | None  # None: people sit in front of it
    supervisor_wait_ms: int
    result: DoorResult | None = field(default=None, init=False)
    _grants: int = field(default=0, init=False)  # that were looked at
    _notified: bool = field(default=False, init=False)
    _remind_at: int | None = field(default=None, init=False)  # since then, until they are told again
    _why: NoticeReason = field(default="policy", init=False)

    async def run(self, approval: Approval) -> Approval | None:
        """Return the approval as it ended, or None if the caller left or the door closed before."""
        if self.news.approval is None:
            self.news.approval = approval
        while not (self.caller_gone.is_set() or self.door_closing.is_set()):
            self.news.event.clear()
            approval = self.news.approval
            if approval.status is not ApprovalState.PENDING:
                return approval
            try:
                if (ended := await self._check(approval)) is not None:
                    return ended
                if self.news.event.is_set():
                    continue
                pause = self._ms_to_next_check(self.news.approval)
            except AWAY:
                if approval.expires_at <= self.queue.clock.now_ms():
                    raise  # nobody can answer it any more; whoever finds the database back expires it
                pause = AWAY_MS
            await first_of(
                self.queue.clock, pause / 1000, self.news.event, self.caller_gone, self.door_closing
            )
        return None

    async def _check(self, approval: Approval) -> Approval | None:
        policies = self.policies.current
        is_old = policies.version != approval.policy_version or self._grants != self.news.grants
        if is_old and (ended := await self._recheck(approval, policies)) is not None:
            return ended
        now = self.queue.clock.now_ms()
        try:
            if approval.expires_at <= now:
                await self.queue.expire()
                await self.queue.refresh(approval)  # another server may have been faster
            elif approval.needs == "person":
                self._notify(approval, now)
            elif (reason := await self._reason_to_escalate(approval, now)) is not None:
                self._why = reason
                await self.queue.escalate(door_principal(approval.workspace_id), approval.id, reason=reason)
        except Conflict:
            await self.queue.refresh(approval)  # somebody was faster
        return None

    async def _reason_to_escalate(
        self, approval: Approval, now: int
    ) -> Literal["no-supervisor", "undecided"] | None:
        if now >= self._escalate_at(approval):
            return "undecided"
        if now < approval.created_at + self.supervisor_wait_ms:
            return None
        last = await self.attendance.last(approval.workspace_id, approval.tool)
        absent_since = max(last, approval.created_at)
        return "no-supervisor" if now - absent_since >= self.supervisor_wait_ms else None

    def _notify(self, approval: Approval, now: int) -> None:
        if not self._notified:
            self._notified = True
            self._remind_at = approval.expires_at - min(REMIND_MS, (approval.expires_at - now) // 4)
            if self._why == "policy" and approval.escalated_at is not None:
                self._why = "escalated"
            if self.notify is not None:
                self.notify(approval, "asked", self._why)
        elif self._remind_at is not None and now >= self._remind_at:
            self._remind_at = None
            if self.notify is not None:
                self.notify(approval, "reminder", self._why)

    def _ms_to_next_check(self, approval: Approval) -> int:
        now, moments = self.queue.clock.now_ms(), [approval.expires_at]
        if approval.needs == "supervisor":
            first = approval.created_at + self.supervisor_wait_ms
            moments += [self._escalate_at(approval), first if now < first else now + LOOK_MS]
        elif self._remind_at is not None:
            moments.append(self._remind_at)
        return max(0, min(moments) - now)

    def _escalate_at(self, approval: Approval) -> int:
        half = (approval.created_at + approval.expires_at) // 2
        # The other half is a person's; but a supervisor has its time in any case.
        return max(half, approval.created_at + self.supervisor_wait_ms)

    # Other rules, or a grant, while it is pending.

    async def _recheck(self, approval: Approval, policies: PolicySet) -> Approval | None:
        request, is_bound = self.evaluated.request, policies.version == approval.policy_version
        verdict, seen = await evaluate(policies, request.action, request.facts)
        self.evaluated = replace(self.evaluated, policies=policies, verdict=verdict, facts=seen)
        try:
            return await (self._check_grants(approval) if is_bound else self._under_other_rules(approval))
        except Revoked:
            await self.queue.supersede_revoked()
            return await self.queue.refresh(approval)
        except Conflict:  # an answer was faster, or another edit of the rules
            found = await self.queue.refresh(approval)  # there is news, be it another server's
            if found.consumed_at is None:
                return None
            # Nobody else consumes what this one waits for: it was lifted here, and the database went before it said so.
            self.queue.publish(found, StepKind.RESOLVED)
            return self._passed(found)

    async def _check_grants(self, approval: Approval) -> Approval | None:
        """Let it pass by a grant that was given while it waits."""
        queue, evaluated, given = self.queue, self.evaluated, self.news.grants
        # Read first: most grants cover little of what waits, and only the rest is worth a turn of the chain.
        if await queue.ledger.database.read(lifting, evaluated, queue.clock.now_ms()) is not None:
            await self._pass_by_grant(approval)
        self._grants = given  # not before: a database that is away is asked again
        return None if self.result is None else self.news.approval

    async def _pass_by_grant(self, approval: Approval) -> None:
        queue, evaluated = self.queue, self.evaluated
        try:
            used = await queue.change(evaluated.workspace, StepKind.RESOLVED, self._lift, approval)
        except OverLimit as over:
            if await queue.cancel(evaluated.workspace, [approval.id], "limit-reached"):
                self.result = over_limit(evaluated, over.hit, approval.call)
            else:
                await queue.refresh(approval)  # an answer was faster
            return
        self._passed(used)

    def _passed(self, used: Approval) -> Approval:
        self.queue.publish(used, StepKind.CONSUMED)
        by = used.resolved_by or POLICY
        self.result = result_of(self.evaluated, "approved", by, LIFTED, None, used.call)
        return used

    def _lift(self, approval: Approval, _asked_at: int) -> Transaction[Approval]:
        # Its turn may come late where many wait: a grant may have run out by then, and who has gone is not acted for.
        if self.caller_gone.is_set():
            raise AlreadyAnswered(f"cannot lift approval {approval.id}: whoever asked has gone")
        return (yield from self.transactions.lift(self.evaluated, approval, self.queue.clock.now_ms()))

    async def _under_other_rules(self, approval: Approval) -> Approval | None:
        queue, evaluated, verdict = self.queue, self.evaluated, self.evaluated.verdict
        match verdict.action:
            case "supervisor" | "human_approval" as asked:
                await queue.change(
                    evaluated.workspace,
                    StepKind.DECIDED,
                    queue.life.rebind,
                    approval,
                    evaluated.action,
                    asked,
                    verdict.name,
                    evaluated.policies.version,
                    verdict.reviewers,
                )
                return None
            case "deny":
                await queue.cancel(evaluated.workspace, [approval.id], "policy-changed")
                self.result = result_of(
                    evaluated, "denied", POLICY, verdict.reason, verdict.message, approval.call
                )
            case "allow":
                now = queue.clock.now_ms()
                self.result = await queue.ledger.transact(
                    evaluated.workspace,
                    self.transactions.pass_after_all,
                    evaluated,
                    approval,
                    now,
                )
                queue.publish(await queue.refresh(approval), StepKind.CANCELLED)
        return await queue.refresh(approval)


def door_principal(workspace: str) -> Principal:
    """Name the one who escalates what nobody decides."""
    return Principal(kind="legation", id="door", workspace=workspace, scopes=frozenset({"approve"}), level=2)
