"""How an approval ended, in words for whoever waited: who it was, and what it is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from legation.approvals.approval import Approval, Status
from legation.approvals.request import LIFTED, POLICY
from legation.approvals.trace import StepKind
from legation.approvals.trace_content import Seals, contents_of
from legation.store.audit import names_of
from legation.store.database.queries import Queries
from legation.store.database.transaction import Row, Transaction, only
from legation.store.sealing import Sealer

_ANSWERED: Final = (Status.APPROVED, Status.DENIED)
_WORDS: Final = {
    Status.APPROVED: "approved",
    Status.DENIED: "denied",
    Status.EXPIRED: "nobody answered in time, and silence is no consent",
    Status.SUPERSEDED: "whoever waited for it is gone",
    Status.CANCELLED: "it was taken back",
}
_WHY: Final = {
    "revoked": "the credential that asked for it was revoked, has expired, or may ask no more",
    "session-closed": "the session that it was asked in has ended",
    "waiter-dead": "the server was restarted while it waited for an answer",
    "stopping": "the server was stopped while it waited for an answer",
    "unused": "it was approved, and not used in time",
    "edited": "it was approved with other arguments",
    "turn-cancelled": "its turn was cancelled",
    "caller-gone": "whoever asked for it no longer waits",
    "policy-changed": "the policy changed meanwhile",
}
_SQL: Final = Queries("traces")


@dataclass(frozen=True, slots=True)
class Ending:
    by: str
    reason: str
    message: str | None  # for the agent, where somebody gave one
    default: str  # what it is told else
    by_name: str | None = None  # of the person who answered


def why_ended(status: Status, reason: str | None) -> str | None:
    """In words, of one that ended without an answer; `reason` is the fixed word of its last step, where that is known."""
    if status in (Status.PENDING, *_ANSWERED):
        return None
    return _WHY.get(reason or "", _WORDS[status])


def ending_of(sealer: Sealer, approval: Approval) -> Transaction[Ending]:
    """What the agent is told is the message; where there is none and it was denied, the reason. Both are those of the
    step that it ended with: what a supervisor said who left it to a person is for that person."""
    step = StepKind.RESOLVED if approval.status in _ANSWERED else StepKind(approval.status)
    last = only(
        (
            yield _SQL.ending_step(
                workspace=approval.workspace_id, trace=approval.trace_id, approval=approval.id, step=step
            )
        )
    )
    rows = yield from contents_of(approval.workspace_id, [approval.trace_id], ["message", "reasoning"])
    opened = map(Seals(sealer, approval.workspace_id).open, rows)
    said = {each.name: each.value for each in opened if last and (each.server, each.seq) == _place(last)}
    lifted = approval.status is Status.APPROVED and approval.resolver_kind == "grant"
    words = LIFTED if lifted else _WHY.get(last["reason"] if last else "", _WORDS[approval.status])
    by = approval.resolved_by or POLICY
    message = said.get("message")
    if message is None and approval.status is Status.DENIED:
        message = said.get("reasoning")
    default = f"denied by {by}" if approval.status is Status.DENIED else words
    person = approval.person
    names = yield from names_of([person] if person else [])
    return Ending(
        by, words, None if message is None else str(message), default, names.get(person) if person else None
    )


def _place(step: Row) -> tuple[str, int]:
    return step["server"], step["seq"]
