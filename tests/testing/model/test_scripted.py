import asyncio
import contextlib
import http.client
import json

import pytest
from tests.testing.model.model_client import WAIT, ask, body, open_stream, send

from legation.testing.model import ModelRequest, ScriptedModel, ScriptMismatch, Text, ToolCall

SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "count": {"type": "integer"},
        "score": {"type": "integer", "minimum": 1},
        "kind": {"const": "x"},
    },
}


async def test_each_request_takes_the_next_step() -> None:
    async with ScriptedModel() as model:
        model.say("one")
        model.fail(529, retry_after=2)
        model.say("two")
        answers = [await ask(model.url, f"question {number}") for number in range(3)]
        assert [answer.status for answer in answers] == [200, 529, 200]
        assert [request.prompt for request in model.requests] == ["question 0", "question 1", "question 2"]


async def test_a_script_that_runs_dry_is_refused_and_fails_the_test() -> None:
    model = ScriptedModel()
    await model.__aenter__()
    answer = await ask(model.url)
    assert answer.status == 402
    assert b"ran dry" in answer.body
    with pytest.raises(
        ScriptMismatch, match="the script ran dry: request 1, to /v1/messages, found no step left"
    ):
        await model.__aexit__(None, None, None)


async def test_steps_that_nobody_asked_for_fail_the_test() -> None:
    model = ScriptedModel()
    model.say("never")
    model.say("heard")
    with pytest.raises(ScriptMismatch, match="2 steps of the script were never asked for"):
        async with model:
            pass


async def test_cleared_steps_are_no_problem() -> None:
    async with ScriptedModel() as model:
        model.say("never heard")
        model.clear()


async def test_the_tests_own_error_comes_first_and_names_the_problems() -> None:
    async def fails() -> None:
        async with ScriptedModel() as model:
            await ask(model.url)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        await fails()
    assert "ran dry" in "".join(caught.value.__notes__)


async def test_a_request_without_tools_takes_no_step_and_fits_its_schema() -> None:
    shape = {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}}
    async with ScriptedModel() as model:
        model.say("the reply")
        title = await ask(model.url, tools=[], output_config=shape)
        reply = await ask(model.url)
        assert len(model.side_requests) == len(model.requests) == 1
    assert json.loads(_text(title.json)) == {"title": "Scripted", "count": 0, "score": 1, "kind": "x"}
    assert _text(reply.json) == "the reply"


async def test_a_suggestion_for_the_user_takes_no_step() -> None:
    async with ScriptedModel() as model:
        await ask(model.url, "[SUGGESTION MODE: Suggest what the user might naturally type next.]")
        await model.until_side_requests(1)
        assert model.requests == []


async def test_the_rule_for_side_requests_is_the_tests_to_choose() -> None:
    async with ScriptedModel(is_side=lambda request: request.model == "small") as model:
        model.say("the reply")
        assert _text((await ask(model.url, tools=[])).json) == "the reply"
        assert _text((await ask(model.url, model="small")).json) == "Scripted"


async def test_a_rule_that_fails_fails_the_test() -> None:
    def broken(request: ModelRequest) -> bool:
        raise KeyError("oops")

    with pytest.raises(ScriptMismatch, match=r"cannot answer /v1/messages: KeyError\('oops'\)"):
        async with ScriptedModel(is_side=broken) as model:
            await ask(model.url)


async def test_conversations_have_scripts_of_their_own() -> None:
    async with ScriptedModel() as model:
        model.say("to all others")
        model.when("red").say("to red")
        model.when(lambda request: request.model == "m-2").say("to m-2")
        assert _text((await ask(model.url, "a red one")).json) == "to red"
        assert _text((await ask(model.url, model="m-2")).json) == "to m-2"
        assert _text((await ask(model.url)).json) == "to all others"


async def test_a_conversations_own_script_can_run_dry_alone() -> None:
    model = ScriptedModel()
    model.when("red")
    model.say("to all others")
    with pytest.raises(ScriptMismatch, match=r"script 1 of when\(\) ran dry"):
        async with model:
            assert [(await ask(model.url, text)).status for text in ("red", "blue")] == [402, 200]


async def test_a_stall_holds_the_stream_until_it_is_released() -> None:
    async with ScriptedModel() as model:
        stall = model.stall(Text("before"))
        asking = asyncio.create_task(ask(model.url, stream=True))
        await stall.reached()
        assert not asking.done()
        stall.release()
        answer = await asyncio.wait_for(asking, WAIT)
    assert answer.events[-1]["type"] == "message_stop"


async def test_whoever_hangs_up_during_a_stall_is_noticed() -> None:
    async with ScriptedModel() as model:
        stall = model.stall(Text("before"))
        reader, writer = await open_stream(model.url)
        async with asyncio.timeout(WAIT):
            await reader.readuntil(b"before")
        writer.close()
        await writer.wait_closed()
        await stall.abandoned()


async def test_a_stall_keeps_a_whole_answer_waiting_too() -> None:
    async with ScriptedModel() as model:
        stall = model.stall(Text("late"))
        asking = asyncio.create_task(ask(model.url))
        await stall.reached()
        stall.release()
        assert _text((await asyncio.wait_for(asking, WAIT)).json) == "late"


async def test_a_cut_breaks_a_stream_after_what_came_before() -> None:
    async with ScriptedModel() as model:
        model.cut(Text("half a"))
        with pytest.raises(http.client.IncompleteRead) as caught:
            await ask(model.url, stream=True)
    assert b"half a" in caught.value.partial


async def test_a_cut_breaks_off_before_a_whole_answer() -> None:
    async with ScriptedModel() as model:
        model.cut(Text("half a"))
        with pytest.raises(http.client.RemoteDisconnected):
            await ask(model.url)


async def test_an_endpoint_that_ends_leaves_no_client_waiting() -> None:
    async with ScriptedModel() as model:
        stall = model.stall()
        reader, writer = await open_stream(model.url)
        await stall.reached()
    async with asyncio.timeout(WAIT):
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
    writer.close()


async def test_requests_are_waited_for_with_a_bound() -> None:
    async with ScriptedModel() as model:
        model.say("one")
        waiting = asyncio.create_task(model.until_requests(1))
        await ask(model.url)
        await asyncio.wait_for(waiting, WAIT)
        with pytest.raises(ScriptMismatch, match=r"1 of 2 requests came within 0\.01 s"):
            await model.until_requests(2, within=0.01)


@pytest.mark.parametrize("target", ["http://example.invalid/path?q=1", "example.invalid:443"])
async def test_an_agent_that_wants_out_is_refused_and_fails_the_test(target: str) -> None:
    method = "GET" if "/" in target else "CONNECT"
    with pytest.raises(ScriptMismatch, match=r"tried to reach (http://)?example\.invalid(:443)?$"):
        async with ScriptedModel() as model:
            assert (await send(model.proxy_variables()["HTTPS_PROXY"], method, target)).status == 403


async def test_an_agent_may_knock_where_the_test_says_so() -> None:
    async with ScriptedModel(may_knock=True) as model:
        answer = await send(model.url, "CONNECT", "example.invalid:443")
        assert (answer.status, model.knocks) == (403, ["example.invalid:443"])


async def test_a_lone_tool_that_does_nothing_is_none() -> None:
    async with ScriptedModel() as model:
        await ask(model.url, tools=[{"name": "_noop", "input_schema": {}}])
        assert len(model.side_requests) == 1


async def test_an_unknown_path_is_not_found_and_remembered() -> None:
    async with ScriptedModel() as model:
        assert (await send(model.url, "GET", "/v1/other")).status == 404
        assert (await send(model.url, "HEAD", "/api/hello")).status == 200
        assert [stray.path for stray in model.strays] == ["/v1/other"]


async def test_a_body_that_is_no_request_fails_the_test() -> None:
    with pytest.raises(ScriptMismatch, match="cannot be read"):
        async with ScriptedModel() as model:
            assert (await send(model.url, "POST", "/v1/messages", b"{}")).status == 400


async def test_a_request_tells_what_the_agent_said_about_its_tools() -> None:
    call = ToolCall("Write", {"path": "a"})
    result = {"type": "tool_result", "tool_use_id": call.id, "is_error": True, "content": "no such folder"}
    messages = [
        {"role": "user", "content": "the task"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": call.id, "name": "Write", "input": {}}]},
        {"role": "user", "content": [result, {"type": "text", "text": "a note"}]},
    ]
    async with ScriptedModel() as model:
        model.say("I see")
        await ask(model.url, messages=messages, system=[{"type": "text", "text": "be good"}])
        request = model.requests[0]
    assert (request.prompt, request.system, request.tools) == ("a note", "be good", ("Write",))
    assert [(found.id, found.text, found.is_error) for found in request.tool_results] == [
        (call.id, "no such folder", True)
    ]
    assert request.mentions("the task")
    assert not request.mentions("be good")


async def test_a_requests_representation_has_neither_prompt_nor_header() -> None:
    async with ScriptedModel() as model:
        model.say("hi")
        await ask(model.url, "a private thing")
        shown = repr(model.requests[0])
    assert "private" not in shown
    assert "host" not in shown.lower()


async def test_one_connection_serves_request_after_request() -> None:
    content = json.dumps(body()).encode()
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content)
    async with ScriptedModel() as model:
        model.say("first")
        model.say("second")
        reader, writer = await open_stream(model.url)
        async with asyncio.timeout(WAIT):
            await reader.readuntil(b"0\r\n\r\n")
            writer.write(b"POST /v1/messages HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n" + chunked)
            await reader.readuntil(b"second")
        writer.close()


@pytest.mark.parametrize(
    "rubbish",
    [b"hello\r\n\r\n", b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n", b"G" * 2_000_000],
    ids=["no request line", "no length", "too long a line"],
)
async def test_rubbish_is_refused(rubbish: bytes) -> None:
    async with ScriptedModel() as model:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(model.url.rpartition(":")[2]))
        writer.write(rubbish)
        async with asyncio.timeout(WAIT):
            assert (await reader.readline()).startswith(b"HTTP/1.1 400")
        writer.close()


def _text(message: dict[str, object]) -> str:
    content = message["content"]
    assert isinstance(content, list)
    return "".join(block["text"] for block in content)
