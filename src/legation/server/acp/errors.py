"""Errors of ours as JSON-RPC errors, and what an agent said when it ended."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import msgspec

from legation.agents.rpc import AgentRefused
from legation.errors import AgentExited as AgentHasExited
from legation.errors import (
    Cancelled,
    CapabilityUnsupported,
    Forbidden,
    InvalidParams,
    LegationError,
    NotFound,
    PromptInFlight,
    SessionClosed,
)
from legation.wire.acp.rpc import ErrorCode, RpcError
from legation.wire.event_types import AgentExited

STDERR: Final = "agentStderr"
STDERR_LINES: Final = 16  # the last ones, as sandbox-agent has them

_CODES: Final[tuple[tuple[type[LegationError], int], ...]] = (
    (CapabilityUnsupported, ErrorCode.METHOD_NOT_FOUND),
    (PromptInFlight, ErrorCode.INVALID_REQUEST),
    (SessionClosed, ErrorCode.INVALID_REQUEST),
    (InvalidParams, ErrorCode.INVALID_PARAMS),
    (Forbidden, ErrorCode.INVALID_REQUEST),
    (NotFound, ErrorCode.RESOURCE_NOT_FOUND),
    (Cancelled, ErrorCode.REQUEST_CANCELLED),
)

logger = logging.getLogger("legation.acp")


class Refused(Exception):
    """A request is answered with this error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.error = RpcError(code, message)


def rpc_error(error: Exception, ended: AgentExited | None = None, stderr: str = "") -> RpcError:
    """`ended` is how the agent's process went, where that is why; `stderr` what one that lives has said."""
    if isinstance(error, Refused):
        return error.error
    if isinstance(error, AgentRefused):
        return _with_stderr(error.error, stderr)
    if not isinstance(error, LegationError):
        logger.error("cannot answer a request", exc_info=error)
        return RpcError(ErrorCode.INTERNAL_ERROR, "cannot answer: a defect of Legation; see the server's log")
    code = next((code for kind, code in _CODES if isinstance(error, kind)), ErrorCode.INTERNAL_ERROR)
    data: dict[str, object] = {"code": error.code.value, **(error.data or {}), **_exit(ended)}
    return RpcError(code, error.message, data)


def exit_of(error: Exception) -> AgentExited | None:
    """As the error itself knows it: of an agent that ended before it had a session."""
    if not isinstance(error, AgentHasExited) or error.data is None or "exitCode" not in error.data:
        return None
    code, signal = error.data["exitCode"], error.data.get("signal")
    return AgentExited(
        code=code if isinstance(code, int) else None,
        signal=signal if isinstance(signal, int) else None,
        stderr_tail=error.stderr or None,
    )


def _with_stderr(error: RpcError, stderr: str) -> RpcError:
    """What the agent answered, with what it wrote beside it. What it put into `data` itself stays."""
    lines, data = _last_lines(stderr), error.data
    if not lines or not (data is msgspec.UNSET or data is None or isinstance(data, dict)):
        return error
    return msgspec.structs.replace(error, data={STDERR: lines, **(data or {})})


def _exit(ended: AgentExited | None) -> Mapping[str, object]:
    if ended is None:
        return {}
    lines = _last_lines(ended.stderr_tail or "")
    reason = "killed" if ended.signal is not None else "ended" if ended.code == 0 else "crashed"
    return {"reason": reason, "exitCode": ended.code, "signal": ended.signal, STDERR: lines}


def _last_lines(stderr: str) -> list[str]:
    return stderr.splitlines()[-STDERR_LINES:]
