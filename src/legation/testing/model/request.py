"""A model request in words that do not depend on the wire, the tools that it declares, and the seam to one kind of endpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Literal, Protocol, TypeAlias
from uuid import uuid4

from legation.testing.model.http import HttpAnswer, HttpRequest
from legation.testing.model.script import Cut, Failure, Pause, Reply, Stall, TooLong

# What an agent asked of the model, in words that do not depend on the wire.

Role: TypeAlias = Literal["user", "assistant", "system"]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The outcome of a tool call, as the agent tells the model."""

    id: str
    text: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    text: str
    tool_results: tuple[ToolResult, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """`body` is the whole of it as it came. The representation shows no header: one of them is a key."""

    path: str
    model: str
    stream: bool
    tools: tuple[str, ...]
    system: str = field(repr=False)
    messages: tuple[Message, ...] = field(repr=False)
    schema: Mapping[str, object] | None = field(repr=False)  # which the reply must fit, if any
    headers: Mapping[str, str] = field(repr=False)
    body: Mapping[str, object] = field(repr=False)

    @property
    def prompt(self) -> str:
        """All that the user side said since the model spoke last."""
        return "\n".join(message.text for message in self._newest() if message.role == "user")

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """Results since the model spoke last."""
        return tuple(result for message in self._newest() for result in message.tool_results)

    def mentions(self, text: str) -> bool:
        """Tell whether any message of the conversation has it, the system's aside."""
        return any(text in message.text for message in self.messages if message.role != "system")

    def _newest(self) -> tuple[Message, ...]:
        spoke = [place for place, message in enumerate(self.messages) if message.role == "assistant"]
        return self.messages[spoke[-1] + 1 :] if spoke else self.messages


# The tools that a request declares, with their schemas, whichever wire it came by.

Object = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class DeclaredTool:
    """`name` has its namespace before a dot, if it has one. A `freeform` tool takes one text and no arguments."""

    name: str
    schema: Object
    freeform: bool = False

    @property
    def properties(self) -> Object:
        return as_object(self.schema.get("properties"))

    @property
    def required(self) -> tuple[str, ...]:
        names = self.schema.get("required")
        return tuple(str(name) for name in names) if isinstance(names, list) else ()


def declared_tools(body: Object) -> dict[str, DeclaredTool]:
    """The tools by name. One of a name space is called `space.tool`, unless the space is the common one."""
    declared = [*objects(body.get("tools"))]
    for item in objects(body.get("input")):  # Codex has models whose tools come with the conversation
        if item.get("type") == "additional_tools":
            declared += objects(item.get("tools"))
    found = (tool for each in declared for tool in _tools(each))
    return {tool.name: tool for tool in found if tool.name}


def _tools(tool: Object) -> Iterator[DeclaredTool]:
    if "functionDeclarations" in tool:  # Gemini
        for function in objects(tool["functionDeclarations"]):
            schema = function.get("parametersJsonSchema") or function.get("parameters")
            yield DeclaredTool(str(function.get("name", "")), as_object(schema))
    elif tool.get("type") == "namespace":  # OpenAI Responses
        for each in objects(tool.get("tools")):
            for inner in _tools(each):
                prefix = "" if tool.get("name") == "functions" else f"{tool.get('name')}."
                yield DeclaredTool(prefix + inner.name, inner.schema, inner.freeform)
    elif isinstance(tool.get("function"), Mapping):  # Chat Completions
        function = as_object(tool["function"])
        yield DeclaredTool(str(function.get("name", "")), as_object(function.get("parameters")))
    else:  # Anthropic Messages, OpenAI Responses
        schema = as_object(tool.get("input_schema") or tool.get("parameters"))
        freeform = tool.get("type") == "custom" and not schema  # Anthropic's custom tools have one
        yield DeclaredTool(str(tool.get("name") or tool.get("type", "")), schema, freeform)


def as_object(value: object) -> Object:
    return value if isinstance(value, Mapping) else {}


def objects(value: object) -> Iterator[Object]:
    return (item for item in value if isinstance(item, Mapping)) if isinstance(value, list) else iter(())


# Reading a request: the edge where JSON becomes a `ModelRequest`.

CHARACTERS_PER_TOKEN = 4  # the usual rule of thumb; a count only has to grow with the text


def read_body(request: HttpRequest, member: str, kinds: type | UnionType, what: str) -> dict[str, Any]:
    """The JSON of a request; ValueError where it has not the member that makes it one of this wire."""
    body = json.loads(request.body)
    if not isinstance(body, dict) or not isinstance(body.get(member), kinds):
        raise ValueError(f"the body is no {what} request")
    return body


def text_of(content: object) -> str:
    """The text of a string, or of the text blocks in a list."""
    if isinstance(content, str):
        return content
    return "\n".join(str(block["text"]) for block in objects(content) if "text" in block)


def schema_at(value: object, *path: str) -> Object | None:
    """The schema of a structured reply, below a path of members; None where there is none."""
    for member in path:
        value = as_object(value).get(member)
    return value if isinstance(value, Mapping) else None


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid4().hex[:20]}"


# The seam between a script and the bytes of one kind of model endpoint.

Frame: TypeAlias = bytes | Pause | Stall | Cut


class Wire(Protocol):
    """Holds no state and does no I/O: it reads requests and writes answers."""

    def fixed(self, request: HttpRequest) -> HttpAnswer | None:
        """The answer to what asks for no reply, such as a list of models; None where it is not that."""

    def read(self, request: HttpRequest) -> ModelRequest | None:
        """A request for a reply; None where the path is none of this wire's, ValueError where it cannot be read."""

    def stream(self, request: ModelRequest, reply: Reply) -> Iterator[Frame]:
        """The body as it is sent, with the silences in their places."""

    def whole(self, request: ModelRequest, reply: Reply) -> HttpAnswer:
        """The same without a stream."""

    def failure(self, failure: Failure | TooLong) -> HttpAnswer: ...
