"""A turn that failed, as the error of its prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from legation.agents.codex.messages import TurnError
from legation.agents.rpc import AgentRefused
from legation.wire.acp.rpc import AgentMethod, ErrorCode, RpcError

_NO_WORDS: Final = "the turn failed, and Codex did not say why"
_SIGN_IN: Final = "unauthorized"
_UNAUTHORIZED: Final = 401  # which it calls a connection that failed, once it has tried often enough
_REMEDY: Final = "give it OPENAI_API_KEY, or run `legation agents login codex`"


def failure(error: TurnError | None) -> AgentRefused:
    """What kind it is stands in `data`: `rateLimitExceeded`, `contextWindowExceeded`, with the HTTP status where there
    was one."""
    if error is None:
        return AgentRefused(AgentMethod.SESSION_PROMPT, RpcError(ErrorCode.INTERNAL_ERROR, _NO_WORDS))
    kind, status = _kind(error.codex_error_info)
    signed_out = kind == _SIGN_IN or status == _UNAUTHORIZED
    code = ErrorCode.AUTH_REQUIRED if signed_out else ErrorCode.INTERNAL_ERROR
    words = ": ".join(filter(None, (error.message, error.additional_details)))
    words = f"{words}; {_REMEDY}" if signed_out else words
    data = {key: value for key, value in (("kind", kind), ("httpStatus", status)) if value is not None}
    return AgentRefused(AgentMethod.SESSION_PROMPT, RpcError(code, words, data))


def _kind(info: str | Mapping[str, object] | None) -> tuple[str | None, object]:
    """A word, or an object with one member that is called so."""
    if not isinstance(info, Mapping):
        return info, None
    for kind, about in info.items():
        return kind, about.get("httpStatusCode") if isinstance(about, Mapping) else None
    return None, None
