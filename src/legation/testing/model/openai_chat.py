"""OpenAI Chat Completions: `POST /v1/chat/completions`, streamed or whole, and the list of models."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from uuid import uuid4

from legation.testing.model.http import HttpAnswer, HttpRequest
from legation.testing.model.request import (
    Frame,
    Message,
    ModelRequest,
    Role,
    ToolResult,
    declared_tools,
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
    402: "insufficient_quota",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_exceeded",
}
_STOPS: Mapping[StopReason, str] = {
    "end-turn": "stop",
    "tool-use": "tool_calls",
    "max-tokens": "length",
    "refusal": "content_filter",
}
_CREATED = 1735689600  # the time that every reply names: nobody looks at it
_DONE = b"data: [DONE]\n\n"


class OpenAiChatWire:
    """Thinking goes out as `reasoning_content`, the member that compatible endpoints have for it."""

    def __init__(self, models: tuple[str, ...] = ("scripted-model",)) -> None:
        self._models = models

    def fixed(self, request: HttpRequest) -> HttpAnswer | None:
        if request.method != "GET":
            return None
        if request.path.endswith("/v1/models"):
            return HttpAnswer(200, {"object": "list", "data": [_model(name) for name in self._models]})
        if "/v1/models/" in request.path:
            return HttpAnswer(200, _model(request.path.rpartition("/")[2]))
        return None

    def read(self, request: HttpRequest) -> ModelRequest | None:
        if request.method != "POST" or not request.path.endswith("/chat/completions"):
            return None
        return read_request(request)

    def stream(self, request: ModelRequest, reply: Reply) -> Iterator[Frame]:
        head = {**_head(request), "object": "chat.completion.chunk"}
        yield _chunk(head, {"role": "assistant", "content": ""})
        calls = 0
        for part in reply.parts:
            match part:
                case Pause() | Stall() | Cut():
                    yield part
                case StreamError(status=status, message=text):
                    yield _event({"error": _error(status, text)})
                    return
                case ToolCall():
                    yield from _paced(head, _call_deltas(calls, part, reply.piece), reply)
                    calls += 1
                case Text(text):
                    yield from _paced(head, _text_deltas("content", text, reply.piece), reply)
                case Thinking(text):
                    yield from _paced(head, _text_deltas("reasoning_content", text, reply.piece), reply)
        yield _chunk(head, {}, _STOPS[reply.stop_reason])
        if _wants_usage(request):
            yield _event({**head, "choices": [], "usage": _usage(reply.usage)})
        yield _DONE

    def whole(self, request: ModelRequest, reply: Reply) -> HttpAnswer:
        choice = {
            "index": 0,
            "message": _message(reply),
            "logprobs": None,
            "finish_reason": _STOPS[reply.stop_reason],
        }
        head = {**_head(request), "object": "chat.completion"}
        return HttpAnswer(200, {**head, "choices": [choice], "usage": _usage(reply.usage)})

    def failure(self, failure: Failure | TooLong) -> HttpAnswer:
        if isinstance(failure, TooLong):
            text = (
                f"This model's maximum context length is {failure.limit} tokens. However, your messages"
                f" resulted in {failure.tokens} tokens. Please reduce the length of the messages."
            )
            return HttpAnswer(400, {"error": {**_error(400, text), "code": "context_length_exceeded"}})
        return HttpAnswer(failure.status, {"error": _error(failure.status, failure.message)}, failure.headers)


def _paced(head: Mapping[str, object], deltas: Iterator[dict[str, object]], reply: Reply) -> Iterator[Frame]:
    for delta in deltas:
        yield _chunk(head, delta)
        if reply.pace:
            yield Pause(reply.pace)


def _text_deltas(member: str, text: str, size: int) -> Iterator[dict[str, object]]:
    return ({member: piece} for piece in pieces(text, size))


def _call_deltas(index: int, call: ToolCall, size: int) -> Iterator[dict[str, object]]:
    """The name comes with the first delta, the arguments in those behind it."""
    yield _called({"index": index, **_call(call, "")})
    for piece in pieces(json.dumps(dict(call.input)), size):
        yield _called({"index": index, "function": {"arguments": piece}})


def _called(call: Mapping[str, object]) -> dict[str, object]:
    return {"tool_calls": [call]}


def _call(call: ToolCall, arguments: str) -> dict[str, object]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _message(reply: Reply) -> dict[str, object]:
    said = "".join(part.text for part in reply.parts if isinstance(part, Text))
    thought = "".join(part.text for part in reply.parts if isinstance(part, Thinking))
    calls = [_call(part, json.dumps(dict(part.input))) for part in reply.parts if isinstance(part, ToolCall)]
    message: dict[str, object] = {"role": "assistant", "content": said or None, "refusal": None}
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    return message


def _wants_usage(request: ModelRequest) -> bool:
    options = request.body.get("stream_options")
    return isinstance(options, Mapping) and options.get("include_usage") is True


def _usage(usage: Usage) -> dict[str, object]:
    """Cached tokens are part of the prompt's here."""
    asked = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    return {
        "prompt_tokens": asked,
        "completion_tokens": usage.output_tokens,
        "total_tokens": asked + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def _head(request: ModelRequest) -> dict[str, object]:
    return {"id": f"chatcmpl-{uuid4().hex[:20]}", "created": _CREATED, "model": request.model}


def _chunk(head: Mapping[str, object], delta: Mapping[str, object], finish: str | None = None) -> bytes:
    return _event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def _event(data: Mapping[str, object]) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def _error(status: int, message: str | None) -> dict[str, object]:
    kind = _KINDS.get(status, "server_error")
    return {"message": message or f"scripted {kind}", "type": kind, "param": None, "code": kind}


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": _CREATED, "owned_by": "scripted"}


# Requests.

_ROLES: Mapping[object, Role] = {"assistant": "assistant", "system": "system", "developer": "system"}


def read_request(request: HttpRequest) -> ModelRequest:
    """ValueError where it is none."""
    body = read_body(request, "messages", list, "Chat Completions")
    messages = tuple(_read_message(each) for each in objects(body["messages"]))
    return ModelRequest(
        path=request.path,
        model=str(body.get("model", "")),
        stream=body.get("stream") is True,
        tools=tuple(declared_tools(body)),
        system="\n".join(message.text for message in messages if message.role == "system"),
        messages=messages,
        schema=schema_at(body, "response_format", "json_schema", "schema"),
        headers=request.headers,
        body=body,
    )


def _read_message(message: Mapping[str, object]) -> Message:
    text = text_of(message.get("content"))
    if message.get("role") == "tool":  # this wire does not tell whether the call failed
        return Message("user", "", (ToolResult(str(message.get("tool_call_id", "")), text),))
    return Message(_ROLES.get(message.get("role"), "user"), text)
