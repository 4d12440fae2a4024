"""Approvals, grants and traces as seed 001 shows them: snake_case, times as RFC 3339, exactly its members.

Every member is always there; what has no value is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, dataclass_transform

import msgspec
from msgspec import Meta

ApprovalStatus = Literal["pending", "approved", "denied", "expired", "superseded", "cancelled"]
Words = Annotated[str, Meta(max_length=16_384)]
Confidence = Annotated[float, Meta(ge=0, le=1)]


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Shape(msgspec.Struct, frozen=True, kw_only=True):
    pass


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A member that is misspelt is refused, never ignored."""


class ApprovalView(Shape):
    id: str
    agent_id: str
    tool: str
    params: Mapping[str, object] | None  # null after they were purged
    policy_rule: str
    status: ApprovalStatus
    created_at: str
    remaining: str  # as Go writes durations: 4m30s
    injection_risk: bool


class RecentTrace(Shape):
    trace_id: str
    tool: str
    policy: str | None
    timestamp: str


class ActiveGrant(Shape):
    id: str
    agent: str
    tools: str
    expires_at: str
    remaining: str
    granted_by: str


class ApprovalDetail(ApprovalView):
    recent_traces: list[RecentTrace]
    active_grants: list[ActiveGrant]


class Resolution(Body):
    """Of approve and deny. `resolved_by` is kept as the caller's word; who it was, the credential says."""

    resolved_by: Annotated[str, Meta(max_length=256)] | None = None
    reasoning: Words | None = None
    confidence: Confidence | None = None


class Escalation(Body):
    reasoning: Words | None = None


class ClaimBody(Body):
    lease_seconds: Annotated[int, Meta(ge=1, le=600)] = 60


class NewGrant(Body):
    """`duration` in seconds."""

    agent: Annotated[str, Meta(min_length=1, max_length=256)]
    tools: Annotated[str, Meta(min_length=1, max_length=256)]
    duration: Annotated[int, Meta(ge=1)]
    kinds: list[Annotated[str, Meta(min_length=1, max_length=64)]] | None = None
    reason: Words | None = None


class TraceEntry(Shape):
    """One call, joined from its steps. `params` is null after it was purged; `digest` stays."""

    trace_id: str
    session_id: str | None
    agent_id: str
    tool: str
    params: Mapping[str, object] | None
    digest: str | None
    policy: str | None
    policy_rule: str | None
    status_code: int | None
    latency_ms: int | None
    error: str | None
    timestamp: str
    approval_id: str | None
    approval_status: ApprovalStatus | None
    approved_by: str | None
    approval_ms: int | None
    supervisor_reasoning: str | None
    supervisor_confidence: float | None


def rfc3339(ms: int) -> str:
    """As Go writes it: the fraction of a second only where there is one, without trailing zeros."""
    from datetime import UTC, datetime

    seconds, rest = divmod(ms, 1000)
    fraction = f".{rest:03d}".rstrip("0") if rest else ""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}{fraction}Z"


def go_duration(ms: int) -> str:
    """As Go writes whole seconds: `30m0s`, `4m30s`, `45s`, `0s`."""
    seconds = max(0, ms) // 1000
    hours, minutes = seconds // 3600, seconds // 60 % 60
    if hours:
        return f"{hours}h{minutes}m{seconds % 60}s"
    return f"{minutes}m{seconds % 60}s" if minutes else f"{seconds}s"
