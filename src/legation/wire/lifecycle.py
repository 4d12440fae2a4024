"""Legation's own events on a session's stream: what ACP has no update for."""

from collections.abc import Mapping
from typing import Final, Literal

from legation.wire.acp.config import ConfigOption, SessionModeState
from legation.wire.acp.content import ContentBlock
from legation.wire.acp.permission import PermissionOption
from legation.wire.acp.rpc import RpcError
from legation.wire.acp.sessions import StopReason, Usage
from legation.wire.acp.toolcall import Diff
from legation.wire.action import Action
from legation.wire.ask import Ask, Decision, Outcome
from legation.wire.payload import Payload

Status = Literal["starting", "active", "resuming", "disconnected", "closed", "deleted"]
Turn = Literal["accepted", "running", "requires-action", "idle"]
QuestionOutcome = Literal["accepted", "declined", "expired", "superseded", "cancelled"]


# In the `data` of the error that a turn ends with which its host cut off: nobody cancelled it, and no agent ended it.
CUT: Final[Mapping[str, object]] = {"cut": True}


class SessionStatus(Payload):
    """The session's status changed."""

    status: Status
    reason: str | None = None


class SetupFacts(Payload):
    """What the agent answered of its modes and options, as they are now: when it took the session, or when one of them was
    chosen and it said nothing of it by itself. What is absent is as it was."""

    modes: SessionModeState | None = None
    config_options: tuple[ConfigOption, ...] | None = None


class SessionReset(Payload):
    """The history before this event no longer counts: what follows replaces it, with fresh numbers."""

    reason: str | None = None


class TurnState(Payload):
    """A turn moved on; when idle, `reason` is the stop reason or why it ended without one."""

    turn: str
    state: Turn
    reason: str | None = None


class PromptStarted(Payload):
    """A prompt was handed to the agent. `message` names the one of the sessions API that it comes from."""

    turn: str
    prompt: tuple[ContentBlock, ...]
    message: str | None = None


class PromptFinished(Payload):
    """The agent answered the prompt; with an `error`, the stop reason is a placeholder."""

    turn: str
    stop_reason: StopReason
    error: RpcError | None = None
    usage: Usage | None = None

    @property
    def cut_by(self) -> str | None:
        """Why its host cut it off, where it did."""
        return self.error.message if self.error is not None and self.error.data == CUT else None


class PermissionAsked(Payload):
    """The agent asks whether it may act; it waits until the answer of the same `id`."""

    id: str
    title: str
    action: Action
    options: tuple[PermissionOption, ...]
    asked_at: int
    expires_at: int | None = None
    tool_call_id: str | None = None
    turn: str | None = None
    diffs: tuple[Diff, ...] = ()

    @classmethod
    def from_ask(cls, ask: Ask) -> "PermissionAsked":
        return cls(
            id=ask.id,
            title=ask.title,
            action=ask.action,
            options=ask.options,
            asked_at=ask.asked_at,
            expires_at=ask.expires_at,
            tool_call_id=ask.tool_call_id,
            turn=ask.turn,
            diffs=ask.diffs,
        )


class PermissionAnswered(Payload):
    """A permission was decided, by whom and why; `optionId` is what the agent was told, absent if cancelled,
    and `message` in words."""

    id: str
    outcome: Outcome
    by: str
    option_id: str | None = None
    reason: str | None = None
    message: str | None = None
    by_name: str | None = None  # of a person, where `by` is an id

    @classmethod
    def from_decision(cls, ask_id: str, decision: Decision, option_id: str | None) -> "PermissionAnswered":
        return cls(
            id=ask_id,
            outcome=decision.outcome,
            by=decision.by,
            option_id=option_id,
            reason=decision.reason,
            message=decision.message,
            by_name=decision.by_name,
        )


class UnaskedEffect(Payload):
    """A tool call was carried out that nobody was asked about. `policy` and `rule` are what the rules would have said;
    absent where there are none."""

    title: str
    action: Action
    tool_call_id: str | None = None
    turn: str | None = None
    policy: str | None = None
    rule: str | None = None
    reason: str | None = None
    ends_turn: bool = False


class UnaskingMode(Payload):
    """The agent is in a mode in which it does not ask: it began in it (`found` is `opened`) or went there by itself
    (`left`). `putInto` is the mode that it was put into; absent where it could not be, and `reason` says why."""

    mode: str
    found: Literal["opened", "left"]
    put_into: str | None = None
    reason: str | None = None


class QuestionAsked(Payload):
    """The agent asks its user a question: a form to fill in or a page to visit."""

    id: str
    message: str
    mode: str
    requested_schema: Mapping[str, object] | None = None
    url: str | None = None
    elicitation_id: str | None = None
    tool_call_id: str | None = None
    turn: str | None = None
    expires_at: int | None = None


class QuestionAnswered(Payload):
    """A question was answered; `content` holds the filled-in form where it was accepted."""

    id: str
    outcome: QuestionOutcome
    by: str
    content: Mapping[str, object] | None = None
    reason: str | None = None


class ExtensionMessage(Payload):
    """The agent sent a message of its own (`_vendor/...`), as it was sent. A `request` waits for an answer."""

    method: str
    params: object = None
    request: bool = False


class ExtensionAnswered(Payload):
    """What the agent was told on a request of its own: a client's `result` or `error`, or why there is none."""

    method: str
    result: object = None
    error: RpcError | None = None


class AgentExited(Payload):
    """The agent's process ended, with an exit code or a signal."""

    code: int | None = None
    signal: int | None = None
    stderr_tail: str | None = None
