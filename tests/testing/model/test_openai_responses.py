"""What is sent, checked against the shape that the real endpoint documents."""

from __future__ import annotations

import json

import pytest
from tests.testing.model.model_client import Answer, send

from legation.testing.model import (
    Pause,
    Reply,
    ScriptedModel,
    ScriptMismatch,
    StopReason,
    StreamError,
    Text,
    Thinking,
    ToolCall,
    Usage,
)
from legation.testing.model.openai_responses import OpenAiResponsesWire

USAGE = Usage(input_tokens=7, output_tokens=9, cache_read_tokens=3, cache_write_tokens=2)
TOOLS = [
    {"type": "function", "name": "exec_command", "parameters": {"type": "object"}},
    {"type": "custom", "name": "apply_patch"},
    {"type": "namespace", "name": "mcp__echo", "tools": [{"type": "function", "name": "say"}]},
    {"type": "namespace", "name": "functions", "tools": [{"type": "function", "name": "plain"}]},
]
CALLS = (
    ToolCall("exec_command", {"cmd": "é" * 30}),
    ToolCall("apply_patch", {"input": "*** Begin Patch\n"}),
    ToolCall("mcp__echo.say", {}),
)


async def test_a_stream_tells_every_item_from_start_to_end() -> None:
    events = (await _reply(Reply((Thinking("hm"), Text("hello"), *CALLS)), stream=True)).events
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 5
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


async def test_what_is_streamed_is_what_is_sent_whole() -> None:
    reply = Reply((Thinking("let me see"), Text("a longer text, in pieces"), *CALLS), usage=USAGE)
    whole = (await _reply(reply, stream=False)).json
    events = (await _reply(reply, stream=True)).events
    end = events[-1]["response"]
    assert isinstance(end, dict)
    assert _nameless(end) == _nameless(whole)
    assert _put_together(events) == [
        "let me see",
        "a longer text, in pieces",
        json.dumps(dict(CALLS[0].input)),
        "*** Begin Patch\n",
        "{}",
    ]


async def test_a_call_is_sent_as_its_tool_was_declared() -> None:
    output = (await _reply(Reply(CALLS), stream=False)).json["output"]
    assert isinstance(output, list)
    assert [(each["type"], each["name"], each.get("namespace")) for each in output] == [
        ("function_call", "exec_command", None),
        ("custom_tool_call", "apply_patch", None),
        ("function_call", "say", "mcp__echo"),
    ]
    assert [each["call_id"] for each in output] == [call.id for call in CALLS]


async def test_usage_counts_the_cache_as_input() -> None:
    assert (await _reply(Reply((Text("hello"),), usage=USAGE), stream=False)).json["usage"] == {
        "input_tokens": 12,
        "input_tokens_details": {"cached_tokens": 3},
        "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 21,
    }


@pytest.mark.parametrize(
    ("stop", "status", "details"),
    [
        (None, "completed", None),
        ("max-tokens", "incomplete", {"reason": "max_output_tokens"}),
        ("refusal", "incomplete", {"reason": "content_filter"}),
    ],
)
async def test_a_reply_that_was_cut_short_says_why(
    stop: StopReason | None, status: str, details: object
) -> None:
    reply = Reply((Text("a"),), stop=stop)
    whole = (await _reply(reply, stream=False)).json
    assert (whole["status"], whole["incomplete_details"]) == (status, details)
    assert (await _reply(reply, stream=True)).events[-1]["type"] == f"response.{status}"


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (400, "invalid_request_error", None),
        (401, "invalid_request_error", "invalid_api_key"),
        (429, "requests", "rate_limit_exceeded"),
        (500, "server_error", "server_error"),
    ],
)
async def test_a_failure_names_its_kind(status: int, kind: str, code: str | None) -> None:
    async with _model() as model:
        model.fail(status, "no", retry_after=1.5)
        answer = await _ask(model.url)
    assert (answer.status, answer.headers["retry-after"]) == (status, "1.5")
    assert answer.json["error"] == {"message": "no", "type": kind, "param": None, "code": code}


async def test_a_conversation_that_is_too_long_has_a_code_of_its_own() -> None:
    async with _model() as model:
        model.fail_too_long()
        answer = await _ask(model.url)
    error = answer.json["error"]
    assert isinstance(error, dict)
    assert (answer.status, error["code"]) == (400, "context_length_exceeded")


async def test_a_stream_can_fail_halfway() -> None:
    reply = Reply((Text("half"), StreamError(429), Text("never")))
    last = (await _reply(reply, stream=True)).events[-1]
    response = last["response"]
    assert isinstance(response, dict)
    assert (last["type"], response["status"]) == ("response.failed", "failed")
    assert response["error"] == {"code": "rate_limit_exceeded", "message": "scripted rate_limit_exceeded"}
    assert (await _reply(reply, stream=False)).status == 429


async def test_a_paced_reply_pauses_between_its_pieces() -> None:
    async with _model() as model:
        model.say("hello")
        await _ask(model.url)
        frames = list(OpenAiResponsesWire().stream(model.requests[0], Reply((Text("a" * 40),), pace=0.5)))
    assert [frame for frame in frames if not isinstance(frame, bytes)] == [Pause(0.5)] * 3


async def test_a_request_is_read_with_its_tools_and_what_they_gave() -> None:
    given: list[object] = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "rules"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "do it"}]},
        {"type": "function_call", "call_id": "c1", "name": "exec_command", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "done"},
        {"type": "additional_tools", "tools": [{"type": "custom", "name": "exec"}]},
    ]
    async with _model() as model:
        model.say("hello")
        await _ask(model.url, input=given, instructions="be brief")
        request = model.requests[0]
    assert request.tools == ("exec_command", "apply_patch", "mcp__echo.say", "plain", "exec")
    assert (request.system, request.prompt) == ("be brief", "")
    assert [(each.id, each.text) for each in request.tool_results] == [("c1", "done")]
    assert request.mentions("do it")
    assert not request.mentions("rules")


async def test_models_are_listed_without_a_step() -> None:
    async with ScriptedModel(wires=(OpenAiResponsesWire(models=("one", "two")),)) as model:
        listed = (await send(model.url, "GET", "/v1/models")).json["data"]
        one = await send(model.url, "GET", "/v1/models/one")
    assert isinstance(listed, list)
    assert [each["id"] for each in listed] == ["one", "two"]
    assert one.json["id"] == "one"


async def test_a_body_that_is_none_is_refused() -> None:
    with pytest.raises(ScriptMismatch, match="no Responses request"):
        async with _model() as model:
            answer = await send(model.url, "POST", "/v1/responses", b"{}")
    assert answer.status == 400


def _model() -> ScriptedModel:
    return ScriptedModel(wires=(OpenAiResponsesWire(),))


async def _ask(url: str, **members: object) -> Answer:
    body = {"model": "m-1", "input": "hello", "tools": TOOLS, **members}
    return await send(url, "POST", "/v1/responses", json.dumps(body).encode())


async def _reply(reply: Reply, *, stream: bool) -> Answer:
    async with _model() as model:
        model.then(reply)
        return await _ask(model.url, stream=stream)


def _nameless(response: dict[str, object]) -> dict[str, object]:
    """Without the ids that are new in every answer."""
    output = response["output"]
    assert isinstance(output, list)
    items = [{key: value for key, value in each.items() if key != "id"} for each in output]
    return {**response, "id": "", "output": items}


def _put_together(events: list[dict[str, object]]) -> list[str]:
    """The text of each item, as a client of the stream makes it from the deltas."""
    texts: list[str] = []
    for event in events:
        if event["type"] == "response.output_item.added":
            texts.append("")
        elif str(event["type"]).endswith(".delta"):
            texts[-1] += str(event["delta"])
    return texts
