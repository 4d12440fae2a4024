"""Reading an OpenAI Responses request: the edge where JSON becomes a `ModelRequest`.

A tool of a name space is called `space.tool`, unless the space is the common one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from legation.testing.model.http import HttpRequest
from legation.testing.model.request import Message, ModelRequest, Role, ToolResult

_ROLES: Mapping[object, Role] = {"assistant": "assistant", "system": "system", "developer": "system"}
_COMMON_SPACE = "functions"
_LATER_TOOLS = "additional_tools"  # an item of the input: tools that a model learns of on the way


def read_request(request: HttpRequest) -> ModelRequest:
    """ValueError where it is none."""
    body = json.loads(request.body)
    if not isinstance(body, dict) or not isinstance(body.get("input"), list | str):
        raise ValueError("the body is no Responses request")
    return ModelRequest(
        path=request.path,
        model=str(body.get("model", "")),
        stream=body.get("stream") is True,
        tools=tuple(tool_kinds(body)),
        system=_text(body.get("instructions")),
        messages=tuple(_messages(body["input"])),
        schema=_schema(body),
        headers=request.headers,
        body=body,
    )


def tool_kinds(body: Mapping[str, object]) -> dict[str, str]:
    """Each tool that the request declares, and its type: a function takes JSON, a custom one plain text."""
    found: dict[str, str] = {}
    for tool in _declared(body):
        name, kind = str(tool.get("name") or tool.get("type") or ""), str(tool.get("type", "function"))
        if kind != "namespace":
            found[name] = kind
            continue
        space = "" if name == _COMMON_SPACE else f"{name}."
        for each in _objects(tool.get("tools")):
            found[f"{space}{each.get('name', '')}"] = str(each.get("type", "function"))
    return found


def _declared(body: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    yield from _objects(body.get("tools"))
    for item in _objects(body.get("input")):
        if item.get("type") == _LATER_TOOLS:
            yield from _objects(item.get("tools"))


def _messages(given: list[object] | str) -> Iterator[Message]:
    if isinstance(given, str):
        yield Message("user", given)
        return
    for item in _objects(given):
        kind = str(item.get("type", "message"))
        if kind == "message":
            yield Message(_ROLES.get(item.get("role"), "user"), _text(item.get("content")))
        elif kind.endswith("_output"):
            yield Message("user", "", (_result(item),))
        elif kind == "reasoning" or kind.endswith("_call"):
            yield Message("assistant", "")


def _result(item: Mapping[str, object]) -> ToolResult:
    """Whether it failed is not told apart: agents say so in the text."""
    return ToolResult(str(item.get("call_id", "")), _text(item.get("output")))


def _schema(body: Mapping[str, object]) -> Mapping[str, object] | None:
    text = body.get("text")
    shape = text.get("format") if isinstance(text, dict) else None
    schema = shape.get("schema") if isinstance(shape, dict) else None
    return schema if isinstance(schema, dict) else None


def _text(content: object) -> str:
    """Of a string or of the parts in a list."""
    if isinstance(content, str):
        return content
    return "\n".join(str(part["text"]) for part in _objects(content) if "text" in part)


def _objects(value: object) -> Iterator[Mapping[str, object]]:
    items: Sequence[object] = value if isinstance(value, list) else ()
    return (item for item in items if isinstance(item, dict))
