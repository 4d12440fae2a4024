"""The items of a Codex thread: what was said, thought and done. Unknown members are ignored, unknown items are not read."""

from __future__ import annotations

from collections.abc import Mapping
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
    """What Codex takes a part of a command for; its word, not ours."""

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
