"""The transactions of the door: coming in, leaving with an approval, and what Legation itself brings about then.

INV-D1  Limits are counted, the verdict is traced, and what passes at once is charged and begun, in one transaction.
INV-D2  An approval is consumed, charged and begun in one transaction, against the policies that hold then. Where a grant
        resolves it, that is the same transaction.
INV-D3  What is `settled` before anything is read needs nothing but its trace, so it may share a transaction with others;
        it is durable, like everything else, before anybody acts on it.
INV-F1  An effect begins at most once for a request: the row that says so is in the transaction that lets it pass.
INV-F2  What a process began and did not live to tell is "outcome unknown". It is traced as that, and never repeated.
INV-F3  Whoever asked hears what came of an effect, also while the database is away: "try again" would do it twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

import msgspec

from legation.approvals import limits
from legation.approvals.approval import (
    Approval,
    ApprovalAnswer,
    ApprovalState,
    Asked,
    Proposal,
    Waiter,
    must_be_seen,
    new_approval_id,
)
from legation.approvals.grants import Grant, GrantService, exactly, matching, new_grant_id
from legation.approvals.limits import LimitHit
from legation.approvals.policies import Policies
from legation.approvals.policy.facts import Facts
from legation.approvals.policy.rules import PolicyLimits, PolicySet, Verdict, evaluate
from legation.approvals.queue import AWAY, AWAY_MS, ApprovalQueue, first_of
from legation.approvals.request import (
    LIFTED,
    ONLY_ALWAYS,
    POLICY,
    DoorRequest,
    DoorResult,
    EffectToken,
    Execute,
    OnCallEnded,
    ToolReturn,
    action_of,
    context_of,
    restored,
)
from legation.approvals.trace.chain import Chain, Ledger
from legation.approvals.trace.evidence import evidence_of
from legation.approvals.trace.step import (
    ChainStep,
    ContentName,
    Seals,
    StepDraft,
    StepKind,
    TracedCall,
    contents_of,
    decided,
    new_trace_id,
    proposed,
)
from legation.approvals.transitions import Transitions, get, must_still_ask, too_late
from legation.errors import AlreadyAnswered, Conflict, Forbidden, LegationError, NotFound
from legation.store.database.transaction import (
    Database,
    Queries,
    Row,
    Transaction,
    read_committed,
    rows,
)
from legation.store.secrets.sealer import Sealer
from legation.wire.acp.updates import TOOL_KINDS, ToolCall
from legation.wire.action import Action, Outcome, RuleAction
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
    evidence: Mapping[ContentName, object] = field(default_factory=dict)  # what is asked about, for a person
    looping: LimitHit | None = None
    workspace: str = field(init=False)
    action: Action = field(init=False)
    is_asked: bool = field(init=False)  # somebody decides it, unless a grant or a limit does
    limits: tuple[tuple[str, PolicyLimits], ...] = field(init=False)
    counts: bool = field(init=False)  # one of the limits has a counter
    # Workspace, agent, limits and action, as `limits` takes them.
    counted: tuple[str, str, tuple[tuple[str, PolicyLimits], ...], Action] = field(init=False)

    def __post_init__(self) -> None:
        workspace, action = self.request.principal.workspace, self.request.action
        covering = self.policies.limits(action.agent)
        object.__setattr__(self, "workspace", workspace)
        object.__setattr__(self, "action", action)
        object.__setattr__(self, "is_asked", self.verdict.action in ("supervisor", "human_approval"))
        object.__setattr__(self, "limits", covering)
        counts = any(
            each.max_per_minute is not None or each.max_total is not None or each.spend
            for _, each in covering
        )
        object.__setattr__(self, "counts", counts)
        object.__setattr__(self, "counted", (workspace, action.agent, covering, action))


class Settled(msgspec.Struct, frozen=True):
    """A result that holds as soon as these steps are on record."""

    result: DoorResult
    steps: list[StepDraft]


class DoorTransactions(msgspec.Struct, frozen=True):
    """The transactions of a request at the door. With `acts` the effect is Legation's own, and begins with the pass."""

    policies: Policies
    life: Transitions
    waiter: Waiter
    acts: bool
    most_pending: int  # of one agent by all its credentials, or of one session
    grants: GrantService | None = None  # where a person who approves can be taken to give one
    supervisor_wait_ms: int = 0

    def enter(
        self, evaluated: Evaluated, approval_id: str, expires_at: int, now_ms: int
    ) -> Transaction[DoorResult | Approval]:
        """Decide what is not `settled`: at once, or by an approval to wait for, of that id and until then."""
        grant: Grant | None = None
        hit: LimitHit | None = None
        if evaluated.is_asked and (grant := (yield from covering(evaluated, now_ms))) is None:
            hit = yield from self._too_many(evaluated, now_ms)
        if hit is None and evaluated.counts:
            hit = yield from limits.take(*evaluated.counted, now_ms)
        if hit is not None:
            return (yield from self._record(evaluated, _stopped(evaluated, hit), now_ms))
        asks = evaluated.verdict.action
        if asks == "deny":
            return (yield from self._record(evaluated, _denied(evaluated), now_ms))
        if asks == "allow" or grant is not None:
            return (yield from self._passed(evaluated, grant, now_ms))
        proposal = _proposal(self, evaluated, asks, approval_id, expires_at)
        look_at = now_ms + self.supervisor_wait_ms
        return (yield from self.life.propose(msgspec.structs.replace(proposal, look_at=look_at), now_ms))

    # Safe under read committed, for a call that nobody is asked about: then nothing is read but the agent's counters and the
    # head of the chain, and each is written only where it still is as it was read. That an effect begins once is for the
    # key of its row to say.
    @read_committed
    def enter_unasked(self, evaluated: Evaluated, now_ms: int) -> Transaction[DoorResult | Approval]:
        """Decide at once what is not `settled`, by limits and rules alone."""
        return (yield from self.enter(evaluated, "", 0, now_ms))

    def _too_many(self, evaluated: Evaluated, now_ms: int) -> Transaction[LimitHit | None]:
        # An agent that asks without end is not to bury people in questions.
        session, (kind, requester) = evaluated.request.granted_session, evaluated.request.principal.asker
        asked = {
            "workspace": evaluated.workspace,
            "agent": evaluated.action.agent,
            "requester": requester,
            "now": now_ms,
            "most": self.most_pending,
        }
        if session is None:
            pending = _SQL.pending_of_agent(**asked)
        else:  # a person began each of them, and may have begun many: none is to wait for another's answers
            pending = _SQL.pending_in_session(**asked, session=session, kind=kind)
        if len((yield pending)) < self.most_pending:
            return None
        whose = "this agent" if session is None else "this session"
        words = (
            f"{self.most_pending} calls of {whose} wait for an answer already; wait until some are answered"
        )
        return LimitHit(DOOR, "pending", words, PENDING_RETRY)

    def leave(self, evaluated: Evaluated, approval: Approval, now_ms: int) -> Transaction[Approval]:
        """Use an approval, right before acting. Raises Conflict where the approval no longer fits, OverLimit where a limit is reached,
        NoGrant where the agent would be told `always` and nobody granted that."""
        # The policies that hold when it is consumed, not those that held when it was answered.
        evaluated = replace(evaluated, policies=self.policies.current)
        if evaluated.request.only_always:
            yield from self._grant_always(evaluated, approval, now_ms)
        version = evaluated.policies.version
        digest = evaluated.action.digest(version)
        consumed = yield from self.life.consume(
            evaluated.workspace, approval.id, self.waiter, digest, version, now_ms
        )
        if evaluated.counts and (hit := (yield from limits.charge(*evaluated.counted, now_ms))) is not None:
            raise OverLimit(hit)
        if self.acts:
            yield from tool_call_started(
                self.life.chain, evaluated.workspace, consumed.call, self.waiter.holder, now_ms
            )
        return consumed

    def pass_after_all(
        self, evaluated: Evaluated, approval: Approval, now_ms: int
    ) -> Transaction[DoorResult]:
        """Let it pass under policies that changed while it waited. An answer that was faster stands: AlreadyAnswered."""
        yield from must_still_ask(approval, now_ms)
        if not (yield from self.life.cancel(evaluated.workspace, [approval.id], "policy-changed", now_ms)):
            raise too_late(approval)
        return (yield from self._passed(evaluated, None, now_ms, approval.call))

    def lift(self, evaluated: Evaluated, approval: Approval, now_ms: int) -> Transaction[Approval]:
        """Let it pass by a grant that was given while it waited. AlreadyAnswered where somebody was faster, be it with
        revoking the grant or with an edit of the rules; OverLimit as in `leave`."""
        evaluated = replace(evaluated, policies=self.policies.current)
        if evaluated.policies.version != approval.policy_version:
            raise AlreadyAnswered(f"cannot lift approval {approval.id}: the policy changed; decide it anew")
        if (grant := (yield from lifting(evaluated, now_ms))) is None:
            raise AlreadyAnswered(f"cannot lift approval {approval.id}: the grant is revoked; read it again")
        # Resolved and used at once, so that whoever revokes the grant hears of no call that passes later.
        lifted = yield from self.life.lift(approval, _given_by(grant), now_ms)
        return (yield from self.leave(evaluated, lifted, now_ms))

    def settled(self, evaluated: Evaluated) -> Settled | None:
        """Decide what no counter, grant or effect has a part in (INV-D3)."""
        if evaluated.looping is not None:
            return _stopped(evaluated, evaluated.looping)
        if evaluated.counts and limits.counted_by(evaluated.limits, evaluated.action):
            return None
        if evaluated.verdict.action == "deny":
            return _denied(evaluated)
        if evaluated.verdict.action == "allow" and not self.acts and not evaluated.request.only_always:
            return _allowed(evaluated)
        return None

    def _record(self, evaluated: Evaluated, settled: Settled, now_ms: int) -> Transaction[DoorResult]:
        yield from self.life.chain.append(evaluated.workspace, settled.steps, now_ms)
        return settled.result

    def _passed(
        self, evaluated: Evaluated, grant: Grant | None, now_ms: int, former: TracedCall | None = None
    ) -> Transaction[DoorResult]:
        """`former`: it was proposed before, and waited."""
        if evaluated.request.only_always and (yield from covering(evaluated, now_ms)) is None:
            return (yield from self._record(evaluated, _only_always(evaluated, former), now_ms))
        hit = yield from limits.charge(*evaluated.counted, now_ms)
        # Between `take` and here nobody else can come, but the limits may say so of themselves.
        if hit is not None:
            return (yield from self._record(evaluated, _stopped(evaluated, hit), now_ms))
        verdict, call = evaluated.verdict, former or evaluated.request.call()
        by = None if grant is None else _given_by(grant)
        reason = "policy-changed" if former else GRANTED if grant else None
        steps = _steps(evaluated, verdict.action, verdict.name, reason, by, former)
        yield from self.life.chain.append(evaluated.workspace, steps, now_ms)
        if self.acts:
            yield from tool_call_started(
                self.life.chain, evaluated.workspace, call, self.waiter.holder, now_ms
            )
        if grant is None:
            return result_of(evaluated, "approved", POLICY, verdict.reason, None, call)
        return result_of(evaluated, "approved", f"grant:{grant.id}", LIFTED, None, call)

    def _grant_always(self, evaluated: Evaluated, approval: Approval, now_ms: int) -> Transaction[None]:
        """Take a person's approval for a grant of the tool in the session, where the agent offers only `always`. Nobody
        else's word is taken for more than the one call."""
        if (yield from covering(evaluated, now_ms)) is not None:
            return
        session, by = evaluated.request.granted_session, _person(approval)
        if (
            self.grants is None
            or session is None
            or by is None
            or evaluated.injected
            or evaluated.verdict.reviewers
        ):
            raise NoGrant
        new = NewGrant(
            agent=exactly(evaluated.action.agent),
            tools=exactly(evaluated.action.tool),
            kinds=[evaluated.action.kind] if evaluated.action.kind in TOOL_KINDS else None,
            duration=self.grants.longest,
            reason=f"approved in session {session}, whose agent offers only always",
        )
        yield from self.grants.give(by, new, grant=new_grant_id(now_ms), now_ms=now_ms, session=session)


def lifting(evaluated: Evaluated, now_ms: int) -> Transaction[Grant | None]:
    """Find the grant that lets pass what would be asked about."""
    return (yield from covering(evaluated, now_ms)) if evaluated.is_asked else None


def covering(evaluated: Evaluated, now_ms: int) -> Transaction[Grant | None]:
    """Find the grant for the call; where the agent would be told `always`, for the tool whatever its arguments."""
    # A rule that names who decides counts: whoever gave the grant may be none of them.
    if evaluated.injected or evaluated.verdict.reviewers:
        return None
    session, always = evaluated.request.granted_session, evaluated.request.only_always
    return (
        yield from matching(
            evaluated.workspace, evaluated.action, now_ms, session, evaluated.facts, always=always
        )
    )


def _person(approval: Approval) -> Principal | None:
    """Name the person who approved it, if one did: whoever may approve may grant."""
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


def _stopped(evaluated: Evaluated, hit: LimitHit) -> Settled:
    result = msgspec.structs.replace(over_limit(evaluated, hit), policy="deny")
    return Settled(result, _steps(evaluated, "deny", hit.rule, hit.limit))


def _only_always(evaluated: Evaluated, former: TracedCall | None) -> Settled:
    """Refuse what a rule allows, which says nothing of the calls that the agent would not ask about any more."""
    result = result_of(evaluated, "denied", POLICY, ONLY_ALWAYS, ONLY_ALWAYS, former)
    steps = _steps(evaluated, "deny", evaluated.verdict.name, "only-always", former=former)
    return Settled(result, steps)


def _denied(evaluated: Evaluated) -> Settled:
    verdict = evaluated.verdict
    result = result_of(evaluated, "denied", POLICY, verdict.reason, verdict.message)
    return Settled(result, _steps(evaluated, "deny", verdict.name))


def _allowed(evaluated: Evaluated) -> Settled:
    verdict = evaluated.verdict
    result = result_of(evaluated, "approved", POLICY, verdict.reason)
    return Settled(result, _steps(evaluated, "allow", verdict.name))


def _steps(
    evaluated: Evaluated,
    verdict: RuleAction,
    rule: str,
    reason: str | None = None,
    by: Principal | None = None,
    former: TracedCall | None = None,
) -> list[StepDraft]:
    """Write down a verdict; before it the call, unless it was proposed as the `former` one."""
    version, request, call = evaluated.policies.version, evaluated.request, former or evaluated.request.call()
    verdict_step = decided(call, verdict, rule, version, reason=reason, by=by)
    if former is not None:
        return [verdict_step]
    digest, context = request.action.digest(version), context_of(request.action, request.facts)
    return [
        proposed(call, request.action, digest, owner=request.content_owner, context=context),
        verdict_step,
    ]


def result_of(
    evaluated: Evaluated,
    outcome: Outcome,
    by: str,
    reason: str,
    message: str | None = None,
    call: TracedCall | None = None,
) -> DoorResult:
    return DoorResult(
        outcome=outcome,
        by=by,
        policy=evaluated.verdict.action,
        rule=evaluated.verdict.name,
        reason=reason,
        message=message,
        trace_id=call.trace_id if call else evaluated.request.trace_id,
        approval_id=call.approval_id if call else None,
        action=evaluated.action,
    )


def over_limit(evaluated: Evaluated, hit: LimitHit, call: TracedCall | None = None) -> DoorResult:
    """Refuse one that would have passed, had it not been for the limit."""
    refused = result_of(evaluated, "denied", POLICY, hit.reason, hit.reason, call)
    return msgspec.structs.replace(refused, rule=hit.rule, limit=hit.limit, retry_after=hit.retry_after)


def _proposal(
    transactions: DoorTransactions, evaluated: Evaluated, asks: Asked, approval_id: str, expires_at: int
) -> Proposal:
    request = evaluated.request
    return Proposal(
        id=approval_id,
        trace_id=request.trace_id,
        workspace=evaluated.workspace,
        waiter=transactions.waiter,
        requester_kind=request.principal.asker[0],
        requester=request.principal.asker[1],
        requester_version=request.principal.version,
        action=request.action,
        verdict=asks,
        policy_version=evaluated.policies.version,
        policy_rule=evaluated.verdict.name,
        expires_at=expires_at,
        session_id=request.session_id,
        turn_id=request.turn_id,
        tool_call_id=request.tool_call_id,
        injection_risk=evaluated.injected,
        editable=request.editable,
        reviewers=evaluated.verdict.reviewers,
        content_owner=request.content_owner,
        # Who goes on with it elsewhere has to know where its paths led.
        context=context_of(request.action, request.facts, evaluated.places if request.waiter else ()),
        evidence=evaluated.evidence,
        why=evaluated.verdict.reason,
    )


def _given_by(grant: Grant) -> Principal:
    return Principal(kind="grant", id=grant.id, workspace=grant.workspace_id, scopes=frozenset(), level=0)


def edited(action: Action, params: Mapping[str, object], facts: Facts) -> Action:
    """Make of the other arguments what a driver would."""
    call = ToolCall(tool_call_id="", title="", name=action.tool, kind=action.kind, raw_input=params)
    return Action.from_tool_call(
        action.agent, call, cwd=facts.cwd or "/", home=facts.home, declared=facts.declared
    )


async def edited_params(database: Database, sealer: Sealer, approval: Approval) -> Mapping[str, object]:
    """Open the arguments that were sealed with the approval."""
    params = (await read_contents(database, sealer, approval)).get("params")
    if not isinstance(params, dict):
        raise NotFound(f"cannot use approval {approval.id}: its arguments are gone; ask again")
    return params


async def approve_edited(
    queue: ApprovalQueue,
    policies: PolicySet,
    principal: Principal,
    approval_id: str,
    params: Mapping[str, object],
    answer: ApprovalAnswer,
    *,
    isolated: bool = False,
) -> Approval:
    """Approve a call with other arguments than were asked for: a new approval, bound to those, takes the old one's place.
    The policies decide on them as on any: what they deny stays denied. `isolated`: whoever edits was shown stand-ins in place of content."""
    ledger = queue.ledger
    former = await ledger.database.read(get, principal.workspace, approval_id)
    said = await read_contents(ledger.database, ledger.chain.sealer, former)
    context = said.get("context")
    if isolated:
        shown = said.get("params")
        if not isinstance(shown, dict):
            raise NotFound(f"cannot edit approval {former.id}: its arguments are gone; deny it")
        params = restored(params, shown)
    was, facts = action_of(
        former.agent, former.tool, former.kind, params, context if isinstance(context, dict) else None
    )
    facts = facts.now()
    action = edited(was, params, facts)
    verdict, seen = await evaluate(policies, action, facts)
    if verdict.action == "deny":
        raise Forbidden(f"cannot approve that: {verdict.name} denies the call with these arguments")

    async def change() -> Approval:
        now = queue.clock.now_ms()
        proposal = _edited_proposal(former, action, verdict, policies.version, now)
        kept = {"context": context_of(action, facts), "evidence": evidence_of(action, seen).contents}
        proposal = msgspec.structs.replace(proposal, **kept)
        new = await ledger.transact(
            principal.workspace, _replace, queue.life, principal, former, proposal, answer, now
        )
        old = await ledger.database.read(get, principal.workspace, former.id)
        queue.publish(new, StepKind.RESOLVED)
        queue.publish(old, StepKind.SUPERSEDED)
        return new

    return await queue.taken_up(await queue.finish(change()))


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
    if answer.digest is not None:
        must_be_seen(now, answer.digest)
    yield from life.edit(principal, former.id, proposal, now_ms)
    # What was looked at was the one that is edited; the new one is of whoever edits.
    seen = msgspec.structs.replace(answer, digest=None)
    return (yield from life.resolve(principal, proposal.id, seen, now_ms))


def _edited_proposal(
    former: Approval, action: Action, verdict: Verdict, version: str, now_ms: int
) -> Proposal:
    asks: Asked = "human_approval" if verdict.action == "human_approval" else former.verdict
    rule = former.policy_rule if verdict.action == "allow" else verdict.name
    return Proposal(
        id=new_approval_id(now_ms),
        trace_id=new_trace_id(),
        workspace=former.workspace_id,
        waiter=former.awaited_by,
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
        why=verdict.reason,
    )


async def read_contents(database: Database, sealer: Sealer, asked: Approval | ChainStep) -> dict[str, object]:
    """Open the arguments of an approval, or of a call, and what was read besides them."""
    rows = await database.read(contents_of, asked.workspace_id, [asked.trace_id], ["params", "context"])
    return {said.name: said.value for said in map(Seals(sealer, asked.workspace_id).open, rows)}


# Effects.

BATCH: Final = 100
KEEP_MS: Final = 86_400_000  # a caller's time to come back for what became of its call
UNKNOWN: Final = "outcome-unknown"

_EFFECTS: Final = Queries("door")

logger = logging.getLogger("legation.door")


class ToolOutcome(msgspec.Struct, frozen=True):
    """The answer of a tool, and all that is written down of it."""

    request: DoorRequest
    result: DoorResult
    returned: ToolReturn
    latency_ms: int


async def act(
    queue: ApprovalQueue, request: DoorRequest, result: DoorResult, execute: Execute
) -> ToolOutcome:
    """Call the tool; whatever becomes of it, there is an outcome."""
    clock, workspace = queue.clock, request.principal.workspace
    begun = clock.monotonic()
    try:
        returned = await execute(result.action, EffectToken(result.trace_id, result.approval_id, workspace))
    except Exception:  # a boundary: the tool is somebody else's
        logger.exception("a tool failed in its executor")
        returned = ToolReturn(status_code=502, error="the tool failed")
    except asyncio.CancelledError:
        returned = ToolReturn(status_code=499, error="the server stopped before the tool answered")
    return ToolOutcome(request, result, returned, round((clock.monotonic() - begun) * 1000))


Finished: TypeAlias = "Callable[[Chain, ToolOutcome, int], Transaction[None]]"


async def write_down(queue: ApprovalQueue, outcome: ToolOutcome, finished: Finished) -> None:
    ledger, workspace = queue.ledger, outcome.request.principal.workspace
    await ledger.transact(workspace, finished, ledger.chain, outcome, queue.clock.now_ms())


async def write_down_later(
    queue: ApprovalQueue,
    outcome: ToolOutcome,
    finished: Finished,
    closing: asyncio.Event,
    ended: OnCallEnded | None,
) -> None:
    """Write it down when the database is back. What the end of the door cuts off is "outcome unknown" at the next start."""
    while True:
        await first_of(queue.clock, AWAY_MS / 1000, closing)
        try:
            await write_down(queue, outcome, finished)
        except AWAY:
            if closing.is_set():
                raise
        else:
            if ended is not None:
                ended(outcome.request.principal.workspace, outcome.result.trace_id)
            return


def tool_call_started(
    chain: Chain, workspace: str, call: TracedCall, holder: str, now_ms: int
) -> Transaction[None]:
    yield _EFFECTS.begin_effect(
        workspace=workspace, holder=holder, now=now_ms, **msgspec.structs.asdict(call)
    )
    yield from chain.append(workspace, [StepDraft(step=StepKind.EXECUTED, call=call)], now_ms)


# Safe under read committed: whoever deletes the row of the effect tells its end, and of two only one finds it.
@read_committed
def tool_call_finished(chain: Chain, outcome: ToolOutcome, now_ms: int) -> Transaction[None]:
    request, result, returned = outcome.request, outcome.result, outcome.returned
    workspace, call = request.principal.workspace, request.call(result.approval_id, result.trace_id)
    contents: dict[ContentName, object] = {}
    if returned.result is not None:
        contents["result"] = returned.result
    if returned.error is not None:
        contents["error"] = returned.error
    draft = StepDraft(
        step=StepKind.RETURNED,
        call=call,
        contents=contents,
        owner=request.content_owner,
        status_code=returned.status_code,
        latency_ms=outcome.latency_ms,
    )
    if (yield _EFFECTS.end_effect(workspace=workspace, trace_id=call.trace_id)):
        yield from chain.append(workspace, [draft], now_ms)


async def give_up(ledger: Ledger, gone: Iterable[str], now_ms: int) -> list[tuple[str, str]]:
    """Trace whatever these holders had begun as of unknown outcome; return workspaces and trace ids."""
    begun = _EFFECTS.effects_of(holders=msgspec.json.encode(sorted(set(gone))).decode(), limit=BATCH)
    given_up: list[tuple[str, str]] = []
    while found := await ledger.database.read(rows, begun):
        for row in found:
            await ledger.transact(row["workspace_id"], _unknown, ledger.chain, row, now_ms)
        given_up += [(row["workspace_id"], row["trace_id"]) for row in found]
    return given_up


@read_committed  # safe as `tool_call_finished` is
def _unknown(chain: Chain, row: Row, now_ms: int) -> Transaction[None]:
    call = TracedCall(**{name: row[name] for name in TracedCall.__struct_fields__})
    draft = StepDraft(step=StepKind.RETURNED, call=call, status="unknown", reason=UNKNOWN)
    if (yield _EFFECTS.end_effect(workspace=row["workspace_id"], trace_id=row["trace_id"])):
        # Whoever comes back for it is told so.
        yield _EFFECTS.call_unknown(
            workspace=row["workspace_id"], trace_id=row["trace_id"], forget_at=now_ms + KEEP_MS
        )
        yield from chain.append(row["workspace_id"], [draft], now_ms)
