"""OpenAI Responses: `POST /v1/responses`, streamed or whole, and the list of models.

A call of a tool that the request declares as custom is sent as plain text: the member `input` of its arguments.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import count
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
        broken = next((part for part in reply.parts if isinstance(part, StreamError)), None)
        if broken:
            return self.failure(Failure(broken.status, broken.message))
        parts = [part for part in reply.parts if isinstance(part, Text | Thinking | ToolCall)]
        return HttpAnswer(200, _whole(_head(request), [_item(part, request) for part in parts], reply))

    def failure(self, failure: Failure | TooLong) -> HttpAnswer:
        if isinstance(failure, TooLong):
            return HttpAnswer(400, _error("invalid_request_error", "context_length_exceeded", _TOO_LONG))
        headers = {} if failure.retry_after is None else {"retry-after": f"{failure.retry_after:g}"}
        kind, code = _KINDS.get(failure.status, _UNKNOWN_KIND)
        return HttpAnswer(
            failure.status, _error(kind, code, failure.message or _said(failure.status)), headers
        )


def _item(part: Text | Thinking | ToolCall, request: ModelRequest) -> _Item:
    match part:
        case Text(text):
            content = [{"type": "output_text", "text": text, "annotations": []}]
            return {
                "type": "message",
                "id": _new("msg"),
                "status": "completed",
                "role": "assistant",
                "content": content,
            }
        case Thinking(text):
            summary = [{"type": "summary_text", "text": text}]
            return {"type": "reasoning", "id": _new("rs"), "summary": summary, "encrypted_content": _SEALED}
        case ToolCall():
            return _call(part, tool_kinds(request.body).get(part.name))


def _call(call: ToolCall, kind: str | None) -> _Item:
    space, _, name = call.name.rpartition(".")
    item: _Item = {"id": _new("fc"), "call_id": call.id, "status": "completed", "name": name}
    if space:
        item["namespace"] = space
    if kind == "custom":
        return {"type": "custom_tool_call", **item, "input": str(call.input.get("input", ""))}
    return {"type": "function_call", **item, "arguments": json.dumps(dict(call.input))}


def _begun(item: _Item) -> _Item:
    """The item as a stream announces it, before its deltas."""
    empty: _Item = {"content": [], "summary": [], "arguments": "", "input": "", "status": "in_progress"}
    return {key: empty.get(key, value) for key, value in item.items() if key != "encrypted_content"}


def _deltas(
    part: Text | Thinking | ToolCall, item: _Item, size: int
) -> Iterator[tuple[str, dict[str, object]]]:
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
        "id": _new("resp"),
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
    """What was read from the cache is part of the input here."""
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


def _new(prefix: str) -> str:
    return f"{prefix}_{uuid4().hex[:20]}"


# Reading an OpenAI Responses request: the edge where JSON becomes a `ModelRequest`.
#
# A tool of a name space is called `space.tool`, unless the space is the common one.

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
        for each in objects(tool.get("tools")):
            found[f"{space}{each.get('name', '')}"] = str(each.get("type", "function"))
    return found


def _declared(body: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    yield from objects(body.get("tools"))
    for item in objects(body.get("input")):
        if item.get("type") == _LATER_TOOLS:
            yield from objects(item.get("tools"))


def _messages(given: list[object] | str) -> Iterator[Message]:
    if isinstance(given, str):
        yield Message("user", given)
        return
    for item in objects(given):
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
    return "\n".join(str(part["text"]) for part in objects(content) if "text" in part)
