"""Anthropic Messages: `POST /v1/messages`, streamed or whole, `count_tokens` and the list of models."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from uuid import uuid4

from legation.testing.model.http import HttpAnswer, HttpRequest
from legation.testing.model.request import Frame, Message, ModelRequest, Role, ToolResult, objects
from legation.testing.model.script import (
    Cut,
    Failure,
    Pause,
    Reply,
    Stall,
    StopReason,
    StreamError,
    Text,
    Thinking,
    ToolCall,
    TooLong,
    Usage,
    pieces,
)

_KINDS: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_STOPS: Mapping[StopReason, str] = {
    "end-turn": "end_turn",
    "tool-use": "tool_use",
    "max-tokens": "max_tokens",
    "refusal": "refusal",
}
_CHARACTERS_PER_TOKEN = 4  # the usual rule of thumb; a count only has to grow with the text
_SIGNATURE = "c2NyaXB0ZWQ="  # thinking comes signed; agents send it back unread


class AnthropicWire:
    def __init__(self, models: tuple[str, ...] = ("scripted-model",)) -> None:
        self._models = models

    def fixed(self, request: HttpRequest) -> HttpAnswer | None:
        if request.method == "POST" and request.path.endswith("/v1/messages/count_tokens"):
            return HttpAnswer(200, {"input_tokens": len(request.body) // _CHARACTERS_PER_TOKEN})
        if request.method != "GET" or _is_of_openai(request):
            return None
        if request.path.endswith("/v1/models"):
            return HttpAnswer(200, _model_list(self._models))
        if "/v1/models/" in request.path:
            return HttpAnswer(200, _model(request.path.rpartition("/")[2]))
        return None

    def read(self, request: HttpRequest) -> ModelRequest | None:
        if request.method != "POST" or not request.path.endswith("/v1/messages"):
            return None
        return read_request(request)

    def stream(self, request: ModelRequest, reply: Reply) -> Iterator[Frame]:
        message = _message(request, content=[], stop=None, usage=_usage(reply.usage, output_tokens=1))
        yield _event("message_start", message=message)
        index = 0
        for part in reply.parts:
            match part:
                case Pause() | Stall() | Cut():
                    yield part
                case StreamError(status=status, message=text):
                    yield _event("error", error=_error(status, text))
                    return
                case Text() | Thinking() | ToolCall():
                    yield from _block(index, part, reply)
                    index += 1
        delta = {"stop_reason": _STOPS[reply.stop_reason], "stop_sequence": None}
        yield _event("message_delta", delta=delta, usage={"output_tokens": reply.usage.output_tokens})
        yield _event("message_stop")

    def whole(self, request: ModelRequest, reply: Reply) -> HttpAnswer:
        broken = next((part for part in reply.parts if isinstance(part, StreamError)), None)
        if broken:
            return self.failure(Failure(broken.status, broken.message))
        content = [_content(part) for part in reply.parts if isinstance(part, Text | Thinking | ToolCall)]
        stop = _STOPS[reply.stop_reason]
        return HttpAnswer(200, _message(request, content=content, stop=stop, usage=_usage(reply.usage)))

    def failure(self, failure: Failure | TooLong) -> HttpAnswer:
        if isinstance(failure, TooLong):
            text = f"prompt is too long: {failure.tokens} tokens > {failure.limit} maximum"
            failure = Failure(400, text)
        headers = {} if failure.retry_after is None else {"retry-after": f"{failure.retry_after:g}"}
        body = {"type": "error", "error": _error(failure.status, failure.message), "request_id": _new("req")}
        return HttpAnswer(failure.status, body, headers)


def _is_of_openai(request: HttpRequest) -> bool:
    """Its list of models has the same address; its clients give their key otherwise and name no version."""
    return "authorization" in request.headers and "anthropic-version" not in request.headers


def _block(index: int, part: Text | Thinking | ToolCall, reply: Reply) -> Iterator[Frame]:
    yield _event("content_block_start", index=index, content_block=_empty(part))
    for delta in _deltas(part, reply.piece):
        yield _event("content_block_delta", index=index, delta=delta)
        if reply.pace:
            yield Pause(reply.pace)
    yield _event("content_block_stop", index=index)


def _deltas(part: Text | Thinking | ToolCall, size: int) -> Iterator[dict[str, object]]:
    match part:
        case Text(text):
            for piece in pieces(text, size):
                yield {"type": "text_delta", "text": piece}
        case Thinking(text):
            for piece in pieces(text, size):
                yield {"type": "thinking_delta", "thinking": piece}
            yield {"type": "signature_delta", "signature": _SIGNATURE}
        case ToolCall():
            for piece in pieces(json.dumps(dict(part.input)), size):
                yield {"type": "input_json_delta", "partial_json": piece}


def _content(part: Text | Thinking | ToolCall) -> dict[str, object]:
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case Thinking(text):
            return {"type": "thinking", "thinking": text, "signature": _SIGNATURE}
        case ToolCall():
            return {"type": "tool_use", "id": part.id, "name": part.name, "input": dict(part.input)}


def _empty(part: Text | Thinking | ToolCall) -> dict[str, object]:
    """The block as a stream announces it, before its deltas."""
    match part:
        case Text():
            return _content(Text(""))
        case Thinking():
            return {**_content(Thinking("")), "signature": ""}
        case ToolCall():
            return {**_content(part), "input": {}}


def _message(
    request: ModelRequest, *, content: list[dict[str, object]], stop: str | None, usage: dict[str, int]
) -> dict[str, object]:
    return {
        "id": _new("msg"),
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": usage,
    }


def _usage(usage: Usage, output_tokens: int | None = None) -> dict[str, int]:
    return {
        "input_tokens": usage.input_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cache_read_tokens,
        "output_tokens": usage.output_tokens if output_tokens is None else output_tokens,
    }


def _error(status: int, message: str | None) -> dict[str, object]:
    kind = _KINDS.get(status, "api_error")
    return {"type": kind, "message": message or f"scripted {kind}"}


def _event(name: str, **members: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **members})}\n\n".encode()


def _model_list(names: tuple[str, ...]) -> dict[str, object]:
    first, last = (names[0], names[-1]) if names else (None, None)
    return {"data": [_model(name) for name in names], "has_more": False, "first_id": first, "last_id": last}


def _model(name: str) -> dict[str, object]:
    return {"type": "model", "id": name, "display_name": name, "created_at": "2025-01-01T00:00:00Z"}


def _new(prefix: str) -> str:
    return f"{prefix}_{uuid4().hex[:20]}"


# Reading an Anthropic Messages request: the edge where JSON becomes a `ModelRequest`.

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
        tools=tuple(str(tool.get("name", "")) for tool in objects(body.get("tools"))),
        system=_text(body.get("system")),
        messages=tuple(_read_message(each) for each in objects(body["messages"])),
        schema=_schema(body),
        headers=request.headers,
        body=body,
    )


def _read_message(message: Mapping[str, object]) -> Message:
    content = message.get("content")
    results = tuple(_result(each) for each in objects(content) if each.get("type") == "tool_result")
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
    return "\n".join(str(block["text"]) for block in objects(content) if "text" in block)
