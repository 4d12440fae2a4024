"""The transitions of an approval, as parts of transactions: ask, claim, escalate, answer, edit, use, end.

INV-L1  Every change writes its step of the trace in the same transaction.
INV-L2  Every change is one conditional update: whoever comes second is told so, and changes nothing.
INV-L3  Another workspace's approval and none at all are the same `NotFound`. An id counts whole or not at all.

INV-E1  `consume` checks again what was decided: the action, the policy, the waiter, the time. It succeeds once.
INV-E2  What was consumed does not end any other way: whether its effect happened is for the trace to say.
INV-E3  What ends with its holder is superseded when that is gone, and says so; nor is it answered from that moment on: who
        answers looks, in the same conditional update, whether somebody waits.
INV-E4  Whoever is revoked takes the waiting calls along: what a token, a user or a browser asked for is superseded when
        it could no longer ask, and is not consumed from that moment on, for `consume` looks in its own transaction.

These append to the chain of the approval's workspace: run them with `Ledger.transact(workspace, ...)`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from legation.approvals.approval import (
    MIN_USE_MS,
    PROGRAM,
    Approval,
    ApprovalAnswer,
    ApprovalChange,
    ApprovalState,
    Asked,
    Proposal,
    Waiter,
    held,
    is_held_by_another,
    label,
    may_decide,
    may_judge,
    moved,
    must_be_free,
    must_be_seen,
    must_be_words,
    must_review,
    read,
    written_reviewers,
)
from legation.approvals.trace.chain import Chain, Ledger
from legation.approvals.trace.step import (
    ContentName,
    StepDraft,
    StepKind,
    argument_names,
    day_owner,
    decided,
    encode_content,
    proposed,
)
from legation.errors import AlreadyAnswered, Conflict, InvalidParams, LegationError, NotFound
from legation.store.database.transaction import (
    Dangling,
    Duplicate,
    Overtaken,
    Queries,
    Rows,
    Statement,
    Transaction,
    only,
    read_committed,
    rows,
)
from legation.store.identity import tokens
from legation.store.identity.tokens import standing
from legation.wire import jsontext
from legation.wire.action import Action
from legation.wire.principal import Principal

MOST_OF_SESSION: Final = 10_000  # open approvals that a session has at once: more than any agent asks for
SHORTEST_LEASE_MS: Final = 1_000
LONGEST_LEASE_MS: Final = 600_000  # the other supervisors' time: as long as one may keep them waiting
MOST_AT_ONCE: Final = 500  # approvals of a group that one transaction answers
BATCH: Final = 100  # approvals that end in one transaction: some milliseconds of work
TAKEN_OVER: Final = "waiter"  # why one cannot use it: it is, or has become, another's
UNHEARD: Final = "waiter-unheard"  # why nobody can answer it now

Reason: TypeAlias = Literal[
    "unanswered",  # expired while pending
    "unused",  # expired after it was approved
    "waiter-dead",  # superseded: the process in which it was waited for is gone
    "waiter-silent",  # superseded: the program that waited by itself is gone
    "edited",  # superseded: by an approval of changed arguments
    "revoked",  # superseded: whoever asked is revoked, expired, disabled, signed out, or has another role
    "caller-gone",
    "turn-cancelled",
    "session-closed",  # superseded: the session that it was asked in has ended
    "policy-changed",
    "paths-changed",  # cancelled: its paths lead elsewhere than when it was asked
    "limit-reached",  # cancelled: the money is spent meanwhile
    "only-always",  # cancelled: the agent offers nothing else, and there is no grant for that
    "stopping",
    "no-supervisor",  # escalated: nobody of level 1 was there
    "granted",  # resolved: a grant was given meanwhile
    "undecided",  # escalated: supervisors were there and left it
]

_SQL: Final = Queries("approvals")
_PROPOSED: Final = (  # columns that are named as members of a proposal
    "id", "workspace", "trace_id", "session_id", "turn_id", "tool_call_id", "requester_kind", "requester",
    "requester_version", "policy_version", "policy_rule", "verdict", "expires_at",
)  # fmt: skip
_OPEN: Final = (ApprovalState.PENDING, ApprovalState.APPROVED)


def get(workspace: str, approval_id: str) -> Transaction[Approval]:
    """Read one by its whole id."""
    row = only((yield _SQL.get(workspace=workspace, id=approval_id)))
    if row is None:
        raise NotFound("cannot find the approval; list those of the workspace, and give the whole id")
    return read(row)


class Revoked(Conflict):
    """The one who asked may ask no more. It never leaves the door."""


def may_still_ask(
    workspace: str, kind: str, requester: str, version: int | None, agent: str, now_ms: int
) -> Transaction[bool]:
    """Tell whether a credential that asked for an agent could ask the same now."""
    row = only((yield _SQL.workspace_status(workspace=workspace)))
    if row is None or row["status"] != "active":
        return False
    if kind == "token":
        token = yield from tokens.principal_by_id(workspace, requester, now_ms)
        return token is not None and "call" in token.scopes and _is_for(token, agent)
    if kind == "user":
        found = yield from standing(requester, workspace)
        return (
            found is not None
            and {"call", "operate"} <= found.scopes
            and version in (None, found.token_version)
        )
    return True  # the server's own cannot be revoked: what asks by them, a session, ends by itself


def must_still_ask(asked: Approval, now_ms: int) -> Transaction[None]:
    """Refuse one whose asker was revoked: part of the transaction in which it passes."""
    requester = asked.requester_kind, asked.requester, asked.requester_version
    if not (yield from may_still_ask(asked.workspace_id, *requester, asked.agent, now_ms)):
        raise Revoked(f"cannot use approval {asked.id}: whoever asked for it may ask no more")


def _is_for(token: Principal, agent: str) -> bool:
    return token.agent == agent if token.agent is not None else "operate" in token.scopes


class GroupAnswer(msgspec.Struct, frozen=True):
    """`refused` are those that the caller may not answer: they need a person, or another holds them."""

    answered: tuple[Approval, ...]
    refused: tuple[str, ...]


class Transitions:
    """All that can happen to an approval, in the chain of one server."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain

    def propose(
        self, proposal: Proposal, now_ms: int, *, replaces: Approval | None = None
    ) -> Transaction[Approval]:
        """Make an approval, pending from now on. The trace has the proposal, with its arguments sealed, and the verdict."""
        proposal.check(now_ms)
        action, call = proposal.action, proposal.call
        digest = action.digest(proposal.policy_version)
        owner = proposal.content_owner or day_owner(now_ms)
        former = replaces and replaces.id
        for_person = proposal.verdict == "human_approval" or (replaces and replaces.needs == "person")
        steps = [
            msgspec.structs.replace(
                proposed(
                    call, action, digest, owner=owner, context=proposal.context, evidence=proposal.evidence
                ),
                replaces=former,
            ),
            decided(
                call,
                proposal.verdict,
                proposal.policy_rule,
                proposal.policy_version,
                why=proposal.why,
                owner=owner,
            ),
        ]
        yield from self.chain.append(proposal.workspace, steps, now_ms)
        try:
            rows = yield _SQL.propose(
                **{name: getattr(proposal, name) for name in _PROPOSED},
                waiter=proposal.waiter.id,
                holder=proposal.waiter.holder,
                outlives=int(proposal.waiter.outlives),
                look_at=now_ms if for_person or proposal.look_at is None else proposal.look_at,
                agent=action.agent,
                tool=action.tool,
                kind=action.kind,
                action_digest=digest,
                needs="person" if for_person else "supervisor",
                injection_risk=int(proposal.injection_risk),
                editable=int(proposal.editable),
                reviewers=written_reviewers(proposal.reviewers),
                argument_bytes=len(encode_content(action.params)),
                argument_names=argument_names(action.params),
                content_owner=owner,
                group_key=group_key(action, digest),
                now=now_ms,
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
        former = yield from self._decidable(principal, approval_id, ApprovalChange.APPROVE, now_ms)
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
        if not rows:
            yield from must_be_waited_for(former)
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
        """Leave it to a person. One that is with a person already stays as it is. `reason`: a fixed word of the door's."""
        must_be_words(words)
        former = yield from get(principal.workspace, approval_id)
        may_judge(former, principal)
        if former.needs == "person" and former.status_at(now_ms) is ApprovalState.PENDING:
            return former
        may_decide(former, principal)
        moved(former, ApprovalChange.APPROVE, now_ms)
        must_be_free(former, principal, now_ms)
        rows = yield _SQL.escalate(
            workspace=principal.workspace, id=former.id, by=label(principal), now=now_ms
        )
        return (
            yield from self.changed(
                rows, former, StepKind.ESCALATED, principal, now_ms, {"reasoning": words}, reason=reason
            )
        )

    # Safe under read committed: it is answered only where all that was looked at (whether it is pending, who may answer, under
    # which policy, who holds it) still is as it was read; else that is read again.
    @read_committed
    def resolve(
        self, principal: Principal, approval_id: str, answer: ApprovalAnswer, now_ms: int
    ) -> Transaction[Approval]:
        """Approve or deny it. The first answer stands; every other one is `AlreadyAnswered`."""
        change = ApprovalChange.APPROVE if answer.approve else ApprovalChange.DENY
        former = yield from self._decidable(principal, approval_id, change, now_ms)
        if answer.digest is not None:
            must_be_seen(former, answer.digest)
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
            policy_version=former.policy_version,
            reviewers=written_reviewers(former.reviewers),
            claimed_by=former.claimed_by,
            claimed_until=former.claimed_until,
        )
        if not rows:
            yield from must_be_waited_for(former)
            raise Overtaken(f"cannot change approval {former.id}: somebody was faster; read it again")
        said: dict[ContentName, str | None] = {
            "reasoning": answer.reasoning,
            "message": answer.message,
            "claim": answer.claim,
        }
        return (yield from self.changed(rows, former, StepKind.RESOLVED, principal, now_ms, said))

    def lift(self, former: Approval, grant: Principal, now_ms: int) -> Transaction[Approval]:
        """Approve it by a grant, which is a person's word: it needs nobody else's."""
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
        self,
        principal: Principal,
        group_key: str,
        answer: ApprovalAnswer,
        now_ms: int,
        only: Collection[str] | None = None,
    ) -> Transaction[GroupAnswer]:
        """Answer all pending ones that ask for the very same, at most `MOST_AT_ONCE`; the rest by calling again. `only`: of
        them those that whoever answers has seen."""
        rows = yield _SQL.group(workspace=principal.workspace, group_key=group_key, limit=MOST_AT_ONCE)
        answered, refused, first = [], [], None
        for approval in map(read, rows):
            if only is not None and approval.id not in only:
                continue
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
        why: str,
        now_ms: int,
    ) -> Transaction[Approval]:
        """Bind it to another policy, under which it is asked about all the same. It needs as much as before, or more."""
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
            raise too_late(former)
        step = msgspec.structs.replace(
            decided(
                former.call,
                verdict,
                rule,
                version,
                reason="policy-changed",
                why=why,
                owner=former.content_owner,
            ),
            action_digest=digest,
        )
        yield from self.chain.append(former.workspace_id, [step], now_ms)
        return read(rows[0])

    def edit(
        self, principal: Principal, approval_id: str, proposal: Proposal, now_ms: int
    ) -> Transaction[Approval]:
        """Put a new approval, of the changed action, in place of the old one, which is superseded and names it.

        It needs as much as the old one did, or more. Whoever may decide the old one may edit it; answering the new
        one is `resolve`, in the same transaction or later.
        """
        former = yield from self._decidable(principal, approval_id, ApprovalChange.APPROVE, now_ms)
        must_be_free(former, principal, now_ms)
        _must_stand_in(former, proposal)
        ended = yield from self.end(
            former, ApprovalChange.SUPERSEDE, now_ms, "edited", by=principal, to=proposal.id
        )
        return (yield from self.propose(proposal, now_ms, replaces=ended))

    def _decidable(
        self, principal: Principal, approval_id: str, change: ApprovalChange, now_ms: int
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

    def consume(
        self,
        workspace: str,
        approval_id: str,
        waiter: Waiter,
        digest: str,
        policy_version: str,
        now_ms: int,
    ) -> Transaction[Approval]:
        """Use an approval, right before acting. It is refused a second time, for another action, policy or waiter, for one
        whose call another process has taken over, and for whoever was revoked meanwhile."""
        yield from must_still_ask((yield from get(workspace, approval_id)), now_ms)
        rows = yield _SQL.consume(
            workspace=workspace,
            id=approval_id,
            waiter=waiter.id,
            holder=waiter.holder,
            action_digest=digest,
            policy_version=policy_version,
            now=now_ms,
        )
        former = yield from get(workspace, approval_id)
        if not rows:
            raise _unusable(former, waiter, policy_version, now_ms)
        return (yield from self.changed(rows, former, StepKind.CONSUMED, None, now_ms))

    def end_all(
        self,
        workspace: str,
        ids: Iterable[str],
        change: ApprovalChange,
        now_ms: int,
        reason: Reason | None = None,
    ) -> Transaction[list[Approval]]:
        """End those that are still open; by `expire` those whose time is over. The others stay as they are."""
        ended = []
        for approval_id in ids:
            row = only((yield _SQL.get(workspace=workspace, id=approval_id)))
            if row is None:
                continue
            former = read(row)
            is_open = former.status in _OPEN and former.consumed_at is None
            if is_open and (change is not ApprovalChange.EXPIRE or former.expires_at <= now_ms):
                ended.append((yield from self.end(former, change, now_ms, reason)))
        return ended

    def cancel(
        self, workspace: str, ids: Iterable[str], reason: Reason, now_ms: int
    ) -> Transaction[list[Approval]]:
        return (yield from self.end_all(workspace, ids, ApprovalChange.CANCEL, now_ms, reason))

    def cancel_session(
        self, workspace: str, session: str, turn: str | None, reason: Reason, now_ms: int
    ) -> Transaction[list[Approval]]:
        """Cancel all open ones of a session, or of one of its turns."""
        ids = yield from _open_in(workspace, session, turn)
        return (yield from self.cancel(workspace, ids, reason, now_ms))

    def supersede_session(self, workspace: str, session: str, now_ms: int) -> Transaction[list[Approval]]:
        """End all open ones that name a session which is closed, whoever asked for them."""
        ids = yield from _open_in(workspace, session, None)
        return (yield from self.end_all(workspace, ids, ApprovalChange.SUPERSEDE, now_ms, "session-closed"))

    def end(
        self,
        former: Approval,
        change: ApprovalChange,
        now_ms: int,
        reason: Reason | None = None,
        *,
        by: Principal | None = None,
        to: str | None = None,
    ) -> Transaction[Approval]:
        """Expire, supersede or cancel one that was read in this transaction and is open."""
        status = moved(former, change, now_ms)
        rows = yield _SQL.end_open(
            workspace=former.workspace_id,
            id=former.id,
            status=status,
            former=former.status,
            replaced_by=to,
            now=now_ms,
        )
        word = reason or ("unused" if former.status is ApprovalState.APPROVED else "unanswered")
        return (yield from self.changed(rows, former, StepKind(status), by, now_ms, reason=word))

    def changed(
        self,
        rows: Rows,
        former: Approval,
        step: StepKind,
        by: Principal | None,
        now_ms: int,
        said: Mapping[ContentName, str | None] = {},
        *,
        reason: Reason | None = None,
    ) -> Transaction[Approval]:
        """Write the step that belongs to a conditional update; without a row somebody was faster."""
        if not rows:
            raise too_late(former)
        approval = msgspec.structs.replace(read(rows[0]), reason=reason)
        draft = StepDraft(
            step=step,
            call=approval.call,
            contents={name: words for name, words in said.items() if words is not None},
            owner=approval.content_owner,
            status=str(approval.status),
            reason=reason,
            by=by,
            confidence=approval.confidence if step is StepKind.RESOLVED else None,
            replaces=approval.replaced_by,
        )
        yield from self.chain.append(approval.workspace_id, [draft], now_ms)
        return approval


def group_key(action: Action, digest: str) -> str:
    """Name the calls whose answers may be given together: agent, tool, arguments and policy are the same, and so is what
    the driver read besides the arguments, as the paths of a diff. Whoever answers all of them has seen one."""
    seen = (digest, action.kind, action.paths, action.command, action.urls)
    return hashlib.sha256(jsontext.write(seen)).hexdigest()[:32]


def _must_stand_in(former: Approval, proposal: Proposal) -> None:
    """Refuse an edit of anything but what the agent would do: who asks, who waits and which tool it is stay."""
    was = (
        former.workspace_id,
        former.awaited_by,
        former.agent,
        former.tool,
        former.session_id,
        former.turn_id,
    )
    action = proposal.action
    becomes = (
        proposal.workspace, proposal.waiter, action.agent, action.tool, proposal.session_id, proposal.turn_id
    )  # fmt: skip
    asks = (proposal.requester_kind, proposal.requester)
    if was != becomes or asks != (former.requester_kind, former.requester) or proposal.id == former.id:
        raise InvalidParams(
            f"cannot edit approval {former.id} into that: it is another's call; change the arguments alone"
        )


class Unheard(Conflict):
    """A waiter is not heard of: an answer would have nothing behind it."""

    def __init__(self, approval: Approval, words: str) -> None:
        super().__init__(
            f"cannot answer approval {approval.id}: {words}", {"reason": UNHEARD, "waiter": approval.waiter}
        )


def must_be_waited_for(former: Approval) -> Transaction[None]:
    if not (yield _SQL.is_waited_for(workspace=former.workspace_id, id=former.id)):
        raise Unheard(
            former,
            f"{former.waiter}, which waits for it, is not heard of; answer it when that is back, or else it is superseded "
            "soon",
        )


def _unusable(former: Approval, waiter: Waiter, policy_version: str, now_ms: int) -> LegationError:
    why = f"cannot use approval {former.id}: "
    if (former.waiter, former.holder) != waiter[:2]:
        return Conflict(why + "another waits for it; ask for one of your own", {"reason": TAKEN_OVER})
    try:
        moved(former, ApprovalChange.CONSUME, now_ms)
    except AlreadyAnswered as error:
        return Conflict(why + f"it is {(error.data or {})['status']}; ask again", error.data)
    if former.policy_version != policy_version:
        return Conflict(
            why + "the policy changed since; ask again under the new one", {"reason": "policy-changed"}
        )
    return Conflict(why + "it was given for another action; ask again", {"reason": "action"})


def too_late(approval: Approval) -> AlreadyAnswered:
    return AlreadyAnswered(f"cannot change approval {approval.id}: somebody was faster; read it again")


def _open_in(workspace: str, session: str, turn: str | None) -> Transaction[list[str]]:
    found = yield _SQL.open_of_session(workspace=workspace, session=session, turn=turn, limit=MOST_OF_SESSION)
    return [row["id"] for row in found]


# Sweeps over all workspaces. Each batch is a transaction of its own, in the turn of its chain.


async def expire_due(ledger: Ledger, transitions: Transitions, now_ms: int) -> list[Approval]:
    """End whatever ran out of time. Call it often; it costs one look at an index when nothing did."""
    due = _SQL.due(now=now_ms, limit=BATCH)
    return await _end_found(ledger, transitions, due, ApprovalChange.EXPIRE, now_ms)


async def supersede(
    ledger: Ledger, transitions: Transitions, gone: Iterable[str], now_ms: int
) -> list[Approval]:
    """End what ends with these holders, which are gone."""
    holders, ended = set(gone), list[Approval]()
    programs = {holder for holder in holders if holder.startswith(PROGRAM)}
    for some, reason in ((holders - programs, "waiter-dead"), (programs, "waiter-silent")):
        left = _SQL.open_of_holders(holders=msgspec.json.encode(sorted(some)).decode(), limit=BATCH)
        ended += await _end_found(ledger, transitions, left, ApprovalChange.SUPERSEDE, now_ms, reason)  # type: ignore[arg-type]
    return ended


async def supersede_revoked(ledger: Ledger, transitions: Transitions, now_ms: int) -> list[Approval]:
    """End whatever was asked for by somebody who could not ask it now. It costs one look at each who asked."""
    ended: list[Approval] = []
    for asker in await ledger.database.read(rows, _SQL.askers()):
        workspace, kind, requester = asker["workspace_id"], asker["requester_kind"], asker["requester"]
        version, agent = asker["requester_version"], asker["agent"]
        if await ledger.database.read(may_still_ask, workspace, kind, requester, version, agent, now_ms):
            continue
        left = _SQL.open_of_asker(
            workspace=workspace, kind=kind, requester=requester, version=version, agent=agent, limit=BATCH
        )
        ended += await _end_found(ledger, transitions, left, ApprovalChange.SUPERSEDE, now_ms, "revoked")
    return ended


async def _end_found(
    ledger: Ledger,
    transitions: Transitions,
    find: Statement,
    change: ApprovalChange,
    now_ms: int,
    reason: Reason | None = None,
) -> list[Approval]:
    ended: list[Approval] = []
    while found := await ledger.database.read(rows, find):
        ids: dict[str, list[str]] = {}
        for row in found:
            ids.setdefault(row["workspace_id"], []).append(row["id"])
        before = len(ended)
        for workspace, some in ids.items():
            ended += await ledger.transact(
                workspace, transitions.end_all, workspace, some, change, now_ms, reason
            )
        if len(ended) == before:
            break  # others ended them meanwhile
    return ended
