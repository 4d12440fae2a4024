"""What the app server of Codex says: notifications, and its answers, as far as they mean something here."""

from __future__ import annotations

from collections.abc import Mapping

from legation.agents.codex.items import FileUpdate, Native, ThreadItem


class Addressed(Native):
    """Any message, read only for the thread that it is about."""

    thread_id: str | None = None


class Thread(Native):
    id: str
    cwd: str
    preview: str
    updated_at: int
    name: str | None = None
    parent_thread_id: str | None = None
    model: str | None = None


class ThreadNews(Native):
    """thread/started."""

    thread: Thread


class TurnError(Native):
    message: str
    additional_details: str | None = None
    codex_error_info: str | Mapping[str, object] | None = None


class Turn(Native):
    id: str
    status: str
    error: TurnError | None = None


class TurnNews(Native):
    """turn/started, turn/completed."""

    thread_id: str
    turn: Turn


class ItemNews(Native):
    """item/started, item/completed."""

    thread_id: str
    item: ThreadItem


class DeltaNews(Native):
    thread_id: str
    item_id: str
    delta: str


class SummaryPartNews(Native):
    thread_id: str
    item_id: str
    summary_index: int


class PatchNews(Native):
    """item/fileChange/patchUpdated."""

    thread_id: str
    item_id: str
    changes: tuple[FileUpdate, ...]


class ProgressNews(Native):
    """item/mcpToolCall/progress."""

    thread_id: str
    item_id: str
    message: str


class PlanStep(Native):
    step: str
    status: str  # pending, inProgress, completed


class PlanNews(Native):
    """turn/plan/updated."""

    thread_id: str
    plan: tuple[PlanStep, ...]


class TokenCount(Native):
    total_tokens: int
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    reasoning_output_tokens: int
    cache_write_input_tokens: int = 0


class TokenUsage(Native):
    total: TokenCount
    last: TokenCount
    model_context_window: int | None = None


class UsageNews(Native):
    thread_id: str
    token_usage: TokenUsage


class ErrorNews(Native):
    thread_id: str
    error: TurnError
    will_retry: bool


class WarningNews(Native):
    message: str
    thread_id: str | None = None


class GuardianNews(Native):
    """guardianWarning."""

    message: str
    thread_id: str


class DeprecationNews(Native):
    summary: str
    details: str | None = None


class ConfigNews(Native):
    """configWarning."""

    summary: str
    details: str | None = None


class McpServerNews(Native):
    """mcpServer/startupStatus/updated."""

    name: str
    status: str
    thread_id: str | None = None
    error: str | None = None


class NameNews(Native):
    thread_id: str
    thread_name: str | None = None


class ReroutedNews(Native):
    """model/rerouted."""

    thread_id: str
    from_model: str
    to_model: str


class Limits(Native):
    limit_name: str | None = None
    rate_limit_reached_type: str | None = None


class LimitsNews(Native):
    """account/rateLimits/updated."""

    rate_limits: Limits


class ResolvedNews(Native):
    """serverRequest/resolved: it needs no answer any more."""

    thread_id: str
    request_id: int | str


# Answers to what we ask.


class Opened(Native):
    """Of thread/start, thread/resume and thread/fork."""

    thread: Thread
    model: str
    reasoning_effort: str | None = None


class TurnOpened(Native):
    turn: Turn


class ThreadPage(Native):
    data: tuple[Thread, ...]
    next_cursor: str | None = None


class ItemEntry(Native):
    item: ThreadItem


class ItemPage(Native):
    data: tuple[ItemEntry, ...]
    next_cursor: str | None = None


class Effort(Native):
    reasoning_effort: str
    description: str


class Model(Native):
    model: str
    display_name: str
    description: str
    hidden: bool
    default_reasoning_effort: str
    supported_reasoning_efforts: tuple[Effort, ...]


class ModelPage(Native):
    data: tuple[Model, ...]
    next_cursor: str | None = None


class ThreadRead(Native):
    thread: Thread
