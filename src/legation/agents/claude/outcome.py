"""How a turn of Claude Code ended, as the answer to the prompt.

An error of the model's endpoint comes as `subtype: success` with `is_error`; the other subtypes are limits and interrupts.
"""

from __future__ import annotations

from typing import Final

from legation.agents.claude.messages import Result
from legation.agents.claude.usage import usage_of
from legation.agents.rpc import AgentRefused
from legation.wire.acp.rpc import AgentMethod, ErrorCode, RpcError
from legation.wire.acp.sessions import STOP_REASONS, PromptResponse

UNAUTHENTICATED: Final = 401
_SIGN_IN: Final = frozenset(("authentication_failed", "oauth_org_not_allowed"))
_NOT_SIGNED_IN: Final = "/login"  # what it advises where it has no key at all: it names no kind of error then
_REMEDY: Final = "; give it ANTHROPIC_API_KEY, or run `legation agents login claude`"
_ABORTED: Final = "aborted_"
_TURNS: Final = "error_max_turns"


def outcome(result: Result, failure: str | None, *, cancelled: bool) -> PromptResponse | AgentRefused:
    """`failure` is the kind of error that the program named before. `cancelled`: we asked it to stop."""
    if (result.terminal_reason or "").startswith(_ABORTED) or (cancelled and result.is_error):
        return PromptResponse(stop_reason="cancelled", usage=usage_of(result))
    if result.stop_reason == "refusal":
        return PromptResponse(stop_reason="refusal", usage=usage_of(result))
    if result.subtype == _TURNS:
        return PromptResponse(stop_reason="max_turn_requests", usage=usage_of(result))
    if result.is_error:
        return AgentRefused(AgentMethod.SESSION_PROMPT, error_of(result, failure))
    known = result.stop_reason if result.stop_reason in STOP_REASONS else "end_turn"
    return PromptResponse(stop_reason=known or "end_turn", usage=usage_of(result))


def error_of(result: Result, failure: str | None) -> RpcError:
    message = result.result or "; ".join(result.errors) or f"the turn ended with {result.subtype}"
    status = result.api_error_status
    data: dict[str, object] = {"errorKind": failure or result.subtype}
    if status is not None:
        data["status"] = int(status)
    signed_out = status == UNAUTHENTICATED or failure in _SIGN_IN or _NOT_SIGNED_IN in message
    code = ErrorCode.AUTH_REQUIRED if signed_out else ErrorCode.INTERNAL_ERROR
    return RpcError(code, f"{message}{_REMEDY}" if signed_out else message, data)
