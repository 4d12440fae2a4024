"""What the server says beside the items of a thread: its plan and name, warnings, limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from legation.agents.codex.messages import (
    ConfigNews,
    DeprecationNews,
    ErrorNews,
    GuardianNews,
    LimitsNews,
    McpServerNews,
    NameNews,
    PlanNews,
    ReroutedNews,
    WarningNews,
)
from legation.wire.acp.plan import Plan, PlanEntry
from legation.wire.acp.updates import Notice, SessionInfoUpdate, SessionUpdate

Updates = tuple[SessionUpdate, ...]

_PLAN_STATUSES: Final[Mapping[str, str]] = {"inProgress": "in_progress"}


def _plan(news: PlanNews, of_root: bool) -> Updates:
    if not of_root:
        return ()
    entries = (
        PlanEntry(content=each.step, priority="medium", status=_PLAN_STATUSES.get(each.status, each.status))
        for each in news.plan
    )
    return (Plan(entries=tuple(entries)),)


def _error(news: ErrorNews, of_root: bool) -> Updates:
    """One that ends the turn is told by the turn's end."""
    if not news.will_retry and of_root:
        return ()
    title = "The model did not answer; it is asked again" if news.will_retry else "A sub-agent failed"
    said = ": ".join(filter(None, (news.error.message, news.error.additional_details)))
    return (Notice(severity="warning", title=title, description=said),)


def _warning(news: WarningNews | GuardianNews, _: bool) -> Updates:
    return (Notice(severity="warning", title=news.message),)


def _mcp_server(news: McpServerNews, _: bool) -> Updates:
    if news.status != "failed":
        return ()
    what = f"MCP server {news.name} did not start"
    return (Notice(severity="warning", title=what, description=news.error),)


def _renamed(news: NameNews, of_root: bool) -> Updates:
    return (SessionInfoUpdate(title=news.thread_name),) if of_root else ()


def _rerouted(news: ReroutedNews, _: bool) -> Updates:
    title = f"{news.to_model} answers instead of {news.from_model}"
    return (Notice(severity="warning", title=title),)


def _old_or_odd(news: ConfigNews | DeprecationNews, _: bool) -> Updates:
    return (Notice(severity="info", title=news.summary, description=news.details),)


def _limits(news: LimitsNews, _: bool) -> Updates:
    """Said after each answer of the model; of interest when one is reached."""
    limits = news.rate_limits
    if limits.rate_limit_reached_type is None:
        return ()
    title = f"A limit of the account is reached: {limits.limit_name or limits.rate_limit_reached_type}"
    return (Notice(severity="warning", title=title),)


_Reader = tuple[type[Any], Callable[[Any, bool], Updates]]
# By method: its shape, and what is told of it; the latter is given whether it is of the session's own thread.
NOTICES: Final[Mapping[str, _Reader]] = {
    "turn/plan/updated": (PlanNews, _plan),
    "thread/name/updated": (NameNews, _renamed),
    "mcpServer/startupStatus/updated": (McpServerNews, _mcp_server),
    "account/rateLimits/updated": (LimitsNews, _limits),
    "error": (ErrorNews, _error),
    "warning": (WarningNews, _warning),
    "guardianWarning": (GuardianNews, _warning),
    "configWarning": (ConfigNews, _old_or_odd),
    "deprecationNotice": (DeprecationNews, _old_or_odd),
    "model/rerouted": (ReroutedNews, _rerouted),
}
