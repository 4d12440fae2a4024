"""The messages of Codex's app server: the items of a thread, notifications, requests, answers, and what the server is sent.

As far as they mean something here: unknown members are ignored, unknown items are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, dataclass_transform

import msgspec

ItemStatus: TypeAlias = str  # inProgress, completed, failed, declined, interrupted


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class CodexShape(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of what is read from Codex."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class CodexItem(CodexShape, tag_field="type"):
    id: str


class UserMessageItem(CodexItem, tag="userMessage"):
    content: tuple[Mapping[str, object], ...]


class AgentMessage(CodexItem, tag="agentMessage"):
    text: str


class ReasoningItem(CodexItem, tag="reasoning"):
    summary: tuple[str, ...] = ()
    content: tuple[str, ...] = ()


class ProposedPlan(CodexItem, tag="plan"):
    text: str


class CommandAction(CodexShape):
    """A part of a command, as Codex understands it; its word, not ours."""

    type: str
    command: str
    path: str | None = None


class CommandExecution(CodexItem, tag="commandExecution"):
    command: str
    cwd: str
    status: ItemStatus
    command_actions: tuple[CommandAction, ...]
    aggregated_output: str | None = None
    exit_code: int | None = None


class ChangeKind(CodexShape):
    type: str
    move_path: str | None = msgspec.field(default=None, name="move_path")


class FileUpdate(CodexShape):
    """`diff` is the whole text of a file that is added or deleted, else its hunks."""

    path: str
    kind: ChangeKind
    diff: str


class FileChangeItem(CodexItem, tag="fileChange"):
    changes: tuple[FileUpdate, ...]
    status: ItemStatus


class McpToolCall(CodexItem, tag="mcpToolCall"):
    server: str
    tool: str
    status: ItemStatus
    arguments: object
    result: object = None
    error: object = None


class DynamicToolCall(CodexItem, tag="dynamicToolCall"):
    tool: str
    status: ItemStatus
    arguments: object
    namespace: str | None = None


class CollabAgentToolCall(CodexItem, tag="collabAgentToolCall"):
    """A call about sub-agents: `receiver_thread_ids` are their threads."""

    tool: str
    status: ItemStatus
    receiver_thread_ids: tuple[str, ...]
    prompt: str | None = None


class SubAgentActivity(CodexItem, tag="subAgentActivity"):
    kind: str
    agent_thread_id: str
    agent_path: str


class WebSearch(CodexItem, tag="webSearch"):
    query: str


class ImageView(CodexItem, tag="imageView"):
    path: str


class ImageGeneration(CodexItem, tag="imageGeneration"):
    status: ItemStatus
    revised_prompt: str | None = None
    saved_path: str | None = None


class Sleep(CodexItem, tag="sleep"):
    duration_ms: int


class EnteredReviewMode(CodexItem, tag="enteredReviewMode"):
    review: str


class ExitedReviewMode(CodexItem, tag="exitedReviewMode"):
    review: str


class ContextCompaction(CodexItem, tag="contextCompaction"):
    pass


class HookPrompt(CodexItem, tag="hookPrompt"):
    """Text that a hook puts before the model."""

    fragments: tuple[Mapping[str, object], ...]


class FunctionCallOutput(CodexItem, tag="functionCallOutput"):
    name: str
    output: object


ThreadItem: TypeAlias = (
    UserMessageItem
    | AgentMessage
    | ReasoningItem
    | ProposedPlan
    | CommandExecution
    | FileChangeItem
    | McpToolCall
    | DynamicToolCall
    | CollabAgentToolCall
    | SubAgentActivity
    | WebSearch
    | ImageView
    | ImageGeneration
    | Sleep
    | EnteredReviewMode
    | ExitedReviewMode
    | ContextCompaction
    | HookPrompt
    | FunctionCallOutput
)


# What the server says, and its answers.


class Addressed(CodexShape):
    """Any message, read only for the thread that it is about."""

    thread_id: str | None = None


class Thread(CodexShape):
    id: str
    cwd: str
    preview: str
    updated_at: int
    name: str | None = None
    parent_thread_id: str | None = None
    model: str | None = None


class ThreadMessage(CodexShape):
    """Base of what is about one thread, and nobody else's."""

    thread_id: str


class ThreadNews(CodexShape):
    """thread/started."""

    thread: Thread


class TurnError(CodexShape):
    message: str
    additional_details: str | None = None
    codex_error_info: str | Mapping[str, object] | None = None


class TurnInfo(CodexShape):
    id: str
    status: str
    error: TurnError | None = None


class TurnNews(ThreadMessage):
    """turn/started, turn/completed."""

    turn: TurnInfo


class ItemNews(ThreadMessage):
    """item/started, item/completed."""

    item: ThreadItem


class DeltaNews(ThreadMessage):
    item_id: str
    delta: str


class SummaryPartNews(ThreadMessage):
    item_id: str
    summary_index: int


class PatchNews(ThreadMessage):
    """item/fileChange/patchUpdated."""

    item_id: str
    changes: tuple[FileUpdate, ...]


class ProgressNews(ThreadMessage):
    """item/mcpToolCall/progress."""

    item_id: str
    message: str


class PlanStep(CodexShape):
    step: str
    status: str  # pending, inProgress, completed


class PlanNews(ThreadMessage):
    """turn/plan/updated."""

    plan: tuple[PlanStep, ...]


class TokenCount(CodexShape):
    total_tokens: int
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    reasoning_output_tokens: int
    cache_write_input_tokens: int = 0


class TokenUsage(CodexShape):
    total: TokenCount
    last: TokenCount
    model_context_window: int | None = None


class UsageNews(ThreadMessage):
    token_usage: TokenUsage


class ErrorNews(ThreadMessage):
    error: TurnError
    will_retry: bool


class WarningNews(CodexShape):
    """warning, guardianWarning."""

    message: str


class RemarkNews(CodexShape):
    """configWarning, deprecationNotice."""

    summary: str
    details: str | None = None


class McpServerNews(CodexShape):
    """mcpServer/startupStatus/updated."""

    name: str
    status: str
    error: str | None = None


class NameNews(ThreadMessage):
    thread_name: str | None = None


class ReroutedNews(ThreadMessage):
    """model/rerouted."""

    from_model: str
    to_model: str


class RateLimits(CodexShape):
    limit_name: str | None = None
    rate_limit_reached_type: str | None = None


class LimitsNews(CodexShape):
    """account/rateLimits/updated."""

    rate_limits: RateLimits


class ResolvedNews(ThreadMessage):
    """serverRequest/resolved: it needs no answer any more."""

    request_id: int | str


# Answers to what we ask.


class Opened(CodexShape):
    """The answer to thread/start, thread/resume and thread/fork."""

    thread: Thread
    model: str
    reasoning_effort: str | None = None


class TurnOpened(CodexShape):
    turn: TurnInfo


class ThreadPage(CodexShape):
    data: tuple[Thread, ...]
    next_cursor: str | None = None


class ItemEntry(CodexShape):
    item: ThreadItem


class ItemPage(CodexShape):
    data: tuple[ItemEntry, ...]
    next_cursor: str | None = None


class Effort(CodexShape):
    reasoning_effort: str
    description: str


class CodexModel(CodexShape):
    model: str
    display_name: str
    description: str
    hidden: bool
    default_reasoning_effort: str
    supported_reasoning_efforts: tuple[Effort, ...]


class ModelPage(CodexShape):
    data: tuple[CodexModel, ...]
    next_cursor: str | None = None


class ThreadRead(CodexShape):
    thread: Thread


# A message as it came.


@dataclass(frozen=True, slots=True)
class CodexNotification:
    """A notification; `line` is all of it as it came, and `is_cut` where `params` are a digest of its."""

    method: str
    params: bytes
    line: bytes
    is_cut: bool = False


@dataclass(slots=True)
class CodexRequest:
    """A request of the server's, which is answered once, with a result wherever it knows one."""

    method: str
    params: bytes
    line: bytes
    key: bytes
    _write: Callable[[bytes, object], None] = field(repr=False)
    is_cut: bool = False
    answered: bool = False

    def answer(self, answer: object) -> None:
        if not self.answered:
            self.answered = True
            self._write(self.key, answer)


# What the server asks.


class Network(CodexShape):
    host: str
    protocol: str


class CommandAsked(ThreadMessage):
    """item/commandExecution/requestApproval."""

    item_id: str
    command: str | None = None
    cwd: str | None = None
    reason: str | None = None
    kind: str = "command"  # or writeStdin
    command_actions: tuple[CommandAction, ...] | None = None
    network_approval_context: Network | None = None
    additional_permissions: object = None


class FileChangeAsked(ThreadMessage):
    """item/fileChange/requestApproval. What it changes was said by the item of that id."""

    item_id: str
    reason: str | None = None
    grant_root: str | None = None


class PermissionsAsked(ThreadMessage):
    """item/permissions/requestApproval."""

    item_id: str
    cwd: str
    permissions: Mapping[str, object]
    reason: str | None = None


class UserInputOption(CodexShape):
    label: str
    description: str


class UserInputQuestion(CodexShape):
    id: str
    header: str
    question: str
    options: tuple[UserInputOption, ...] | None = None


class UserInputAsked(ThreadMessage):
    """item/tool/requestUserInput."""

    item_id: str
    questions: tuple[UserInputQuestion, ...]


class ElicitationAsked(ThreadMessage):
    """mcpServer/elicitation/request: an MCP server asks, or Codex asks whether it may be called."""

    server_name: str
    mode: str
    message: str
    meta: object = msgspec.field(default=None, name="_meta")
    requested_schema: object = None
    url: str | None = None
    elicitation_id: str | None = None


# What the server is sent.


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Sent(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of what is sent to Codex."""


class ThreadSettings(Sent):
    """Common members of thread/start, thread/resume and thread/fork."""

    cwd: str
    approval_policy: str
    approvals_reviewer: str
    sandbox: str
    config: Mapping[str, object]
    model: str | None = None
    model_provider: str | None = None
    runtime_workspace_roots: tuple[str, ...] | None = None


class OldThread(ThreadSettings, kw_only=True):
    """thread/resume, thread/fork."""

    thread_id: str
    exclude_turns: bool = False


class ModeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a mode. Without instructions of ours Codex has its own for it."""

    model: str
    reasoning_effort: str | None = None
    developer_instructions: str | None = None


class Mode(msgspec.Struct, frozen=True, kw_only=True):
    mode: str
    settings: ModeSettings


UserInput: TypeAlias = Mapping[str, object]


class TurnStart(Sent):
    thread_id: str
    input: tuple[UserInput, ...]
    collaboration_mode: Mode | None = None


class TurnSteer(Sent):
    thread_id: str
    expected_turn_id: str
    input: tuple[UserInput, ...]


class TurnInterrupt(Sent):
    thread_id: str
    turn_id: str


class ThreadOf(Sent):
    """thread/unsubscribe, thread/delete, thread/read, thread/backgroundTerminals/clean."""

    thread_id: str


class ThreadList(Sent):
    model_providers: tuple[str, ...]
    cwd: str | None = None
    cursor: str | None = None
    limit: int | None = None


class ItemList(Sent):
    thread_id: str
    sort_direction: str
    cursor: str | None = None
    limit: int | None = None
