"""Reports of a runner to its caller, as seed 000 has them, and commands back: what is in one, and how it is signed.

INV-B1  A signature is HMAC-SHA256 over `timestamp.nonce.body`, with the token as the key and the body as it was sent; that
        of a GET is empty.
INV-B2  Sequences count from 1, one for each report but heartbeats, which carry 0 and are outside the chain.
INV-B3  Commands count from 1. Who asks for those behind a number has all up to it, and acts on none of them again.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeAlias, TypeVar

import msgspec

from legation.errors import InvalidParams, Unauthenticated
from legation.wire import jsontext
from legation.wire.acp.methods import PermissionOption
from legation.wire.acp.updates import ContentBlock, Diff, Text
from legation.wire.action import Action, Outcome
from legation.wire.api.approvals import Value
from legation.wire.resolved import ResolvedPaths

ReportKind: TypeAlias = Literal[
    "session_update",
    "heartbeat",
    "prompt_complete",
    "prompt_failed",
    # Beyond the seed, where permissions are routed home.
    "permission_request",
    "permission_resolved",
    "unasked_effect",
    "turn_ended",
]
CommandKind: TypeAlias = Literal["answer", "cancel", "pause", "resume", "message", "end"]
TERMINAL: Final = frozenset(("prompt_complete", "prompt_failed"))

TIMESTAMP: Final = "x-supervisor-timestamp"
NONCE: Final = "x-supervisor-nonce"
SIGNATURE: Final = "x-supervisor-signature"
WINDOW_MS: Final = 5 * 60 * 1000  # that a timestamp may be off, either way
NONCE_KEPT_MS: Final = 2 * WINDOW_MS  # for so long one could come again within the window

# Limits of one report. A notification that is longer than a batch may be goes alone, so a report may be as long as a line
# of an agent, and a snapshot.
BATCH_COUNT: Final = 50
BATCH_BYTES: Final = 1_000_000
MOST_BYTES: Final = 40 * 1024 * 1024
LAST_SEQUENCE: Final = 2**53  # as far as every reader of JSON counts

_MILLISECONDS: Final = re.compile("[0-9]{1,16}", re.ASCII)
_NONCE: Final = re.compile("[A-Za-z0-9_.:-]{8,128}", re.ASCII)


def token_digest(token: str) -> bytes:
    """Digest a token, which is all that a server keeps of it: whoever reports brings the token itself along."""
    return hashlib.sha256(token.encode()).digest()


def sign(token: str, timestamp: str, nonce: str, body: bytes) -> str:
    """INV-B1."""
    code = hmac.new(token.encode(), f"{timestamp}.{nonce}.".encode(), hashlib.sha256)
    code.update(body)  # apart, for it may be long
    return f"sha256={code.hexdigest()}"


def signed_headers(token: str, body: bytes, now_ms: int, nonce: str) -> dict[str, str]:
    timestamp = str(now_ms)
    return {
        "authorization": f"Bearer {token}",
        "content-type": "application/json",
        TIMESTAMP: timestamp,
        NONCE: nonce,
        SIGNATURE: sign(token, timestamp, nonce, body),
    }


def verify(token: str, headers: Mapping[str, str], body: bytes, now_ms: int) -> str:
    """Check a report, for receivers: return its nonce, to be kept for `NONCE_KEPT_MS` and refused when it comes again; else
    `Unauthenticated`. `headers` have names in lower case; `body` is what came, before any parsing."""
    try:
        bearer, timestamp = headers["authorization"], headers[TIMESTAMP]
        nonce, signature = headers[NONCE], headers[SIGNATURE]
    except KeyError as missing:
        raise Unauthenticated(f"cannot accept a report without {missing}: send it signed") from None
    if not _MILLISECONDS.fullmatch(timestamp) or not _NONCE.fullmatch(nonce):
        raise Unauthenticated("cannot accept a report with that timestamp or nonce: send it signed")
    wanted = sign(token, timestamp, nonce, body)
    # Both are compared, so that time tells nothing.
    is_bearer = hmac.compare_digest(f"Bearer {token}".encode(), bearer.encode("utf-8", "replace"))
    is_signed = hmac.compare_digest(wanted.encode(), signature.encode("utf-8", "replace"))
    if not (is_bearer and is_signed):
        raise Unauthenticated("cannot accept a report with that signature: compare the token of both sides")
    if abs(now_ms - int(timestamp)) > WINDOW_MS:
        raise Unauthenticated("cannot accept a report that is more than 5 minutes off: check the clocks")
    return nonce


class ReportIds(msgspec.Struct, frozen=True, rename="camel"):
    """Names of what a report is about. They are the caller's."""

    run_id: str
    task_id: str
    sandbox_id: str
    prompt_id: str

    def head(self, kind: ReportKind, sequence: int, session_id: str | None) -> bytes:
        """Return the beginning of a report's JSON, without a bracket behind it."""
        told = {
            "kind": kind,
            "runId": self.run_id,
            "taskId": self.task_id,
            "sandboxId": self.sandbox_id,
            "promptId": self.prompt_id,
            "sequence": sequence,
            "sessionId": session_id,
        }
        return jsontext.write(told)[:-1]


class ReportFault(msgspec.Struct, frozen=True, omit_defaults=True):
    """Reason why a prompt failed: `code` is one of Legation's, or the agent's own number as text."""

    message: str
    code: str | None = None


class ChangedFile(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One file that the agent changed; of a `binary` one the patch has nothing."""

    path: str
    status: str
    added: int = 0
    removed: int = 0
    binary: bool = False


class ReportedChanges(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Changes of the agent's folder. `git apply` takes the patch; `incomplete` says in words what it does not have."""

    patch: str
    files: tuple[ChangedFile, ...] = ()
    incomplete: str | None = None


class PromptEnd(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Additions to a terminal report: `stop_reason` where the agent ended its turn, else `error`. `last_command` is the
    last that was acted on: later ones were not."""

    stop_reason: str | None = None
    error: ReportFault | None = None
    exit_code: int | None = None  # of the agent's process, where that has ended
    signal: int | None = None
    stderr_tail: str | None = None
    usage: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    changes: ReportedChanges | None = None
    last_command: int | None = None
    unheard: int = 0  # messages that came and had no turn any more


class PermissionRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A permission that the agent waits for. Times are Unix milliseconds; `resolved` is where its paths lead, there."""

    id: str
    title: str
    action: Action
    options: tuple[PermissionOption, ...]
    asked_at: int
    expires_at: int | None = None
    tool_call_id: str | None = None
    turn: str | None = None
    diffs: tuple[Diff, ...] = ()
    resolved: ResolvedPaths | None = None


class PermissionResolved(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The answer that the agent was given; without an option it was told `cancelled`."""

    id: str
    outcome: Outcome
    by: str
    option_id: str | None = None
    reason: str | None = None


class RunnerReport(msgspec.Struct, frozen=True, rename="camel"):
    """A report as it is read. Notifications and snapshot are the bytes that came."""

    kind: ReportKind
    run_id: str
    task_id: str
    sandbox_id: str
    prompt_id: str
    sequence: int
    session_id: str | None = None
    notifications: tuple[msgspec.Raw, ...] = ()
    snapshot: msgspec.Raw = msgspec.Raw(b"{}")
    stop_reason: str | None = None
    error: ReportFault | None = None
    exit_code: int | None = None
    signal: int | None = None
    stderr_tail: str | None = None
    usage: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    changes: ReportedChanges | None = None
    last_command: int | None = None
    permission: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    effect: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    turn: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    unheard: int = 0
    limited_until: int | None = None  # of a `turn_ended`: a usage limit is waited for, until then

    @property
    def is_terminal(self) -> bool:
        return self.kind in TERMINAL


_decode = msgspec.json.Decoder(RunnerReport).decode


def read_report(body: bytes) -> RunnerReport:
    """Read a report whose signature is good; `InvalidParams` for what is none."""
    try:
        report = _decode(body)
    except jsontext.READ_ERRORS:
        report = _read_leniently(body)
    if not 0 <= report.sequence <= LAST_SEQUENCE or (report.kind == "heartbeat") != (report.sequence == 0):
        raise InvalidParams(
            "cannot take a report with that sequence: only heartbeats have 0, and others count from 1"
        )
    return report


def _read_leniently(body: bytes) -> RunnerReport:
    """Read what an agent has put half characters into; its bytes are then ours."""
    try:
        value = jsontext.read_object(body)
        for name in ("notifications", "snapshot", "usage", "permission", "effect", "turn"):
            if name in value:
                found = value[name]
                parts = found if name == "notifications" and isinstance(found, list) else [found]
                raws = tuple(msgspec.Raw(jsontext.write(each)) for each in parts)
                value[name] = raws if name == "notifications" else raws[0]
        return msgspec.convert(value, RunnerReport)
    except (*jsontext.READ_ERRORS, msgspec.ValidationError) as error:
        raise InvalidParams(f"cannot read a report: {error}; send one as docs/runner.md has it") from None


def read_permission(report: RunnerReport) -> PermissionRequest:
    return _read_member(report.permission, PermissionRequest)


def read_resolved(report: RunnerReport) -> PermissionResolved:
    return _read_member(report.permission, PermissionResolved)


_T = TypeVar("_T")


def _read_member(raw: msgspec.Raw | msgspec.UnsetType, kind: type[_T]) -> _T:
    try:
        return msgspec.convert(jsontext.read(bytes(raw) if raw is not msgspec.UNSET else b"null"), kind)
    except (*jsontext.READ_ERRORS, msgspec.ValidationError) as error:
        raise InvalidParams(
            f"cannot read the permission of a report: {error}; send one as docs/runner.md has it"
        ) from None


# Commands.


class RunnerCommand(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A command to a runner. Of an `answer`: the permission, how it was decided, by whom, why, and what the agent is told;
    with `must_use` it is used, right before it is acted on. Of a `message`: the prompt."""

    id: int
    kind: CommandKind
    permission: str | None = None
    outcome: Outcome | None = None
    by: str | None = None
    reason: str | None = None
    message: str | None = None
    option_id: str | None = None
    must_use: bool = False
    prompt: Value = None  # a text, or content blocks of ACP

    @property
    def problem(self) -> str | None:
        if self.kind == "answer" and (self.permission is None or self.outcome is None):
            return "an answer names its permission and its outcome"
        if self.kind != "message":
            return None
        try:
            return None if self.blocks else "a message has a prompt"
        except jsontext.READ_ERRORS:
            return "a prompt is a text, or a list of content blocks of ACP"

    @property
    def blocks(self) -> tuple[ContentBlock, ...]:
        if isinstance(self.prompt, str):
            return (Text(text=self.prompt),) if self.prompt.strip() else ()
        return msgspec.convert(self.prompt or [], tuple[ContentBlock, ...])


class UnreadCommand(msgspec.Struct, frozen=True):
    """A command that nobody here understands: it is passed over, and counts as acted on."""

    id: int
    why: str


def read_commands(body: bytes) -> list[RunnerCommand | UnreadCommand]:
    """Read the answer to a poll, in order; `InvalidParams` where that is none. Nothing at all is no commands."""
    if not body.strip():
        return []
    try:
        page = msgspec.convert(jsontext.read(body), dict[str, object])
        given = msgspec.convert(page.get("commands", []), list[dict[str, object]])
        found = [_read_command(each) for each in given]
    except (*jsontext.READ_ERRORS, msgspec.ValidationError) as error:
        raise InvalidParams(f"cannot read commands: {error}; send them as docs/runner.md has it") from None
    return sorted(found, key=lambda each: each.id)


def _read_command(given: dict[str, object]) -> RunnerCommand | UnreadCommand:
    number = msgspec.convert(given.get("id"), Annotated[int, msgspec.Meta(ge=1, le=LAST_SEQUENCE)])
    try:
        command = msgspec.convert(given, RunnerCommand)
    except msgspec.ValidationError as error:
        return UnreadCommand(number, str(error))
    return command if command.problem is None else UnreadCommand(number, command.problem)
