"""The tools that a request declares, with their schemas, whichever wire it came by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from legation.testing.model.request import ModelRequest

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
    declared = [*_objects(request.body.get("tools"))]
    for item in _objects(
        request.body.get("input")
    ):  # Codex has models whose tools come with the conversation
        if item.get("type") == "additional_tools":
            declared += _objects(item.get("tools"))
    found = (tool for each in declared for tool in _tools(each))
    return {tool.name: tool for tool in found}


def _tools(tool: Object) -> Iterator[DeclaredTool]:
    if "functionDeclarations" in tool:  # Gemini
        for function in _objects(tool["functionDeclarations"]):
            schema = function.get("parametersJsonSchema") or function.get("parameters")
            yield DeclaredTool(str(function.get("name", "")), as_object(schema))
    elif tool.get("type") == "namespace":  # OpenAI Responses
        for each in _objects(tool.get("tools")):
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


def _objects(value: object) -> Iterator[Object]:
    return (item for item in value if isinstance(item, Mapping)) if isinstance(value, list) else iter(())
