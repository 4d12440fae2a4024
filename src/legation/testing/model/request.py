"""A model request in words that do not depend on the wire, the tools that it declares, and the seam to one kind of endpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from legation.testing.model.http import HttpAnswer, HttpRequest
from legation.testing.model.script import Cut, Failure, Pause, Reply, Stall, TooLong

# What an agent asked of the model, in words that do not depend on the wire.

Role: TypeAlias = Literal["user", "assistant", "system"]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the agent tells the model about a tool call."""

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
        """Those since the model spoke last."""
        return tuple(result for message in self._newest() for result in message.tool_results)

    def mentions(self, text: str) -> bool:
        """Whether any message of the conversation has it, the system's aside."""
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


def declared_tools(request: ModelRequest) -> dict[str, DeclaredTool]:
    declared = [*objects(request.body.get("tools"))]
    for item in objects(request.body.get("input")):  # Codex has models whose tools come with the conversation
        if item.get("type") == "additional_tools":
            declared += objects(item.get("tools"))
    found = (tool for each in declared for tool in _tools(each))
    return {tool.name: tool for tool in found}


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
