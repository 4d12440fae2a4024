"""An edit of the rules while approvals are pending: these are decided anew."""

from __future__ import annotations

from dataclasses import replace

from legation.approvals.approval import Approval
from legation.approvals.inbox import Inbox
from legation.approvals.passage import Judged, Passage, ruling_of
from legation.approvals.policies import Policies
from legation.approvals.request import POLICY, Ruling
from legation.approvals.trace import StepKind
from legation.errors import AlreadyAnswered


class Recheck:
    """Under other policies a pending approval is decided anew: it is asked about all the same, or it is over."""

    def __init__(self, inbox: Inbox, policies: Policies, judged: Judged, passage: Passage) -> None:
        self.judged = judged
        self.ruling: Ruling | None = None  # where it is over
        self._inbox, self._policies, self._passage = inbox, policies, passage

    async def __call__(self, approval: Approval) -> Approval | None:
        policies = self._policies.current
        if policies.version == approval.policy_version:
            return None
        request = self.judged.request
        self.judged = replace(
            self.judged, policies=policies, verdict=policies.decide(request.action, request.facts)
        )
        try:
            return await self._decided_anew(approval)
        except AlreadyAnswered:
            await self._inbox.look(approval)  # there is news, be it another server's
            return None

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
