"""What is sent, checked against the shape that the real endpoint documents."""

import json

import pytest
from tests.testing.model.model_client import Answer, send

from legation.testing.model import (
    GeminiWire,
    Reply,
    ScriptedModel,
    StopReason,
    StreamError,
    Text,
    Thinking,
    ToolCall,
    Usage,
)

TOOLS = [{"functionDeclarations": [{"name": "write_file", "parametersJsonSchema": {"type": "object"}}]}]
CALL = ToolCall("write_file", {"file_path": "a", "content": "é" * 30})
USAGE = Usage(input_tokens=7, output_tokens=9, cache_read_tokens=3)
SCHEMA = {"type": "OBJECT", "properties": {"next_speaker": {"type": "STRING", "enum": ["user", "model"]}}}


async def ask(url: str, *, stream: bool = False, **members: object) -> Answer:
    verb = "streamGenerateContent?alt=sse" if stream else "generateContent"
    contents = [{"role": "user", "parts": [{"text": "hello"}]}]
    body = {"contents": contents, "tools": TOOLS, **members}
    return await send(url, "POST", f"/v1beta/models/m-1:{verb}", json.dumps(body).encode())


async def reply(step: Reply, *, stream: bool) -> Answer:
    async with ScriptedModel() as model:
        model.then(step)
        return await ask(model.url, stream=stream)


def parts_of(message: dict[str, object]) -> list[dict[str, object]]:
    candidates = message["candidates"]
    assert isinstance(candidates, list)
    found = candidates[0]["content"]["parts"]
    assert isinstance(found, list)
    return found


async def test_what_is_streamed_is_what_is_sent_whole() -> None:
    step = Reply((Thinking("let me see how"), Text("a longer text, in pieces"), CALL), usage=USAGE)
    whole = (await reply(step, stream=False)).json
    streamed = (await reply(step, stream=True)).events
    pieces = [part for event in streamed for part in parts_of(event)]
    thought, text, call = parts_of(whole)
    assert "".join(str(each["text"]) for each in pieces if each.get("thought")) == thought["text"]
    assert "".join(str(each.get("text", "")) for each in pieces if not each.get("thought")) == text["text"]
    assert [each for each in pieces if "functionCall" in each] == [call]
    assert call["functionCall"] == {"id": CALL.id, "name": "write_file", "args": dict(CALL.input)}
    assert streamed[-1]["usageMetadata"] == whole["usageMetadata"]
    assert whole["usageMetadata"] == {
        "promptTokenCount": 10,
        "cachedContentTokenCount": 3,
        "candidatesTokenCount": 9,
        "totalTokenCount": 19,
    }


@pytest.mark.parametrize(
    ("stop", "said"), [(None, "STOP"), ("max-tokens", "MAX_TOKENS"), ("refusal", "SAFETY")]
)
async def test_the_last_piece_says_why_it_is_the_last(stop: StopReason | None, said: str) -> None:
    events = (await reply(Reply((Text("a"),), stop=stop), stream=True)).events
    assert ["finishReason" in event["candidates"][0] for event in events] == [False, True]  # type: ignore[index]
    assert events[-1]["candidates"][0]["finishReason"] == said  # type: ignore[index]


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "INVALID_ARGUMENT"), (429, "RESOURCE_EXHAUSTED"), (500, "INTERNAL"), (503, "UNAVAILABLE")],
)
async def test_a_failure_names_its_kind_and_when_to_ask_again(status: int, kind: str) -> None:
    async with ScriptedModel() as model:
        model.fail(status, "no", retry_after=1.5)
        answer = await ask(model.url)
    error = answer.json["error"]
    assert isinstance(error, dict)
    assert (answer.status, answer.headers["retry-after"]) == (status, "1.5")
    assert (error["code"], error["message"], error["status"]) == (status, "no", kind)
    assert error["details"][0]["retryDelay"] == "1.5s"


async def test_a_conversation_that_is_too_long_is_told_in_the_endpoints_words() -> None:
    async with ScriptedModel() as model:
        model.fail_too_long(tokens=11, limit=10)
        answer = await ask(model.url)
    assert answer.status == 400
    assert b"The input token count (11) exceeds the maximum number of tokens allowed (10)." in answer.body


async def test_a_stream_can_fail_halfway() -> None:
    step = Reply((Text("half"), StreamError(503), Text("never")))
    assert (await reply(step, stream=True)).events[-1]["error"] == {
        "code": 503,
        "message": "scripted UNAVAILABLE",
        "status": "UNAVAILABLE",
    }
    assert (await reply(step, stream=False)).status == 503


async def test_a_request_tells_what_the_agent_said_about_its_tools() -> None:
    good = {"id": "1", "name": "write_file", "response": {"output": "written"}}
    bad = {"name": "write_file", "response": {"error": "no such folder"}}
    contents = [
        {"role": "user", "parts": [{"text": "the task"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "write_file", "args": {}}}]},
        {
            "role": "user",
            "parts": [{"functionResponse": good}, {"functionResponse": bad}, {"text": "a note"}],
        },
    ]
    async with ScriptedModel() as model:
        model.say("I see")
        await ask(model.url, contents=contents, systemInstruction={"parts": [{"text": "be good"}]})
        request = model.requests[0]
    assert (request.model, request.prompt, request.system) == ("m-1", "a note", "be good")
    assert request.tools == ("write_file",)
    assert [(found.id, found.text, found.is_error) for found in request.tool_results] == [
        ("1", "written", False),
        ("write_file", "no such folder", True),
    ]
    assert request.mentions("the task")


async def test_what_is_asked_on_the_side_takes_no_step_and_fits_its_schema() -> None:
    config = {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA}
    async with ScriptedModel() as model:
        answer = await ask(model.url, tools=[], generationConfig=config)
        assert len(model.side_requests) == 1
    assert json.loads(str(parts_of(answer.json)[0]["text"])) == {"next_speaker": "user"}


async def test_tokens_are_counted_and_models_listed_without_a_step() -> None:
    async with ScriptedModel(wires=(GeminiWire(models=("one", "two")),)) as model:
        counted = await send(model.url, "POST", "/v1beta/models/one:countTokens", b"x" * 40)
        models = await send(model.url, "GET", "/v1beta/models?pageSize=50")
        one = await send(model.url, "GET", "/v1beta/models/one")
    assert counted.json == {"totalTokens": 10}
    listed = models.json["models"]
    assert isinstance(listed, list)
    assert [each["name"] for each in listed] == ["models/one", "models/two"]
    assert one.json["name"] == "models/one"


async def test_each_endpoint_lists_its_models_in_its_own_form() -> None:
    async with ScriptedModel() as model:
        gemini = await send(model.url, "GET", "/v1beta/models")
        anthropic = await send(model.url, "GET", "/v1/models")
    assert "models" in gemini.json
    assert "first_id" in anthropic.json


async def test_a_body_that_is_no_request_is_refused() -> None:
    model = ScriptedModel()
    await model.__aenter__()
    assert (await send(model.url, "POST", "/v1beta/models/m:generateContent", b"[]")).status == 400
    assert "cannot be read" in model.problems.pop()
    await model.__aexit__(None, None, None)
