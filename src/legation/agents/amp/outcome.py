"""How a turn ended that Amp itself did not tell the end of: what its process left behind."""

from __future__ import annotations

import re
from typing import Final

from legation.agents.output import STDERR_SHOWN
from legation.agents.rpc import AgentRefused
from legation.errors import AgentExited, LegationError
from legation.proc import Exit
from legation.wire.acp.rpc import AgentMethod, ErrorCode, RpcError

NO_KEY: Final = "No API key found"  # said on its output; then it waits for a browser that nobody has
_SIGN_IN: Final = re.compile(r"api key|access token|unauthorized|not logged in|\b401\b", re.IGNORECASE)
_REMEDY: Final = "; give it AMP_API_KEY, or run `legation agents login amp`"


def failed(name: str, found: Exit, complaint: str) -> LegationError:
    """Amp tells of an error by its exit code and a line or two; anything else is a crash."""
    said = complaint.strip()[-STDERR_SHOWN:]
    if found.code and said:
        return refused(said)
    tail = f", having said:\n{said}\n" if said else ""
    return AgentExited(
        f"cannot complete {AgentMethod.SESSION_PROMPT}: {name!r} ended with {found}{tail}",
        {"exitCode": found.code, "signal": found.signal},
    )


def refused(message: str) -> AgentRefused:
    signed_out = _SIGN_IN.search(message) is not None
    code = ErrorCode.AUTH_REQUIRED if signed_out else ErrorCode.INTERNAL_ERROR
    told = f"{message}{_REMEDY}" if signed_out else message
    error = RpcError(code, told, {"errorKind": "authentication" if signed_out else "amp"})
    return AgentRefused(AgentMethod.SESSION_PROMPT, error)


def not_gated(what: str) -> AgentRefused:
    told = f"{what}; it was stopped: update Amp"
    return AgentRefused(
        AgentMethod.SESSION_PROMPT, RpcError(ErrorCode.INTERNAL_ERROR, told, {"errorKind": "ungated"})
    )
