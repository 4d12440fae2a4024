"""The transactions of the door: coming in, and leaving with an approval.

INV-D1  Limits are counted, the verdict is traced, and what passes at once is charged and begun, in one transaction.
INV-D2  An approval is consumed, charged and begun in one transaction, against the policies that hold then. Where a grant
        resolves it, that is the same transaction.
INV-D3  What is `settled` before anything is read needs nothing but its trace, so it may share a transaction with others;
        it is durable, like everything else, before anybody acts on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from legation.approvals import limits
from legation.approvals.approval import (
    Approval,
    ApprovalAnswer,
    ApprovalState,
    Asked,
    Proposal,
    new_approval_id,
)
from legation.approvals.execute import tool_call_started
from legation.approvals.grants import Grant, GrantService, exactly, matching, new_grant_id
from legation.approvals.isolation import restored
from legation.approvals.limits import LimitHit
from legation.approvals.policies import Policies, judged_by
from legation.approvals.policy.facts import Facts, real_path
from legation.approvals.policy.rules import PolicyLimits, PolicySet, Verdict
from legation.approvals.queue import ApprovalQueue
from legation.approvals.request import (
    LIFTED,
    ONLY_ALWAYS,
    POLICY,
    DoorRequest,
    DoorResult,
    action_of,
    context_of,
)
from legation.approvals.trace.step import (
    Seals,
    StepDraft,
    StepKind,
    TracedCall,
    contents_of,
    decided,
    new_trace_id,
    proposed,
)
from legation.approvals.transitions import Transitions, get, must_still_ask
from legation.errors import AlreadyAnswered, Conflict, Forbidden, LegationError, NotFound
from legation.store.database.transaction import Database, Queries, Rows, Transaction
from legation.store.secrets.sealing import Sealer
from legation.wire.acp.updates import TOOL_KINDS, ToolCall
from legation.wire.action import Action
from legation.wire.api.approvals import NewGrant
from legation.wire.principal import Principal

DOOR: Final = "door"  # what a limit of no policy is named after
PENDING_RETRY: Final = 30.0  # seconds: a person's time to answer some
_SQL: Final = Queries("approvals")
GRANTED: Literal["granted"] = "granted"
PERSON: Literal[2] = 2  # the level of one


class NoGrant(LegationError):
    """Takes a transaction back; it never leaves the door."""

    def __init__(self) -> None:
        super().__init__("cannot pass: the agent offers only always, and there is no grant for that")


class OverLimit(LegationError):
    """Takes a transaction back; it never leaves the door."""

    def __init__(self, hit: LimitHit) -> None:
        super().__init__("cannot pass: a limit is reached")
        self.hit = hit


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """A request with what the policies say of it, before anything was written."""

    request: DoorRequest
    policies: PolicySet
    verdict: Verdict
    facts: Facts  # as they were looked up for the verdict; `request.facts` look anew
    injected: bool
    places: tuple[str | None, ...] = ()  # where its paths led when it was asked
    looping: LimitHit | None = None

    @property
    def is_asked(self) -> bool:
        """Somebody decides it, unless a grant or a limit does."""
        return self.verdict.action in ("supervisor", "human_approval")

    @property
    def limits(self) -> tuple[tuple[str, PolicyLimits], ...]:
        return self.policies.limits(self.request.action.agent)


@dataclass(frozen=True, slots=True)
class Settled:
    """A ruling that holds as soon as these steps are on record."""

    ruling: DoorResult
    steps: list[StepDraft]


@dataclass(frozen=True, slots=True)
class DoorTransactions:
    """`waiter` is this process. With `acts` the effect is Legation's own, and begins with the pass."""

    policies: Policies
    life: Transitions
    waiter: str
    acts: bool
    most_pending: int  # of one agent by all its credentials, or of one session
    grants: GrantService | None = None  # where a person who approves can be taken to give one

    def enter(
        self, judged: Evaluated, approval_id: str, expires_at: int, now_ms: int
    ) -> Transaction[DoorResult | Approval]:
        """Decided at once, or an approval to wait for: the one of that id, and until then."""
        if (settled := self.settled(judged)) is not None:
            return (yield from self._record(judged, settled, now_ms))
        grant: Grant | None = None
        hit: LimitHit | None = None
        if judged.is_asked and (grant := (yield from covering(judged, now_ms))) is None:
            hit = yield from self._too_many(judged, now_ms)
        hit = hit or (
            yield from limits.take(
                judged.request.principal.workspace,
                judged.request.action.agent,
                judged.limits,
                judged.request.action,
                now_ms,
            )
        )
        if hit is not None:
            return (yield from self._record(judged, _stopped(judged, hit), now_ms))
        asks: Asked | None = None
        match judged.verdict.action:
            case "deny":
                return (yield from self._record(judged, _denied(judged), now_ms))
            case "allow":
                return (yield from self._passed(judged, None, now_ms))
            case "supervisor" | "human_approval" as asked:
                asks = asked
        if grant is not None:
            return (yield from self._passed(judged, grant, now_ms))
        return (yield from self.life.propose(_proposal(self, judged, asks, approval_id, expires_at), now_ms))

    def _too_many(self, judged: Evaluated, now_ms: int) -> Transaction[LimitHit | None]:
        """Where as many wait as may: an agent that asks without end is not to bury people in questions."""
        request, (kind, requester) = judged.request, judged.request.principal.asker
        workspace, agent, session = (
            judged.request.principal.workspace,
            request.action.agent,
            request.granted_session,
        )
        if session is None:
            pending = _SQL.pending_of_agent(
                workspace=workspace, agent=agent, requester=requester, now=now_ms, most=self.most_pending
            )
        else:  # a person began each of them, and may have begun many: none is to wait for another's answers
            pending = _SQL.pending_in_session(
                workspace=workspace,
                agent=agent,
                session=session,
                kind=kind,
                requester=requester,
                now=now_ms,
                most=self.most_pending,
            )
        if len((yield pending)) < self.most_pending:
            return None
        whose = "this agent" if session is None else "this session"
        words = (
            f"{self.most_pending} calls of {whose} wait for an answer already; wait until some are answered"
        )
        return LimitHit(DOOR, "pending", words, PENDING_RETRY)

    def leave(self, judged: Evaluated, approval: Approval, now_ms: int) -> Transaction[Approval]:
        """Right before acting. Raises Conflict where the approval no longer fits, OverLimit where a limit is reached,
        NoGrant where the agent would be told `always` and nobody granted that."""
        # The policies that hold when it is consumed, not those that held when it was answered.
        judged = replace(judged, policies=self.policies.current)
        if judged.request.only_always:
            yield from self._grant_always(judged, approval, now_ms)
        version = judged.policies.version
        consumed = yield from self.life.consume(
            judged.request.principal.workspace,
            approval.id,
            self.waiter,
            judged.request.action.digest(version),
            version,
            now_ms,
        )
        hit = yield from limits.charge(
            judged.request.principal.workspace,
            judged.request.action.agent,
            judged.limits,
            judged.request.action,
            now_ms,
        )
        if hit is not None:
            raise OverLimit(hit)
        if self.acts:
            yield from tool_call_started(
                self.life.chain, judged.request.principal.workspace, consumed.call, self.waiter, now_ms
            )
        return consumed

    def pass_after_all(self, judged: Evaluated, approval: Approval, now_ms: int) -> Transaction[DoorResult]:
        """The policies changed while it waited, and now allow it. An answer that was faster stands: AlreadyAnswered."""
        yield from must_still_ask(approval, now_ms)
        if not (
            yield from self.life.cancel(
                judged.request.principal.workspace, [approval.id], "policy-changed", now_ms
            )
        ):
            raise AlreadyAnswered(f"cannot change approval {approval.id}: somebody was faster; read it again")
        return (yield from self._passed(judged, None, now_ms, call=approval.call, anew=True))

    def lift(self, judged: Evaluated, approval: Approval, now_ms: int) -> Transaction[Approval]:
        """A grant was given while it waited, and covers it: it is resolved and leaves at once, so that whoever revokes
        the grant hears of no call that passes later. AlreadyAnswered where somebody was faster, be it with revoking
        the grant or with an edit of the rules; OverLimit as in `leave`."""
        judged = replace(judged, policies=self.policies.current)
        if judged.policies.version != approval.policy_version:
            raise AlreadyAnswered(f"cannot lift approval {approval.id}: the policy changed; decide it anew")
        if (grant := (yield from lifting(judged, now_ms))) is None:
            raise AlreadyAnswered(f"cannot lift approval {approval.id}: the grant is revoked; read it again")
        lifted = yield from self.life.lift(approval, _given_by(grant), now_ms)
        return (yield from self.leave(judged, lifted, now_ms))

    def settled(self, judged: Evaluated) -> Settled | None:
        """What no counter, grant or effect has a part in (INV-D3)."""
        if judged.looping is not None:
            return _stopped(judged, judged.looping)
        if limits.counted_by(judged.limits, judged.request.action):
            return None
        if judged.verdict.action == "deny":
            return _denied(judged)
        if judged.verdict.action == "allow" and not self.acts and not judged.request.only_always:
            return _allowed(judged)
        return None

    def _record(self, judged: Evaluated, settled: Settled, now_ms: int) -> Transaction[DoorResult]:
        yield from self.life.chain.append(judged.request.principal.workspace, settled.steps, now_ms)
        return settled.ruling

    def _passed(
        self,
        judged: Evaluated,
        grant: Grant | None,
        now_ms: int,
        *,
        call: TracedCall | None = None,
        anew: bool = False,
    ) -> Transaction[DoorResult]:
        if judged.request.only_always and (yield from covering(judged, now_ms)) is None:
            return (yield from self._record(judged, _only_always(judged, call), now_ms))
        hit = yield from limits.charge(
            judged.request.principal.workspace,
            judged.request.action.agent,
            judged.limits,
            judged.request.action,
            now_ms,
        )
        if (
            hit is not None
        ):  # between `take` and here nobody else can come, but the limits may say so of themselves
            return (yield from self._record(judged, _stopped(judged, hit), now_ms))
        verdict, call = judged.verdict, call or judged.request.call()
        by = None if grant is None else _given_by(grant)
        reason = "policy-changed" if anew else GRANTED if grant else None
        if anew:
            step = decided(call, verdict.action, verdict.name, judged.policies.version, reason=reason)
            steps = [step]
        else:
            steps = _steps(judged, call, verdict.action, verdict.name, reason, by)
        yield from self.life.chain.append(judged.request.principal.workspace, steps, now_ms)
        if self.acts:
            yield from tool_call_started(
                self.life.chain, judged.request.principal.workspace, call, self.waiter, now_ms
            )
        who = POLICY if grant is None else f"grant:{grant.id}"
        words = verdict.reason if grant is None else LIFTED
        return result_of(judged, "approved", who, words, None, call)

    def _grant_always(self, judged: Evaluated, approval: Approval, now_ms: int) -> Transaction[None]:
        """The agent offers only `always`: a person who approves grants the tool for the session, unless it is granted.
        Nobody else's word is taken for more than the one call."""
        if (yield from covering(judged, now_ms)) is not None:
            return
        session, by = judged.request.granted_session, _person(approval)
        if (
            self.grants is None
            or session is None
            or by is None
            or judged.injected
            or judged.verdict.reviewers
        ):
            raise NoGrant
        new = NewGrant(
            agent=exactly(judged.request.action.agent),
            tools=exactly(judged.request.action.tool),
            kinds=[judged.request.action.kind] if judged.request.action.kind in TOOL_KINDS else None,
            duration=self.grants.longest,
            reason=f"approved in session {session}, whose agent offers only always",
        )
        yield from self.grants.give(by, new, grant=new_grant_id(now_ms), now_ms=now_ms, session=session)


def lifting(judged: Evaluated, now_ms: int) -> Transaction[Grant | None]:
    """The grant that lets pass what would be asked about, if one does. None does where the injection signal fires, nor
    where the rule names who decides it: whoever gave the grant may be none of them."""
    return (yield from covering(judged, now_ms)) if judged.is_asked else None


def covering(judged: Evaluated, now_ms: int) -> Transaction[Grant | None]:
    """The grant for the call; where the agent would be told `always`, for the tool whatever its arguments."""
    if judged.injected or judged.verdict.reviewers:
        return None
    request = judged.request
    return (
        yield from matching(
            judged.request.principal.workspace,
            judged.request.action,
            now_ms,
            request.granted_session,
            judged.facts,
            always=request.only_always,
        )
    )


def _person(approval: Approval) -> Principal | None:
    """Who approved it, where that is a person: whoever may approve may grant."""
    if approval.resolver_kind is None or approval.resolver is None or approval.resolver_level != PERSON:
        return None
    return Principal(
        kind=approval.resolver_kind,
        id=approval.resolver,
        workspace=approval.workspace_id,
        scopes=frozenset({"approve"}),
        level=PERSON,
        user=approval.resolver_user,
    )


def _stopped(judged: Evaluated, hit: LimitHit) -> Settled:
    ruling = DoorResult(
        outcome="denied",
        by=POLICY,
        policy="deny",
        rule=hit.rule,
        reason=hit.reason,
        message=hit.reason,
        trace_id=judged.request.trace_id,
        action=judged.request.action,
        limit=hit.limit,
        retry_after=hit.retry_after,
    )
    return Settled(ruling, _steps(judged, judged.request.call(), "deny", hit.rule, hit.limit))


def _only_always(judged: Evaluated, call: TracedCall | None) -> Settled:
    """Allowed by a rule, which says nothing of the calls that the agent would not ask about any more."""
    rule, version = judged.verdict.name, judged.policies.version
    ruling = result_of(judged, "denied", POLICY, ONLY_ALWAYS, ONLY_ALWAYS, call)
    if call is not None:  # it was proposed before
        return Settled(ruling, [decided(call, "deny", rule, version, reason="only-always")])
    return Settled(ruling, _steps(judged, judged.request.call(), "deny", rule, "only-always"))


def _denied(judged: Evaluated) -> Settled:
    verdict = judged.verdict
    ruling = result_of(judged, "denied", POLICY, verdict.reason, verdict.message)
    return Settled(ruling, _steps(judged, judged.request.call(), "deny", verdict.name))


def _allowed(judged: Evaluated) -> Settled:
    verdict, call = judged.verdict, judged.request.call()
    ruling = result_of(judged, "approved", POLICY, verdict.reason, None, call)
    return Settled(ruling, _steps(judged, call, "allow", verdict.name))


def _steps(
    judged: Evaluated,
    call: TracedCall,
    verdict: Literal["allow", "deny", "supervisor", "human_approval"],
    rule: str,
    reason: str | None = None,
    by: Principal | None = None,
) -> list[StepDraft]:
    version, request = judged.policies.version, judged.request
    return [
        proposed(
            call,
            judged.request.action,
            judged.request.action.digest(version),
            owner=request.content_owner,
            context=context_of(request.action, request.facts),
        ),
        decided(call, verdict, rule, version, reason=reason, by=by),
    ]


def result_of(
    judged: Evaluated,
    outcome: Literal["approved", "denied", "expired", "superseded", "cancelled"],
    by: str,
    reason: str,
    message: str | None = None,
    call: TracedCall | None = None,
) -> DoorResult:
    return DoorResult(
        outcome=outcome,
        by=by,
        policy=judged.verdict.action,
        rule=judged.verdict.name,
        reason=reason,
        message=message,
        trace_id=call.trace_id if call else judged.request.trace_id,
        approval_id=call.approval_id if call else None,
        action=judged.request.action,
    )


def over_limit(judged: Evaluated, approval: Approval, over: OverLimit) -> DoorResult:
    """Of one that would have left, had it not been for the limit."""
    refused = result_of(judged, "denied", POLICY, over.hit.reason, over.hit.reason, approval.call)
    return replace(refused, rule=over.hit.rule, limit=over.hit.limit, retry_after=over.hit.retry_after)


def _proposal(
    passage: DoorTransactions, judged: Evaluated, asks: Asked, approval_id: str, expires_at: int
) -> Proposal:
    request = judged.request
    return Proposal(
        id=approval_id,
        trace_id=request.trace_id,
        workspace=judged.request.principal.workspace,
        waiter=passage.waiter,
        requester_kind=request.principal.asker[0],
        requester=request.principal.asker[1],
        requester_version=request.principal.version,
        action=request.action,
        verdict=asks,
        policy_version=judged.policies.version,
        policy_rule=judged.verdict.name,
        expires_at=expires_at,
        session_id=request.session_id,
        turn_id=request.turn_id,
        tool_call_id=request.tool_call_id,
        injection_risk=judged.injected,
        editable=request.editable,
        reviewers=judged.verdict.reviewers,
        content_owner=request.content_owner,
        context=context_of(request.action, request.facts),
    )


def _given_by(grant: Grant) -> Principal:
    return Principal(kind="grant", id=grant.id, workspace=grant.workspace_id, scopes=frozenset(), level=0)


# Approving with other arguments than were asked for: a new approval, bound to those, in place of the old one.


def edited(action: Action, params: Mapping[str, object], facts: Facts) -> Action:
    """What a driver would make of the other arguments."""
    call = ToolCall(tool_call_id="", title="", name=action.tool, kind=action.kind, raw_input=params)
    return Action.from_tool_call(
        action.agent, call, cwd=facts.cwd or "/", home=facts.home, declared=facts.declared
    )


async def edited_params(database: Database, sealer: Sealer, approval: Approval) -> Mapping[str, object]:
    """As they were sealed with the approval."""
    said = await _read_contents(database, sealer, approval)
    params = said.get("params")
    if not isinstance(params, dict):
        raise NotFound(f"cannot use approval {approval.id}: its arguments are gone; ask again")
    return params


async def approve_edited(
    inbox: ApprovalQueue,
    policies: PolicySet,
    principal: Principal,
    approval_id: str,
    params: Mapping[str, object],
    answer: ApprovalAnswer,
    *,
    isolated: bool = False,
) -> Approval:
    """The new approval, approved. The policies decide on the other arguments as on any: what they deny stays denied.
    `isolated`: whoever edits was shown stand-ins in place of content."""
    ledger = inbox.ledger
    former = await ledger.database.read(get, principal.workspace, approval_id)
    said = await _read_contents(ledger.database, ledger.chain.sealer, former)
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
        proposal = _edited_proposal(former, action, verdict, policies.version, context_of(action, facts), now)
        new = await ledger.transact(
            principal.workspace, _replace, inbox.life, principal, former, proposal, answer, now
        )
        old = await ledger.database.read(get, principal.workspace, former.id)
        inbox.tell(new, StepKind.RESOLVED)
        inbox.tell(old, StepKind.SUPERSEDED)
        return new

    return await inbox.to_the_end(change())


def _replace(
    life: Transitions,
    principal: Principal,
    former: Approval,
    proposal: Proposal,
    answer: ApprovalAnswer,
    now_ms: int,
) -> Transaction[Approval]:
    now = yield from get(principal.workspace, former.id)
    if now.status is ApprovalState.PENDING and not now.editable:
        raise Conflict(
            f"cannot approve {former.id} with other arguments: whoever asks acts on its own; deny it and say why"
        )
    yield from life.edit(principal, former.id, proposal, now_ms)
    return (yield from life.resolve(principal, proposal.id, answer, now_ms))


def _edited_proposal(
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


async def _read_contents(database: Database, sealer: Sealer, approval: Approval) -> dict[str, object]:
    rows = await database.read(_contents, approval.workspace_id, approval.trace_id)
    return {said.name: said.value for said in map(Seals(sealer, approval.workspace_id).open, rows)}


def _contents(workspace: str, trace: str) -> Transaction[Rows]:
    return (yield from contents_of(workspace, [trace], ["params", "context"]))
