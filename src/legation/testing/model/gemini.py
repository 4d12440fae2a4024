"""Gemini: `POST /v1beta/models/M:streamGenerateContent?alt=sse` and `:generateContent`, `:countTokens`, the models."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from uuid import uuid4

from legation.testing.model.http import HttpAnswer, HttpRequest
from legation.testing.model.request import (
    CHARACTERS_PER_TOKEN,
    Frame,
    Message,
    ModelRequest,
    Object,
    ToolResult,
    as_object,
    declared_tools,
    objects,
    read_body,
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

_CALL = re.compile(r"/models/(?P<model>[^/:]+):(?P<verb>streamGenerateContent|generateContent|countTokens)$")
_LIST = re.compile(r"/v1beta/models(?:/(?P<model>[^/:]+))?$")
_KINDS: Mapping[int, str] = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    402: "FAILED_PRECONDITION",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_STOPS: Mapping[StopReason, str] = {
    "end-turn": "STOP",
    "tool-use": "STOP",
    "max-tokens": "MAX_TOKENS",
    "refusal": "SAFETY",
}
_SIGNATURE = "c2NyaXB0ZWQ="  # calls come signed; agents send it back unread


class GeminiWire:
    def __init__(self, models: tuple[str, ...] = ("scripted-model",)) -> None:
        self._models = models

    def fixed(self, request: HttpRequest) -> HttpAnswer | None:
        call, listed = _CALL.search(request.path), _LIST.search(request.path)
        if request.method == "POST" and call and call["verb"] == "countTokens":
            return HttpAnswer(200, {"totalTokens": len(request.body) // CHARACTERS_PER_TOKEN})
        if request.method == "GET" and listed and listed["model"]:
            return HttpAnswer(200, _model(listed["model"]))
        if request.method == "GET" and listed:
            return HttpAnswer(200, {"models": [_model(name) for name in self._models]})
        return None

    def read(self, request: HttpRequest) -> ModelRequest | None:
        call = _CALL.search(request.path)
        if request.method != "POST" or not call:
            return None
        return read_request(request, call["model"], stream=call["verb"] == "streamGenerateContent")

    def stream(self, request: ModelRequest, reply: Reply) -> Iterator[Frame]:
        head = _head(request)
        for part in reply.parts:
            match part:
                case Pause() | Stall() | Cut():
                    yield part
                case StreamError(status=status, message=text):
                    yield _event({"error": _error(status, text)})
                    return
                case Text() | Thinking() | ToolCall():
                    for piece in _pieces(part, reply.piece):
                        yield _event({**head, "candidates": [_candidate([piece])]})
                        if reply.pace:
                            yield Pause(reply.pace)
        last = _candidate([{"text": ""}], _STOPS[reply.stop_reason])
        yield _event({**head, "candidates": [last], "usageMetadata": _usage(reply.usage)})

    def whole(self, request: ModelRequest, reply: Reply) -> HttpAnswer:
        parts = [_part(part) for part in reply.parts if isinstance(part, Said)]
        candidate = _candidate(parts, _STOPS[reply.stop_reason])
        return HttpAnswer(
            200, {**_head(request), "candidates": [candidate], "usageMetadata": _usage(reply.usage)}
        )

    def failure(self, failure: Failure | TooLong) -> HttpAnswer:
        if isinstance(failure, TooLong):
            text = (
                f"The input token count ({failure.tokens}) exceeds the maximum number of tokens allowed"
                f" ({failure.limit})."
            )
            failure = Failure(400, text)
        error = _error(failure.status, failure.message)
        if failure.retry_after is not None:  # its clients read the body, others the header
            delay = f"{failure.retry_after:g}s"
            error["details"] = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}]
        return HttpAnswer(failure.status, {"error": error}, failure.headers)


def _pieces(part: Said, size: int) -> Iterator[dict[str, object]]:
    """Texts come in pieces, calls whole."""
    if isinstance(part, ToolCall):
        yield _part(part)
        return
    for piece in pieces(part.text, size):
        yield _part(type(part)(piece))


def _part(part: Said) -> dict[str, object]:
    match part:
        case Text(text):
            return {"text": text}
        case Thinking(text):
            return {"text": text, "thought": True}
        case ToolCall():
            call = {"id": part.id, "name": part.name, "args": dict(part.input)}
            return {"functionCall": call, "thoughtSignature": _SIGNATURE}


def _candidate(parts: list[dict[str, object]], finish: str | None = None) -> dict[str, object]:
    candidate: dict[str, object] = {"content": {"role": "model", "parts": parts}, "index": 0}
    return {**candidate, "finishReason": finish} if finish else candidate


def _usage(usage: Usage) -> dict[str, int]:
    """Cached tokens are part of the prompt's here."""
    asked = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    return {
        "promptTokenCount": asked,
        "cachedContentTokenCount": usage.cache_read_tokens,
        "candidatesTokenCount": usage.output_tokens,
        "totalTokenCount": asked + usage.output_tokens,
    }


def _head(request: ModelRequest) -> dict[str, object]:
    return {"modelVersion": request.model, "responseId": uuid4().hex[:20]}


def _error(status: int, message: str | None) -> dict[str, object]:
    kind = _KINDS.get(status, "INTERNAL")
    return {"code": status, "message": message or f"scripted {kind}", "status": kind}


def _event(data: Mapping[str, object]) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def _model(name: str) -> dict[str, object]:
    methods = ["generateContent", "countTokens"]
    return {"name": f"models/{name}", "displayName": name, "supportedGenerationMethods": methods}


# Requests.


def read_request(request: HttpRequest, model: str, *, stream: bool) -> ModelRequest:
    """ValueError where it is none. The model and whether to stream stand in the path."""
    body = read_body(request, "contents", list, "Gemini")
    return ModelRequest(
        path=request.path,
        model=model,
        stream=stream,
        tools=tuple(declared_tools(body)),
        system=_text(as_object(body.get("systemInstruction"))),
        messages=tuple(_read_message(each) for each in objects(body["contents"])),
        schema=_schema(as_object(body.get("generationConfig"))),
        headers=request.headers,
        body=body,
    )


def _read_message(content: Object) -> Message:
    parts = objects(content.get("parts"))
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
    parts = objects(content.get("parts"))
    return "\n".join(
        str(part["text"]) for part in parts if "text" in part and part.get("thought") is not True
    )
