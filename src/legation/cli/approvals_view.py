"""An approval in words, whole: loaded when one is looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from legation.cli.command import Style, line, named, plain
from legation.wire.api.approvals import ApprovalDetail, ApprovalView, WhyAsked, go_duration

INJECTION = "its arguments look like an attempt to talk whoever decides into it"
PURGED = "purged: they are no longer kept"


class StyledLine(NamedTuple):
    text: str
    style: Style | None = None


def facts(approval: ApprovalView) -> Iterator[StyledLine]:
    """Say who wants what, and by which rule it is asked about."""
    if approval.injection_risk:
        yield StyledLine(f"INJECTION  {INJECTION}", "red")
    yield StyledLine(f"tool       {line(approval.tool)}", "bold")
    yield StyledLine(f"agent      {line(approval.agent_id)}")
    yield StyledLine(f"rule       {line(approval.policy_rule)}")
    yield StyledLine(f"needs      a {approval.needs}")
    if approval.session_id:
        yield StyledLine(f"session    {line(approval.session_id)}")
    yield StyledLine(f"asked      {line(approval.created_at)}")
    if approval.claimed_by and approval.status == "pending":
        yield StyledLine(f"looked at  by {line(approval.claimed_by)}", "yellow")


def evidence(approval: ApprovalDetail) -> Iterator[StyledLine]:
    """Say what would be done and where, and why somebody is asked."""
    if approval.workspace or approval.cwd:
        yield StyledLine(f"folder     {line(approval.workspace or approval.cwd or '')}")
    for path in approval.paths:
        where = {True: "inside the workspace", False: "outside the workspace", None: "nobody can tell where"}
        linked = f", through a link to {line(path.real or '?')}" if path.link else ""
        yield StyledLine(
            f"path       {line(path.path)} ({where[path.inside]}{linked})",
            None if path.inside and not path.link else "yellow",
        )
    if approval.command:
        yield StyledLine(f"command    {line(approval.command)}", "bold")
    if approval.asked is not None:
        yield from (StyledLine(f"why        {text}") for text in _levels(approval.asked))
    if approval.digest:
        yield StyledLine(f"digest     {line(approval.digest)}", "dim")


def _levels(asked: WhyAsked) -> Iterator[str]:
    reason = f": {line(asked.policy.reason)}" if asked.policy.reason else ""
    yield f"policy     {line(asked.policy.rule)}{reason}"
    supervisor = asked.supervisor
    waited = go_duration(supervisor.waited_ms or 0)
    said = f": {line(supervisor.reasoning)}" if supervisor.reasoning else ""
    yield (
        "supervisor "
        + {
            "not-asked": "not asked",
            "waiting": f"nobody has taken it, for {waited}",
            "looking": f"{line(supervisor.by or '')} looks at it",
            "absent": f"nobody was attached; waited {waited}",
            "undecided": f"nobody decided it within {waited}",
            "escalated": f"{line(supervisor.by or '')} left it to a person{said}",
            "decided": f"{line(supervisor.by or '')} decided{said}",
            "passed-over": "a person was first",
        }[supervisor.state]
    )


def outcome(approval: ApprovalView) -> str:
    """Say how it stands, and by whose word."""
    answerer = named(approval.resolved_by, approval.resolved_by_name)
    by = f" by {line(answerer)}" if answerer else ""
    at = f" at {line(approval.resolved_at)}" if approval.resolved_at else ""
    instead = f"; {line(approval.replaced_by)} took its place" if approval.replaced_by else ""
    why = f": {line(approval.why)}" if approval.why and not instead else ""
    return f"{approval.status}{by}{at}{instead}{why}"


def arguments(params: Mapping[str, object] | None) -> list[str]:
    """Write the arguments as JSON, so that a line break within a value cannot pass for the next line of ours."""
    if params is None:
        return [PURGED]
    text = msgspec.json.format(msgspec.json.encode(params), indent=2).decode()
    return plain(text).split("\n")


def surroundings(approval: ApprovalDetail) -> Iterator[StyledLine]:
    """Say what the agent did lately, and what it may do unasked."""
    for trace in approval.recent_traces:
        did = f"{line(trace.timestamp)}  {line(trace.policy or '-')}  {line(trace.tool)}"
        yield StyledLine(f"recent     {did}  {line(trace.trace_id)}", "dim")
    for grant in approval.active_grants:
        may = f"{line(grant.agent)} may use {line(grant.tools)} for {line(grant.remaining)}"
        yield StyledLine(f"grant      {line(grant.id)}: {may}, by {line(grant.granted_by)}", "dim")


def whole(approval: ApprovalDetail) -> Iterator[StyledLine]:
    yield StyledLine(line(approval.id), "bold")
    yield StyledLine(f"status     {outcome(approval)}")
    if approval.status == "pending":
        yield StyledLine(f"ends in    {line(approval.remaining)}")
    yield from facts(approval)
    yield from evidence(approval)
    yield StyledLine("arguments")
    for text in arguments(approval.params):
        yield StyledLine(f"    {text}")
    yield from surroundings(approval)
