"""What is sent over Chat Completions, checked against the shape that the real endpoint documents."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.testing.model.model_client import Answer, send

from legation.testing.model import (
    Pause,
    Reply,
    ScriptedModel,
    ScriptMismatch,
    StreamError,
    Text,
    Thinking,
    ToolCall,
    Usage,
)
from legation.testing.model.openai_chat import OpenAiChatWire
from legation.testing.model.script import StopReason

USAGE = Usage(input_tokens=7, output_tokens=9, cache_read_tokens=3)
CALLS = (ToolCall("write", {"path": "a", "text": "é" * 30}), ToolCall("read", {}))
TOOLS = [{"type": "function", "function": {"name": "write", "parameters": {"type": "object"}}}]


async def test_what_is_streamed_is_what_is_sent_whole() -> None:
    reply = Reply((Thinking("let me see"), Text("a longer text, in pieces"), *CALLS), usage=USAGE)
    whole = (await _reply(reply, stream=False)).json
    (choice,) = _list(whole["choices"])
    streamed = await _reply(reply, stream=True)
    said, calls, finish = _put_together(_chunks(streamed))
    assert choice["finish_reason"] == finish == "tool_calls"
    assert {"content", "reasoning_content"} == said.keys()
    assert said == {name: choice["message"][name] for name in said}
    assert calls == choice["message"]["tool_calls"]
    assert streamed.body.endswith(b"data: [DONE]\n\n")


async def test_usage_is_streamed_only_where_it_is_asked_for() -> None:
    expected = {
        "prompt_tokens": 10,
        "completion_tokens": 9,
        "total_tokens": 19,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    reply = Reply((Text("hello"),), usage=USAGE)
    asked = _chunks(await _reply(reply, stream=True, stream_options={"include_usage": True}))
    assert (asked[-1]["choices"], asked[-1]["usage"]) == ([], expected)
    assert all("usage" not in chunk for chunk in _chunks(await _reply(reply, stream=True)))
    assert (await _reply(reply, stream=False)).json["usage"] == expected


@pytest.mark.parametrize(
    ("parts", "stop", "said"),
    [
        ((Text("a"),), None, "stop"),
        ((Text("a"), CALLS[0]), None, "tool_calls"),
        ((Text("a"),), "max-tokens", "length"),
        ((Text("a"),), "refusal", "content_filter"),
    ],
)
async def test_the_finish_reason_is_told_by_the_parts(
    parts: tuple[Text | ToolCall, ...], stop: StopReason | None, said: str
) -> None:
    answer = await _reply(Reply(parts, stop=stop), stream=True)
    assert _put_together(_chunks(answer))[2] == said


@pytest.mark.parametrize(
    ("status", "kind"), [(400, "invalid_request_error"), (429, "rate_limit_exceeded"), (500, "server_error")]
)
async def test_a_failure_names_its_kind(status: int, kind: str) -> None:
    async with _model() as model:
        model.fail(status, "no", retry_after=1.5)
        answer = await _ask(model)
    assert (answer.status, answer.headers["retry-after"]) == (status, "1.5")
    assert answer.json["error"] == {"message": "no", "type": kind, "param": None, "code": kind}


async def test_a_conversation_that_is_too_long_is_told_in_the_endpoints_words() -> None:
    async with _model() as model:
        model.fail_too_long(tokens=11, limit=10)
        answer = await _ask(model)
    error = answer.json["error"]
    assert isinstance(error, dict)
    assert (answer.status, error["code"]) == (400, "context_length_exceeded")
    assert "maximum context length is 10 tokens" in error["message"]


async def test_a_stream_can_fail_halfway_and_has_then_no_end() -> None:
    reply = Reply((Text("half"), StreamError(500), Text("never")))
    answer = await _reply(reply, stream=True)
    assert _chunks(answer)[-1]["error"]["code"] == "server_error"
    assert b"[DONE]" not in answer.body
    assert (await _reply(reply, stream=False)).status == 500


async def test_a_paced_reply_pauses_between_its_pieces() -> None:
    async with _model() as model:
        model.say("hello")
        await _ask(model)
        frames = list(OpenAiChatWire().stream(model.requests[0], Reply((Text("a" * 40),), pace=0.5)))
    assert [frame for frame in frames if not isinstance(frame, bytes)] == [Pause(0.5)] * 3


async def test_a_request_is_read_with_its_system_prompt_tools_and_tool_results() -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "write it"}]},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "tool", "tool_call_id": "call-1", "content": "written"},
    ]
    async with _model() as model:
        model.say("done")
        await _ask(model, messages=messages)
        (request,) = model.requests
    assert (request.system, request.tools, request.model) == ("be brief", ("write",), "m-1")
    assert [(result.id, result.text) for result in request.tool_results] == [("call-1", "written")]
    assert request.prompt == ""
    assert request.mentions("write it")


async def test_models_are_listed_without_a_step_and_a_request_without_tools_is_on_the_side() -> None:
    async with ScriptedModel(wires=(OpenAiChatWire(models=("one", "two")),)) as model:
        models = await send(model.url, "GET", "/v1/models")
        one = await send(model.url, "GET", "/v1/models/one")
        title = await _ask(model, tools=None)
    assert [each["id"] for each in _list(models.json["data"])] == ["one", "two"]
    assert one.json["id"] == "one"
    assert title.status == 200


async def test_a_body_that_is_no_request_is_refused_and_fails_the_test() -> None:
    with pytest.raises(ScriptMismatch, match="no Chat Completions request"):
        await _ask_nonsense()


def _model() -> ScriptedModel:
    return ScriptedModel(wires=(OpenAiChatWire(),))


async def _ask(model: ScriptedModel, **members: object) -> Answer:
    messages = [{"role": "user", "content": "hello"}]
    body = {"model": "m-1", "messages": messages, "tools": TOOLS, **members}
    return await send(model.url, "POST", "/v1/chat/completions", json.dumps(body).encode())


async def _ask_nonsense() -> None:
    async with _model() as model:
        answer = await send(model.url, "POST", "/v1/chat/completions", b"[]")
        assert answer.status == 400


async def _reply(reply: Reply, **members: object) -> Answer:
    async with _model() as model:
        model.then(reply)
        return await _ask(model, **members)


def _chunks(answer: Answer) -> list[dict[str, Any]]:
    lines = answer.body.decode().splitlines()
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(text) for text in data if text != "[DONE]"]


def _put_together(chunks: list[dict[str, Any]]) -> tuple[dict[str, str], list[object], object]:
    """The texts, the calls and the finish reason, as a client of the stream makes them."""
    said: dict[str, str] = {}
    calls: list[dict[str, dict[str, str]]] = []
    finish: object = None
    for chunk in chunks:
        for choice in _list(chunk["choices"]):
            finish = choice["finish_reason"] or finish
            for name in ("content", "reasoning_content"):
                if choice["delta"].get(name):
                    said[name] = said.get(name, "") + choice["delta"][name]
            for call in choice["delta"].get("tool_calls", ()):
                if call["index"] == len(calls):
                    calls.append({name: value for name, value in call.items() if name != "index"})
                else:
                    calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return said, list(calls), finish


def _list(value: object) -> list[dict[str, Any]]:
    assert isinstance(value, list)
    return value
