"""Approvals, grants and traces on the wire: snake_case, times as RFC 3339, durations as Go writes them.

The members of seed 001 come first, under its names and with its types; those of our own follow them. Every member
is always there; what has no value is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, dataclass_transform

import msgspec
from msgspec import Meta

from legation.wire.events import Payload
from legation.wire.resolved import ResolvedPaths

ApprovalStatus = Literal["pending", "approved", "denied", "expired", "superseded", "cancelled"]
Words = Annotated[str, Meta(max_length=16_384)]
Value = Annotated[object, Meta(extra_json_schema={"description": "any JSON value"})]
Confidence = Annotated[float, Meta(ge=0, le=1)]


@dataclass_transform(frozen_default=True, kw_only_default=True)
class SnakeShape(msgspec.Struct, frozen=True, kw_only=True):
    pass


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A member that is misspelt is refused, never ignored."""


class ApprovalView(SnakeShape):
    id: str
    agent_id: str
    tool: str
    params: Mapping[str, Value] | None  # null after they were purged
    policy_rule: str
    status: ApprovalStatus
    created_at: str
    remaining: str  # as Go writes durations: 4m30s
    injection_risk: bool
    needs: Literal["supervisor", "person"]
    expires_at: str
    group: str  # the same for all that ask for the very same
    editable: bool  # whether approving with other arguments is possible
    session_id: str | None
    claimed_by: str | None  # by whom it is looked at now
    resolved_by: str | None  # from the credential, or grant:grt_...
    resolved_at: str | None
    replaced_by: str | None  # the approval of edited arguments
    reviewers: list[str] = []  # who alone may decide it as a person; none: whoever may approve
    resolved_by_name: str | None = None  # of the person who answered
    why: str | None = None  # in words, where it ended without an answer
    kind: str = "other"  # of the call: edit, execute, ...
    digest: str = ""  # of the exact action under the policy that holds for it: an answer may name it
    policy_version: str = ""


class ApprovalPath(SnakeShape):
    """A path that the call names, and where it led when it was asked. Null: that cannot be told."""

    path: str
    real: str | None = None  # through all links
    inside: bool | None = None  # in the folder where the agent works
    link: bool | None = None  # it leads elsewhere than it says


class ApprovalDiff(SnakeShape, kw_only=True):
    """A file that would change. `old_text` null: a new one, or, made of `arguments`, nobody knows what was there.

    `cut`: it was too long to be kept, and both texts are null."""

    path: str
    old_text: str | None = None
    new_text: str | None = None
    source: Literal["agent", "arguments"]
    cut: bool = False


class CommandPart(SnakeShape):
    """A simple command that a line runs, or a file that it opens (`opens`), with the verdict on it of the policy in force.

    `…` stands for what the shell will put there. `outside`: the file's name lies outside the workspace; null: that cannot be told."""

    text: str
    opens: Literal["read", "write"] | None = None
    outside: bool | None = None
    verdict: str | None = None
    rule: str | None = None


class RuleLook(SnakeShape):
    """A rule in force that looked at an argument, and what it found."""

    rule: str
    outcome: str
    why: str


class AskedPolicy(SnakeShape):
    verdict: Literal["supervisor", "human_approval"]
    rule: str
    reason: str | None = None  # of the rule, in its author's words


class AskedSupervisor(SnakeShape):
    """`not-asked`: the rule goes straight to a person. `absent`: none was attached. `passed-over`: a person was first."""

    state: Literal[
        "not-asked", "waiting", "looking", "absent", "undecided", "escalated", "decided", "passed-over"
    ]
    by: str | None = None
    reasoning: str | None = None
    confidence: float | None = None
    waited_ms: int | None = None
    by_name: str | None = None  # `supervisor:` and the name of its token


class AskedPerson(SnakeShape):
    state: Literal["not-yet", "waiting", "decided", "over"]
    since: str | None = None  # when it came to need one
    reviewers: list[str] = []


class WhyAsked(SnakeShape):
    """What each level said: why somebody is asked, and who."""

    policy: AskedPolicy
    supervisor: AskedSupervisor
    person: AskedPerson


class RecentTrace(SnakeShape):
    trace_id: str
    tool: str
    policy: str | None
    timestamp: str


class ActiveGrant(SnakeShape):
    id: str
    agent: str
    tools: str
    expires_at: str
    remaining: str
    granted_by: str
    session_id: str | None = None  # the one session that it covers; null: every one
    folder: str | None = None  # the one folder that it covers; null: every one
    granted_by_name: str | None = None  # of the person; in the detail of an approval


class ApprovalDetail(ApprovalView, kw_only=True):
    """`workspace` and `cwd` are the folders that the agent works in, and runs a `command` in."""

    recent_traces: list[RecentTrace]
    active_grants: list[ActiveGrant]
    command: str | None = None
    cwd: str | None = None
    workspace: str | None = None
    urls: list[str] = []
    paths: list[ApprovalPath] = []
    diffs: list[ApprovalDiff] = []
    asked: WhyAsked | None = None  # a server of an earlier release says nothing of it
    parts: list[CommandPart] = []  # of the command
    unreadable: str | None = None  # why the command cannot be taken apart with certainty
    looks: list[RuleLook] = []


class Resolution(Body):
    """Of approve and deny. `resolved_by` is kept as the caller's word; who it was, the credential says.

    `message` is what the agent is told. `digest`: of the action that was looked at; where the approval has another, nothing is
    done."""

    resolved_by: Annotated[str, Meta(max_length=256)] | None = None
    reasoning: Words | None = None
    confidence: Confidence | None = None
    message: Words | None = None
    digest: Annotated[str, Meta(min_length=1, max_length=128)] | None = None


class Approve(Resolution):
    """With `params`: approve, but with these arguments, where the approval is editable."""

    params: Mapping[str, Value] | None = None


class GroupResolution(Resolution):
    """With `ids`: of the group answer these alone, as whoever answers has seen them; one that asked since goes on waiting."""

    ids: Annotated[list[Annotated[str, Meta(max_length=128)]], Meta(min_length=1, max_length=500)] | None = (
        None
    )


class GroupAnswered(SnakeShape):
    """Of all pending ones that ask for the very same. `refused`: those that the caller may not answer."""

    answered: list[str]
    refused: list[str]


class Escalation(Body):
    reasoning: Words | None = None


class ClaimBody(Body):
    lease_seconds: Annotated[int, Meta(ge=1, le=600)] = 60


class NewGrant(Body):
    """`duration` in seconds, or as Go writes it: `1h30m`. `session_id`: for the calls of that session alone, and it ends with
    it. `folder`, an absolute path: for what lies in it, and for commands that run in it."""

    agent: Annotated[str, Meta(min_length=1, max_length=256)]
    tools: Annotated[str, Meta(min_length=1, max_length=256)]
    duration: Annotated[int, Meta(ge=1)] | Annotated[str, Meta(min_length=2, max_length=32)]
    kinds: list[Annotated[str, Meta(min_length=1, max_length=64)]] | None = None
    reason: Words | None = None
    session_id: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    folder: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None


class GrantView(ActiveGrant, kw_only=True):
    kinds: list[str] | None
    reason: str | None
    created_at: str
    active: bool
    revoked_at: str | None
    revoked_by: str | None


class TraceEntry(SnakeShape):
    """One call, joined from its steps. `params` is null after it was purged; `digest` stays."""

    trace_id: str
    session_id: str | None
    agent_id: str
    tool: str
    params: Mapping[str, Value] | None
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
    turn_id: str | None
    tool_call_id: str | None
    reason: str | None  # a fixed word on why it was decided or ended so: granted, loop, outcome-unknown, ...
    approved_by_name: str | None = None  # of the person who answered


class TraceStep(SnakeShape):
    """One step as it stands in the chain, with its hash."""

    server: str
    seq: int
    at: str
    step: str
    hash: str
    policy: str | None
    policy_rule: str | None
    policy_version: str | None
    status: str | None
    reason: str | None
    by: str | None
    level: int | None
    status_code: int | None
    latency_ms: int | None
    by_name: str | None = None  # of a person


class TraceDetail(TraceEntry, kw_only=True):
    steps: list[TraceStep]
    result: Value  # what the tool answered, where Legation called it; null after it was purged


class ChainHead(SnakeShape):
    server: str
    seq: int
    hash: str


class ChainReport(SnakeShape):
    """`problems` is empty where every step and all content that is there is as it was written."""

    server: str
    steps: int
    contents: int  # that were checked
    purged: int  # whose key was destroyed
    head: ChainHead
    problems: list[str]
    first: int = (
        1  # the number of the first step that is there: those before it were cut off, as a checkpoint says
    )
    since: str | None = None  # when that was; null where there is no step


class ToolCallBody(Body):
    """`params` are the arguments, and nothing else is. `agent`: for whom, of a credential that is no agent's own."""

    params: Mapping[str, Value]
    agent: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    session_id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None


class ToolReturned(SnakeShape):
    """`result` is what the tool answered, as it is."""

    result: Value
    trace_id: str
    approval_id: str | None
    policy_rule: str
    decided_by: str


class DecideBody(ToolCallBody, kw_only=True):
    tool: Annotated[str, Meta(min_length=1, max_length=256)]
    kind: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    cwd: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    resolved: ResolvedPaths | None = None  # of an agent on another machine, in place of `cwd`


AskStatus = Literal["pending", "approved", "used", "denied", "expired", "superseded", "cancelled"]


class AskBody(DecideBody, kw_only=True):
    """`waiter`: who waits for the answer and acts on it, under a name of its own choice."""

    waiter: Annotated[str, Meta(pattern=r"^run:[A-Za-z0-9_.-]{1,128}$(?!\n)")]


class AskUse(Body):
    """`resolved`: of an agent on another machine, as it was resolved there right before acting."""

    resolved: ResolvedPaths | None = None


class AskView(SnakeShape):
    """An ask as it is now. `approved`: use it, right before acting. The id is its approval's, where it has one."""

    id: str | None  # null: denied at once, and not kept
    waiter: str
    status: AskStatus
    trace_id: str
    decided_by: str | None = None
    why: str | None = None  # in words, where it may not be done
    expires_at: str | None = None  # of its approval


class Considered(SnakeShape):
    """What would happen to the call now. Nothing is run, counted or recorded."""

    action: Literal["allow", "deny", "supervisor", "human_approval"]
    policy_rule: str
    policy_version: str
    reason: str
    message: str | None
    injection_risk: bool
    grant: str | None  # the grant that would let it pass
    limit: str | None  # the limit that would stop it


class PolicyRules(SnakeShape):
    name: str
    agent: str
    place: str
    rules: list[str]


class PolicyInfo(SnakeShape):
    """`problem`: why the newest edit is not in force."""

    version: str
    source: str
    policies: list[PolicyRules]
    problem: str | None
    folders: list[
        str
    ]  # that rules name: a token that asks for an agent elsewhere tells where they lead there


class ExplainStep(SnakeShape):
    policy: str
    rule: str | None
    outcome: str
    why: str
    action: str | None
    kind: str | None
    part: str | None
    place: str


class Explained(Considered):
    steps: list[ExplainStep]


class ReplayBody(Body):
    """`policy`: the text of a changed policy, as YAML. `since`: RFC 3339, or how long ago: `24h`."""

    policy: Annotated[str, Meta(min_length=1, max_length=1_000_000)]
    since: Annotated[str, Meta(max_length=64)] | None = None
    agent: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    tool: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    limit: Annotated[int, Meta(ge=1, le=100_000)] = 10_000


class Replayed(SnakeShape):
    trace_id: str
    timestamp: str
    agent_id: str
    tool: str
    was: str
    was_rule: str
    now: str
    now_rule: str


class Replay(SnakeShape):
    """`changed` are the calls that would be decided otherwise, the newest first, at most 1000 of them."""

    version: str
    calls: int  # that were looked at; those of the next two were not decided again
    unknown: int  # whose arguments were purged, or of which no decision is on record
    limited: int  # that a limit stopped: what was counted is no matter of a policy's text
    differing: int
    counts: dict[str, int]  # "allow -> deny": how many
    changed: list[Replayed]


class RuleHits(SnakeShape):
    """`last_at` null: never in that time."""

    policy_rule: str
    action: str | None
    hits: int
    last_at: str | None


# The one event of a workspace's stream `approvals`: every change of an approval. What was said is not in it.

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
