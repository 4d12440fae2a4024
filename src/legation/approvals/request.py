"""Requests to the door, and their results: in words for the agent, and kept so that they can be asked about again.

Content isolation shows arguments to somebody who is to judge their structure, not to read what they say:

INV-C1  No text of more than `LONGEST_TEXT` bytes, and nothing under a key that names content, is left, however deep
        it is nested; be it in objects, in arrays, or as the name of a member.
INV-C2  What stands for hidden content never becomes an argument: who edits what it cannot see gives each stand-in back in
        its place, untouched, where the content takes its place again, and nowhere else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from legation.approvals.approval import Approval, ApprovalState, Waiter
from legation.approvals.policy.facts import Facts, as_named, carried
from legation.approvals.trace.step import Seals, StepKind, TracedCall, contents_of, new_trace_id
from legation.errors import Forbidden, InvalidParams
from legation.settings import Settings
from legation.store.audit import names_of
from legation.store.database.transaction import Queries, Transaction, only
from legation.store.secrets.sealer import Sealer
from legation.wire import jsontext
from legation.wire.acp.updates import Diff
from legation.wire.action import Action, Ask, Decision, Outcome, RuleAction, Sort, offers_only_always
from legation.wire.principal import Principal
from legation.wire.resolved import ResolvedPaths

LimitName: TypeAlias = Literal["per-minute", "total", "spend", "loop", "pending"]
POLICY: Final = "policy"
LIFTED: Final = "a grant lets it pass"
ONLY_ALWAYS: Final = (
    "the agent offers only to allow it always, and nobody has granted that; give a grant for this tool, or "
    "have a person approve it, which gives one for the session"
)


class DoorRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One call that wants to pass. Whoever brings it, the door sees nothing but this.

    `principal` is the credential that asks: it never answers. Its workspace is the call's.
    """

    principal: Principal
    action: Action
    facts: Facts
    # Of an agent on another machine: what was resolved there again, right before it uses an approval.
    facts_at_use: Facts | None = None
    approval_id: str | None = None  # the permission's, where there is one
    trace_id: str = msgspec.field(default_factory=new_trace_id)
    session_id: str | None = None
    in_session: bool = False  # the host says so: whoever calls a tool names any session it likes
    turn_id: str | None = None
    tool_call_id: str | None = None
    content_owner: str | None = None  # whose key seals what is said; None: of the day
    editable: bool = False  # whoever asks can act on other arguments than it asked for
    diffs: tuple[Diff, ...] = ()  # what the agent says it would change
    timeout: float | None = None  # seconds: the asker's own bound on waiting
    only_always: bool = False  # told yes, it asks no more for that tool: it takes a grant for all of that
    expires_at: int | None = None  # epoch milliseconds: as it was told, and the approval ends no later
    waiter: Waiter | None = (
        None  # of one that goes on elsewhere; None: this process acts on the answer, or nobody does
    )
    places: tuple[str | None, ...] | None = None  # where its paths led when it was asked, if that was before

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


class DoorResult(msgspec.Struct, frozen=True, kw_only=True):
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
    by_name: str | None = None  # of the person or the supervisor who decided

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


class ToolReturn(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a tool. `status_code` as HTTP has it: 200, 502 where the tool failed, 504 where it was slow.

    `result` is a JSON value; `error` is words for the agent, and is sealed as the result is.
    """

    status_code: int
    result: object = None
    error: str | None = None
    tool_status: int | None = None  # what the tool itself answered with, where it did


Execute: TypeAlias = "Callable[[Action, EffectToken], Awaitable[ToolReturn]]"
"""The effect, once: it is called at most once for a request, right after that was written down."""


class EffectToken(msgspec.Struct, frozen=True):
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
    the disk is not in it: that is gone with the moment; but for an agent on another machine, for which it was carried.
    A member that a later release adds is ignored by an older one.
    """

    paths: tuple[str, ...] = ()
    command: str | None = None
    urls: tuple[str, ...] = ()
    other_commands: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()
    policy: str | None = None
    declared: Mapping[str, Sort] = {}
    workspace: str | None = None
    cwd: str | None = None
    home: str | None = None
    resolved: ResolvedPaths | None = None
    places: tuple[str | None, ...] = ()  # of one that may be gone on with elsewhere: where its paths led then


def context_of(action: Action, facts: Facts, places: tuple[str | None, ...] = ()) -> dict[str, object] | None:
    """Make the JSON value for the trace; None where there is nothing to keep."""
    context = _Context(
        paths=action.paths,
        command=action.command,
        urls=action.urls,
        other_commands=action.other_commands,
        unclear=action.unclear,
        policy=facts.policy,
        declared=facts.declared,
        workspace=facts.workspace,
        cwd=facts.cwd,
        home=facts.home,
        resolved=facts.resolved and replace(facts.resolved, paths=facts.places(action.paths)),
        places=places,
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
    """Restore the call as it was. Its paths are taken as they are named: today's links say nothing about that day's. Those
    of an agent on another machine lead where they led."""
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
    if seen.resolved is not None:
        return action, carried(action, seen.resolved, seen.declared, seen.policy)
    return action, Facts(seen.workspace, seen.cwd, seen.home, as_named, seen.declared, policy=seen.policy)


# Agents on other machines.


def remote_request(
    principal: Principal, ask: Ask, declared: Mapping[str, Sort] | None = None, policy: str | None = None
) -> DoorRequest:
    """Make the request of an agent on another machine, by the ask of whoever acts for it there. Nothing of it is looked up
    on this disk, whatever it carries along."""
    return DoorRequest(
        principal=principal,
        action=ask.action,
        facts=remote_facts(principal, ask.action, ask.resolved, declared, policy),
        approval_id=ask.id,
        session_id=ask.session_id,
        turn_id=ask.turn,
        tool_call_id=ask.tool_call_id,
        editable=ask.editable,
        diffs=ask.diffs,
        expires_at=ask.expires_at,
        only_always=offers_only_always(ask.options),
    )


def at_use(request: DoorRequest, resolved: ResolvedPaths | None) -> DoorRequest:
    """Add what was resolved again where the agent is, right before it acts."""
    was = request.facts
    now = remote_facts(request.principal, request.action, resolved, was.declared, was.policy)
    return replace(request, facts_at_use=now)


def looked_at_again(request: DoorRequest) -> DoorRequest:
    """Return it as it is judged when its approval is used: by this disk as it is by then, or by what was carried again. Of
    an agent on another machine that carried nothing, nothing is known."""
    if request.facts.resolved is None:
        return request
    was = request.facts
    return replace(
        request, facts=request.facts_at_use or carried(request.action, None, was.declared, was.policy)
    )


def works_there_still(request: DoorRequest) -> bool:
    """Tell whether an agent on another machine works in the same folders as when it asked."""
    before = request.facts.resolved
    now = None if request.facts_at_use is None else request.facts_at_use.resolved
    return before is None or before.places == (now or ResolvedPaths()).places


def remote_facts(
    principal: Principal,
    action: Action,
    resolved: ResolvedPaths | None,
    declared: Mapping[str, Sort] | None = None,
    policy: str | None = None,
) -> Facts:
    """Take what was resolved elsewhere, from a token or a runner alone. Any other credential (of this process, of its
    sessions, of a person's browser) acts here, where the disk can be looked at, and nobody's word counts instead."""
    if principal.kind not in ("token", "runner"):
        raise Forbidden(
            "cannot take what was resolved elsewhere from this credential: it acts on this machine; use a token for the "
            "agent on the other one"
        )
    if principal.agent not in (None, action.agent):
        raise Forbidden(
            f"cannot ask for another agent with the token of {principal.agent}; use a token of that agent"
        )
    if resolved is not None:
        resolved.check(action.paths)
    return carried(action, resolved, declared, policy)


def places_of(context: Mapping[str, object] | None) -> tuple[str | None, ...]:
    """Tell where the paths of a call led when it was asked, as it was kept then."""
    return msgspec.convert(context or {}, _Context).places


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
    "waiter-silent": "whoever waited for an answer was not heard of any more",
    "stopping": "the server was stopped while it waited for an answer",
    "unused": "it was approved, and not used in time",
    "edited": "it was approved with other arguments",
    "turn-cancelled": "its turn was cancelled",
    "caller-gone": "whoever asked for it no longer waits",
    "policy-changed": "the policy changed meanwhile",
}
_SQL: Final = Queries("traces")


class Ending(msgspec.Struct, frozen=True):
    """The end of an approval in words for whoever waited: who it was, and what it is told."""

    by: str
    reason: str
    message: str | None  # for the agent, where somebody gave one
    default: str  # what it is told else
    by_name: str | None = None  # of the person or the supervisor who answered
    said: str | None = None  # why, by whoever answered: for the record, not for the agent


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
    who = approval.person or approval.token
    names = (yield from names_of([who])) if who else {}
    why = said.get("reasoning")
    return Ending(
        by,
        words,
        None if message is None else str(message),
        default,
        names.get(who) if who else None,
        None if why is None else str(why),
    )


# Content isolation.

LONGEST_TEXT: Final = 256  # bytes of UTF-8 that are shown as they are
CONTENT_KEYS: Final = frozenset({"content", "body", "data", "file_content", "text"})
DEEPEST: Final = 64  # levels; what is nested further is content as a whole
_LOOKED_AT: Final = 512  # characters in which a control character tells that it is no text
_HIDDEN_NAME: Final = "sha256:"  # in place of a member's name
_METADATA: Final = frozenset({"content_length", "content_sha256", "content_type_detected"})
_HTML: Final = ("<!doctype html", "<html")
_LAYOUT: Final = frozenset("\t\n\r\f")

MediaType: TypeAlias = Literal[
    "application/json", "text/xml", "text/html", "text/plain", "application/octet-stream"
]


def is_isolated(principal: Principal, settings: Settings) -> bool:
    """Tell whether content is hidden from it. From a person who may decide it never is."""
    return principal.level < 2 and not settings.expose_content


def hide(params: Mapping[str, object]) -> dict[str, object]:
    """Put for each content its length in bytes, its SHA-256 and its type; the members stay."""
    return _members(params, 0)


def _members(found: Mapping[str, object], depth: int) -> dict[str, object]:
    return {
        _name(key): _metadata(value) if key.casefold() in CONTENT_KEYS else _value(value, depth + 1)
        for key, value in found.items()
    }


def _value(value: object, depth: int) -> object:
    if isinstance(value, str):
        return _metadata(value) if len(_bytes(value)) > LONGEST_TEXT else value
    if isinstance(value, Mapping):
        return _metadata(value) if depth > DEEPEST else _members(value, depth)
    if isinstance(value, list | tuple):
        return _metadata(value) if depth > DEEPEST else [_value(each, depth + 1) for each in value]
    return value


def _name(key: str) -> str:
    # The name of a member: a text can be hidden there as well.
    data = _bytes(key)
    return key if len(data) <= LONGEST_TEXT else f"{_HIDDEN_NAME}{hashlib.sha256(data).hexdigest()}"


def _metadata(value: object) -> dict[str, object]:
    data = _bytes(value) if isinstance(value, str) else jsontext.write(value)  # UTF-8, or JSON
    return {
        "content_length": len(data),
        "content_sha256": hashlib.sha256(data).hexdigest(),
        "content_type_detected": media_type(value) if isinstance(value, str) else "application/json",
    }


def restored(edited: Mapping[str, object], params: Mapping[str, object]) -> dict[str, object]:
    """Make the arguments that somebody means who was shown `hide(params)` and changed some of it: content that was hidden
    is as it was. `InvalidParams` where a stand-in is missing, changed, or in another place, be it within a text."""
    return _restored_members(edited, params, 0, "$", frozenset(_stand_ins(hide(params))))


def _restored_members(
    edited: Mapping[str, object], params: Mapping[str, object], depth: int, at: str, known: frozenset[str]
) -> dict[str, object]:
    for former, value in params.items():
        hidden = _is_hidden(value, depth + 1, former) or _name(former) != former
        if (hidden or _holds_hidden(value, depth + 1)) and edited.keys().isdisjoint({former, _name(former)}):
            raise _misplaced(f"{at}.{_name(former)}")
    names = {shown: key for key in params for shown in (key, _name(key))}
    found = {}
    for shown, value in edited.items():
        place = f"{at}.{shown}"
        if shown not in names:
            _must_be_plain(shown, place, known)
            _must_be_plain(value, place, known)
            found[shown] = value
        elif (key := names[shown]).casefold() in CONTENT_KEYS:
            found[key] = _kept(value, params[key], place)
        else:
            found[key] = _restored(value, params[key], depth + 1, place, known)
    return found


def _restored(edited: object, value: object, depth: int, at: str, known: frozenset[str]) -> object:
    if _is_hidden(value, depth):
        return _kept(edited, value, at)
    if isinstance(value, Mapping) and isinstance(edited, Mapping):
        return _restored_members(edited, value, depth, at, known)
    if isinstance(value, list | tuple) and isinstance(edited, list | tuple):
        former: list[object] = [*value, *([None] * (len(edited) - len(value)))]
        if any(_is_or_holds_hidden(each, depth + 1) for each in value[len(edited) :]):
            raise _misplaced(at)
        return [
            _restored(each, former[index], depth + 1, f"{at}[{index}]", known)
            for index, each in enumerate(edited)
        ]
    if _holds_hidden(value, depth):
        raise _misplaced(at)
    if edited != value:
        _must_be_plain(edited, at, known)
    return edited


def _kept(edited: object, value: object, at: str) -> object:
    if edited not in (_metadata(value), value):  # who knows it by other ways may say it
        raise _misplaced(at)
    return value


def _is_hidden(value: object, depth: int, key: str = "") -> bool:
    # As `_members` and `_value` have it.
    if key.casefold() in CONTENT_KEYS:
        return True
    if isinstance(value, str):
        return len(_bytes(value)) > LONGEST_TEXT
    return isinstance(value, Mapping | list | tuple) and depth > DEEPEST


def _holds_hidden(value: object, depth: int) -> bool:
    if isinstance(value, Mapping):
        return any(
            _name(key) != key or _is_hidden(each, depth + 1, key) or _holds_hidden(each, depth + 1)
            for key, each in value.items()
        )
    if isinstance(value, list | tuple):
        return any(_is_or_holds_hidden(each, depth + 1) for each in value)
    return False


def _is_or_holds_hidden(value: object, depth: int) -> bool:
    return _is_hidden(value, depth) or _holds_hidden(value, depth)


def _stand_ins(shown: object) -> Iterator[str]:
    """List the digests in what is shown."""
    if isinstance(shown, Mapping):
        if shown.keys() == _METADATA:
            yield str(shown["content_sha256"])
            return
        for key, value in shown.items():
            if key.startswith(_HIDDEN_NAME):
                yield key.removeprefix(_HIDDEN_NAME)
            yield from _stand_ins(value)
    elif isinstance(shown, list):
        for each in shown:
            yield from _stand_ins(each)


def _must_be_plain(value: object, at: str, known: frozenset[str], depth: int = 0) -> None:
    """Refuse a stand-in, and any part of one within a text."""
    if depth > DEEPEST:
        raise _misplaced(at)
    if isinstance(value, str):
        folded = value.casefold()
        if "content_sha256" in folded or any(digest in folded for digest in known):
            raise _misplaced(at)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            _must_be_plain(key, at, known)
            _must_be_plain(each, f"{at}.{key}", known, depth + 1)
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            _must_be_plain(each, f"{at}[{index}]", known, depth + 1)


def _misplaced(at: str) -> InvalidParams:
    path = at if len(at) <= LONGEST_TEXT else f"{at[:LONGEST_TEXT]}..."
    return InvalidParams(
        "cannot take these arguments: content is hidden from you, and what stands for it is changed, missing or in another "
        "place; give it back as it was shown and change the rest, or leave it to a person",
        {"path": path, "expected": "what was shown there"},
    )


def media_type(text: str) -> MediaType:
    start = text.lstrip()[:_LOOKED_AT]
    if start.startswith(("{", "[")) and _is_json(text):
        return "application/json"
    if start.startswith("<"):
        return "text/html" if start.lower().startswith(_HTML) else "text/xml"
    if any(_is_control(each) for each in text[:_LOOKED_AT]):
        return "application/octet-stream"
    return "text/plain"


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(_bytes(text))
    except jsontext.READ_ERRORS:
        return False
    return True


def _is_control(character: str) -> bool:
    return (character < " " or character == "\x7f") and character not in _LAYOUT


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
