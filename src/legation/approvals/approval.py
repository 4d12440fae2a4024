"""An approval: one pending decision, bound to one exact action.

    pending ── approve ──► approved ── consume ──► approved, consumed: its one effect may happen
       │                      │
       ├── deny ──► denied    ├── expire, supersede, cancel ──► expired, superseded, cancelled
       └── expire, supersede, cancel ──► expired, superseded, cancelled

INV-1  Only `pending` can be answered, and only once: the first answer stands.
INV-2  Only `approved` can be consumed, and only once; what was consumed never changes again.
INV-3  Every other end is a refusal. Silence is one.

Who may decide it:

INV-R1  Nobody without the scope `approve` and a level of 1 at least.
INV-R2  What needs a person, from the start or by escalation, only a person's credential decides (level 2).
INV-R3  Nobody decides its own: not the credential that asked, not the agent that would act.
INV-R4  Where the rule names reviewers, a person decides only as one of them.
INV-R5  While a supervisor holds a claim, other supervisors wait. A person never does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from legation.approvals.policy.patterns import BadGlob, go_glob
from legation.approvals.trace.step import ContentName, TracedCall, must_be_name
from legation.clock import new_id
from legation.errors import AlreadyAnswered, Conflict, Forbidden, InvalidParams
from legation.store.database.transaction import Row
from legation.wire.action import Action
from legation.wire.principal import Principal

LONGEST_WORDS: Final = 16_384  # characters of a reason or a message
LONGEST_WAIT_MS: Final = 7 * 86_400_000  # the owner's time: a week of holidays
_WORDS: Final = {"consumed": "approved, and the call has passed"}  # for people
MIN_USE_MS: Final = 60_000  # an approval in the last second still leaves its waiter this long to act

PROGRAM: Final = "run:"  # how one begins that waits by itself

Needs: TypeAlias = Literal["supervisor", "person"]
Asked: TypeAlias = Literal["supervisor", "human_approval"]
NoticeKind: TypeAlias = Literal["asked", "reminder"]
NoticeReason: TypeAlias = Literal[
    "policy",  # the rule says `human_approval`
    "escalated",  # a supervisor gave it on
    "no-supervisor",  # none is attached
    "undecided",  # there is one, and it did not answer in time
]


class Waiter(NamedTuple):
    """The one that acts on the answer: part of the request, and no process. `holder` keeps it alive: the process in which it
    waits, or, of a program that waits by itself, that program. With `outlives` it goes on when its holder is gone."""

    id: str  # session:..., call:..., run:...
    holder: str
    outlives: bool = False


class ApprovalState(StrEnum):
    PENDING = "pending"  # nobody has answered
    APPROVED = "approved"  # may be consumed, once
    DENIED = "denied"  # somebody said no
    EXPIRED = "expired"  # nobody answered in time, or nobody used the answer in time
    SUPERSEDED = "superseded"  # whoever waited is gone, or another approval stands in its place
    CANCELLED = "cancelled"  # whoever asked has gone


class ApprovalChange(StrEnum):
    APPROVE = "approve"
    DENY = "deny"
    EXPIRE = "expire"
    SUPERSEDE = "supersede"
    CANCEL = "cancel"
    CONSUME = "consume"


_ENDS: Final = {
    ApprovalChange.EXPIRE: ApprovalState.EXPIRED,
    ApprovalChange.SUPERSEDE: ApprovalState.SUPERSEDED,
    ApprovalChange.CANCEL: ApprovalState.CANCELLED,
}

# From a state, by a change, to a state. What is not here does not happen. Consumed approvals have no changes.
TRANSITIONS: Final[dict[ApprovalState, dict[ApprovalChange, ApprovalState]]] = {
    ApprovalState.PENDING: {
        ApprovalChange.APPROVE: ApprovalState.APPROVED,
        ApprovalChange.DENY: ApprovalState.DENIED,
        **_ENDS,
    },
    ApprovalState.APPROVED: {ApprovalChange.CONSUME: ApprovalState.APPROVED, **_ENDS},
    ApprovalState.DENIED: {},
    ApprovalState.EXPIRED: {},
    ApprovalState.SUPERSEDED: {},
    ApprovalState.CANCELLED: {},
}


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `approval`; members are named as its columns. It holds nothing that anybody said."""

    id: str
    workspace_id: str
    trace_id: str
    waiter: str
    holder: str
    outlives: bool
    session_id: str | None
    turn_id: str | None
    tool_call_id: str | None
    requester_kind: str
    requester: str
    requester_version: int | None
    agent: str
    tool: str
    kind: str
    action_digest: str
    policy_version: str
    policy_rule: str
    verdict: Asked
    needs: Needs
    injection_risk: bool
    editable: bool
    reviewers: tuple[str, ...]
    argument_bytes: int
    argument_names: str
    content_owner: str
    group_key: str
    status: ApprovalState
    created_at: int
    expires_at: int
    resolved_at: int | None
    consumed_at: int | None
    resolver_kind: str | None
    resolver: str | None
    resolver_user: str | None
    resolver_level: int | None
    confidence: float | None
    claimed_by: str | None
    claimed_level: int | None
    claimed_until: int | None
    escalated_at: int | None
    escalated_by: str | None
    replaces: str | None
    replaced_by: str | None
    look_at: int | None
    notified_at: int | None
    reason: str | None = None  # no column: why it ended, a fixed word of the trace, where that was looked up

    @property
    def call(self) -> TracedCall:
        return TracedCall(
            trace_id=self.trace_id,
            agent=self.agent,
            tool=self.tool,
            approval_id=self.id,
            session_id=self.session_id,
            turn_id=self.turn_id,
            tool_call_id=self.tool_call_id,
        )

    @property
    def awaited_by(self) -> Waiter:
        return Waiter(self.waiter, self.holder, self.outlives)

    @property
    def resolved_by(self) -> str | None:
        # From the credential, never from what a caller wrote.
        return None if self.resolver is None else f"{self.resolver_kind}:{self.resolver}"

    @property
    def person(self) -> str | None:
        """The user who answered, where a person did."""
        return self.resolver_user if self.resolver_level == 2 else None

    @property
    def token(self) -> str | None:
        """The token by which it was answered, where no person did."""
        kind, _, who = (self.resolved_by or "").partition(":")
        return who if kind == "token" else None

    def status_at(self, now_ms: int) -> ApprovalState:
        """Tell the state at a moment: it is expired although nobody has written that down yet."""
        is_over = self.expires_at <= now_ms and self.consumed_at is None
        return ApprovalState.EXPIRED if is_over and TRANSITIONS[self.status] else self.status


_COLUMNS: Final = frozenset(name for name in Approval.__struct_fields__ if name != "reason")


def read(row: Row) -> Approval:
    # By their order: SQLite looks for a column by its name from the first one on.
    values = {name: value for name, value in zip(row.keys(), row, strict=True) if name in _COLUMNS}
    values["status"] = ApprovalState(values["status"])
    for flag in ("injection_risk", "editable", "outlives"):
        values[flag] = bool(values[flag])
    if values["confidence"] is not None:
        values["confidence"] = float(values["confidence"])  # SQLite's `returning` gives 1 for 1.0
    named = values["reviewers"]
    values["reviewers"] = tuple(msgspec.json.decode(named, type=list[str])) if named else ()
    return Approval(**values)


def moved(approval: Approval, change: ApprovalChange, now_ms: int) -> ApprovalState:
    """Return the state after a change; `AlreadyAnswered` where the table has no way."""
    to = TRANSITIONS[approval.status].get(change) if approval.consumed_at is None else None
    overdue = approval.expires_at <= now_ms and change not in _ENDS
    if to is None or overdue:
        status = "consumed" if approval.consumed_at is not None else str(approval.status_at(now_ms))
        raise AlreadyAnswered(
            f"cannot {change} approval {approval.id}: it is {_WORDS.get(status, status)}; the first answer stands",
            {"status": status},
        )
    return to


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A call that is to be asked about. `id` and `trace_id` are made outside the transaction: `new_approval_id`,
    `new_trace_id`."""

    id: str
    trace_id: str
    workspace: str
    waiter: Waiter  # whoever consumes
    requester_kind: str  # the credential that asks: it never answers
    requester: str
    action: Action
    verdict: Asked
    policy_version: str
    policy_rule: str
    expires_at: int
    session_id: str | None = None
    turn_id: str | None = None
    tool_call_id: str | None = None
    injection_risk: bool = False
    editable: bool = False
    reviewers: tuple[str, ...] = ()  # who alone decides it as a person; none: whoever may approve
    content_owner: str | None = None  # None: of the day
    context: object = None  # what a replay needs besides the arguments
    evidence: Mapping[ContentName, object] = {}  # what a person looks at besides them
    why: str | None = None  # the rule's own words
    requester_version: int | None = None  # of a browser's credential
    look_at: int | None = None  # when a server first looks whether a supervisor is there; None: at once

    @property
    def call(self) -> TracedCall:
        return TracedCall(
            trace_id=self.trace_id,
            agent=self.action.agent,
            tool=self.action.tool,
            approval_id=self.id,
            session_id=self.session_id,
            turn_id=self.turn_id,
            tool_call_id=self.tool_call_id,
        )

    def check(self, now_ms: int) -> None:
        for text, what in (
            (self.id, "an approval's id"),
            (self.waiter.id, "a waiter's id"),
            (self.waiter.holder, "the id of a waiter's holder"),
            (self.requester_kind, "a requester's kind"),
            (self.requester, "a requester's id"),
            (self.policy_version, "a policy's version"),
            (self.policy_rule, "a rule's name"),
        ):
            must_be_name(text, what)
        if not 0 < self.expires_at - now_ms <= LONGEST_WAIT_MS:
            raise InvalidParams("cannot ask without an end: give an expiry after now and within a week")


class ApprovalAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Yes or no to an approval. `claim` is the caller's word on who it is, kept as that and never believed."""

    approve: bool
    reasoning: str | None = None
    confidence: float | None = None
    message: str | None = None  # to the agent
    claim: str | None = None
    digest: str | None = None  # of the action that was looked at, if whoever answers says so

    def __post_init__(self) -> None:
        if self.confidence is not None:
            _must_be_confidence(self.confidence)
        for words in (self.reasoning, self.message, self.claim):
            if words:
                must_be_words(words)


def _must_be_confidence(value: object) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not 0 <= value <= 1:  # type: ignore[arg-type, operator]
        raise InvalidParams("cannot take that confidence: give a number from 0 to 1")


def must_be_words(words: str | None) -> None:
    if words is not None and len(words) > LONGEST_WORDS:
        raise InvalidParams(f"cannot keep more than {LONGEST_WORDS} characters of words: shorten them")


def written_reviewers(reviewers: tuple[str, ...]) -> str | None:
    return msgspec.json.encode(reviewers).decode() if reviewers else None


def new_approval_id(now_ms: int) -> str:
    return new_id("apr", now_ms=now_ms)


def label(principal: Principal) -> str:
    return f"{principal.kind}:{principal.id}"


def may_decide(approval: Approval, principal: Principal) -> None:
    """Refuse whoever may not answer it."""
    may_judge(approval, principal)
    if approval.needs == "person" and principal.level < 2:
        raise Forbidden(
            f"cannot decide approval {approval.id} as a supervisor: it needs a person; leave it to one",
            {"needs": "person"},
        )


def may_judge(approval: Approval, principal: Principal) -> None:
    """Refuse whoever has no say at all, be it that somebody else decides."""
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


def must_be_seen(approval: Approval, digest: str) -> None:
    """Refuse an answer to another action than the one that was looked at."""
    if digest != approval.action_digest:
        raise Conflict(
            f"cannot answer approval {approval.id}: it is another action, or under another policy, than the one that you "
            "looked at; read it again",
            {"reason": "digest", "digest": approval.action_digest},
        )


def must_review(approval: Approval, principal: Principal, called: Iterable[str]) -> None:
    """Refuse who is no reviewer. `called`: the names by which the person may be meant, besides the credential itself."""
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


LONGEST_PATTERN: Final = 256  # characters of a pattern

# The grammar of well-formed ones without control characters, which no name has, for those who read our OpenAPI
# document. `Glob` decides.
_ANY: Final = r"[^\x00-\x1f\x7f]"
_IN_SET: Final = rf"(\\{_ANY}|[^\\\]\-\x00-\x1f\x7f])"
_RANGE: Final = f"{_IN_SET}(-{_IN_SET})?"
WELL_FORMED: Final = rf"^([^\[\\\x00-\x1f\x7f]|\\{_ANY}|\[(\^|(?!\^))({_RANGE})+\])+$"
GlobText = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=LONGEST_PATTERN,
        pattern=WELL_FORMED,
        extra_json_schema={"description": "a pattern as in Go's filepath.Match, such as filesystem.*"},
    ),
]


class Glob:
    """A pattern that people send: Go's `filepath.Match`, as policies have it; a malformed one is refused."""

    __slots__ = ("_matches", "text")

    def __init__(self, text: str) -> None:
        if not text or len(text) > LONGEST_PATTERN:
            raise InvalidParams(
                f"cannot use a pattern that is empty or longer than {LONGEST_PATTERN} characters"
            )
        try:
            self._matches = go_glob(text).fullmatch
        except BadGlob as fault:
            raise InvalidParams(f"cannot use the pattern: {fault}; correct it, or escape with \\") from None
        self.text = text

    def __repr__(self) -> str:
        return f"Glob({self.text!r})"

    def matches(self, name: str) -> bool:
        return self._matches(name) is not None
