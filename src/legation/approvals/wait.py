"""The wait for an approval, where its call is.

INV-V4  A database that is away for a while ends no wait: what is pending has somebody who waits for it.
INV-V5  Under other policies, and after a grant, it is decided anew: it is asked about all the same, or it is over.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from legation.approvals.admit import DoorTransactions, Evaluated, OverLimit, lifting, over_limit, result_of
from legation.approvals.approval import Approval, ApprovalState
from legation.approvals.policies import Policies
from legation.approvals.policy.rules import PolicySet, evaluate
from legation.approvals.queue import AWAY, AWAY_MS, ApprovalNews, ApprovalQueue, first_of
from legation.approvals.request import LIFTED, POLICY, DoorResult
from legation.approvals.trace.step import StepKind
from legation.approvals.transitions import Revoked
from legation.errors import AlreadyAnswered, Conflict
from legation.store.database.transaction import Transaction


@dataclass(slots=True, kw_only=True)
class ApprovalWait:
    """Wait for the end of one pending approval (INV-V4), and decide it anew meanwhile (INV-V5). Where the rules or a grant
    ended it, `result` says how, and `evaluated` is what they say."""

    queue: ApprovalQueue
    policies: Policies
    transactions: DoorTransactions
    evaluated: Evaluated
    news: ApprovalNews  # what the queue has told of it since it was asked
    caller_gone: asyncio.Event
    door_closing: asyncio.Event
    result: DoorResult | None = field(default=None, init=False)
    grants: int = 0  # that were looked at

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
                pause = max(0, self.news.approval.expires_at - self.queue.clock.now_ms())
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
        is_old = policies.version != approval.policy_version or self.grants != self.news.grants
        if is_old and (ended := await self._recheck(approval, policies)) is not None:
            return ended
        if approval.expires_at <= self.queue.clock.now_ms():
            await self.queue.expire()
            await self.queue.refresh(approval)  # another server may have been faster
        return None

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
        self.grants = given  # not before: a database that is away is asked again
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
        if used.consumed_at is not None:  # else whoever asked uses it later
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
                    verdict.reason,
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
