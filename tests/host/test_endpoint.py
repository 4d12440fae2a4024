import asyncio
import json
import logging
from pathlib import Path

import pytest
from tests.host.json_endpoint import Client, Heard, Message, carry, client, script
from tests.host.rig import LIMIT

from legation.agents.rpc import AgentRefused
from legation.errors import Code, ConfigInvalid, Conflict, InvalidParams, NotFound, TransportClosed
from legation.host.endpoint import HOST_RPC_METHODS, create_host_endpoint, project_event
from legation.host.host import AcpHost
from legation.store.jsonl import JsonlBackend
from legation.wire.acp.rpc import RpcError
from legation.wire.events import Event

pytestmark = pytest.mark.heavy  # a process or more for each test


def test_the_methods_are_those_of_the_contract() -> None:
    assert set(HOST_RPC_METHODS) == {
        *("agents/spawn", "agents/list", "agents/dispose"),
        *("sessions/create", "sessions/load", "sessions/list", "sessions/resume", "sessions/delete"),
        *("sessions/prompt", "sessions/cancel", "sessions/close", "sessions/setMode"),
        *("sessions/setConfigOption", "sessions/getAll", "sessions/restore"),
    }


# Every method, through JSON (INV-3).


async def test_an_agent_is_spawned_listed_and_disposed_of(tmp_path: Path) -> None:
    async with client(tmp_path) as made:
        agent = await made.call("agents/spawn", definition=made.defined())
        assert (agent["agentId"], agent["status"], agent["restartCount"]) == ("agent-1", "ready", 0)
        assert agent["capabilities"]["loadSession"] is True
        assert [method["id"] for method in agent["authMethods"]] == ["rehearsal-login"]
        assert "exit" not in agent
        assert await made.call("agents/list") == [agent]
        assert await made.call("agents/dispose", agentId="agent-1") is None
        assert await made.call("agents/dispose", agentId="agent-1") is None
        assert await made.call("agents/list") == []


async def test_a_session_is_created_prompted_closed_and_loaded_again(tmp_path: Path) -> None:
    server = {"name": "tools", "command": "true", "env": [{"name": "TOKEN", "value": "hidden"}]}
    async with client(tmp_path) as made:
        agent_id = await made.spawn()
        created = await made.call(
            "sessions/create",
            agentId=agent_id,
            cwd=str(tmp_path),
            mcpServers=[server],
            additionalDirectories=[],
        )
        session_id = created["sessionId"]
        assert created == {
            "sessionId": session_id,
            "status": "active",
            "cwd": str(tmp_path),
            "additionalDirectories": [],
            "agentId": agent_id,
            "agentDefinitionId": "rehearsal",
            "mcpServers": [{"name": "tools", "type": "stdio", "env": ["TOKEN"]}],
        }
        assert await made.play(session_id, "say hello") == {"stopReason": "end_turn"}
        assert await made.call("sessions/getAll") == [created]
        assert await made.call("sessions/close", sessionId=session_id) is None
        assert [each["status"] for each in await made.call("sessions/getAll")] == ["closed"]
        loaded = await made.call("sessions/load", agentId=agent_id, sessionId=session_id, cwd=str(tmp_path))
        assert (loaded["sessionId"], loaded["status"]) == (session_id, "active")


async def test_a_session_of_the_agent_is_listed_and_deleted(tmp_path: Path) -> None:
    async with client(tmp_path) as made:
        agent_id = await made.spawn()
        session_id = await made.open(agent_id)
        await made.play(session_id, "say hello")
        listed = await made.call("sessions/list", agentId=agent_id, cwd=str(tmp_path))
        assert [each["sessionId"] for each in listed["sessions"]] == [session_id]
        assert "nextCursor" not in listed
        assert await made.call("sessions/delete", agentId=agent_id, sessionId=session_id) is None
        assert (await made.call("sessions/list", agentId=agent_id))["sessions"] == []


async def test_a_list_goes_on_at_its_cursor(tmp_path: Path) -> None:
    source = """
send(id=serve("initialize"), result={"protocolVersion": 1, "agentCapabilities": {"sessionCapabilities": {"list": {}}}})
asked = read(); send(id=asked["id"], result={"sessions": [], "nextCursor": asked["params"]["cursor"] + "!"}); stay()
"""
    async with client(tmp_path) as made:
        agent_id = await made.spawn_script(source)
        listed = await made.call("sessions/list", agentId=agent_id, cursor="page 2")
        assert listed == {"sessions": [], "nextCursor": "page 2!"}


async def test_mode_and_options_are_set(tmp_path: Path) -> None:
    async with client(tmp_path) as made:
        session_id = await made.open(await made.spawn())
        assert await made.call("sessions/setMode", sessionId=session_id, modeId="plan") is None
        options = await made.call(
            "sessions/setConfigOption", sessionId=session_id, configId="model", value="rehearsal-terse"
        )
        assert {option["id"]: option["currentValue"] for option in options}["model"] == "rehearsal-terse"


async def test_an_option_of_an_unknown_kind_comes_as_the_agent_gave_it(tmp_path: Path) -> None:
    slider = {"type": "slider", "id": "x", "currentValue": 3}
    source = f"""
hello(); send(id=serve("session/new"), result={{"sessionId": "s1", "configOptions": []}})
send(id=serve("session/set_config_option"), result={{"configOptions": [{slider!r}]}}); stay()
"""
    async with client(tmp_path) as made:
        session_id = await made.script(source)
        options = await made.call("sessions/setConfigOption", sessionId=session_id, configId="x", value=True)
        assert options == [slider]


async def test_a_turn_is_cancelled(tmp_path: Path) -> None:
    async with client(tmp_path) as made:
        session_id = await made.open(await made.spawn())
        made.endpoint.subscribe(session_id, 0, heard := Heard())
        prompting = asyncio.create_task(made.play(session_id, "say hello", "stall 600"))
        await heard.until_type("agent-message-chunk")
        assert await made.call("sessions/cancel", sessionId=session_id) is None
        assert await prompting == {"stopReason": "cancelled"}


async def test_sessions_of_an_earlier_host_are_restored_and_resumed(tmp_path: Path) -> None:
    async with client(tmp_path, storage=JsonlBackend(tmp_path / "log")) as made:
        session_id = await made.open(await made.spawn())
        await made.play(session_id, "say hello")
    async with client(tmp_path, storage=JsonlBackend(tmp_path / "log")) as made:
        (restored,) = await made.call("sessions/restore")
        assert (restored["sessionId"], restored["status"]) == (session_id, "disconnected")
        resumed = await made.call(
            "sessions/resume", agentId=await made.spawn(), sessionId=session_id, cwd=str(tmp_path)
        )
        assert (resumed["sessionId"], resumed["status"]) == (session_id, "active")
        assert await made.play(session_id, "recall") == {"stopReason": "end_turn"}


async def test_a_prompt_tells_the_agents_error_and_the_usage_in_its_result(tmp_path: Path) -> None:
    source = """
hello(); session()
send(id=prompted(), error={"code": -32011, "message": "no", "data": {"why": [1, None]}})
send(id=prompted(), result={"stopReason": "end_turn", "usage": {"inputTokens": 3}}); stay()
"""
    async with client(tmp_path) as made:
        session_id = await made.script(source)
        assert await made.play(session_id) == {
            "stopReason": "end_turn",
            "error": {"code": -32011, "message": "no", "data": {"why": [1, None]}},
        }
        assert await made.play(session_id) == {"stopReason": "end_turn", "usage": {"inputTokens": 3}}


# Every error.


async def test_an_error_of_ours_keeps_its_code(tmp_path: Path) -> None:
    async with client(tmp_path) as made:
        session_id = await made.open(await made.spawn())
        made.endpoint.subscribe(session_id, 0, heard := Heard())
        prompting = asyncio.create_task(made.play(session_id, "say hello", "stall 600"))
        await heard.until_type("agent-message-chunk")
        in_flight = await made.error("sessions/prompt", sessionId=session_id, prompt=script("echo"))
        assert in_flight["code"] == "legation/prompt-in-flight"
        assert session_id in in_flight["message"]
        await made.call("sessions/cancel", sessionId=session_id)
        await prompting
        await made.call("sessions/close", sessionId=session_id)
        closed = await made.error("sessions/prompt", sessionId=session_id, prompt=script("echo"))
        assert closed["code"] == "legation/session-closed"
        assert (await made.error("sessions/cancel", sessionId="none"))["code"] == "legation/not-found"
        assert (await made.error("sessions/create", agentId="none"))["code"] == "legation/not-found"


async def test_a_crash_in_mid_turn_is_agent_exited(tmp_path: Path) -> None:
    async with client(tmp_path) as made:
        session_id = await made.open(await made.spawn())
        crashed = await made.error("sessions/prompt", sessionId=session_id, prompt=script("crash 3"))
        assert crashed["code"] == "legation/agent-exited"


async def test_what_the_agent_did_not_declare_is_capability_unsupported(tmp_path: Path) -> None:
    async with client(tmp_path) as made:
        session_id = await made.script("hello(); session(); stay()")
        for method, params in (
            ("sessions/setMode", {"modeId": "plan"}),
            ("sessions/setConfigOption", {"configId": "model", "value": "x"}),
            ("sessions/load", {"agentId": "agent-1"}),
        ):
            refused = await made.error(method, sessionId=session_id, **params)
            assert refused["code"] == "legation/capability-unsupported"


async def test_an_agents_own_error_is_agent_error_with_the_original_in_its_data(tmp_path: Path) -> None:
    original = {"code": -32011, "message": "not today", "data": {"retry": [1, 2]}}
    source = f'hello(); send(id=serve("session/new"), error={original!r}); stay()'
    async with client(tmp_path) as made:
        agent_id = await made.spawn_script(source)
        error = await made.error("sessions/create", agentId=agent_id, cwd=str(tmp_path))
        assert error["code"] == "legation/agent-error"
        assert error["data"] == original
        assert "not today" in error["message"]


async def test_an_agent_that_wants_a_sign_in_says_so(tmp_path: Path) -> None:
    async with client(tmp_path) as made:
        definition = made.defined()
        definition["args"].append("--require-auth")
        agent = await made.call("agents/spawn", definition=definition)
        error = await made.error("sessions/create", agentId=agent["agentId"], cwd=str(tmp_path))
        assert error["code"] == "legation/agent-error"
        assert error["data"]["code"] == -32000
        assert [way["id"] for way in error["data"]["authMethods"]] == ["rehearsal-login"]


@pytest.mark.parametrize("method", ["sessions/fly", "", "AGENTS/LIST", None, 7, ["agents/list"]])
async def test_an_unknown_method_is_config_invalid(tmp_path: Path, method: object) -> None:
    async with client(tmp_path) as made:
        error = await made.error(method)
        assert error["code"] == "legation/config-invalid"
        assert error["message"].startswith("cannot call")


REQUIRED = {
    "agents/spawn": ["definition"],
    "agents/dispose": ["agentId"],
    "sessions/create": ["agentId"],
    "sessions/load": ["agentId", "sessionId"],
    "sessions/list": ["agentId"],
    "sessions/resume": ["agentId", "sessionId"],
    "sessions/delete": ["agentId", "sessionId"],
    "sessions/prompt": ["sessionId", "prompt"],
    "sessions/cancel": ["sessionId"],
    "sessions/close": ["sessionId"],
    "sessions/setMode": ["sessionId", "modeId"],
    "sessions/setConfigOption": ["sessionId", "configId", "value"],
}


@pytest.mark.parametrize(("method", "names"), REQUIRED.items())
async def test_missing_parameters_are_all_named_in_one_config_invalid(
    tmp_path: Path, method: str, names: list[str]
) -> None:
    async with client(tmp_path) as made:
        for given in ({}, dict.fromkeys(names)):  # null is the same as absent
            error = await made.error(method, **given)
            assert error["code"] == "legation/config-invalid"
            assert all(f"{name} is missing" in error["message"] for name in names)


async def test_ill_typed_and_unknown_parameters_are_all_named_in_one_config_invalid(tmp_path: Path) -> None:
    async with client(tmp_path) as made:
        error = await made.error(
            "sessions/load",
            sessionId=7,
            cwd=["x"],
            mcpServers=[{"command": "x"}],
            additionalDirectories="/tmp",
            additionalDirectory="/tmp",
        )
        assert error["code"] == "legation/config-invalid"
        for problem in (
            "agentId is missing",
            "sessionId: Expected `str`, got `int`",
            "cwd: Expected",
            "mcpServers: Object missing required field `name` - at `$[0]`",
            "additionalDirectories: Expected `array`, got `str`",
            "'additionalDirectory' is no parameter",
        ):
            assert problem in error["message"]


async def test_names_with_an_underscore_are_the_callers_own(tmp_path: Path) -> None:
    async with client(tmp_path) as made:
        assert await made.call("agents/list", _meta={"trace": 1}) == []


@pytest.mark.parametrize(
    "prompt",
    ["hello", [{"type": "hidden words"}], [{"type": "text", "text": 7}], [{"type": "_unread", "value": 1}]],
)
async def test_a_malformed_prompt_is_config_invalid_and_not_quoted(tmp_path: Path, prompt: object) -> None:
    async with client(tmp_path) as made:
        error = await made.error("sessions/prompt", sessionId="s", prompt=prompt)
        assert error["code"] == "legation/config-invalid"
        assert "prompt: " in error["message"]
        assert "hidden" not in error["message"]


async def test_an_agent_definition_that_the_host_refuses_is_config_invalid(tmp_path: Path) -> None:
    async with client(tmp_path) as made:
        error = await made.error("agents/spawn", definition={"command": "", "args": "x", "env": []})
        assert error["code"] == "legation/config-invalid"
        assert all(name in error["message"] for name in ("command", "args", "env"))
        assert (await made.error("agents/spawn", definition="x"))["code"] == "legation/config-invalid"


@pytest.mark.parametrize("request_", [None, [], "agents/list", {}, {"method": "agents/list", "params": [1]}])
async def test_what_is_no_request_is_answered_all_the_same(tmp_path: Path, request_: object) -> None:
    async with client(tmp_path) as made:
        answer = carry(await made.endpoint.request(request_))
        assert answer["id"] is None
        assert answer["error"]["code"] == "legation/config-invalid"


@pytest.mark.parametrize("name", ["one", 1, None])
async def test_an_answer_has_the_id_of_its_request(tmp_path: Path, name: object) -> None:
    async with client(tmp_path) as made:
        request = carry({"id": name, "method": "agents/list"})
        assert await made.endpoint.request(request) == {"id": name, "result": []}


async def test_a_defect_is_internal_without_its_text_and_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: AcpHost) -> list[object]:
        raise ZeroDivisionError("the text of it")

    async with client(tmp_path) as made:
        monkeypatch.setattr(AcpHost, "get_agents", broken)
        with caplog.at_level(logging.ERROR):
            error = await made.error("agents/list")
        assert error["code"] == "legation/internal"
        assert "the text" not in error["message"]
        assert "the text of it" in caplog.text


@pytest.mark.parametrize(
    "error",
    [
        InvalidParams("cannot: data", {"thing": object()}),
        AgentRefused("x", RpcError(1, "x", object())),
    ],
)
async def test_data_that_is_not_plain_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: InvalidParams | AgentRefused
) -> None:
    def refuse(_: AcpHost) -> list[object]:
        raise error

    async with client(tmp_path) as made:
        monkeypatch.setattr(AcpHost, "get_agents", refuse)
        assert await made.error("agents/list") == {"code": error.code.value, "message": error.message}


# Events.


async def test_events_of_a_session_come_as_normalised_plain_data(tmp_path: Path) -> None:
    async with client(tmp_path) as made:
        session_id = await made.open(await made.spawn())
        made.endpoint.subscribe(session_id, 0, heard := Heard())
        await made.play(session_id, "say hello", "unknown-update")
        await heard.until_type("prompt-finished")
        assert [message["seq"] for message in heard.messages] == list(range(1, len(heard.messages) + 1))
        said = await heard.until_type("agent-message-chunk")
        assert set(said) <= {"seq", "at", "type", "payload", "extensions"}
        assert said["payload"]["content"] == {"type": "text", "text": "hello"}
        assert "sessionUpdate" not in said["payload"]
        unknown = await heard.until_type("unrecognized-update")
        assert "sessionUpdate" in unknown["payload"]
        finished = await heard.until_type("prompt-finished")
        assert finished["payload"]["stopReason"] == "end_turn"


async def test_a_subscription_begins_after_the_given_number(tmp_path: Path) -> None:
    async with client(tmp_path) as made:
        made.endpoint.subscribe(None, 0, everything := Heard())
        await made.spawn()
        last = await everything.until_code("agent/initialized")
        made.endpoint.subscribe(None, last["seq"] - 1, tail := Heard())
        assert await tail.until(lambda _: True) == last


async def test_nothing_comes_after_the_end_of_a_subscription(tmp_path: Path) -> None:
    async with client(tmp_path) as made:
        await made.spawn()
        heard: list[Message] = []

        def once(event: Message) -> None:
            heard.append(event)
            unsubscribe()

        unsubscribe = made.endpoint.subscribe(None, 0, once)
        made.endpoint.subscribe(None, 0, other := Heard())
        await other.until_code("agent/initialized")
        assert len(heard) == 1
        unsubscribe()


async def test_a_failing_subscriber_is_reported_and_goes_on(tmp_path: Path) -> None:
    async with client(tmp_path) as made:
        failed = Heard()

        def fail(event: Message) -> None:
            failed(event)
            raise ZeroDivisionError

        made.endpoint.subscribe(None, 0, heard := Heard())
        made.endpoint.subscribe(None, 0, fail)
        await made.spawn()
        await heard.until_code("subscriber/error")
        await heard.until_code("agent/initialized")
        await failed.until_code("agent/initialized")


@pytest.mark.parametrize(("session_id", "from_seq"), [(None, -1), (None, "1"), (None, True), (7, 0)])
async def test_an_ill_typed_subscription_is_refused_at_once(
    tmp_path: Path, session_id: object, from_seq: object
) -> None:
    async with client(tmp_path) as made:
        with pytest.raises(ConfigInvalid):
            made.endpoint.subscribe(session_id, from_seq, Heard())  # type: ignore[arg-type]


async def test_a_subscription_to_an_unknown_session_is_refused_at_once(tmp_path: Path) -> None:
    async with client(tmp_path) as made:
        with pytest.raises(NotFound):
            made.endpoint.subscribe("nowhere", 0, Heard())


@pytest.mark.parametrize(
    ("type_", "raw", "payload"),
    [
        ("turn-state", b'{"state":"idle"}', {"state": "idle"}),
        ("turn-state", b'{"n":' + str(2**80).encode() + b"}", {"n": 2**80}),
        ("turn-state", rb'{"half":"\ud800"}', {"half": "\ud800"}),
        ("turn-state", b"{torn", "{torn"),
        ("turn-state", b'{"n":NaN}', '{"n":NaN}'),
        ("from-a-later-version", b"[1]", [1]),
        ("unrecognized-update", b"\xff{", "\ufffd{"),
        ("unrecognized-update", b'{"n":1e999}', '{"n":1e999}'),
    ],
)
def test_whatever_is_stored_is_projected(type_: str, raw: bytes, payload: object) -> None:
    event = carry(project_event(Event(seq=3, at=5, type=type_, raw=raw)))
    assert event == {"seq": 3, "at": 5, "type": type_, "payload": payload}


def test_what_an_update_does_not_define_is_in_the_extensions() -> None:
    raw = json.dumps(
        {"sessionUpdate": "plan", "entries": [], "_meta": {"a": 1}, "extra": None, "title": "x"}
    ).encode()
    assert carry(project_event(Event(seq=1, at=2, type="plan", raw=raw))) == {
        "seq": 1,
        "at": 2,
        "type": "plan",
        "payload": {"entries": []},
        "extensions": {"_meta": {"a": 1}, "extra": None, "title": "x"},
    }


# The end.


async def test_a_closed_endpoint_refuses_everything_and_the_host_goes_on(tmp_path: Path) -> None:
    async with client(tmp_path) as made:
        made.endpoint.subscribe(None, 0, heard := Heard())
        await made.endpoint.close()
        await made.endpoint.close()
        assert (await made.error("agents/list"))["code"] == "legation/transport-closed"
        with pytest.raises(TransportClosed):
            made.endpoint.subscribe(None, 0, Heard())
        with pytest.raises(TransportClosed):
            made.endpoint.on_inbound(Heard())
        with pytest.raises(TransportClosed):
            made.endpoint.respond_inbound("apr_1", {"outcome": "cancelled"})
        again = create_host_endpoint(made.host)
        other = Client(again, made.host, tmp_path)
        again.subscribe(None, 0, live := Heard())
        await other.spawn()
        await live.until_code("agent/initialized")
        assert heard.messages == []
        await again.close()


async def test_an_endpoint_outlives_its_host_in_good_order(tmp_path: Path) -> None:
    async with asyncio.timeout(LIMIT):
        async with AcpHost({"data_dir": tmp_path / "data"}) as host:
            endpoint = create_host_endpoint(host)
        definition = {"command": "true"}
        answer = await endpoint.request(
            {"id": 1, "method": "agents/spawn", "params": {"definition": definition}}
        )
        assert answer["error"]["code"] == Code.CONFLICT  # type: ignore[index]
        await endpoint.close()


async def test_a_host_that_is_not_entered_has_no_endpoint() -> None:
    with pytest.raises(Conflict):
        create_host_endpoint(AcpHost())
