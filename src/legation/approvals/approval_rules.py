"""Who may decide an approval.

INV-1  Nobody without the scope `approve` and a level of 1 at least.
INV-2  What needs a person, from the start or by escalation, only a person's credential decides (level 2).
INV-3  Nobody decides its own: not the credential that asked, not the agent that would act.
INV-4  Where the rule names reviewers, a person decides only as one of them.
INV-5  While a supervisor holds a claim, other supervisors wait. A person never does.
"""

from __future__ import annotations

from collections.abc import Iterable

from legation.approvals.approval import Approval, label
from legation.errors import Conflict, Forbidden
from legation.wire.principal import Principal


def may_decide(approval: Approval, principal: Principal) -> None:
    may_judge(approval, principal)
    if approval.needs == "person" and principal.level < 2:
        raise Forbidden(
            f"cannot decide approval {approval.id} as a supervisor: it needs a person; leave it to one",
            {"needs": "person"},
        )


def may_judge(approval: Approval, principal: Principal) -> None:
    """Have a say at all, be it that somebody else decides."""
    if principal.level < 1 or "approve" not in principal.scopes:
        raise Forbidden(
            f"cannot decide approval {approval.id} with this credential: it may not approve; use a supervisor's or "
            "a person's"
        )
    requester = (approval.requester_kind, approval.requester)
    own = principal.agent is not None and principal.agent == approval.agent
    if own or principal.asker == requester or (principal.kind, principal.id) == ("agent", approval.agent):
        raise Forbidden(
            f"cannot decide approval {approval.id}: whoever asks does not answer; let somebody else decide"
        )


def must_review(approval: Approval, principal: Principal, called: Iterable[str]) -> None:
    """`called`: the names by which the person may be meant, besides the credential itself."""
    wanted = {name.casefold() for name in approval.reviewers}
    if wanted.isdisjoint({label(principal), *(name.casefold() for name in called)}):
        raise Forbidden(
            f"cannot decide approval {approval.id}: its rule leaves that to {', '.join(approval.reviewers)}; ask them",
            {"reviewers": list(approval.reviewers)},
        )


def must_be_free(approval: Approval, principal: Principal, now_ms: int) -> None:
    if principal.level < 2 and is_held_by_another(approval, principal, now_ms):
        raise held(approval)


def is_held_by_another(approval: Approval, principal: Principal, now_ms: int) -> bool:
    held_now = approval.claimed_until is not None and approval.claimed_until > now_ms
    return held_now and approval.claimed_by != label(principal)


def held(approval: Approval) -> Conflict:
    return Conflict(
        f"cannot take approval {approval.id}: {approval.claimed_by} is looking at it; wait for its claim to end",
        {"claimedBy": approval.claimed_by, "claimedUntil": approval.claimed_until},
    )
