"""Requests to the door, and their results: in words for the agent, and kept so that they can be asked about again."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import msgspec

from legation.approvals.approval import Approval, ApprovalState
from legation.approvals.policy.facts import Facts, as_named
from legation.approvals.trace.step import Seals, StepKind, TracedCall, contents_of, new_trace_id
from legation.store.audit import names_of
from legation.store.database.transaction import Queries, Transaction, only
from legation.store.secrets.sealer import Sealer
from legation.wire.action import Action, RuleAction, Sort
from legation.wire.ask import Decision, Outcome
from legation.wire.principal import Principal

LimitName: TypeAlias = Literal["per-minute", "total", "spend", "loop", "pending"]
POLICY: Final = "policy"
LIFTED: Final = "a grant lets it pass"
ONLY_ALWAYS: Final = (
    "the agent offers only to allow it always, and nobody has granted that; give a grant for this tool, or "
    "have a person approve it, which gives one for the session"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorRequest:
    """One call that wants to pass. Whoever brings it, the door sees nothing but this.

    `principal` is the credential that asks: it never answers. Its workspace is the call's.
    """

    principal: Principal
    action: Action
    facts: Facts
    approval_id: str | None = None  # the permission's, where there is one
    trace_id: str = field(default_factory=new_trace_id)
    session_id: str | None = None
    in_session: bool = False  # the host says so: whoever calls a tool names any session it likes
    turn_id: str | None = None
    tool_call_id: str | None = None
    content_owner: str | None = None  # whose key seals what is said; None: of the day
    editable: bool = False  # whoever asks can act on other arguments than it asked for
    timeout: float | None = None  # seconds: the asker's own bound on waiting
    only_always: bool = False  # told yes, it asks no more for that tool: it takes a grant for all of that
    expires_at: int | None = None  # epoch milliseconds: as it was told, and the approval ends no later

    @property
    def granted_session(self) -> str | None:
        """Name the session whose own grants it may use."""
        return self.session_id if self.in_session else None

    def call(self, approval_id: str | None = None, trace_id: str | None = None) -> TracedCall:
        """Name the call in its trace. `trace_id`: of an approval with other arguments, which stands in its place."""
        return TracedCall(
            trace_id=trace_id or self.trace_id,
            agent=self.action.agent,
            tool=self.action.tool,
            approval_id=approval_id,
            session_id=self.session_id,
            turn_id=self.turn_id,
            tool_call_id=self.tool_call_id,
        )

    @property
    def loop_key(self) -> tuple[str, ...]:
        """Name those whose repetitions count together: one credential and session."""
        # An agent's own credential says of itself which session it is, and could name another one each time: all are one.
        who = self.principal
        session = (self.session_id or "") if who.agent is None else ""
        return who.workspace, self.action.agent, f"{who.kind}:{who.id}", session


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorResult:
    """The result of a request. Only `approved` may act, once, and on `action`."""

    outcome: Outcome
    by: str  # `policy`, `grant:grt_...`, or the credential that decided
    policy: RuleAction
    rule: str  # policy:rule-id
    reason: str  # without anything that was said
    trace_id: str
    action: Action
    message: str | None = None  # for the agent
    approval_id: str | None = None
    limit: LimitName | None = None
    retry_after: float | None = None  # seconds, where a limit stopped it and time will help
    grant: str | None = None  # of one that passes and that would be told `always`: what covers that
    by_name: str | None = None  # of the person who decided

    @property
    def passed(self) -> bool:
        return self.outcome == "approved"

    @property
    def decision(self) -> Decision:
        return Decision(
            self.outcome,
            self.by,
            self.why(self.reason),
            message=self.message,
            grant=self.grant,
            by_name=self.by_name,
        )

    def why(self, reason: str) -> str:
        covered = f"; its agent offers only always, and {self.grant} grants that" if self.grant else ""
        return f"{self.rule}: {reason}{covered}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReturn:
    """The answer of a tool. `status_code` as HTTP has it: 200, 502 where the tool failed, 504 where it was slow.

    `result` is a JSON value; `error` is words for the agent, and is sealed as the result is.
    """

    status_code: int
    result: object = None
    error: str | None = None


Execute: TypeAlias = "Callable[[Action, EffectToken], Awaitable[ToolReturn]]"
"""The effect, once: it is called at most once for a request, right after that was written down."""


@dataclass(frozen=True, slots=True)
class EffectToken:
    """Names the one effect, for tools that know how not to do a thing twice."""

    trace_id: str
    approval_id: str | None
    workspace: str = "local"

    @property
    def key(self) -> str:
        # A caller may bring a trace id along, another workspace's too: one of theirs is not one of ours.
        named = f"{self.workspace}/{self.trace_id}"
        return self.approval_id or hashlib.sha256(named.encode()).hexdigest()[:32]


OnCallEnded: TypeAlias = Callable[[str, str], None]
"""Told of every call that is over: its workspace and its trace id."""

InjectionSignal: TypeAlias = Callable[[Action], bool]
"""The injection signal: whether what an agent wants to do looks as if somebody else had put it up to it."""


class _Context(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of a call that a policy saw besides its arguments, kept so that another policy can be asked about it later.

    It is the driver's reading of the call (paths, command, addresses) and where the agent worked. Where a path led on
    the disk is not in it: that is gone with the moment. A member that a later release adds is ignored by an older one.
    """

    paths: tuple[str, ...] = ()
    command: str | None = None
    urls: tuple[str, ...] = ()
    other_commands: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()
    declared: Mapping[str, Sort] = {}
    workspace: str | None = None
    cwd: str | None = None
    home: str | None = None


def context_of(action: Action, facts: Facts) -> dict[str, object] | None:
    """Make the JSON value for the trace; None where there is nothing to keep."""
    context = _Context(
        paths=action.paths,
        command=action.command,
        urls=action.urls,
        other_commands=action.other_commands,
        unclear=action.unclear,
        declared=facts.declared,
        workspace=facts.workspace,
        cwd=facts.cwd,
        home=facts.home,
    )
    kept: dict[str, object] = msgspec.to_builtins(context)
    return kept or None


def action_of(
    agent: str,
    tool: str,
    kind: str | None,
    params: Mapping[str, object],
    context: Mapping[str, object] | None,
) -> tuple[Action, Facts]:
    """Restore the call as it was. Its paths are taken as they are named: today's links say nothing about that day's."""
    seen = msgspec.convert(context or {}, _Context)
    action = Action(
        agent=agent,
        tool=tool,
        kind=kind or "other",
        params=params,
        paths=seen.paths,
        command=seen.command,
        urls=seen.urls,
        other_commands=seen.other_commands,
        unclear=seen.unclear,
    )
    facts = Facts(seen.workspace, seen.cwd, seen.home, as_named, seen.declared)
    return action, facts


_ANSWERED: Final = (ApprovalState.APPROVED, ApprovalState.DENIED)
_WORDS: Final = {
    ApprovalState.APPROVED: "approved",
    ApprovalState.DENIED: "denied",
    ApprovalState.EXPIRED: "nobody answered in time, and silence is no consent",
    ApprovalState.SUPERSEDED: "whoever waited for it is gone",
    ApprovalState.CANCELLED: "it was taken back",
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
    """The end of an approval in words for whoever waited: who it was, and what it is told."""

    by: str
    reason: str
    message: str | None  # for the agent, where somebody gave one
    default: str  # what it is told else
    by_name: str | None = None  # of the person who answered


def why_ended(status: ApprovalState, reason: str | None) -> str | None:
    """Say why one ended without an answer; `reason` is the fixed word of its last step, where that is known."""
    if status in (ApprovalState.PENDING, *_ANSWERED):
        return None
    return _WHY.get(reason or "", _WORDS[status])


def ending_of(sealer: Sealer, approval: Approval) -> Transaction[Ending]:
    """Put its end into words. The agent is told the message; where there is none and it was denied, the reason."""
    step = StepKind.RESOLVED if approval.status in _ANSWERED else StepKind(approval.status)
    workspace, trace = approval.workspace_id, approval.trace_id
    found = yield _SQL.ending_step(workspace=workspace, trace=trace, approval=approval.id, step=step)
    last = only(found)
    rows = yield from contents_of(workspace, [trace], ["message", "reasoning"])
    opened = map(Seals(sealer, workspace).open, rows)
    # Only of the step that it ended with: what a supervisor said who left it to a person is for that person.
    place = (last["server"], last["seq"]) if last else None
    said = {each.name: each.value for each in opened if (each.server, each.seq) == place}
    lifted = approval.status is ApprovalState.APPROVED and approval.resolver_kind == "grant"
    words = LIFTED if lifted else _WHY.get(last["reason"] if last else "", _WORDS[approval.status])
    by = approval.resolved_by or POLICY
    message = said.get("message")
    if message is None and approval.status is ApprovalState.DENIED:
        message = said.get("reasoning")
    default = f"denied by {by}" if approval.status is ApprovalState.DENIED else words
    person = approval.person
    names = yield from names_of([person] if person else [])
    return Ending(
        by, words, None if message is None else str(message), default, names.get(person) if person else None
    )
