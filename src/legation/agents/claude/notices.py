"""Remarks of Claude Code that stand outside the conversation: retries, limits, refusals, hooks that failed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from legation.agents.claude import messages as native
from legation.wire.acp.updates import Notice, SessionUpdate

_LEVELS: Final = {"warning": "warning"}


def notice_of(line: native.Native) -> Iterator[SessionUpdate]:
    """Nothing for a line that has nothing to remark."""
    match line:
        case native.ApiRetry():
            yield _retry(line)
        case native.Informational(content=content, level=level):
            yield Notice(severity=_LEVELS.get(level, "info"), title=content)
        case native.Notification(text=text):
            yield Notice(severity="info", title=text)
        case native.PermissionDenied(tool_name=tool, message=message):
            yield Notice(
                severity="warning",
                title=f"Claude Code refused {tool} by a rule of its own",
                description=message,
            )
        case native.Refusal(original_model=model):
            said = line.content or line.api_refusal_explanation
            yield Notice(severity="warning", title=f"{model} refused to answer", description=said or None)
        case native.HookResponse(outcome="error"):
            title = f"The {line.hook_event} hook {line.hook_name!r} failed"
            yield Notice(severity="warning", title=title, description=line.output or None)
        case native.RateLimitEvent(rate_limit_info=limit) if limit.status != "allowed":
            yield _limited(limit)


def _retry(line: native.ApiRetry) -> Notice:
    status = f" ({line.error_status:.0f})" if line.error_status is not None else ""
    return Notice(
        severity="warning",
        title=f"The model's endpoint failed: {line.error}{status}",
        description=f"attempt {line.attempt:.0f} of {line.max_retries:.0f} follows in {line.retry_delay_ms / 1000:.1f} s",
    )


def _limited(limit: native.RateLimit) -> Notice:
    rejected = limit.status == "rejected"
    which = f" ({limit.rateLimitType})" if limit.rateLimitType else ""
    return Notice(
        severity="error" if rejected else "warning",
        title=f"The account's rate limit{which} is {'reached' if rejected else 'near'}",
    )
