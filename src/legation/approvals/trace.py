"""One step of the trace: what happened to a call, by whom, and digests of what was said.

The hash of a step is SHA-256 over its canonical form: JSON of every member that is not null, keys sorted, without
spaces, `prev_hash` among them. A member that a later release adds is null in older steps and changes no hash.
What is hashed does not depend on who wrote the number down: a confidence is a float and has no sign, whether it comes
from a caller (`1`), from SQLite (whose `returning` gives 1 for 1.0, and which has no -0.0) or from Postgres.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Literal, TypeAlias

import msgspec

from legation.errors import InvalidParams
from legation.wire.action import Action
from legation.wire.principal import Principal

LONGEST_NAME: Final = 256  # characters of an agent's, a tool's or a rule's name
GENESIS: Final = "0" * 64  # before the first step
MOST_NAMES: Final = 64  # of arguments that are told by name
LONGEST_ARGUMENT_NAME: Final = 31  # a longer word could be a token

Verdict: TypeAlias = Literal["allow", "deny", "supervisor", "human_approval"]
# What a step may say: all of it is sealed.
ContentName: TypeAlias = Literal["params", "context", "result", "error", "reasoning", "message", "claim"]

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_ARGUMENT_NAME: Final = re.compile(rf"[A-Za-z0-9_.-]{{1,{LONGEST_ARGUMENT_NAME}}}", re.ASCII)


class StepKind(StrEnum):
    PROPOSED = "proposed"  # an agent wants to act; every trace begins with it
    DECIDED = "decided"  # the policy's verdict
    CLAIMED = "claimed"  # somebody looks at it
    ESCALATED = "escalated"  # it needs a person now
    RESOLVED = "resolved"  # approved or denied
    CONSUMED = "consumed"  # the waiter took the approval and is about to act
    EXECUTED = "executed"  # the tool was called
    RETURNED = "returned"  # the tool answered
    CANCELLED = "cancelled"  # whoever asked has gone
    EXPIRED = "expired"  # nobody answered in time, or nobody used the answer
    UNASKED = "unasked"  # it was done, and nobody was asked: `policy` is what the rules would have said
    SUPERSEDED = "superseded"  # whoever waited is dead, or another approval stands in its place


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A row of `trace_step` but for its hash; members are named as its columns."""

    workspace_id: str
    server: str
    seq: int
    at: int
    step: str
    trace_id: str
    agent: str
    tool: str
    prev_hash: str
    approval_id: str | None = None
    session_id: str | None = None
    turn_id: str | None = None
    tool_call_id: str | None = None
    kind: str | None = None
    action_digest: str | None = None
    policy: str | None = None
    policy_rule: str | None = None
    policy_version: str | None = None
    status: str | None = None
    reason: str | None = None  # a fixed word
    actor_kind: str | None = None
    actor: str | None = None
    actor_user: str | None = None
    actor_level: int | None = None
    confidence: float | None = None
    status_code: int | None = None
    latency_ms: int | None = None
    replaces: str | None = None
    content_owner: str | None = None
    digests: str | None = None  # JSON: the content's name -> hex

    def __post_init__(self) -> None:
        if self.confidence is not None:
            msgspec.structs.force_setattr(self, "confidence", abs(float(self.confidence)))

    @property
    def hash(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()

    @property
    def hashes_of_0_1(self) -> frozenset[str]:
        """As release 0.1 may have hashed the same step: it wrote a whole confidence as it came, `1` for 1.0."""
        if self.confidence not in (0.0, 1.0):
            return frozenset()
        members = msgspec.to_builtins(self)
        spelt = (int(self.confidence), -0.0) if self.confidence == 0.0 else (int(self.confidence),)
        texts = (msgspec.json.encode(members | {"confidence": each}, order="sorted") for each in spelt)
        return frozenset(hashlib.sha256(text).hexdigest() for text in texts)

    @property
    def content_digests(self) -> dict[str, str]:
        """Empty too where they were tampered with until they are no JSON: then the hash is wrong as well."""
        try:
            return {} if self.digests is None else msgspec.json.decode(self.digests, type=dict[str, str])
        except msgspec.MsgspecError:
            return {}


STEP_COLUMNS: Final = Step.__struct_fields__


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """What every step of one call has in common."""

    trace_id: str
    agent: str
    tool: str
    approval_id: str | None = None
    session_id: str | None = None
    turn_id: str | None = None
    tool_call_id: str | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9a-f]{32}", self.trace_id):
            raise InvalidParams("cannot trace a call: its trace id is not 32 hexadecimal digits")
        must_be_name(self.agent, "an agent's name")
        must_be_name(self.tool, "a tool's name")
        for given in (self.approval_id, self.session_id, self.turn_id, self.tool_call_id):
            if given is not None:
                must_be_name(given, "an id of a call")


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A step before it has its place in a chain. `contents` are JSON values, sealed under the key of `owner`."""

    step: StepKind
    call: Call
    at: int | None = None  # epoch milliseconds; None: when it is appended
    contents: Mapping[ContentName, object] = {}
    owner: str | None = None  # None: of the day
    kind: str | None = None
    action_digest: str | None = None
    policy: Verdict | None = None
    policy_rule: str | None = None
    policy_version: str | None = None
    status: str | None = None
    reason: str | None = None
    by: Principal | None = None
    confidence: float | None = None
    status_code: int | None = None
    latency_ms: int | None = None
    replaces: str | None = None


def proposed(
    call: Call, action: Action, digest: str, *, owner: str | None = None, context: object = None
) -> Draft:
    """`context` is what a replay needs besides the arguments."""
    contents: dict[ContentName, object] = {"params": action.params}
    if context is not None:
        contents["context"] = context
    return Draft(
        step=StepKind.PROPOSED,
        call=call,
        contents=contents,
        owner=owner,
        kind=must_be_name(action.kind, "a tool's kind"),
        action_digest=digest,
    )


def decided(
    call: Call,
    verdict: Verdict,
    rule: str,
    version: str,
    *,
    reason: str | None = None,
    by: Principal | None = None,
) -> Draft:
    return Draft(
        step=StepKind.DECIDED,
        call=call,
        policy=verdict,
        policy_rule=must_be_name(rule, "a rule's name"),
        policy_version=must_be_name(version, "a policy's version") if version else "",
        reason=reason,
        by=by,
    )


def unasked(call: Call, verdict: Verdict, rule: str, version: str, *, ended: bool) -> Draft:
    """Of something that was done already. `ended`: the turn was ended for it."""
    return Draft(
        step=StepKind.UNASKED,
        call=call,
        policy=verdict,
        policy_rule=must_be_name(rule, "a rule's name"),
        policy_version=version,
        status="stopped" if ended else "warned",
        reason=StepKind.UNASKED,
    )


def new_trace_id() -> str:
    """As OpenTelemetry has it: 32 hexadecimal digits, not all zero."""
    return secrets.token_hex(16)


def must_be_name(text: str, what: str) -> str:
    """Names stand unsealed, and in the text columns of both databases."""
    if not text or len(text) > LONGEST_NAME or _CONTROL.search(text):
        del text
        raise InvalidParams(
            f"cannot keep {what}: it is empty, longer than {LONGEST_NAME} characters, or holds control characters"
        )
    return text


def argument_names(params: Mapping[str, object]) -> str:
    """The names that are surely no secret, sorted; `?` stands for each other one, an end is marked by `...`."""
    names = sorted(name if _ARGUMENT_NAME.fullmatch(name) else "?" for name in params)
    shown = names[:MOST_NAMES]
    return ",".join([*shown, "..."] if len(names) > len(shown) else shown)
