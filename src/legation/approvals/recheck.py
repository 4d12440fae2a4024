"""An edit of the rules, or a grant, while approvals are pending: these are decided anew."""

from __future__ import annotations

from dataclasses import replace

from legation.approvals.approval import Approval
from legation.approvals.inbox import Inbox, Wait
from legation.approvals.passage import Judged, Passage, lifting, ruling_of
from legation.approvals.policies import Policies
from legation.approvals.request import POLICY, Ruling
from legation.approvals.trace import StepKind
from legation.errors import AlreadyAnswered


class Recheck:
    """Under other policies, and after a grant, a pending approval is decided anew: it is asked about all the same, or it
    is over."""

    def __init__(
        self, inbox: Inbox, policies: Policies, judged: Judged, passage: Passage, wait: Wait
    ) -> None:
        self.judged = judged
        self.ruling: Ruling | None = None  # where it is over
        self._inbox, self._policies, self._passage, self._wait = inbox, policies, passage, wait
        self._grants = 0  # that were looked at

    async def __call__(self, approval: Approval) -> Approval | None:
        policies = self._policies.current
        is_bound = policies.version == approval.policy_version
        if is_bound and self._grants == self._wait.grants:
            return None
        request = self.judged.request
        self.judged = replace(
            self.judged, policies=policies, verdict=policies.decide(request.action, request.facts)
        )
        try:
            return await (self._lifted(approval) if is_bound else self._decided_anew(approval))
        except AlreadyAnswered:
            await self._inbox.look(approval)  # there is news, be it another server's
            return None

    async def _lifted(self, approval: Approval) -> Approval | None:
        """By a grant that was given while it waits. It is read first: most grants cover little of what waits, and only
        the rest is worth a turn of the chain."""
        inbox, judged, given = self._inbox, self.judged, self._wait.grants
        ended = None
        if await inbox.ledger.database.read(lifting, judged, inbox.clock.now_ms()) is not None:
            ended = await inbox.changed(
                judged.workspace,
                StepKind.RESOLVED,
                lambda now: self._passage.lift(judged, approval, now),
            )
        self._grants = given  # not before: a database that is away is asked again
        return ended

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
