"""Events of a workspace's stream `approvals`: every change of an approval. What was said is not in them."""

from typing import Literal

from legation.wire.payload import Payload

Happened = Literal[
    "proposed",
    "decided",
    "claimed",
    "escalated",
    "resolved",
    "consumed",
    "cancelled",
    "expired",
    "superseded",
]


class ApprovalChanged(Payload):
    """An approval as it is after something happened to it. Read it for the rest."""

    id: str
    happened: Happened
    status: Literal["pending", "approved", "denied", "expired", "superseded", "cancelled"]
    needs: Literal["supervisor", "person"]
    agent: str
    tool: str
    kind: str
    rule: str
    group: str
    trace_id: str
    created_at: int
    expires_at: int
    injection_risk: bool = False
    session_id: str | None = None
    claimed_by: str | None = None
    claimed_until: int | None = None
    resolved_by: str | None = None
    replaces: str | None = None
    replaced_by: str | None = None
    why: str | None = None  # in words, where it ended without an answer
