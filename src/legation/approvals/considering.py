"""What would happen to a call: nothing is run, counted or recorded."""

from __future__ import annotations

from legation.approvals import limits
from legation.approvals.inbox import Inbox
from legation.approvals.loops import Loops
from legation.approvals.passage import Judged, lifting
from legation.approvals.policies import judged_by
from legation.approvals.policy.policyset import PolicySet
from legation.approvals.request import Consideration, Request


async def considered(
    request: Request, policies: PolicySet, *, injected: bool, loops: Loops, inbox: Inbox
) -> Consideration:
    """As the door would decide it now (see `Passage.enter`)."""
    verdict, seen = await judged_by(policies, request.action, request.facts)
    workspace, action, now = request.principal.workspace, request.action, inbox.clock.now_ms()
    of_agent = policies.limits(action.agent)
    hit = loops.would_repeat(request.loop_key, action.digest(), of_agent)
    database = inbox.ledger.database
    if hit is None:
        hit = await database.read(limits.peek, workspace, action.agent, of_agent, action, now)
    judged = Judged(request=request, policies=policies, verdict=verdict, facts=seen, injected=injected)
    grant = None if hit else await database.read(lifting, judged, now)
    return Consideration(
        policy="deny" if hit else verdict.action,
        rule=hit.rule if hit else verdict.name,
        version=policies.version,
        reason=hit.reason if hit else verdict.reason,
        message=hit.reason if hit else verdict.message,
        injection_risk=injected,
        grant=grant.id if grant else None,
        limit=hit.limit if hit else None,
    )
