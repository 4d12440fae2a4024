"""What comes to the door, and how it leaves."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from legation.approvals.policy.facts import Facts
from legation.approvals.trace import Call, Verdict, new_trace_id
from legation.wire.action import Action
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
class Request:
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
    expires_at: int | None = (
        None  # epoch milliseconds: what was told of its end, and the approval ends no later
    )

    @property
    def granted_session(self) -> str | None:
        """The session whose own grants it may use."""
        return self.session_id if self.in_session else None

    def call(self, approval_id: str | None = None, trace_id: str | None = None) -> Call:
        """`trace_id`: of an approval with other arguments, which stands in its place."""
        return Call(
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
        """Whose repetitions count: those of one credential and session. An agent's own credential says of itself which
        session it is, and could name another one each time: there all count as one."""
        who = self.principal
        session = (self.session_id or "") if who.agent is None else ""
        return who.workspace, self.action.agent, f"{who.kind}:{who.id}", session


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """How a request leaves the door. Only `approved` may act, once, and on `action`."""

    outcome: Outcome
    by: str  # `policy`, `grant:grt_...`, or the credential that decided
    policy: Verdict
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
class Consideration:
    """What would happen to a call, and why: nothing was run, counted or recorded."""

    policy: Verdict
    rule: str
    version: str
    reason: str
    message: str | None = None
    injection_risk: bool = False
    grant: str | None = None
    limit: LimitName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """What became of an effect. `status_code` as HTTP has it: 200, 502 where the tool failed, 504 where it was slow.

    `result` is a JSON value; `error` is words for the agent, and is sealed as the result is.
    """

    status_code: int
    result: object = None
    error: str | None = None


Execute: TypeAlias = "Callable[[Action, Token], Awaitable[Returned]]"
"""The effect, once: it is called at most once for a request, right after that was written down."""


@dataclass(frozen=True, slots=True)
class Token:
    """Names the one effect, for tools that know how not to do a thing twice."""

    trace_id: str
    approval_id: str | None
    workspace: str = "local"

    @property
    def key(self) -> str:
        """A caller may bring a trace id along, another workspace's too: one of theirs is not one of ours."""
        named = f"{self.workspace}/{self.trace_id}"
        return self.approval_id or hashlib.sha256(named.encode()).hexdigest()[:32]


Ended: TypeAlias = Callable[[str, str], None]
"""Told of every call that is over: its workspace and its trace id."""

Signal: TypeAlias = Callable[[Action], bool]
"""The injection signal: whether what an agent wants to do looks as if somebody else had put it up to it."""
