"""How an approval ended, in words for whoever waited: who it was, and what it is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from legation.approvals.approval import Approval, Status
from legation.approvals.request import LIFTED, POLICY
from legation.approvals.trace_content import Seals, contents_of
from legation.store.database.transaction import Transaction
from legation.store.sealing import Sealer

_WORDS: Final = {
    Status.APPROVED: "approved",
    Status.DENIED: "denied",
    Status.EXPIRED: "nobody answered in time, and silence is no consent",
    Status.SUPERSEDED: "whoever waited for it is gone",
    Status.CANCELLED: "it was taken back",
}


@dataclass(frozen=True, slots=True)
class Ending:
    by: str
    reason: str
    message: str | None  # for the agent, where somebody gave one
    default: str  # what it is told else


def ending_of(sealer: Sealer, approval: Approval) -> Transaction[Ending]:
    """What the agent is told is the message; where there is none and it was denied, the reason."""
    rows = yield from contents_of(approval.workspace_id, [approval.trace_id], ["message", "reasoning"])
    said = {found.name: found.value for found in map(Seals(sealer, approval.workspace_id).open, rows)}
    lifted = approval.status is Status.APPROVED and approval.resolver_kind == "grant"
    words = LIFTED if lifted else _WORDS[approval.status]
    by = approval.resolved_by or POLICY
    message = said.get("message")
    if message is None and approval.status is Status.DENIED:
        message = said.get("reasoning")
    default = f"denied by {by}" if approval.status is Status.DENIED else words
    return Ending(by, words, None if message is None else str(message), default)
