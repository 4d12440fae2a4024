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
class Native(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of what is read from Codex."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Item(Native, tag_field="type"):
    id: str


class TextInput(Native, tag_field="type", tag="text"):
    text: str


class UserMessage(Item, tag="userMessage"):
    content: tuple[Mapping[str, object], ...]


class AgentMessage(Item, tag="agentMessage"):
    text: str


class Reasoning(Item, tag="reasoning"):
    summary: tuple[str, ...] = ()
    content: tuple[str, ...] = ()


class ProposedPlan(Item, tag="plan"):
    text: str


class CommandAction(Native):
    """A part of a command, as Codex understands it; its word, not ours."""

    type: str
    command: str
    path: str | None = None


class CommandExecution(Item, tag="commandExecution"):
    command: str
    cwd: str
    status: ItemStatus
    command_actions: tuple[CommandAction, ...]
    aggregated_output: str | None = None
    exit_code: int | None = None


class ChangeKind(Native):
    type: str
    move_path: str | None = msgspec.field(default=None, name="move_path")


class FileUpdate(Native):
    """`diff` is the whole text of a file that is added or deleted, else its hunks."""

    path: str
    kind: ChangeKind
    diff: str


class FileChange(Item, tag="fileChange"):
    changes: tuple[FileUpdate, ...]
    status: ItemStatus


class McpToolCall(Item, tag="mcpToolCall"):
    server: str
    tool: str
    status: ItemStatus
    arguments: object
    result: object = None
    error: object = None


class DynamicToolCall(Item, tag="dynamicToolCall"):
    tool: str
    status: ItemStatus
    arguments: object
    namespace: str | None = None


class CollabAgentToolCall(Item, tag="collabAgentToolCall"):
    """A call about sub-agents: `receiver_thread_ids` are their threads."""

    tool: str
    status: ItemStatus
    receiver_thread_ids: tuple[str, ...]
    prompt: str | None = None


class SubAgentActivity(Item, tag="subAgentActivity"):
    kind: str
    agent_thread_id: str
    agent_path: str


class WebSearch(Item, tag="webSearch"):
    query: str


class ImageView(Item, tag="imageView"):
    path: str


class ImageGeneration(Item, tag="imageGeneration"):
    status: ItemStatus
    revised_prompt: str | None = None
    saved_path: str | None = None


class Sleep(Item, tag="sleep"):
    duration_ms: int


class EnteredReviewMode(Item, tag="enteredReviewMode"):
    review: str


class ExitedReviewMode(Item, tag="exitedReviewMode"):
    review: str


class ContextCompaction(Item, tag="contextCompaction"):
    pass


class HookPrompt(Item, tag="hookPrompt"):
    """Text that a hook puts before the model."""

    fragments: tuple[Mapping[str, object], ...]


class FunctionCallOutput(Item, tag="functionCallOutput"):
    name: str
    output: object


ThreadItem: TypeAlias = (
    UserMessage
    | AgentMessage
    | Reasoning
    | ProposedPlan
    | CommandExecution
    | FileChange
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
    """The answer to thread/start, thread/resume and thread/fork."""

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


# A message as it came.


@dataclass(frozen=True, slots=True)
class Heard:
    """A notification; `line` is all of it as it came, and `is_cut` where `params` are a digest of its."""

    method: str
    params: bytes
    line: bytes
    is_cut: bool = False


@dataclass(slots=True)
class Asked:
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


class Network(Native):
    host: str
    protocol: str


class CommandAsked(Native):
    """item/commandExecution/requestApproval."""

    thread_id: str
    item_id: str
    command: str | None = None
    cwd: str | None = None
    reason: str | None = None
    kind: str = "command"  # or writeStdin
    command_actions: tuple[CommandAction, ...] | None = None
    network_approval_context: Network | None = None
    additional_permissions: object = None


class FileChangeAsked(Native):
    """item/fileChange/requestApproval. What it changes was said by the item of that id."""

    thread_id: str
    item_id: str
    reason: str | None = None
    grant_root: str | None = None


class PermissionsAsked(Native):
    """item/permissions/requestApproval."""

    thread_id: str
    item_id: str
    cwd: str
    permissions: Mapping[str, object]
    reason: str | None = None


class Option(Native):
    label: str
    description: str


class Question(Native):
    id: str
    header: str
    question: str
    options: tuple[Option, ...] | None = None


class UserInputAsked(Native):
    """item/tool/requestUserInput."""

    thread_id: str
    item_id: str
    questions: tuple[Question, ...]


class ElicitationAsked(Native):
    """mcpServer/elicitation/request: an MCP server asks, or Codex asks whether it may be called."""

    thread_id: str
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
    """Without instructions of ours Codex has its own for the mode."""

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
