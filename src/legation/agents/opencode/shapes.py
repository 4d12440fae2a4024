"""What OpenCode says, as far as this driver reads it. Members that nobody reads are left out, and unknown ones ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, dataclass_transform

import msgspec


def _wire_name(name: str) -> str:
    """OpenCode writes `sessionID`, `callID`, and camel case otherwise."""
    first, *rest = name.split("_")
    return first + "".join("ID" if word == "id" else word.capitalize() for word in rest)


# Type checkers do not let options of a Struct pass to its children, as msgspec does.
@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Native(msgspec.Struct, frozen=True, kw_only=True, rename=_wire_name):
    """Base of all that is read."""


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


class Busy(Native, tag="busy", tag_field="type"):
    pass


class Idle(Native, tag="idle", tag_field="type"):
    pass


class Retry(Native, tag="retry", tag_field="type"):
    """It asks the model again at `next`, in milliseconds since the epoch."""

    attempt: int
    message: str
    next: int


Status: TypeAlias = Busy | Idle | Retry


class SessionModel(Native):
    id: str
    provider_id: str
    variant: str | None = None


class SessionTime(Native):
    created: int
    updated: int


class SessionInfo(Native):
    id: str
    directory: str
    title: str
    time: SessionTime
    parent_id: str | None = None
    cost: float | None = None
    agent: str | None = None
    model: SessionModel | None = None


class ToolRef(Native):
    message_id: str
    call_id: str


class PermissionRequest(Native):
    id: str
    session_id: str
    permission: str
    patterns: tuple[str, ...]
    metadata: Mapping[str, Any]
    tool: ToolRef | None = None


class QuestionOption(Native):
    label: str
    description: str


class QuestionInfo(Native):
    question: str
    header: str
    options: tuple[QuestionOption, ...]
    multiple: bool | None = None
    custom: bool | None = None


class QuestionRequest(Native):
    id: str
    session_id: str
    questions: tuple[QuestionInfo, ...]
    tool: ToolRef | None = None


class Todo(Native):
    content: str
    status: str
    priority: str


class Rule(Native):
    permission: str
    pattern: str
    action: str


class AgentInfo(Native):
    """`mode` is primary, subagent or all."""

    name: str
    mode: str
    permission: tuple[Rule, ...]
    description: str | None = None
    hidden: bool | None = None


class ModelLimit(Native):
    context: float


class ModelInfo(Native):
    id: str
    name: str
    limit: ModelLimit
    variants: Mapping[str, Any] | None = None


class ProviderInfo(Native):
    id: str
    name: str
    models: Mapping[str, ModelInfo]


class Providers(Native):
    """`default` is the model of each provider that it would choose by itself."""

    providers: tuple[ProviderInfo, ...]
    default: Mapping[str, str]


class Config(Native):
    """GET /config: of all that it has, the model that was chosen."""

    model: str | None = None


class Health(Native):
    version: str
