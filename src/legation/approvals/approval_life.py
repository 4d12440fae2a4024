"""The life of an approval, as parts of transactions: ask, claim, escalate, answer, edit, use, end.

INV-L1  Every change writes its step of the trace in the same transaction.
INV-L2  Every change is one conditional update: whoever comes second is told so, and changes nothing.
INV-L3  Another workspace's approval and none at all are the same `NotFound`. An id counts whole or not at all.

These append to the chain of the approval's workspace: run them with `Ledger.transact(workspace, ...)`.
"""

from __future__ import annotations

import hashlib

import msgspec

from legation.approvals.approval import (
    MIN_USE_MS,
    Answer,
    Approval,
    Asked,
    Change,
    Proposal,
    Status,
    label,
    moved,
    must_be_words,
    read,
    written_reviewers,
)
from legation.approvals.approval_endings import Endings, Reason, get
from legation.approvals.approval_rules import (
    held,
    is_held_by_another,
    may_decide,
    may_judge,
    must_be_free,
    must_review,
)
from legation.approvals.trace import ContentName, StepKind, argument_names, decided, proposed
from legation.approvals.trace_content import day_owner, encode
from legation.errors import AlreadyAnswered, Conflict, InvalidParams, LegationError, NotFound
from legation.store.database.queries import Queries
from legation.store.database.transaction import Dangling, Duplicate, Transaction
from legation.wire import jsontext
from legation.wire.action import Action
from legation.wire.principal import Principal

SHORTEST_LEASE_MS = 1_000
LONGEST_LEASE_MS = 600_000  # the other supervisors' time: as long as one may keep them waiting
MOST_AT_ONCE = 500  # approvals of a group that one transaction answers

_SQL = Queries("approvals")


class GroupAnswer(msgspec.Struct, frozen=True):
    """`refused` are those that the caller may not answer: they need a person, or another holds them."""

    answered: tuple[Approval, ...]
    refused: tuple[str, ...]


class Approvals(Endings):
    """All that can happen to an approval; the way out of it is in `approval_endings.py`."""

    def propose(
        self, proposal: Proposal, now_ms: int, *, replaces: Approval | None = None
    ) -> Transaction[Approval]:
        """Pending from now on. The trace has the proposal, with its arguments sealed, and the verdict."""
        proposal.check(now_ms)
        action, call = proposal.action, proposal.call
        digest = action.digest(proposal.policy_version)
        owner = proposal.content_owner or day_owner(now_ms)
        former = replaces and replaces.id
        for_person = proposal.verdict == "human_approval" or (replaces and replaces.needs == "person")
        steps = [
            msgspec.structs.replace(
                proposed(call, action, digest, owner=owner, context=proposal.context), replaces=former
            ),
            decided(call, proposal.verdict, proposal.policy_rule, proposal.policy_version),
        ]
        yield from self.chain.append(proposal.workspace, steps, now_ms)
        try:
            rows = yield _SQL.propose(
                id=proposal.id,
                workspace=proposal.workspace,
                trace_id=proposal.trace_id,
                waiter=proposal.waiter,
                session_id=proposal.session_id,
                turn_id=proposal.turn_id,
                tool_call_id=proposal.tool_call_id,
                requester_kind=proposal.requester_kind,
                requester=proposal.requester,
                requester_version=proposal.requester_version,
                agent=action.agent,
                tool=action.tool,
                kind=action.kind,
                action_digest=digest,
                policy_version=proposal.policy_version,
                policy_rule=proposal.policy_rule,
                verdict=proposal.verdict,
                needs="person" if for_person else "supervisor",
                injection_risk=int(proposal.injection_risk),
                editable=int(proposal.editable),
                reviewers=written_reviewers(proposal.reviewers),
                argument_bytes=len(encode(action.params)),
                argument_names=argument_names(action.params),
                content_owner=owner,
                group_key=group_key(action, digest),
                now=now_ms,
                expires_at=proposal.expires_at,
                replaces=former,
            )
        except Duplicate:
            raise Conflict(
                f"cannot ask for approval {proposal.id} twice; wait for the one there is"
            ) from None
        except Dangling:
            raise NotFound(
                "cannot ask for an approval there: there is no such workspace; create it first"
            ) from None
        return read(rows[0])

    def claim(
        self, principal: Principal, approval_id: str, lease_ms: int, now_ms: int
    ) -> Transaction[Approval]:
        """Hold it for a while; again, to hold it longer."""
        if not SHORTEST_LEASE_MS <= lease_ms <= LONGEST_LEASE_MS:
            raise InvalidParams(
                f"cannot claim for {lease_ms} ms: give {SHORTEST_LEASE_MS} to {LONGEST_LEASE_MS}"
            )
        former = yield from self._decidable(principal, approval_id, Change.APPROVE, now_ms)
        lower = (former.claimed_level or 0) < principal.level
        if is_held_by_another(former, principal, now_ms) and not lower:
            raise held(former)
        rows = yield _SQL.claim(
            workspace=principal.workspace,
            id=former.id,
            by=label(principal),
            level=principal.level,
            until=now_ms + lease_ms,
            now=now_ms,
        )
        return (yield from self.changed(rows, former, StepKind.CLAIMED, principal, now_ms))

    def escalate(
        self,
        principal: Principal,
        approval_id: str,
        words: str | None,
        now_ms: int,
        *,
        reason: Reason | None = None,
    ) -> Transaction[Approval]:
        """To a person. One that is with a person already stays as it is. `reason` is a fixed word of the door's."""
        must_be_words(words)
        former = yield from get(principal.workspace, approval_id)
        may_judge(former, principal)
        if former.needs == "person" and former.status_at(now_ms) is Status.PENDING:
            return former
        may_decide(former, principal)
        moved(former, Change.APPROVE, now_ms)
        must_be_free(former, principal, now_ms)
        rows = yield _SQL.escalate(
            workspace=principal.workspace, id=former.id, by=label(principal), now=now_ms
        )
        return (
            yield from self.changed(
                rows, former, StepKind.ESCALATED, principal, now_ms, {"reasoning": words}, reason=reason
            )
        )

    def resolve(
        self, principal: Principal, approval_id: str, answer: Answer, now_ms: int
    ) -> Transaction[Approval]:
        """The first answer stands; every other one is `AlreadyAnswered`."""
        change = Change.APPROVE if answer.approve else Change.DENY
        former = yield from self._decidable(principal, approval_id, change, now_ms)
        must_be_free(former, principal, now_ms)
        usable = max(former.expires_at, now_ms + MIN_USE_MS) if answer.approve else former.expires_at
        confidence = None if answer.confidence is None else float(answer.confidence)
        rows = yield _SQL.resolve(
            workspace=principal.workspace,
            id=former.id,
            status=moved(former, change, now_ms),
            now=now_ms,
            expires_at=usable,
            confidence=confidence,
            resolver_kind=principal.kind,
            resolver=principal.id,
            resolver_user=principal.user,
            level=principal.level,
        )
        said: dict[ContentName, str | None] = {
            "reasoning": answer.reasoning,
            "message": answer.message,
            "claim": answer.claim,
        }
        return (yield from self.changed(rows, former, StepKind.RESOLVED, principal, now_ms, said))

    def lift(self, former: Approval, grant: Principal, now_ms: int) -> Transaction[Approval]:
        """By a grant, which is a person's word: it needs nobody else's."""
        rows = yield _SQL.lift(
            workspace=former.workspace_id,
            id=former.id,
            now=now_ms,
            expires_at=max(former.expires_at, now_ms + MIN_USE_MS),
            resolver_kind=grant.kind,
            resolver=grant.id,
            level=grant.level,
        )
        return (yield from self.changed(rows, former, StepKind.RESOLVED, grant, now_ms, reason="granted"))

    def answer_group(
        self, principal: Principal, group_key: str, answer: Answer, now_ms: int
    ) -> Transaction[GroupAnswer]:
        """All pending ones that ask for the very same, at most `MOST_AT_ONCE`; the rest by calling again."""
        rows = yield _SQL.group(workspace=principal.workspace, group_key=group_key, limit=MOST_AT_ONCE)
        answered, refused, first = [], [], None
        for approval in map(read, rows):
            try:
                answered.append((yield from self.resolve(principal, approval.id, answer, now_ms)))
            except LegationError as error:  # raised before anything was changed
                refused.append(approval.id)
                first = first or error
        if not answered:
            raise first or NotFound(
                "cannot answer that group: nothing in it is pending; list what is pending"
            )
        return GroupAnswer(tuple(answered), tuple(refused))

    def rebind(
        self,
        former: Approval,
        action: Action,
        verdict: Asked,
        rule: str,
        version: str,
        reviewers: tuple[str, ...],
        now_ms: int,
    ) -> Transaction[Approval]:
        """To another policy, under which it is asked about all the same. It needs as much as before, or more."""
        digest = action.digest(version)
        needs = "person" if former.needs == "person" or verdict == "human_approval" else "supervisor"
        rows = yield _SQL.rebind(
            workspace=former.workspace_id,
            id=former.id,
            action_digest=digest,
            policy_version=version,
            policy_rule=rule,
            verdict=verdict,
            needs=needs,
            reviewers=written_reviewers(reviewers),
            group_key=group_key(action, digest),
            now=now_ms,
        )
        if not rows:
            raise AlreadyAnswered(f"cannot change approval {former.id}: somebody was faster; read it again")
        step = msgspec.structs.replace(
            decided(former.call, verdict, rule, version, reason="policy-changed"), action_digest=digest
        )
        yield from self.chain.append(former.workspace_id, [step], now_ms)
        return read(rows[0])

    def edit(
        self, principal: Principal, approval_id: str, proposal: Proposal, now_ms: int
    ) -> Transaction[Approval]:
        """A new approval, of the changed action, in place of the old one, which is superseded and names it.

        It needs as much as the old one did, or more. Whoever may decide the old one may edit it; answering the new
        one is `resolve`, in the same transaction or later.
        """
        former = yield from self._decidable(principal, approval_id, Change.APPROVE, now_ms)
        must_be_free(former, principal, now_ms)
        _must_stand_in(former, proposal)
        ended = yield from self.end(former, Change.SUPERSEDE, now_ms, "edited", by=principal, to=proposal.id)
        return (yield from self.propose(proposal, now_ms, replaces=ended))

    def _decidable(
        self, principal: Principal, approval_id: str, change: Change, now_ms: int
    ) -> Transaction[Approval]:
        approval = yield from get(principal.workspace, approval_id)
        may_decide(approval, principal)
        moved(approval, change, now_ms)
        if approval.reviewers and principal.level == 2:
            people = yield _SQL.person(user=principal.user or principal.id)
            must_review(
                approval,
                principal,
                [row[name] for row in people for name in ("id", "name", "email") if row[name]],
            )
        return approval


def group_key(action: Action, digest: str) -> str:
    """Agent, tool, arguments and policy are the same, and so is what the driver read besides the arguments, as the
    paths of a diff: whoever answers all of them has seen one."""
    seen = (digest, action.kind, action.paths, action.command, action.urls)
    return hashlib.sha256(jsontext.write(seen)).hexdigest()[:32]


def _must_stand_in(former: Approval, proposal: Proposal) -> None:
    """Only what the agent would do may differ, not who asks, who waits, or which tool it is."""
    was = (former.workspace_id, former.waiter, former.agent, former.tool, former.session_id, former.turn_id)
    action = proposal.action
    becomes = (
        proposal.workspace, proposal.waiter, action.agent, action.tool, proposal.session_id, proposal.turn_id
    )  # fmt: skip
    asks = (proposal.requester_kind, proposal.requester)
    if was != becomes or asks != (former.requester_kind, former.requester) or proposal.id == former.id:
        raise InvalidParams(
            f"cannot edit approval {former.id} into that: it is another's call; change the arguments alone"
        )
