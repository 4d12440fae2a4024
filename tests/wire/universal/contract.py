"""The two schemas once more, as strictly as they are written down: what is not named here must not be sent."""

import json
import re
from typing import Annotated, Any, Literal

import msgspec


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    pass


NotNull = dict[str, Any] | list[Any] | str | int | float | bool


class Text(Strict, tag="text"):
    text: str


class Json(Strict, tag="json"):
    json: Any


class ToolCall(Strict, tag="tool_call"):
    name: str
    arguments: str
    call_id: str


class ToolResult(Strict, tag="tool_result"):
    call_id: str
    output: str


class FileRef(Strict, tag="file_ref"):
    path: str
    action: Literal["read", "write", "patch"]
    diff: str | None


class Reasoning(Strict, tag="reasoning"):
    text: str
    visibility: Literal["public", "private"]


class Image(Strict, tag="image"):
    path: str
    mime: str | None


class Status(Strict, tag="status"):
    label: str
    detail: str | None


class Item(Strict):
    item_id: Annotated[str, msgspec.Meta(pattern="^itm_[1-9][0-9]*$")]
    native_item_id: str | None
    parent_id: str | None
    kind: Literal["message", "tool_call", "tool_result", "system", "status", "unknown"]
    role: Literal["user", "assistant", "system", "tool"] | None
    content: list[Text | Json | ToolCall | ToolResult | FileRef | Reasoning | Image | Status]
    status: Literal["in_progress", "completed", "failed"]


class ItemData(Strict):
    item: Item


class DeltaData(Strict):
    item_id: str
    native_item_id: str | None
    delta: str


class Metadata(Strict):
    agent: str
    agentMode: str | None  # noqa: N815 - as on the wire
    model: str | None
    permissionMode: str | None  # noqa: N815
    variant: str | None


class StartedData(Strict):
    metadata: Metadata


class Stderr(Strict):
    truncated: bool
    head: str = ""
    tail: str = ""
    total_lines: int = 0


class EndedData(Strict):
    reason: Literal["completed", "error", "terminated"]
    terminated_by: Literal["agent", "daemon"]
    message: str = ""
    exit_code: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] = 0
    stderr: Stderr | msgspec.UnsetType = msgspec.UNSET


class TurnStarted(Strict):
    phase: Literal["started"]
    turn_id: str
    metadata: NotNull | msgspec.UnsetType = msgspec.UNSET


class TurnEnded(Strict):
    phase: Literal["ended"]
    turn_id: str
    metadata: NotNull | msgspec.UnsetType = msgspec.UNSET


class ErrorData(Strict):
    message: str
    code: str | None
    details: Any


class PermissionRequested(Strict):
    permission_id: str
    action: str
    status: Literal["requested"]
    metadata: Any


class PermissionResolved(Strict):
    permission_id: str
    action: str
    status: Literal["accept", "accept_for_session", "reject"]
    metadata: Any


class QuestionRequested(Strict):
    question_id: str
    prompt: str
    options: list[str]
    response: None
    status: Literal["requested"]


class QuestionResolved(Strict):
    question_id: str
    prompt: str
    options: list[str]
    response: str | None
    status: Literal["answered", "rejected"]


class UnparsedData(Strict):
    error: str
    location: str
    raw_hash: str | None


class Row(Strict):
    seq: int
    type: str
    payload: Any
    native: Any = None
    params: Any = None


class Envelope(Strict):
    """Ten keys, always."""

    event_id: str
    sequence: int
    time: str
    session_id: str
    native_session_id: str | None
    synthetic: bool
    source: Literal["agent", "daemon"]
    type: str
    data: dict[str, Any]
    raw: Row | None


DATA: dict[str, type] = {
    "session.started": StartedData,
    "session.ended": EndedData,
    "turn.started": TurnStarted,
    "turn.ended": TurnEnded,
    "item.started": ItemData,
    "item.delta": DeltaData,
    "item.completed": ItemData,
    "error": ErrorData,
    "permission.requested": PermissionRequested,
    "permission.resolved": PermissionResolved,
    "question.requested": QuestionRequested,
    "question.resolved": QuestionResolved,
    "agent.unparsed": UnparsedData,
}

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z")


def _value(encoded: bytes) -> Any:
    assert b"\n" not in encoded
    assert b"\r" not in encoded
    return json.loads(encoded.decode("utf-8"))


def read(encoded: bytes) -> dict[str, Any]:
    """An event of 0.1.11, checked."""
    value: dict[str, Any] = _value(encoded)
    event = msgspec.convert(value, Envelope)
    assert event.event_id == f"evt_{event.sequence}"
    assert _TIME.fullmatch(event.time)
    assert event.synthetic == (event.source == "daemon")
    msgspec.convert(event.data, DATA[event.type])
    return value


# The seed's own.


class PathSource(Strict, tag="path"):
    path: str


class UrlSource(Strict, tag="url"):
    url: str


class DataSource(Strict, tag="data"):
    data: str
    encoding: str = ""


Source = PathSource | UrlSource | DataSource


class ToolCallPart(Strict, tag="tool_call"):
    id: str
    name: str
    input: Any


class ToolResultPart(Strict, tag="tool_result"):
    id: str
    output: str
    name: str = ""
    is_error: bool = False


class FunctionCallPart(Strict, tag="function_call"):
    id: str
    name: str
    arguments: Any


class FunctionResultPart(Strict, tag="function_result"):
    id: str
    name: str
    result: str
    is_error: bool = False


class FilePart(Strict, tag="file"):
    source: Source
    mime_type: str = ""
    filename: str = ""
    raw: Any = None


class ImagePart(Strict, tag="image"):
    source: Source
    mime_type: str = ""


class ErrorPart(Strict, tag="error"):
    message: str


class UnknownPart(Strict, tag="unknown"):
    raw: Any


class MessageMetadata(Strict):
    item_id: str
    status: Literal["completed", "failed"]
    native_item_id: str = ""
    parent_id: str = ""


class Parsed(Strict, tag="parsed"):
    role: Literal["user", "assistant", "system", "tool"]
    parts: list[
        Text
        | ToolCallPart
        | ToolResultPart
        | FunctionCallPart
        | FunctionResultPart
        | FilePart
        | ImagePart
        | ErrorPart
        | UnknownPart
    ]
    metadata: MessageMetadata


class Unparsed(Strict, tag="unparsed"):
    raw: Row
    error: str


class Message(Strict, tag="message"):
    message: Parsed | Unparsed


class Started(Strict, tag="started"):
    details: Metadata


class Error(Strict, tag="error"):
    message: str
    kind: str = ""
    details: Any = None


class Option(Strict):
    label: str


class Info(Strict):
    question: str
    options: list[Option]
    multi_select: bool
    custom: bool
    header: str = ""


class Ref(Strict):
    call_id: str


class QuestionAskedMember(Strict):
    id: str
    questions: list[Info]


class QuestionAsked(Strict, tag="question_asked"):
    id: str
    questions: Annotated[list[Info], msgspec.Meta(min_length=1)]
    questionAsked: QuestionAskedMember  # noqa: N815 - spelt as on the wire
    tool: Ref | msgspec.UnsetType = msgspec.UNSET


class PermissionAskedMember(Strict):
    id: str
    permission: str
    patterns: list[str]
    reply: list[Literal["once", "always", "reject"]]


class PermissionAsked(Strict, tag="permission_asked"):
    permissionAsked: PermissionAskedMember  # noqa: N815 - spelt as on the wire
    id: str
    permission: str
    patterns: list[str]
    reply: list[Literal["once", "always", "reject"]]
    metadata: Row
    tool: Ref | msgspec.UnsetType = msgspec.UNSET


class Unknown(Strict, tag="unknown"):
    raw: Row


class UniversalEvent(Strict):
    id: int
    timestamp: str
    session_id: str
    agent: str
    data: Message | Started | Error | QuestionAsked | PermissionAsked | Unknown
    agent_session_id: str = ""


def read_message(encoded: bytes) -> dict[str, Any]:
    """An event of the seed's own schema, checked."""
    value: dict[str, Any] = _value(encoded)
    event = msgspec.convert(value, UniversalEvent)
    assert _TIME.fullmatch(event.timestamp)
    return value
