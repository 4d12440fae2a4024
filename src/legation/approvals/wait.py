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
from legation.approvals.approval import Approval, ApprovalState
from legation.approvals.policies import Policies, judged_by
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

Why: TypeAlias = Literal["policy", "escalated", "no-supervisor", "undecided"]
Moment: TypeAlias = Literal["asked", "reminder"]
Notify: TypeAlias = Callable[[Approval, Moment, Why], None]


@dataclass(slots=True, kw_only=True)
class ApprovalWait:
    """`run` returns the approval when it is no longer pending, or None when whoever asked has gone. Where the rules or a
    grant ended it, `ruling` says how, and `judged` is what they say."""

    inbox: ApprovalQueue
    attendance: Attendance
    policies: Policies
    passage: DoorTransactions
    judged: Evaluated
    wait: ApprovalNews
    gone: asyncio.Event  # whoever asked has
    closing: asyncio.Event  # nobody is waited for any more
    notify: Notify | None  # None: people sit in front of it
    supervisor_wait_ms: int
    ruling: DoorResult | None = field(default=None, init=False)
    _grants: int = field(default=0, init=False)  # that were looked at
    _told: bool = field(default=False, init=False)  # people were
    _remind_at: int | None = field(default=None, init=False)  # since then, until they are told again
    _why: Why = field(default="policy", init=False)

    async def run(self, approval: Approval) -> Approval | None:
        if self.wait.approval is None:
            self.wait.approval = approval
        while not (self.gone.is_set() or self.closing.is_set()):
            self.wait.news.clear()
            approval = self.wait.approval
            if approval.status is not ApprovalState.PENDING:
                return approval
            try:
                if (ended := await self._look_after(approval)) is not None:
                    return ended
                if self.wait.news.is_set():
                    continue
                pause = self._next(self.wait.approval)
            except AWAY:
                if approval.expires_at <= self.inbox.clock.now_ms():
                    raise  # nobody can answer it any more; whoever finds the database back expires it
                pause = AWAY_MS
            await first_of(self.inbox.clock, pause / 1000, self.wait.news, self.gone, self.closing)
        return None

    async def _look_after(self, approval: Approval) -> Approval | None:
        policies = self.policies.current
        is_old = policies.version != approval.policy_version or self._grants != self.wait.grants
        if is_old and (ended := await self._decide_anew(approval, policies)) is not None:
            return ended
        now = self.inbox.clock.now_ms()
        try:
            if approval.expires_at <= now:
                await self.inbox.expire()
                await self.inbox.look(approval)  # another server may have been faster
            elif approval.needs == "person":
                self._tell_people(approval, now)
            elif (reason := await self._why_a_person(approval, now)) is not None:
                self._why = reason
                await self.inbox.escalate(door_of(approval.workspace_id), approval.id, reason=reason)
        except Conflict:
            await self.inbox.look(approval)  # somebody was faster
        return None

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
        if not self._told:
            self._told = True
            self._remind_at = approval.expires_at - min(REMIND_MS, (approval.expires_at - now) // 4)
            if self._why == "policy" and approval.escalated_at is not None:
                self._why = "escalated"
            if self.notify is not None:
                self.notify(approval, "asked", self._why)
        elif self._remind_at is not None and now >= self._remind_at:
            self._remind_at = None
            if self.notify is not None:
                self.notify(approval, "reminder", self._why)

    def _next(self, approval: Approval) -> int:
        """When there is something to do, if nothing happens before."""
        now, moments = self.inbox.clock.now_ms(), [approval.expires_at]
        if approval.needs == "supervisor":
            first = approval.created_at + self.supervisor_wait_ms
            moments += [self._half(approval), first if now < first else now + LOOK_MS]
        elif self._remind_at is not None:
            moments.append(self._remind_at)
        return max(0, min(moments) - now)

    def _half(self, approval: Approval) -> int:
        """The other half is a person's; but a supervisor has its time in any case."""
        half = (approval.created_at + approval.expires_at) // 2
        return max(half, approval.created_at + self.supervisor_wait_ms)

    # Other rules, or a grant, while it is pending.

    async def _decide_anew(self, approval: Approval, policies: PolicySet) -> Approval | None:
        request, is_bound = self.judged.request, policies.version == approval.policy_version
        verdict, seen = await judged_by(policies, request.action, request.facts)
        self.judged = replace(self.judged, policies=policies, verdict=verdict, facts=seen)
        try:
            return await (self._lifted(approval) if is_bound else self._under_other_rules(approval))
        except Revoked:
            await self.inbox.supersede_revoked()
            return await self.inbox.look(approval)
        except Conflict:  # an answer was faster, or another edit of the rules
            found = await self.inbox.look(approval)  # there is news, be it another server's
            if found.consumed_at is None:
                return None
            # Nobody else consumes what this one waits for: it was lifted here, and the database went before it said so.
            self.inbox.tell(found, StepKind.RESOLVED)
            return self._passed(found)

    async def _lifted(self, approval: Approval) -> Approval | None:
        """By a grant that was given while it waits. It is read first: most grants cover little of what waits, and only
        the rest is worth a turn of the chain."""
        inbox, judged, given = self.inbox, self.judged, self.wait.grants
        if await inbox.ledger.database.read(lifting, judged, inbox.clock.now_ms()) is not None:
            await self._leave(approval)
        self._grants = given  # not before: a database that is away is asked again
        return None if self.ruling is None else self.wait.approval

    async def _leave(self, approval: Approval) -> None:
        inbox, judged = self.inbox, self.judged
        try:
            used = await inbox.changed(
                judged.request.principal.workspace, StepKind.RESOLVED, self._lift, approval
            )
        except OverLimit as over:
            if await inbox.cancel(judged.request.principal.workspace, [approval.id], "limit-reached"):
                self.ruling = over_limit(judged, approval, over)
            else:
                await inbox.look(approval)  # an answer was faster
            return
        self._passed(used)

    def _passed(self, used: Approval) -> Approval:
        self.inbox.tell(used, StepKind.CONSUMED)
        by = used.resolved_by or POLICY
        self.ruling = result_of(self.judged, "approved", by, LIFTED, None, used.call)
        return used

    def _lift(self, approval: Approval, _asked_at: int) -> Transaction[Approval]:
        """At the time when its turn has come, which may be late where many wait: a grant may have run out by then, and
        who has gone by then is not acted for."""
        if self.gone.is_set():
            raise AlreadyAnswered(f"cannot lift approval {approval.id}: whoever asked has gone")
        return (yield from self.passage.lift(self.judged, approval, self.inbox.clock.now_ms()))

    async def _under_other_rules(self, approval: Approval) -> Approval | None:
        inbox, judged, verdict = self.inbox, self.judged, self.judged.verdict
        match verdict.action:
            case "supervisor" | "human_approval" as asked:
                await inbox.changed(
                    judged.request.principal.workspace,
                    StepKind.DECIDED,
                    inbox.life.rebind,
                    approval,
                    judged.request.action,
                    asked,
                    verdict.name,
                    judged.policies.version,
                    verdict.reviewers,
                )
                return None
            case "deny":
                await inbox.cancel(judged.request.principal.workspace, [approval.id], "policy-changed")
                self.ruling = result_of(
                    judged, "denied", POLICY, verdict.reason, verdict.message, approval.call
                )
            case "allow":
                now = inbox.clock.now_ms()
                self.ruling = await inbox.ledger.transact(
                    judged.request.principal.workspace, self.passage.pass_after_all, judged, approval, now
                )
                inbox.tell(await inbox.look(approval), StepKind.CANCELLED)
        return await inbox.look(approval)


def door_of(workspace: str) -> Principal:
    """Who escalates what nobody decides."""
    return Principal(kind="legation", id="door", workspace=workspace, scopes=frozenset({"approve"}), level=2)
