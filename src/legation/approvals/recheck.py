"""An edit of the rules, or a grant, while approvals are pending: these are decided anew."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from legation.approvals.approval import Approval
from legation.approvals.approval_endings import Revoked
from legation.approvals.inbox import Inbox, Wait
from legation.approvals.passage import Judged, OverLimit, Passage, lifting, over_limit, ruling_of
from legation.approvals.policies import Policies, judged_by
from legation.approvals.request import LIFTED, POLICY, Ruling
from legation.approvals.trace import StepKind
from legation.errors import AlreadyAnswered
from legation.store.database.transaction import Transaction


class Recheck:
    """Under other policies, and after a grant, a pending approval is decided anew: it is asked about all the same, or it
    is over."""

    def __init__(
        self,
        inbox: Inbox,
        policies: Policies,
        judged: Judged,
        passage: Passage,
        wait: Wait,
        gone: asyncio.Event,
    ) -> None:
        self.judged = judged
        self.ruling: Ruling | None = None  # where it is over
        self._inbox, self._policies, self._passage = inbox, policies, passage
        self._wait, self._gone = wait, gone
        self._grants = 0  # that were looked at

    async def __call__(self, approval: Approval) -> Approval | None:
        policies = self._policies.current
        is_bound = policies.version == approval.policy_version
        if is_bound and self._grants == self._wait.grants:
            return None
        request = self.judged.request
        verdict, seen = await judged_by(policies, request.action, request.facts)
        self.judged = replace(self.judged, policies=policies, verdict=verdict, facts=seen)
        try:
            return await (self._lifted(approval) if is_bound else self._decided_anew(approval))
        except Revoked:
            await self._inbox.supersede_revoked()
            return await self._inbox.look(approval)
        except AlreadyAnswered:
            found = await self._inbox.look(approval)  # there is news, be it another server's
            if found.consumed_at is None:
                return None
            # Nobody else consumes what this one waits for: it was lifted here, and the database went before it said so.
            self._inbox.tell(found, StepKind.RESOLVED)
            return self._passed(found)

    async def _lifted(self, approval: Approval) -> Approval | None:
        """By a grant that was given while it waits. It is read first: most grants cover little of what waits, and only
        the rest is worth a turn of the chain."""
        inbox, judged, given = self._inbox, self.judged, self._wait.grants
        if await inbox.ledger.database.read(lifting, judged, inbox.clock.now_ms()) is not None:
            await self._leave(approval)
        self._grants = given  # not before: a database that is away is asked again
        return None if self.ruling is None else self._wait.approval

    async def _leave(self, approval: Approval) -> None:
        inbox, judged = self._inbox, self.judged
        try:
            used = await inbox.changed(judged.workspace, StepKind.RESOLVED, lambda _: self._lift(approval))
        except OverLimit as over:
            if await inbox.cancel(judged.workspace, [approval.id], "limit-reached"):
                self.ruling = over_limit(judged, approval, over)
            else:
                await inbox.look(approval)  # an answer was faster
            return
        self._passed(used)

    def _passed(self, used: Approval) -> Approval:
        self._inbox.tell(used, StepKind.CONSUMED)
        by = used.resolved_by or POLICY
        self.ruling = ruling_of(self.judged, "approved", by, LIFTED, None, used.call)
        return used

    def _lift(self, approval: Approval) -> Transaction[Approval]:
        """At the time when its turn has come, which may be late where many wait: a grant may have run out by then, and
        who has gone by then is not acted for."""
        if self._gone.is_set():
            raise AlreadyAnswered(f"cannot lift approval {approval.id}: whoever asked has gone")
        held = replace(self.judged, policies=self._policies.current)
        return (yield from self._passage.lift(held, approval, self._inbox.clock.now_ms()))

    async def _decided_anew(self, approval: Approval) -> Approval | None:
        inbox, judged, verdict = self._inbox, self.judged, self.judged.verdict
        match verdict.action:
            case "supervisor" | "human_approval" as asked:
                await inbox.changed(
                    judged.workspace,
                    StepKind.DECIDED,
                    lambda now: inbox.life.rebind(
                        approval,
                        judged.action,
                        asked,
                        verdict.name,
                        judged.policies.version,
                        now,
                        reviewers=verdict.reviewers,
                    ),
                )
                return None
            case "deny":
                await inbox.cancel(judged.workspace, [approval.id], "policy-changed")
                self.ruling = ruling_of(
                    judged, "denied", POLICY, verdict.reason, verdict.message, approval.call
                )
            case "allow":
                now = inbox.clock.now_ms()
                self.ruling = await inbox.ledger.transact(
                    judged.workspace, self._passage.pass_after_all, judged, approval, now
                )
                inbox.tell(await inbox.look(approval), StepKind.CANCELLED)
        return await inbox.look(approval)
