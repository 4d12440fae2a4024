"""Approving with other arguments than were asked for: a new approval, bound to those, in place of the old one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from legation.approvals.approval import Answer, Approval, Asked, Proposal, Status, new_approval_id
from legation.approvals.approval_endings import get
from legation.approvals.approval_life import Approvals
from legation.approvals.call_context import action_of, context_of
from legation.approvals.inbox import Inbox
from legation.approvals.isolation import restored
from legation.approvals.policies import judged_by
from legation.approvals.policy.facts import Facts, real_path
from legation.approvals.policy.policyset import PolicySet
from legation.approvals.policy.verdict import Verdict
from legation.approvals.trace import StepKind, new_trace_id
from legation.approvals.trace_content import Seals, contents_of
from legation.errors import Conflict, Forbidden, NotFound
from legation.store.database.transaction import Database, Rows, Transaction
from legation.store.sealing import Sealer
from legation.wire.acp.toolcall import ToolCall
from legation.wire.action import Action
from legation.wire.principal import Principal


def edited(action: Action, params: Mapping[str, object], facts: Facts) -> Action:
    """What a driver would make of the other arguments."""
    call = ToolCall(tool_call_id="", title="", name=action.tool, kind=action.kind, raw_input=params)
    return Action.from_tool_call(
        action.agent, call, cwd=facts.cwd or "/", home=facts.home, declared=facts.declared
    )


async def edited_params(database: Database, sealer: Sealer, approval: Approval) -> Mapping[str, object]:
    """As they were sealed with the approval."""
    said = await _said(database, sealer, approval)
    params = said.get("params")
    if not isinstance(params, dict):
        raise NotFound(f"cannot use approval {approval.id}: its arguments are gone; ask again")
    return params


async def approve_edited(
    inbox: Inbox,
    policies: PolicySet,
    principal: Principal,
    approval_id: str,
    params: Mapping[str, object],
    answer: Answer,
    *,
    isolated: bool = False,
) -> Approval:
    """The new approval, approved. The policies decide on the other arguments as on any: what they deny stays denied.
    `isolated`: whoever edits was shown stand-ins in place of content."""
    ledger = inbox.ledger
    former = await ledger.database.read(get, principal.workspace, approval_id)
    said = await _said(ledger.database, ledger.chain.sealer, former)
    context = said.get("context")
    if isolated:
        shown = said.get("params")
        if not isinstance(shown, dict):
            raise NotFound(f"cannot edit approval {former.id}: its arguments are gone; deny it")
        params = restored(params, shown)
    was, facts = action_of(
        former.agent, former.tool, former.kind, params, context if isinstance(context, dict) else None
    )
    facts = replace(facts, resolve=real_path)
    action = edited(was, params, facts)
    verdict, _ = await judged_by(policies, action, facts)
    if verdict.action == "deny":
        raise Forbidden(f"cannot approve that: {verdict.name} denies the call with these arguments")

    async def change() -> Approval:
        now = inbox.clock.now_ms()
        proposal = _proposal(former, action, verdict, policies.version, context_of(action, facts), now)
        new = await ledger.transact(
            principal.workspace, _replace, inbox.life, principal, former, proposal, answer, now
        )
        old = await ledger.database.read(get, principal.workspace, former.id)
        inbox.tell(new, StepKind.RESOLVED)
        inbox.tell(old, StepKind.SUPERSEDED)
        return new

    return await inbox.to_the_end(change())


def _replace(
    life: Approvals, principal: Principal, former: Approval, proposal: Proposal, answer: Answer, now_ms: int
) -> Transaction[Approval]:
    now = yield from get(principal.workspace, former.id)
    if now.status is Status.PENDING and not now.editable:
        raise Conflict(
            f"cannot approve {former.id} with other arguments: whoever asks acts on its own; deny it and say why"
        )
    yield from life.edit(principal, former.id, proposal, now_ms)
    return (yield from life.resolve(principal, proposal.id, answer, now_ms))


def _proposal(
    former: Approval, action: Action, verdict: Verdict, version: str, context: object, now_ms: int
) -> Proposal:
    asks: Asked = "human_approval" if verdict.action == "human_approval" else former.verdict
    rule = former.policy_rule if verdict.action == "allow" else verdict.name
    return Proposal(
        id=new_approval_id(now_ms),
        trace_id=new_trace_id(),
        workspace=former.workspace_id,
        waiter=former.waiter,
        requester_kind=former.requester_kind,
        requester=former.requester,
        requester_version=former.requester_version,
        action=action,
        verdict=asks,
        policy_version=version,
        policy_rule=rule,
        expires_at=former.expires_at,
        session_id=former.session_id,
        turn_id=former.turn_id,
        tool_call_id=former.tool_call_id,
        injection_risk=former.injection_risk,
        editable=True,
        reviewers=verdict.reviewers or former.reviewers,
        content_owner=former.content_owner,
        context=context,
    )


async def _said(database: Database, sealer: Sealer, approval: Approval) -> dict[str, object]:
    rows = await database.read(_contents, approval.workspace_id, approval.trace_id)
    return {said.name: said.value for said in map(Seals(sealer, approval.workspace_id).open, rows)}


def _contents(workspace: str, trace: str) -> Transaction[Rows]:
    return (yield from contents_of(workspace, [trace], ["params", "context"]))
