"""Messages, and the parts that they are made of: told as events, and as a session's history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from legation.agents.opencode.shape import Native


class CacheTokens(Native):
    read: float
    write: float


class Tokens(Native):
    input: float
    output: float
    reasoning: float
    cache: CacheTokens
    total: float | None = None

    @property
    def context(self) -> int:
        """What stood in the model's window."""
        return int(self.input + self.cache.read + self.cache.write + self.output + self.reasoning)


class ErrorData(Native):
    message: str | None = None
    status_code: int | None = None
    is_retryable: bool | None = None
    provider_id: str | None = None


class NativeError(Native):
    """One shape for all kinds of errors; `name` is the kind."""

    name: str
    data: ErrorData


class Span(Native):
    """When a message or a part began and ended, in milliseconds."""

    created: float | None = None
    completed: float | None = None
    start: float | None = None
    end: float | None = None


class ModelName(Native):
    provider_id: str
    model_id: str
    variant: str | None = None


class UserMessage(Native, tag="user", tag_field="role"):
    id: str
    session_id: str
    agent: str
    model: ModelName


class AssistantMessage(Native, tag="assistant", tag_field="role"):
    """An answer to the user's message `parent_id`. `finish` is the model's reason to end; a message that has ended has
    `time.completed`."""

    id: str
    session_id: str
    parent_id: str
    time: Span
    cost: float
    tokens: Tokens
    finish: str | None = None
    error: NativeError | None = None
    summary: bool | None = None


Message: TypeAlias = UserMessage | AssistantMessage


class _Part(Native):
    id: str
    session_id: str
    message_id: str


class TextPart(_Part, tag="text", tag_field="type"):
    text: str
    synthetic: bool | None = None
    ignored: bool | None = None
    time: Span | None = None


class ReasoningPart(_Part, tag="reasoning", tag_field="type"):
    text: str
    time: Span


class ToolPending(Native, tag="pending", tag_field="status"):
    input: Mapping[str, Any]


class ToolRunning(Native, tag="running", tag_field="status"):
    input: Mapping[str, Any]
    title: str | None = None
    metadata: Mapping[str, Any] | None = None


class ToolCompleted(Native, tag="completed", tag_field="status"):
    input: Mapping[str, Any]
    output: str
    title: str
    metadata: Mapping[str, Any]


class ToolFailed(Native, tag="error", tag_field="status"):
    input: Mapping[str, Any]
    error: str
    metadata: Mapping[str, Any] | None = None


ToolState: TypeAlias = ToolPending | ToolRunning | ToolCompleted | ToolFailed


class ToolPart(_Part, tag="tool", tag_field="type"):
    call_id: str
    tool: str
    state: ToolState


class FilePart(_Part, tag="file", tag_field="type"):
    mime: str
    url: str
    filename: str | None = None


class StepStartPart(_Part, tag="step-start", tag_field="type"):
    pass


class StepFinishPart(_Part, tag="step-finish", tag_field="type"):
    reason: str
    cost: float
    tokens: Tokens


class CompactionPart(_Part, tag="compaction", tag_field="type"):
    auto: bool


class SnapshotPart(_Part, tag="snapshot", tag_field="type"):
    pass


class PatchPart(_Part, tag="patch", tag_field="type"):
    pass


class AgentPart(_Part, tag="agent", tag_field="type"):
    pass


class SubtaskPart(_Part, tag="subtask", tag_field="type"):
    pass


class RetryPart(_Part, tag="retry", tag_field="type"):
    pass


Part: TypeAlias = (
    TextPart
    | ReasoningPart
    | ToolPart
    | FilePart
    | StepStartPart
    | StepFinishPart
    | CompactionPart
    | SnapshotPart
    | PatchPart
    | AgentPart
    | SubtaskPart
    | RetryPart
)


class Told(Native):
    """A message of the history. Its parts are read one by one: one that nobody knows must not hide the others."""

    info: Message
    parts: tuple[Any, ...]

    def known(self) -> tuple[tuple[Part, ...], tuple[Any, ...]]:
        """Those that can be read, and those that cannot."""
        read: list[Part] = []
        odd: list[Any] = []
        for raw in self.parts:
            try:
                read.append(msgspec.convert(raw, Part))
            except msgspec.ValidationError:
                odd.append(raw)
        return tuple(read), tuple(odd)
