"""Operations on approvals and grants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from legation.client.operation import Operation, get, get_linked, nothing, sending
from legation.client.target import segment
from legation.wire.api.approvals import (
    ApprovalDetail,
    ApprovalStatus,
    ApprovalView,
    Approve,
    ClaimBody,
    Escalation,
    GrantView,
    GroupAnswered,
    NewGrant,
    Resolution,
)
from legation.wire.api.shape import Page


def list_approvals(
    status: ApprovalStatus | None = None,
    *,
    tool: str | None = None,
    agent: str | None = None,
    after: str | None = None,
    limit: int | None = None,
) -> Operation[Page[ApprovalView]]:
    """Of every status unless one is named; pending ones oldest first, else newest first. `tool` is a pattern."""
    query = {"status": status, "tool": tool, "agent": agent, "after": after, "limit": limit}
    return get_linked("/approvals", ApprovalView, query)


def read_approval(approval: str) -> Operation[ApprovalDetail]:
    """With what its agent did lately, and the grants that it has."""
    return get(f"/approvals/{segment(approval)}", ApprovalDetail)


def approve(
    approval: str,
    *,
    reasoning: str | None = None,
    message: str | None = None,
    confidence: float | None = None,
    params: Mapping[str, object] | None = None,
    resolved_by: str | None = None,
) -> Operation[ApprovalView]:
    """With `params`: these arguments instead, where the approval is `editable`. `message` is for the agent."""
    body = Approve(
        reasoning=reasoning, message=message, confidence=confidence, params=params, resolved_by=resolved_by
    )
    return sending("POST", f"/approvals/{segment(approval)}/approve", body, ApprovalView)


def deny(
    approval: str,
    *,
    reasoning: str | None = None,
    message: str | None = None,
    confidence: float | None = None,
    resolved_by: str | None = None,
) -> Operation[ApprovalView]:
    """`message` is what the agent is told; `reasoning` is kept in the trace."""
    body = Resolution(reasoning=reasoning, message=message, confidence=confidence, resolved_by=resolved_by)
    return sending("POST", f"/approvals/{segment(approval)}/deny", body, ApprovalView)


def escalate(approval: str, *, reasoning: str | None = None) -> Operation[ApprovalView]:
    """From then on only a person may answer it."""
    return sending(
        "POST", f"/approvals/{segment(approval)}/escalate", Escalation(reasoning=reasoning), ApprovalView
    )


def claim(approval: str, *, lease_seconds: int = 60) -> Operation[ApprovalView]:
    """Other supervisors keep off it for so long."""
    return sending(
        "POST", f"/approvals/{segment(approval)}/claim", ClaimBody(lease_seconds=lease_seconds), ApprovalView
    )


def answer_group(
    group: str,
    answer: Literal["approve", "deny"],
    *,
    reasoning: str | None = None,
    message: str | None = None,
    confidence: float | None = None,
    resolved_by: str | None = None,
) -> Operation[GroupAnswered]:
    """All pending ones that ask for the very same; `group` is a member of each of them."""
    body = Resolution(reasoning=reasoning, message=message, confidence=confidence, resolved_by=resolved_by)
    return sending("POST", f"/approvals/groups/{segment(group)}/{segment(answer)}", body, GroupAnswered)


def list_grants(*, after: str | None = None, limit: int | None = None) -> Operation[Page[GrantView]]:
    return get_linked("/grants", GrantView, {"after": after, "limit": limit})


def give_grant(
    agent: str,
    tools: str,
    duration: int | str,
    *,
    kinds: Iterable[str] | None = None,
    reason: str | None = None,
) -> Operation[GrantView]:
    """Agents (a pattern) may use tools (a pattern) unasked, for seconds or as Go writes it: `1h30m`."""
    wanted = None if kinds is None else [*kinds]
    body = NewGrant(agent=agent, tools=tools, duration=duration, kinds=wanted, reason=reason)
    return sending("POST", "/grants", body, GrantView)


def read_grant(grant: str) -> Operation[GrantView]:
    return get(f"/grants/{segment(grant)}", GrantView)


def revoke_grant(grant: str) -> Operation[None]:
    """It lets nothing pass from then on."""
    return Operation("DELETE", f"/grants/{segment(grant)}", nothing)
