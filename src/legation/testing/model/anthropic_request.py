"""Reading an Anthropic Messages request: the edge where JSON becomes a `ModelRequest`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from legation.testing.model.http import HttpRequest
from legation.testing.model.request import Message, ModelRequest, Role, ToolResult

_ROLES: Mapping[object, Role] = {"assistant": "assistant", "system": "system"}


def read_request(request: HttpRequest) -> ModelRequest:
    """ValueError where it is none."""
    body = json.loads(request.body)
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
        raise ValueError("the body is no Messages request")
    return ModelRequest(
        path=request.path,
        model=str(body.get("model", "")),
        stream=body.get("stream") is True,
        tools=tuple(str(tool.get("name", "")) for tool in _objects(body.get("tools"))),
        system=_text(body.get("system")),
        messages=tuple(_message(each) for each in _objects(body["messages"])),
        schema=_schema(body),
        headers=request.headers,
        body=body,
    )


def _message(message: Mapping[str, object]) -> Message:
    content = message.get("content")
    results = tuple(_result(each) for each in _objects(content) if each.get("type") == "tool_result")
    return Message(_ROLES.get(message.get("role"), "user"), _text(content), results)


def _result(block: Mapping[str, object]) -> ToolResult:
    return ToolResult(
        id=str(block.get("tool_use_id", "")),
        text=_text(block.get("content")),
        is_error=block.get("is_error") is True,
    )


def _schema(body: Mapping[str, object]) -> Mapping[str, object] | None:
    """Of a structured reply: in `output_config.format`, formerly `output_format`."""
    config = body.get("output_config")
    shape = config.get("format") if isinstance(config, dict) else body.get("output_format")
    schema = shape.get("schema") if isinstance(shape, dict) else None
    return schema if isinstance(schema, dict) else None


def _text(content: object) -> str:
    """Of a string or of the text blocks in a list."""
    if isinstance(content, str):
        return content
    return "\n".join(str(block["text"]) for block in _objects(content) if "text" in block)


def _objects(value: object) -> Iterator[Mapping[str, object]]:
    items: Sequence[object] = value if isinstance(value, list) else ()
    return (item for item in items if isinstance(item, dict))
