"""One step of the trace: what happened to a call, by whom, and digests of what was said.

The hash of a step is SHA-256 over its canonical form: JSON of every member that is not null, keys sorted, without
spaces, `prev_hash` among them. A member that a later release adds is null in older steps and changes no hash.
What is hashed does not depend on who wrote the number down: a confidence is a float and has no sign, whether it comes
from a caller (`1`), from SQLite (whose `returning` gives 1 for 1.0, and which has no -0.0) or from Postgres.

What was said in a step (arguments, results, errors, the words of people and supervisors) is sealed:

INV-T1  The plain bytes are in no table. A step holds a digest over a random salt and the bytes; the salt is sealed
        with them, so that the digest of purged content can be compared with no guess.
INV-T2  Content opens only in its place: workspace, owner, server, number and name are bound into it.
INV-T3  With the content key of an owner all its content is gone; the steps and their digests stay, and verify.

The owner is the day by default, or what the caller names: a run, whose content then goes with the run. The keys are
those of `store/secrets/vault.py`, so that rotation and `ContentStore.delete` see them.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from functools import lru_cache
from typing import Final, Literal, TypeAlias

import msgspec

from legation.errors import InvalidParams, NotFound, TooLarge
from legation.store.database.transaction import Dangling, Overtaken, Queries, Row, Rows, Transaction
from legation.store.secrets.sealer import DataKey, Sealer, WrappedKey, content_bound, must_be_plain
from legation.wire import jsontext
from legation.wire.action import Action, RuleAction
from legation.wire.principal import Principal

LONGEST_NAME: Final = 256  # characters of an agent's, a tool's or a rule's name
GENESIS: Final = "0" * 64  # before the first step
MOST_NAMES: Final = 64  # of arguments that are told by name
LONGEST_ARGUMENT_NAME: Final = 31  # a longer word could be a token
MAX_CONTENT: Final = 8 * 1024 * 1024  # bytes of one value: some milliseconds to seal, in the writer's thread

# What a step may say: all of it is sealed.
ContentName: TypeAlias = Literal[
    "params", "context", "paths", "diffs", "why", "result", "error", "reasoning", "message", "claim", "cut"
]

DAY_MS: Final = 86_400_000

_EPOCH: Final = date(1970, 1, 1).toordinal()
_SALT: Final = 16
_SQL: Final = Queries("traces")
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
    CHECKPOINT = "checkpoint"  # the chain's first steps were cut off; of no call


class ChainStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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
    cut: str | None = None  # JSON of `TraceCut`, in a checkpoint

    def __post_init__(self) -> None:
        if self.confidence is not None:
            msgspec.structs.force_setattr(self, "confidence", abs(float(self.confidence)))

    @property
    def hash(self) -> str:
        return hashlib.sha256(canonical(self)).hexdigest()

    @property
    def hashes_of_0_1(self) -> frozenset[str]:
        """Hash the same step as release 0.1 may have: it wrote a whole confidence as it came, `1` for 1.0."""
        if self.confidence not in (0.0, 1.0):
            return frozenset()
        members = msgspec.to_builtins(self)
        spelt = (int(self.confidence), -0.0) if self.confidence == 0.0 else (int(self.confidence),)
        texts = (msgspec.json.encode(members | {"confidence": each}, order="sorted") for each in spelt)
        return frozenset(hashlib.sha256(text).hexdigest() for text in texts)

    @property
    def content_digests(self) -> dict[str, str]:
        try:
            return {} if self.digests is None else msgspec.json.decode(self.digests, type=dict[str, str])
        except msgspec.MsgspecError:  # tampered with until they are no JSON: then the hash is wrong as well
            return {}


# Writes what is hashed of a step.
canonical: Final = msgspec.json.Encoder(order="sorted").encode
STEP_COLUMNS: Final = ChainStep.__struct_fields__


class TracedCall(msgspec.Struct, frozen=True, kw_only=True):
    """The part that every step of one call has in common."""

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


class StepDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A step before it has its place in a chain. `contents` are JSON values, sealed under the key of `owner`."""

    step: StepKind
    call: TracedCall
    at: int | None = None  # epoch milliseconds; None: when it is appended
    contents: Mapping[ContentName, object] = {}
    owner: str | None = None  # None: of the day
    kind: str | None = None
    action_digest: str | None = None
    policy: RuleAction | None = None
    policy_rule: str | None = None
    policy_version: str | None = None
    status: str | None = None
    reason: str | None = None
    by: Principal | None = None
    confidence: float | None = None
    status_code: int | None = None
    latency_ms: int | None = None
    replaces: str | None = None
    cut: str | None = None


def proposed(
    call: TracedCall,
    action: Action,
    digest: str,
    *,
    owner: str | None = None,
    context: object = None,
    evidence: Mapping[ContentName, object] = {},
) -> StepDraft:
    """Draft the first step. `context` is what a replay needs besides the arguments, `evidence` what a person looks at."""
    contents: dict[ContentName, object] = {"params": action.params, **evidence}
    if context is not None:
        contents["context"] = context
    return StepDraft(
        step=StepKind.PROPOSED,
        call=call,
        contents=contents,
        owner=owner,
        kind=must_be_name(action.kind, "a tool's kind"),
        action_digest=digest,
    )


def decided(
    call: TracedCall,
    verdict: RuleAction,
    rule: str,
    version: str,
    *,
    reason: str | None = None,
    by: Principal | None = None,
    why: str | None = None,
    owner: str | None = None,
) -> StepDraft:
    """Draft the step of a verdict. `why`: the rule's own words, which are sealed under the key of `owner`."""
    return StepDraft(
        step=StepKind.DECIDED,
        call=call,
        contents={} if why is None else {"why": why},
        owner=owner,
        policy=verdict,
        policy_rule=must_be_name(rule, "a rule's name"),
        policy_version=must_be_name(version, "a policy's version") if version else "",
        reason=reason,
        by=by,
    )


def unasked(call: TracedCall, verdict: RuleAction, rule: str, version: str, *, ended: bool) -> StepDraft:
    """Draft the step of something that was done already. `ended`: the turn was ended for it."""
    return StepDraft(
        step=StepKind.UNASKED,
        call=call,
        policy=verdict,
        policy_rule=must_be_name(rule, "a rule's name"),
        policy_version=version,
        status="stopped" if ended else "warned",
        reason=StepKind.UNASKED,
    )


def new_trace_id() -> str:
    """Make one as OpenTelemetry has it: 32 hexadecimal digits, not all zero."""
    return secrets.token_hex(16)


def must_be_name(text: str, what: str) -> str:
    # Names stand unsealed, and in the text columns of both databases.
    if not text or len(text) > LONGEST_NAME or _CONTROL.search(text):
        del text
        raise InvalidParams(
            f"cannot keep {what}: it is empty, longer than {LONGEST_NAME} characters, or holds control characters"
        )
    return text


def argument_names(params: Mapping[str, object]) -> str:
    """List the names that are surely no secret, sorted; `?` stands for each other one, an end is marked by `...`."""
    names = sorted(name if _ARGUMENT_NAME.fullmatch(name) else "?" for name in params)
    shown = names[:MOST_NAMES]
    return ",".join([*shown, "..."] if len(names) > len(shown) else shown)


@dataclass(frozen=True, slots=True, repr=False)
class OpenedContent:
    """One opened value; `salt` and `plain` are what its digest is over."""

    server: str
    seq: int
    name: str
    trace_id: str
    salt: bytes
    plain: bytes

    def __repr__(self) -> str:
        return f"<{self.name} of step {self.seq}, {len(self.plain)} bytes>"

    @property
    def value(self) -> object:
        return jsontext.read(self.plain)

    @property
    def digest(self) -> str:
        return commitment(self.salt, self.plain)


def commitment(salt: bytes, plain: bytes) -> str:
    return hashlib.sha256(salt + plain).hexdigest()


def day_owner(now_ms: int) -> str:
    return _name_of_day(now_ms // DAY_MS)


@lru_cache(maxsize=8)
def _name_of_day(day: int) -> str:
    return f"day-{date.fromordinal(_EPOCH + day).isoformat()}"


def encode_content(value: object) -> bytes:
    plain = jsontext.write(value)
    if len(plain) > MAX_CONTENT:
        raise TooLarge(f"cannot keep a value of more than {MAX_CONTENT} bytes: shorten it")
    return plain


@dataclass(frozen=True, slots=True)
class Seals:
    """Seals and opens content; each key is opened once for the length of one call."""

    sealer: Sealer
    workspace: str
    _keys: dict[str, DataKey] = field(default_factory=dict, init=False, repr=False)

    def unlock(self, row: Row) -> DataKey:
        """Open the key of an owner, which is in the row."""
        owner, wrapped = row["owner"], WrappedKey(row["key_id"], row["wrapped_key"])
        key = self._keys[owner] = self.sealer.open_data_key(wrapped, content_bound(self.workspace, owner))
        return key

    def is_ready(self, owner: str) -> bool:
        return owner in self._keys

    def ready(self, owner: str, now_ms: int) -> Transaction[None]:
        """Make the key of an owner who has none: before the first `seal`."""
        if owner in self._keys:
            return
        must_be_plain(owner, "the owner of content")
        wrapped, key = self.sealer.new_data_key(content_bound(self.workspace, owner))
        try:
            added = yield _SQL.add_key(
                workspace=self.workspace,
                owner=owner,
                key_id=wrapped.key_id,
                wrapped_key=wrapped.wrapped_key,
                now=now_ms,
            )
        except Dangling:
            raise NotFound("cannot keep content there: there is no such workspace; create it first") from None
        if not added:
            raise Overtaken("cannot make a content key: another server was faster; try again")
        self._keys[owner] = key

    def seal(self, owner: str, server: str, seq: int, name: ContentName, value: object) -> tuple[str, bytes]:
        """Return the digest, and what is stored."""
        salt, plain = os.urandom(_SALT), encode_content(value)
        bound = _bound(self.workspace, owner, server, seq, name)
        salted = salt + plain
        return hashlib.sha256(salted).hexdigest(), self._keys[owner].seal_page(
            salted, bound
        )  # as `commitment`

    def open(self, row: Row) -> OpenedContent:
        owner, place = row["owner"], (row["server"], row["seq"], row["name"])
        key = self._keys.get(owner)
        if key is None:
            key = self.unlock(row)
        opened = key.open_page(row["body"], _bound(self.workspace, owner, *place))
        return OpenedContent(*place, row["trace_id"], opened[:_SALT], opened[_SALT:])


def contents_of(workspace: str, traces: Iterable[str], names: Iterable[str]) -> Transaction[Rows]:
    """Read sealed contents, which `Seals.open` opens outside the transaction."""
    wanted = {"traces": traces, "names": names}
    lists = {name: msgspec.json.encode([*dict.fromkeys(each)]).decode() for name, each in wanted.items()}
    return (yield _SQL.contents_of(workspace=workspace, **lists))


def _bound(workspace: str, owner: str, server: str, seq: int, name: str) -> tuple[str, ...]:
    return ("trace", workspace, owner, server, str(seq), name)
