import os
from pathlib import Path
from typing import Any

import pytest
from tests.agents.rehearsal.conftest import StartAgent
from tests.agents.rehearsal.raw_client import WAIT, RawClient, choose, script

pytestmark = pytest.mark.heavy  # a process or more for each test


def code(answer: dict[str, Any]) -> int:
    return int(answer["error"]["code"])


def test_initialize_tells_what_the_agent_can_do(client: RawClient) -> None:
    result = client.call("initialize", {"protocolVersion": 7}).answer["result"]
    capabilities = result["agentCapabilities"]
    assert result["protocolVersion"] == 1
    assert capabilities["loadSession"] is True
    assert set(capabilities["sessionCapabilities"]) == {"list", "resume", "close", "delete"}
    assert capabilities["promptCapabilities"]["embeddedContext"] is True
    assert [method["id"] for method in result["authMethods"]] == ["rehearsal-login"]


def test_nothing_is_done_before_initialize(client: RawClient, work: Path) -> None:
    answer = client.call("session/new", {"cwd": str(work), "mcpServers": []}).answer
    assert code(answer) == -32600
    assert "initialize first" in answer["error"]["message"]


@pytest.mark.parametrize("line", [b"hello", b'{"a": NaN}', b"\xff\xfe", b"[" * 100_000])
def test_a_line_that_is_no_json_is_a_parse_error_and_the_agent_goes_on(
    client: RawClient, line: bytes
) -> None:
    client.write(line + b"\n")
    assert client.read() == {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": -32700, "message": "cannot parse the line as JSON"},
    }
    assert client.call("initialize", {"protocolVersion": 1}).answer["result"]["protocolVersion"] == 1


@pytest.mark.parametrize("line", [b"[]", b"7", b"{}", b'{"jsonrpc":"1.0","id":1,"method":"initialize"}'])
def test_json_that_is_no_message_is_an_invalid_request(client: RawClient, line: bytes) -> None:
    client.write(line + b"\n\n  \n")
    assert code(client.read()) == -32600


def test_unknown_methods_are_refused_and_unknown_notifications_ignored(client: RawClient, work: Path) -> None:
    client.open(work)
    client.send(method="_rehearsal/whatever", params={})
    client.send(id=999, result={})  # an answer to nothing
    assert code(client.call("session/fork").answer) == -32601
    assert code(client.call("_vendor/thing").answer) == -32601


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("initialize", {"protocolVersion": "1"}),
        ("authenticate", {"methodId": "other"}),
        ("session/new", {"cwd": "relative", "mcpServers": []}),
        ("session/new", {"cwd": "/no/such/folder", "mcpServers": []}),
        ("session/new", {"cwd": "/"}),
        ("session/new", {"cwd": "/", "mcpServers": [{"name": "x"}]}),
        ("session/new", {"cwd": "/", "mcpServers": [{"type": "sse", "name": "x", "url": "", "headers": []}]}),
        ("session/new", {"cwd": "/", "mcpServers": [], "additionalDirectories": ["/tmp"]}),
        ("session/load", {"sessionId": "../../etc", "cwd": "/", "mcpServers": []}),
        ("session/list", {"cursor": "what?"}),
        ("session/set_mode", {"sessionId": "SESSION", "modeId": "wild"}),
        ("session/set_config_option", {"sessionId": "SESSION", "configId": "model", "value": "gpt"}),
        ("session/set_config_option", {"sessionId": "SESSION", "configId": "colour", "value": "red"}),
        ("session/prompt", {"sessionId": "SESSION", "prompt": []}),
        ("session/prompt", {"sessionId": "SESSION", "prompt": "hi"}),
        (
            "session/prompt",
            {"sessionId": "SESSION", "prompt": [{"type": "audio", "data": "", "mimeType": "x"}]},
        ),
        ("session/prompt", {"sessionId": "SESSION", "prompt": [{"type": "text"}]}),
        ("session/prompt", [1]),
    ],
)
def test_wrong_params_are_invalid_params(client: RawClient, work: Path, method: str, params: Any) -> None:
    session = client.open(work)
    if isinstance(params, dict):
        params = {name: session if value == "SESSION" else value for name, value in params.items()}
    answer = client.call(method, params).answer
    assert code(answer) == -32602
    assert answer["error"]["message"].startswith("cannot read params")


def test_sessions_need_authentication_when_it_is_required(start_agent: StartAgent, work: Path) -> None:
    client = start_agent("--require-auth")
    client.call("initialize", {"protocolVersion": 1})
    new = {"cwd": str(work), "mcpServers": []}
    assert code(client.call("session/new", new).answer) == -32000
    assert client.call("authenticate", {"methodId": "rehearsal-login"}).answer["result"] == {}
    assert "sessionId" in client.call("session/new", new).answer["result"]
    client.call("logout")
    assert code(client.call("session/new", new).answer) == -32000


def test_a_session_of_another_process_is_loaded_with_its_whole_history(
    start_agent: StartAgent, work: Path
) -> None:
    first = start_agent()
    session = first.open(work)
    one = first.play(session, "say one", "flood 3 12")
    two = first.play(session, "recall", "write a.txt hello")
    assert two.text == "prompts before this one: 1"
    assert first.close() == 0

    second = start_agent()
    second.open(work)
    loaded = second.call("session/load", {"sessionId": session, "cwd": str(work), "mcpServers": []})
    told = [update for update in loaded.updates if update["sessionUpdate"] != "user_message_chunk"]
    assert told == one.updates + two.updates
    assert len(loaded.of("user_message_chunk")) == 2
    assert loaded.answer["result"]["modes"]["currentModeId"] == "default"
    assert second.play(session, "recall").text == "prompts before this one: 2"


def test_a_history_torn_by_a_crash_is_told_up_to_there(
    start_agent: StartAgent, work: Path, home: Path
) -> None:
    first = start_agent()
    session = first.open(work)
    first.play(session, "say one")
    first.close()
    history = home / ".rehearsal" / "sessions" / session / "history.jsonl"
    history.write_bytes(history.read_bytes() + b'{"update": {"sess')

    second = start_agent()
    second.open(work)
    opening = {"sessionId": session, "cwd": str(work), "mcpServers": []}
    assert second.call("session/load", opening).text == "one"
    second.play(session, "say two")
    assert second.call("session/load", opening).text == "onetwo"


def test_resume_goes_on_without_a_replay(start_agent: StartAgent, work: Path) -> None:
    first = start_agent()
    session = first.open(work)
    first.play(session, "say one", "mode plan")
    first.close()
    second = start_agent()
    second.open(work)
    resumed = second.call("session/resume", {"sessionId": session, "cwd": str(work)})
    assert resumed.updates == []
    assert resumed.answer["result"]["modes"]["currentModeId"] == "plan"
    assert second.play(session, "say two").text == "two"


def test_list_is_paged_and_filtered_by_folder(client: RawClient, work: Path, home: Path) -> None:
    client.open(work)
    sessions = {client.new(work) for _ in range(24)}
    elsewhere = client.new(home)
    first = client.call("session/list").answer["result"]
    second = client.call("session/list", {"cursor": first["nextCursor"]}).answer["result"]
    listed = [entry["sessionId"] for entry in first["sessions"] + second["sessions"]]
    assert len(listed) == len(set(listed)) == 26
    assert sessions < set(listed)
    assert "nextCursor" not in second
    only = client.call("session/list", {"cwd": str(home)}).answer["result"]["sessions"]
    assert [entry["sessionId"] for entry in only] == [elsewhere]
    assert only[0]["updatedAt"].endswith("Z")


def test_a_session_is_named_after_its_first_prompt_until_it_names_itself(
    client: RawClient, work: Path
) -> None:
    session = client.open(work)
    client.prompt(session, "Fix the bug\nplease")
    assert client.call("session/list").answer["result"]["sessions"][0]["title"] == "Fix the bug"
    client.play(session, "title A better name")
    assert client.call("session/list").answer["result"]["sessions"][0]["title"] == "A better name"


def test_close_cancels_the_turn_and_keeps_the_session(client: RawClient, work: Path) -> None:
    session = client.open(work)
    prompt = client.start(session, "say on", "stall 60")
    client.until(prompt, stop=lambda message: "update" in message.get("params", {}))
    closing = client.ask("session/close", {"sessionId": session})
    assert client.until(prompt).stop == "cancelled"
    assert client.until(closing).answer["result"] == {}
    assert code(client.play(session, "say hi").answer) == -32002
    assert client.call("session/resume", {"sessionId": session, "cwd": str(work)}).answer["result"]


def test_delete_is_idempotent_and_final(client: RawClient, work: Path) -> None:
    session = client.open(work)
    client.play(session, "say hi")
    for _ in range(2):
        assert client.call("session/delete", {"sessionId": session}).answer["result"] == {}
    assert client.call("session/list").answer["result"]["sessions"] == []
    opening = {"sessionId": session, "cwd": str(work), "mcpServers": []}
    assert code(client.call("session/load", opening).answer) == -32002


def test_modes_and_options_are_set_and_remembered(client: RawClient, work: Path) -> None:
    session = client.open(work)
    assert client.call("session/set_mode", {"sessionId": session, "modeId": "bypass"}).answer["result"] == {}
    option = {"sessionId": session, "configId": "thoughts", "type": "boolean", "value": False}
    options = client.call("session/set_config_option", option).answer["result"]["configOptions"]
    assert {entry["id"]: entry["currentValue"] for entry in options} == {
        "model": "rehearsal-steady",
        "thoughts": False,
    }
    assert client.play(session, "think nothing", "say but words").of("agent_thought_chunk") == []
    resumed = client.call("session/resume", {"sessionId": session, "cwd": str(work)}).answer["result"]
    assert resumed["modes"]["currentModeId"] == "bypass"


def test_boolean_options_are_kept_from_a_client_that_does_not_know_them(
    client: RawClient, work: Path
) -> None:
    client.open(work, capabilities={})
    result = client.call("session/new", {"cwd": str(work), "mcpServers": []}).answer["result"]
    assert [option["type"] for option in result["configOptions"]] == ["select"]


def test_sessions_take_turns_side_by_side_but_one_prompt_each(client: RawClient, work: Path) -> None:
    one = client.open(work)
    two = client.new(work)
    waiting = client.start(one, "say on", "stall 60")
    client.until(waiting, stop=lambda message: "update" in message.get("params", {}))
    assert client.play(two, "say meanwhile").text == "meanwhile"
    assert code(client.play(one, "say me too").answer) == -32600
    opening = {"sessionId": one, "cwd": str(work), "mcpServers": []}
    assert code(client.call("session/load", opening).answer) == -32600
    client.send(method="session/cancel", params={"sessionId": one})
    assert client.until(waiting).stop == "cancelled"
    assert client.play(one, "say now").stop == "end_turn"


def test_cancel_waits_for_the_answer_to_an_open_permission(client: RawClient, work: Path) -> None:
    session = client.open(work)
    prompt = client.start(session, "ask write a.txt x", "say never")
    asked = client.until(prompt, stop=lambda message: "id" in message)
    client.send(method="session/cancel", params={"sessionId": session})
    client.send(id=asked.requests[0]["id"], result={"outcome": {"outcome": "cancelled"}})
    ended = client.until(prompt)
    assert ended.stop == "cancelled"
    assert ended.requests == []
    assert ended.statuses() == ["failed"]
    assert not (work / "a.txt").exists()


@pytest.mark.heavy
def test_a_permission_that_is_never_answered_is_withdrawn_after_a_cancel(
    client: RawClient, work: Path
) -> None:
    session = client.open(work)
    prompt = client.start(session, "ask something")
    asked = client.until(prompt, stop=lambda message: "id" in message)
    client.send(method="session/cancel", params={"sessionId": session})
    ended = client.until(prompt, stop=lambda message: message.get("method") == "$/cancel_request")
    assert ended.requests[0]["params"] == {"requestId": asked.requests[0]["id"]}
    client.send(id=asked.requests[0]["id"], error={"code": -32800, "message": "cancelled"})
    assert client.until(prompt).stop == "cancelled"


def test_cancel_request_ends_the_prompt_with_an_error(client: RawClient, work: Path) -> None:
    session = client.open(work)
    prompt = client.start(session, "say on", "stall 60")
    client.until(prompt, stop=lambda message: "update" in message.get("params", {}))
    client.send(method="$/cancel_request", params={"requestId": prompt})
    assert code(client.until(prompt).answer) == -32800


def test_a_cancel_with_no_turn_does_not_reach_the_next_one(client: RawClient, work: Path) -> None:
    session = client.open(work)
    client.send(method="session/cancel", params={"sessionId": session})
    assert client.play(session, "say fine").stop == "end_turn"


def test_early_updates_come_before_the_session_is_known(start_agent: StartAgent, work: Path) -> None:
    client = start_agent("--early")
    client.call("initialize", {"protocolVersion": 1})
    played = client.call("session/new", {"cwd": str(work), "mcpServers": []})
    assert [update["sessionUpdate"] for update in played.updates] == [
        "available_commands_update",
        "agent_message_chunk",
    ]


def test_every_kind_of_content_is_taken(client: RawClient, work: Path) -> None:
    session = client.open(work)
    blocks = [
        *script("say seen"),
        {"type": "image", "data": "", "mimeType": "image/png"},
        {"type": "resource_link", "name": "a", "uri": "file:///a"},
        {"type": "resource", "resource": {"uri": "file:///b", "text": "b"}},
    ]
    assert client.call("session/prompt", {"sessionId": session, "prompt": blocks}).text == "seen"


def test_the_agent_leaves_when_its_input_ends_and_takes_its_command_along(
    client: RawClient, work: Path
) -> None:
    session = client.open(work)
    os.mkfifo(work / "pid")
    client.start(session, "run echo $$ > pid; exec sleep 60")
    pid = int((work / "pid").read_text())
    client.end_input()
    assert client.process.wait(WAIT) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_an_always_answer_is_remembered_for_the_session(client: RawClient, work: Path) -> None:
    session = client.open(work)
    client.handlers["session/request_permission"] = choose("allow-always")
    played = client.play(session, "ask write a.txt 1", "ask write b.txt 2")
    assert len(played.requests) == 1
    assert (work / "b.txt").read_text() == "2"


def test_a_state_folder_that_cannot_be_written_is_an_error_and_not_a_silence(
    start_agent: StartAgent, work: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    client = start_agent("--state", str(tmp_path / "file"))
    client.call("initialize", {"protocolVersion": 1})
    answer = client.call("session/new", {"cwd": str(work), "mcpServers": []}).answer
    assert code(answer) == -32603
    assert "--state" in answer["error"]["message"]


def test_a_request_id_may_be_used_again(client: RawClient, work: Path) -> None:
    session = client.open(work)
    for number in range(20):
        params = {"sessionId": session, "prompt": script(f"say {number}")}
        client.send(id=7, method="session/prompt", params=params)
        assert client.until(7).text == str(number)
    client.send(id=7, method="session/prompt", params={"sessionId": session, "prompt": script("stall 60")})
    client.send(method="$/cancel_request", params={"requestId": 7})
    assert code(client.until(7).answer) == -32800


def test_the_agent_starts_on_little_cpu(start_agent: StartAgent) -> None:
    start_agent().close()  # compiled modules are there from now on
    before = os.times()
    client = start_agent()
    client.call("initialize", {"protocolVersion": 1})
    client.close()
    after = os.times()
    used = (after.children_user - before.children_user) + (after.children_system - before.children_system)
    assert used < 0.5  # aimed at 0.15, measured about 0.1; the rest is for a noisy machine
