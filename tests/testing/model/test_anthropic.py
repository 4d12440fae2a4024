"""What is sent, checked against the shape that the real endpoint documents."""

import pytest
from tests.testing.model.model_client import Answer, ask, send

from legation.testing.model import (
    AnthropicWire,
    Pause,
    Reply,
    ScriptedModel,
    StopReason,
    StreamError,
    Text,
    Thinking,
    ToolCall,
    Usage,
)

USAGE = Usage(input_tokens=7, output_tokens=9, cache_read_tokens=3, cache_write_tokens=2)
CALLS = (ToolCall("Write", {"path": "a", "text": "é" * 30}), ToolCall("Read", {}))


async def test_a_stream_tells_every_block_from_start_to_stop() -> None:
    answer = await _reply(Reply((Thinking("hm"), Text("hello"), *CALLS), usage=USAGE), stream=True)
    kinds = [event["type"] for event in answer.events]
    assert answer.headers["content-type"] == "text/event-stream"
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 4
    assert [event["index"] for event in answer.events if event["type"] == "content_block_stop"] == [
        0,
        1,
        2,
        3,
    ]


async def test_what_is_streamed_is_what_is_sent_whole() -> None:
    reply = Reply((Thinking("let me see"), Text("a longer text, in pieces"), *CALLS), usage=USAGE)
    whole = (await _reply(reply, stream=False)).json
    streamed = (await _reply(reply, stream=True)).events
    assert _put_together(streamed) == whole["content"]
    assert streamed[-2]["delta"] == {"stop_reason": whole["stop_reason"], "stop_sequence": None}


async def test_usage_is_told_at_the_start_and_at_the_end() -> None:
    reply = Reply((Text("hello"),), usage=USAGE)
    expected = {"input_tokens": 7, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 3}
    first, *_, delta, _ = (await _reply(reply, stream=True)).events
    message = first["message"]
    assert isinstance(message, dict)
    assert message["usage"] == {**expected, "output_tokens": 1}
    assert delta["usage"] == {"output_tokens": 9}
    assert (await _reply(reply, stream=False)).json["usage"] == {**expected, "output_tokens": 9}


@pytest.mark.parametrize(
    ("parts", "stop", "said"),
    [
        ((Text("a"),), None, "end_turn"),
        ((Text("a"), CALLS[0]), None, "tool_use"),
        ((Text("a"),), "max-tokens", "max_tokens"),
        ((Text("a"),), "refusal", "refusal"),
    ],
)
async def test_the_stop_reason_is_told_by_the_parts(
    parts: tuple[Text | ToolCall, ...], stop: StopReason | None, said: str
) -> None:
    assert (await _reply(Reply(parts, stop=stop), stream=False)).json["stop_reason"] == said


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (402, "billing_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (529, "overloaded_error"),
    ],
)
async def test_a_failure_names_its_kind(status: int, kind: str) -> None:
    async with ScriptedModel() as model:
        model.fail(status, "no", retry_after=1.5)
        answer = await ask(model.url)
    assert (answer.status, answer.headers["retry-after"]) == (status, "1.5")
    assert answer.json["error"] == {"type": kind, "message": "no"}


async def test_a_conversation_that_is_too_long_is_told_in_the_endpoints_words() -> None:
    async with ScriptedModel() as model:
        model.fail_too_long(tokens=11, limit=10)
        answer = await ask(model.url)
    assert answer.status == 400
    assert answer.json["error"] == {
        "type": "invalid_request_error",
        "message": "prompt is too long: 11 tokens > 10 maximum",
    }


async def test_a_stream_can_fail_halfway() -> None:
    reply = Reply((Text("half"), StreamError(529), Text("never")))
    assert (await _reply(reply, stream=True)).events[-1]["error"] == {
        "type": "overloaded_error",
        "message": "scripted overloaded_error",
    }
    assert (await _reply(reply, stream=False)).status == 529


async def test_a_paced_reply_pauses_between_its_pieces() -> None:
    async with ScriptedModel() as model:
        model.say("hello")
        await ask(model.url)
        frames = list(AnthropicWire().stream(model.requests[0], Reply((Text("a" * 40),), pace=0.5)))
    assert [frame for frame in frames if not isinstance(frame, bytes)] == [Pause(0.5)] * 3


async def test_tokens_are_counted_and_models_listed_without_a_step() -> None:
    async with ScriptedModel(wires=(AnthropicWire(models=("one", "two")),)) as model:
        short = await send(model.url, "POST", "/v1/messages/count_tokens?beta=true", b"x" * 40)
        longer = await send(model.url, "POST", "/v1/messages/count_tokens", b"x" * 80)
        models = await send(model.url, "GET", "/v1/models?limit=1000")
        one = await send(model.url, "GET", "/v1/models/one")
    assert (short.json, longer.json) == ({"input_tokens": 10}, {"input_tokens": 20})
    listed = models.json["data"]
    assert isinstance(listed, list)
    assert [each["id"] for each in listed] == ["one", "two"]
    assert one.json["id"] == "one"


async def _reply(reply: Reply, *, stream: bool) -> Answer:
    async with ScriptedModel() as model:
        model.then(reply)
        return await ask(model.url, stream=stream)


def _put_together(events: list[dict[str, object]]) -> list[dict[str, object]]:
    """The content blocks, as a client of the stream makes them."""
    import json

    blocks: list[dict[str, object]] = []
    arguments = ""
    for event in events:
        if event["type"] == "content_block_start":
            block = event["content_block"]
            assert isinstance(block, dict)
            blocks.append(dict(block))
            arguments = ""
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            assert isinstance(delta, dict)
            if delta["type"] == "input_json_delta":
                arguments += delta["partial_json"]
                continue
            name = delta["type"].removesuffix("_delta")
            blocks[-1][name] = str(blocks[-1].get(name, "")) + delta[name]
        elif event["type"] == "content_block_stop" and blocks[-1]["type"] == "tool_use":
            blocks[-1]["input"] = json.loads(arguments)
    return blocks
