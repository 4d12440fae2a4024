"""Reading a Gemini request: the edge where JSON becomes a `ModelRequest`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from legation.testing.model.declared import Object, as_object
from legation.testing.model.http import HttpRequest
from legation.testing.model.request import Message, ModelRequest, ToolResult


def read_request(request: HttpRequest, model: str, *, stream: bool) -> ModelRequest:
    """ValueError where it is none. The model and whether to stream stand in the path."""
    body = json.loads(request.body)
    if not isinstance(body, dict) or not isinstance(body.get("contents"), list):
        raise ValueError("the body is no Gemini request")
    functions = (
        each for tool in _objects(body.get("tools")) for each in _objects(tool.get("functionDeclarations"))
    )
    return ModelRequest(
        path=request.path,
        model=model,
        stream=stream,
        tools=tuple(str(function.get("name", "")) for function in functions),
        system=_text(as_object(body.get("systemInstruction"))),
        messages=tuple(_message(each) for each in _objects(body["contents"])),
        schema=_schema(as_object(body.get("generationConfig"))),
        headers=request.headers,
        body=body,
    )


def _message(content: Object) -> Message:
    parts = _objects(content.get("parts"))
    results = tuple(
        _result(as_object(part["functionResponse"])) for part in parts if "functionResponse" in part
    )
    return Message("assistant" if content.get("role") == "model" else "user", _text(content), results)


def _result(answer: Object) -> ToolResult:
    """Gemini has no ids of its own making; a function's name stands for the call where none was given."""
    response = as_object(answer.get("response"))
    said = response.get("error", response.get("output", response))
    return ToolResult(
        id=str(answer.get("id") or answer.get("name", "")),
        text=said if isinstance(said, str) else json.dumps(said),
        is_error="error" in response,
    )


def _schema(config: Object) -> Mapping[str, object] | None:
    schema = config.get("responseJsonSchema") or config.get("responseSchema")
    if isinstance(schema, Mapping):
        return schema
    return {"type": "object"} if config.get("responseMimeType") == "application/json" else None


def _text(content: Object) -> str:
    parts = _objects(content.get("parts"))
    return "\n".join(
        str(part["text"]) for part in parts if "text" in part and part.get("thought") is not True
    )


def _objects(value: object) -> Iterator[Object]:
    return (item for item in value if isinstance(item, Mapping)) if isinstance(value, list) else iter(())
