"""Reading a Chat Completions request: the edge where JSON becomes a `ModelRequest`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from legation.testing.model.http import HttpRequest
from legation.testing.model.request import Message, ModelRequest, Role, ToolResult

_ROLES: Mapping[object, Role] = {"assistant": "assistant", "system": "system", "developer": "system"}


def read_request(request: HttpRequest) -> ModelRequest:
    """ValueError where it is none."""
    body = json.loads(request.body)
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
        raise ValueError("the body is no Chat Completions request")
    messages = tuple(_message(each) for each in _objects(body["messages"]))
    return ModelRequest(
        path=request.path,
        model=str(body.get("model", "")),
        stream=body.get("stream") is True,
        tools=tuple(_tool(tool) for tool in _objects(body.get("tools"))),
        system="\n".join(message.text for message in messages if message.role == "system"),
        messages=messages,
        schema=_schema(body),
        headers=request.headers,
        body=body,
    )


def _message(message: Mapping[str, object]) -> Message:
    text = _text(message.get("content"))
    if message.get("role") == "tool":  # this wire does not tell whether the call failed
        return Message("user", "", (ToolResult(str(message.get("tool_call_id", "")), text),))
    return Message(_ROLES.get(message.get("role"), "user"), text)


def _tool(tool: Mapping[str, object]) -> str:
    function = tool.get("function")
    return str(function.get("name", "")) if isinstance(function, Mapping) else ""


def _schema(body: Mapping[str, object]) -> Mapping[str, object] | None:
    """Of a structured reply: `response_format.json_schema.schema`."""
    shape = body.get("response_format")
    named = shape.get("json_schema") if isinstance(shape, dict) else None
    schema = named.get("schema") if isinstance(named, dict) else None
    return schema if isinstance(schema, dict) else None


def _text(content: object) -> str:
    """Of a string or of the text parts in a list."""
    if isinstance(content, str):
        return content
    return "\n".join(str(part["text"]) for part in _objects(content) if "text" in part)


def _objects(value: object) -> Iterator[Mapping[str, object]]:
    items: Sequence[object] = value if isinstance(value, list) else ()
    return (item for item in items if isinstance(item, dict))
