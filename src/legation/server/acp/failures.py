"""Errors of ours as JSON-RPC errors, and what an agent said when it ended."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from legation.agents.rpc import AgentRefused
from legation.errors import (
    Cancelled,
    CapabilityUnsupported,
    Forbidden,
    InvalidParams,
    LegationError,
    NotFound,
    PromptInFlight,
)
from legation.wire.acp.rpc import ErrorCode, RpcError
from legation.wire.lifecycle import AgentExited

STDERR_LINES: Final = 16  # the last ones, as sandbox-agent has them

_CODES: Final[tuple[tuple[type[LegationError], int], ...]] = (
    (CapabilityUnsupported, ErrorCode.METHOD_NOT_FOUND),
    (PromptInFlight, ErrorCode.INVALID_REQUEST),
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


def rpc_error(error: Exception, ended: AgentExited | None = None) -> RpcError:
    """`ended` is how the agent's process went, where that is why."""
    if isinstance(error, Refused):
        return error.error
    if isinstance(error, AgentRefused):
        return error.error
    if not isinstance(error, LegationError):
        logger.error("cannot answer a request", exc_info=error)
        return RpcError(ErrorCode.INTERNAL_ERROR, "cannot answer: a defect of Legation; see the server's log")
    code = next((code for kind, code in _CODES if isinstance(error, kind)), ErrorCode.INTERNAL_ERROR)
    data: dict[str, object] = {"code": error.code.value, **(error.data or {}), **_exit(ended)}
    return RpcError(code, error.message, data)


def _exit(ended: AgentExited | None) -> Mapping[str, object]:
    if ended is None:
        return {}
    lines = (ended.stderr_tail or "").splitlines()[-STDERR_LINES:]
    reason = "killed" if ended.signal is not None else "ended" if ended.code == 0 else "crashed"
    return {"reason": reason, "exitCode": ended.code, "signal": ended.signal, "agentStderr": lines}
