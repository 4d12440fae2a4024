"""Anthropic Messages: `POST /v1/messages`, streamed or whole, `count_tokens` and the list of models."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from legation.testing.model.http import HttpAnswer, HttpRequest
from legation.testing.model.request import (
    CHARACTERS_PER_TOKEN,
    Frame,
    Message,
    ModelRequest,
    Role,
    ToolResult,
    declared_tools,
    new_id,
    objects,
    read_body,
    schema_at,
    text_of,
)
from legation.testing.model.script import (
    Cut,
    Failure,
    Pause,
    Reply,
    Said,
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
_SIGNATURE = "c2NyaXB0ZWQ="  # thinking comes signed; agents send it back unread


class AnthropicWire:
    def __init__(self, models: tuple[str, ...] = ("scripted-model",)) -> None:
        self._models = models

    def fixed(self, request: HttpRequest) -> HttpAnswer | None:
        if request.method == "POST" and request.path.endswith("/v1/messages/count_tokens"):
            return HttpAnswer(200, {"input_tokens": len(request.body) // CHARACTERS_PER_TOKEN})
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
        content = [_content(part) for part in reply.parts if isinstance(part, Said)]
        stop = _STOPS[reply.stop_reason]
        return HttpAnswer(200, _message(request, content=content, stop=stop, usage=_usage(reply.usage)))

    def failure(self, failure: Failure | TooLong) -> HttpAnswer:
        if isinstance(failure, TooLong):
            text = f"prompt is too long: {failure.tokens} tokens > {failure.limit} maximum"
            failure = Failure(400, text)
        body = {
            "type": "error",
            "error": _error(failure.status, failure.message),
            "request_id": new_id("req"),
        }
        return HttpAnswer(failure.status, body, failure.headers)


def _is_of_openai(request: HttpRequest) -> bool:
    """Its list of models has the same address; its clients give their key otherwise and name no version."""
    return "authorization" in request.headers and "anthropic-version" not in request.headers


def _block(index: int, part: Said, reply: Reply) -> Iterator[Frame]:
    yield _event("content_block_start", index=index, content_block=_empty(part))
    for delta in _deltas(part, reply.piece):
        yield _event("content_block_delta", index=index, delta=delta)
        if reply.pace:
            yield Pause(reply.pace)
    yield _event("content_block_stop", index=index)


def _deltas(part: Said, size: int) -> Iterator[dict[str, object]]:
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


def _content(part: Said) -> dict[str, object]:
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case Thinking(text):
            return {"type": "thinking", "thinking": text, "signature": _SIGNATURE}
        case ToolCall():
            return {"type": "tool_use", "id": part.id, "name": part.name, "input": dict(part.input)}


def _empty(part: Said) -> dict[str, object]:
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
        "id": new_id("msg"),
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


# Requests.

_ROLES: Mapping[object, Role] = {"assistant": "assistant", "system": "system"}


def read_request(request: HttpRequest) -> ModelRequest:
    """ValueError where it is none."""
    body = read_body(request, "messages", list, "Messages")
    return ModelRequest(
        path=request.path,
        model=str(body.get("model", "")),
        stream=body.get("stream") is True,
        tools=tuple(declared_tools(body)),
        system=text_of(body.get("system")),
        messages=tuple(_read_message(each) for each in objects(body["messages"])),
        schema=schema_at(body, "output_config", "format", "schema")
        or schema_at(body, "output_format", "schema"),
        headers=request.headers,
        body=body,
    )


def _read_message(message: Mapping[str, object]) -> Message:
    content = message.get("content")
    results = tuple(_result(each) for each in objects(content) if each.get("type") == "tool_result")
    return Message(_ROLES.get(message.get("role"), "user"), text_of(content), results)


def _result(block: Mapping[str, object]) -> ToolResult:
    return ToolResult(
        id=str(block.get("tool_use_id", "")),
        text=text_of(block.get("content")),
        is_error=block.get("is_error") is True,
    )
