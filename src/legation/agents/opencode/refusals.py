"""Why a turn failed, as the caller of a prompt is told: the kind of error in `data.errorKind`, never what was asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from legation.agents.opencode.messages import NativeError
from legation.agents.rpc import AgentRefused
from legation.wire.acp.rpc import AgentMethod, ErrorCode, RpcError

ABORTED: Final = "MessageAbortedError"
TOO_LONG: Final = "MessageOutputLengthError"
FILTERED: Final = "ContentFilterError"
POISONED: Final = (
    "All fibers interrupted without error"  # an abort hit its start; nothing works until it begins anew
)
_AUTH: Final = "ProviderAuthError"
_OVERFLOW: Final = "ContextOverflowError"
SIGN_IN: Final = "sign in with `legation agents login opencode`, or give the provider's key"
_UNAUTHORIZED: Final = (401, 403)
_RATE_LIMITED: Final = 429
_SERVER_ERROR: Final = 500
MESSAGE_LENGTH: Final = 2000  # characters of what it said


def refusal(error: NativeError) -> AgentRefused:
    said = (error.data.message or error.name)[:MESSAGE_LENGTH]
    status = error.data.status_code
    if error.name == _AUTH or status in _UNAUTHORIZED:
        return refused(f"{said}; {SIGN_IN}", "authentication", status, code=ErrorCode.AUTH_REQUIRED)
    return refused(said, _kind(error), status)


def refused(
    message: str, kind: str, status: int | None = None, *, code: int = ErrorCode.INTERNAL_ERROR
) -> AgentRefused:
    data: Mapping[str, object] = {"errorKind": kind, **({} if status is None else {"status": status})}
    return AgentRefused(AgentMethod.SESSION_PROMPT, RpcError(code, message, data), data=data)


def unfinished(steps: int) -> AgentRefused:
    return refused(
        f"the model's answer ended {steps} times without its end, and OpenCode asked again at once each time; it was"
        " stopped, for every time costs: look at the model's endpoint",
        "unfinished_stream",
    )


def tried_enough(attempts: int, message: str) -> AgentRefused:
    return refused(
        f"{message[:MESSAGE_LENGTH]} (OpenCode asked {attempts} times, and was stopped)", "retries_exhausted"
    )


def too_far(seconds: float, message: str) -> AgentRefused:
    return refused(
        f"{message[:MESSAGE_LENGTH]} (OpenCode would ask again in {seconds:.0f} s, and was stopped)",
        "rate_limit",
    )


def forged() -> AgentRefused:
    return refused(
        "a permission was answered by somebody else than Legation, maybe by a command of the agent's own; the turn was"
        " stopped: look at what it ran",
        "foreign_answer",
        code=ErrorCode.INVALID_REQUEST,
    )


def silent() -> AgentRefused:
    return refused("OpenCode ended the turn without an answer; prompt it again", "no_answer")


def _kind(error: NativeError) -> str:
    status = error.data.status_code
    if error.name == _OVERFLOW:
        return "context_overflow"
    if status == _RATE_LIMITED:
        return "rate_limit"
    if status is not None and status >= _SERVER_ERROR:
        return "server_error"
    return "invalid_request" if status is not None else "unknown"
