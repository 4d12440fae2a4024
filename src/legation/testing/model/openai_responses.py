"""OpenAI Responses: `POST /v1/responses`, streamed or whole, and the list of models.

A call of a tool that the request declares as custom is sent as plain text: the member `input` of its arguments.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import count

from legation.testing.model.http import HttpAnswer, HttpRequest
from legation.testing.model.request import (
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

_Item = dict[str, object]
# By status: an error's type, and its code.
_KINDS: Mapping[int, tuple[str, str | None]] = {
    400: ("invalid_request_error", None),
    401: ("invalid_request_error", "invalid_api_key"),
    402: ("insufficient_quota", "insufficient_quota"),
    403: ("invalid_request_error", "unsupported_country_region_territory"),
    404: ("invalid_request_error", "model_not_found"),
    429: ("requests", "rate_limit_exceeded"),
    503: ("server_error", "server_is_overloaded"),
}
_UNKNOWN_KIND = ("server_error", "server_error")
_TOO_LONG = "Your input exceeds the context window of this model. Please adjust your input and try again."
_UNFINISHED: Mapping[StopReason, str] = {"max-tokens": "max_output_tokens", "refusal": "content_filter"}
_SEALED = "c2NyaXB0ZWQ="  # reasoning comes sealed; agents send it back unread


class OpenAiResponsesWire:
    def __init__(self, models: tuple[str, ...] = ("scripted-model",)) -> None:
        self._models = models

    def fixed(self, request: HttpRequest) -> HttpAnswer | None:
        if request.method == "GET" and request.path.endswith("/models"):
            return HttpAnswer(200, {"object": "list", "data": [_model(name) for name in self._models]})
        if request.method == "GET" and "/models/" in request.path:
            return HttpAnswer(200, _model(request.path.rpartition("/")[2]))
        return None

    def read(self, request: HttpRequest) -> ModelRequest | None:
        if request.method != "POST" or not request.path.endswith("/responses"):
            return None
        return read_request(request)

    def stream(self, request: ModelRequest, reply: Reply) -> Iterator[Frame]:
        head, numbers = _head(request), count()

        def event(name: str, **members: object) -> bytes:
            told = {"type": name, "sequence_number": next(numbers), **members}
            return f"event: {name}\ndata: {json.dumps(told)}\n\n".encode()

        yield event("response.created", response=head)
        yield event("response.in_progress", response=head)
        output: list[_Item] = []
        for part in reply.parts:
            match part:
                case Pause() | Stall() | Cut():
                    yield part
                case StreamError(status=status, message=text):
                    error = {"code": _code(status), "message": text or _said(status)}
                    yield event("response.failed", response={**head, "status": "failed", "error": error})
                    return
                case Text() | Thinking() | ToolCall():
                    item = _item(part, request)
                    index = len(output)
                    yield event("response.output_item.added", output_index=index, item=_begun(item))
                    for name, members in _deltas(part, item, reply.piece):
                        yield event(f"response.{name}", item_id=item["id"], output_index=index, **members)
                        if reply.pace and name.endswith(".delta"):
                            yield Pause(reply.pace)
                    yield event("response.output_item.done", output_index=index, item=item)
                    output.append(item)
        whole = _whole(head, output, reply)
        yield event(f"response.{whole['status']}", response=whole)

    def whole(self, request: ModelRequest, reply: Reply) -> HttpAnswer:
        parts = [part for part in reply.parts if isinstance(part, Said)]
        return HttpAnswer(200, _whole(_head(request), [_item(part, request) for part in parts], reply))

    def failure(self, failure: Failure | TooLong) -> HttpAnswer:
        if isinstance(failure, TooLong):
            return HttpAnswer(400, _error("invalid_request_error", "context_length_exceeded", _TOO_LONG))
        kind, code = _KINDS.get(failure.status, _UNKNOWN_KIND)
        return HttpAnswer(
            failure.status, _error(kind, code, failure.message or _said(failure.status)), failure.headers
        )


def _item(part: Said, request: ModelRequest) -> _Item:
    match part:
        case Text(text):
            content = [{"type": "output_text", "text": text, "annotations": []}]
            return {
                "type": "message",
                "id": new_id("msg"),
                "status": "completed",
                "role": "assistant",
                "content": content,
            }
        case Thinking(text):
            summary = [{"type": "summary_text", "text": text}]
            return {"type": "reasoning", "id": new_id("rs"), "summary": summary, "encrypted_content": _SEALED}
        case ToolCall():
            tool = declared_tools(request.body).get(part.name)
            return _call(part, freeform=tool is not None and tool.freeform)


def _call(call: ToolCall, *, freeform: bool) -> _Item:
    space, _, name = call.name.rpartition(".")
    item: _Item = {"id": new_id("fc"), "call_id": call.id, "status": "completed", "name": name}
    if space:
        item["namespace"] = space
    if freeform:
        return {"type": "custom_tool_call", **item, "input": str(call.input.get("input", ""))}
    return {"type": "function_call", **item, "arguments": json.dumps(dict(call.input))}


def _begun(item: _Item) -> _Item:
    """The item as a stream announces it, before its deltas."""
    empty: _Item = {"content": [], "summary": [], "arguments": "", "input": "", "status": "in_progress"}
    return {key: empty.get(key, value) for key, value in item.items() if key != "encrypted_content"}


def _deltas(part: Said, item: _Item, size: int) -> Iterator[tuple[str, dict[str, object]]]:
    match part:
        case Text(text):
            at: dict[str, object] = {"content_index": 0}
            yield "content_part.added", {**at, "part": {"type": "output_text", "text": "", "annotations": []}}
            yield from (("output_text.delta", {**at, "delta": piece}) for piece in pieces(text, size))
            yield "output_text.done", {**at, "text": text}
            yield (
                "content_part.done",
                {**at, "part": {"type": "output_text", "text": text, "annotations": []}},
            )
        case Thinking(text):
            at = {"summary_index": 0}
            yield "reasoning_summary_part.added", {**at, "part": {"type": "summary_text", "text": ""}}
            for piece in pieces(text, size):
                yield "reasoning_summary_text.delta", {**at, "delta": piece}
            yield "reasoning_summary_text.done", {**at, "text": text}
            yield "reasoning_summary_part.done", {**at, "part": {"type": "summary_text", "text": text}}
        case ToolCall():
            custom = item["type"] == "custom_tool_call"
            name, member = (
                ("custom_tool_call_input", "input") if custom else ("function_call_arguments", "arguments")
            )
            for piece in pieces(str(item[member]), size):
                yield f"{name}.delta", {"delta": piece}
            yield f"{name}.done", {member: item[member]}


def _head(request: ModelRequest) -> dict[str, object]:
    return {
        "id": new_id("resp"),
        "object": "response",
        "created_at": 0,
        "status": "in_progress",
        "model": request.model,
        "output": [],
    }


def _whole(head: dict[str, object], output: list[_Item], reply: Reply) -> dict[str, object]:
    cause = _UNFINISHED.get(reply.stop_reason)
    status = "incomplete" if cause else "completed"
    details = {"incomplete_details": {"reason": cause} if cause else None}
    return {**head, "status": status, "output": output, **details, "usage": _usage(reply.usage)}


def _usage(usage: Usage) -> dict[str, object]:
    """The usage; what was read from the cache is part of the input here."""
    taken = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    return {
        "input_tokens": taken,
        "input_tokens_details": {"cached_tokens": usage.cache_read_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": taken + usage.output_tokens,
    }


def _code(status: int) -> str:
    kind, code = _KINDS.get(status, _UNKNOWN_KIND)
    return code or kind


def _said(status: int) -> str:
    return f"scripted {_code(status)}"


def _error(kind: str, code: str | None, message: str) -> dict[str, object]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "scripted"}


# Requests.

_ROLES: Mapping[object, Role] = {"assistant": "assistant", "system": "system", "developer": "system"}


def read_request(request: HttpRequest) -> ModelRequest:
    """ValueError where it is none."""
    body = read_body(request, "input", list | str, "Responses")
    return ModelRequest(
        path=request.path,
        model=str(body.get("model", "")),
        stream=body.get("stream") is True,
        tools=tuple(declared_tools(body)),
        system=text_of(body.get("instructions")),
        messages=tuple(_messages(body["input"])),
        schema=schema_at(body, "text", "format", "schema"),
        headers=request.headers,
        body=body,
    )


def _messages(given: list[object] | str) -> Iterator[Message]:
    if isinstance(given, str):
        yield Message("user", given)
        return
    for item in objects(given):
        kind = str(item.get("type", "message"))
        if kind == "message":
            yield Message(_ROLES.get(item.get("role"), "user"), text_of(item.get("content")))
        elif kind.endswith("_output"):
            yield Message("user", "", (_result(item),))
        elif kind == "reasoning" or kind.endswith("_call"):
            yield Message("assistant", "")


def _result(item: Mapping[str, object]) -> ToolResult:
    """Read a result. Whether it failed is not told apart: agents say so in the text."""
    return ToolResult(str(item.get("call_id", "")), text_of(item.get("output")))
