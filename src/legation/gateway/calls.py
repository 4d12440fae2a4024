"""A call of a tool: for which agent it is asked, and how one that came to no result is told to whoever made it.

INV-G1  An agent's own credential asks for that agent and for no other. Any other credential says for whom it asks.
INV-R1  What a tool said is told to its caller and stands in no log: `str()` of these errors, which is what a log
        takes, is without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from legation.approvals.request import DoorResult, ToolReturn
from legation.errors import (
    AgentError,
    Conflict,
    Forbidden,
    InvalidParams,
    LegationError,
    RateLimited,
    Status,
    TimedOut,
    Unavailable,
)
from legation.gateway.tools import Failed
from legation.wire.principal import AGENT_NAME_RULE, Principal, is_agent_name


def agent_of(principal: Principal, named: str | None) -> str:
    """The agent that a call is asked for. `named`: what the body says."""
    if principal.agent is not None:
        if named not in (None, principal.agent):
            raise Forbidden(
                f"cannot ask for another agent with the token of {principal.agent}; leave `agent` out, or use a token "
                "of that agent"
            )
        return principal.agent
    if "operate" not in principal.scopes:
        raise Forbidden(
            'cannot ask for an agent without the scope "operate"; use a token of the agent itself',
            {"scope": "operate"},
        )
    if named is None:
        raise InvalidParams(
            "cannot tell for which agent this is asked: the credential is no agent's; name it with `agent`, or use a "
            "token of kind `agent`",
            {"path": "$.agent", "expected": "the name of an agent"},
        )
    if not is_agent_name(named):
        raise InvalidParams(
            f"cannot ask for an agent of this name; write {AGENT_NAME_RULE}",
            {"path": "$.agent", "expected": AGENT_NAME_RULE},
        )
    return named


# Errors (INV-R1).

STOPPING: Final = "stopping"  # why an approval was cancelled, in its trace


class Unanswered(TimedOut):
    """Nobody answered the approval in time: silence is no consent."""

    @property
    def status(self) -> Status:
        return Status(408, "Nobody answered in time", 8)


class _Quiet(LegationError):
    """`message` is for the caller; `told` is what anybody else may read."""

    def __init__(
        self, message: str, data: Mapping[str, object] | None = None, told: str | None = None
    ) -> None:
        super().__init__(message, data)
        self._told = message if told is None else told

    def __str__(self) -> str:
        return self._told


class ToolFailed(_Quiet, AgentError):
    """The tool could not be reached, refused, or answered with what cannot be used."""

    @property
    def status(self) -> Status:
        return Status(502, "Tool failed", 6)


class ToolTimedOut(_Quiet, TimedOut):
    """The tool did not answer in time; whether it has done its work is not known."""


class ToolCutOff(_Quiet, Unavailable):
    """The server stopped before the tool answered; whether it has done its work is not known."""


def refused(ruling: DoorResult, why: str | None) -> LegationError:
    """The error of a ruling that did not pass. `why`: for what an approval was cancelled, as its trace has it."""
    words = ruling.message or ruling.reason
    data = _about(ruling)
    if ruling.limit is not None:
        data["limit"] = ruling.limit
        if ruling.retry_after is not None:
            data["retryAfter"] = ruling.retry_after
        return RateLimited(words, data)
    match ruling.outcome:
        case "expired":
            return Unanswered(words, data)
        case "cancelled" if why == STOPPING:
            return Unavailable(
                "cannot decide this any more: the server stops; ask again when it is back", data
            )
        case "cancelled" | "superseded":
            return Conflict(f"cannot go on with this call: {words}; ask again", data)
    return Forbidden(words, data)


def failed(ruling: DoorResult, returned: ToolReturn) -> LegationError:
    """The error of a call that passed and came to no result."""
    data = _about(ruling)
    data["status"] = returned.tool_status if isinstance(returned, Failed) else None
    kind = _KINDS.get(returned.status_code, ToolFailed)
    begin = f"cannot get a result of {ruling.action.tool}:"
    return kind(f"{begin} {returned.error}", data, told=f"{begin} see trace {ruling.trace_id}")


_KINDS: Final[Mapping[int, type[_Quiet]]] = {499: ToolCutOff, 504: ToolTimedOut}


def _about(ruling: DoorResult) -> dict[str, object]:
    return {
        "trace_id": ruling.trace_id,
        "approval_id": ruling.approval_id,
        "policy_rule": ruling.rule,
        "decided_by": ruling.by,
        "outcome": ruling.outcome,
    }
