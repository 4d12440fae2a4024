"""Legation as an ACP agent: every method, with the real rehearsal agent behind a real server."""

import pytest
from tests.server.acp.acp_server import Client

pytestmark = pytest.mark.heavy


async def test_it_offers_what_the_agent_can_and_what_our_log_can(client: Client) -> None:
    hello = await client.initialize()
    assert hello["protocolVersion"] == 1
    assert hello["agentInfo"]["name"] == "legation"
    assert hello["agentCapabilities"]["loadSession"] is True
    assert hello["agentCapabilities"]["promptCapabilities"]["image"] is True
    assert set(hello["agentCapabilities"]["sessionCapabilities"]) >= {"list", "resume", "close", "delete"}
    assert [method["id"] for method in hello["authMethods"]] == ["rehearsal-login"]


async def test_a_prompt_streams_its_updates_before_its_answer(client: Client) -> None:
    await client.initialize()
    client.follow()
    session = await client.new()
    answer = await client.play(session, "say one two three", "unknown-update", "say four")
    assert answer["stopReason"] == "end_turn"
    await client.until_text(session, "four")
    assert client.text(session) == "one two threefour"
    await client.hears(lambda: "stopReason" in client.messages[-1].get("result", {}))  # after all of them
    assert [number for number, _ in client.heard] == sorted({number for number, _ in client.heard})


async def test_a_new_session_names_its_modes_and_options(client: Client) -> None:
    await client.initialize()
    made = await client.result("session/new", {"cwd": str(client.work), "mcpServers": []})
    assert made["sessionId"].startswith("ses_")
    assert made["modes"]["currentModeId"] in [mode["id"] for mode in made["modes"]["availableModes"]]
    assert made["configOptions"][0]["id"] == "model"


async def test_modes_and_options_are_set(client: Client) -> None:
    client.follow()
    await client.initialize()
    made = await client.result("session/new", {"cwd": str(client.work), "mcpServers": []})
    session = made["sessionId"]
    other = [
        mode["id"] for mode in made["modes"]["availableModes"] if mode["id"] != made["modes"]["currentModeId"]
    ]
    assert await client.result("session/set_mode", {"sessionId": session, "modeId": other[0]}) == {}
    model = made["configOptions"][0]
    value = next(each["value"] for each in model["options"] if each["value"] != model["currentValue"])
    given = {"sessionId": session, "configId": "model", "value": value}
    options = (await client.result("session/set_config_option", given))["configOptions"]
    assert options[0]["currentValue"] == value
    again = await client.result(
        "session/resume", {"sessionId": session, "cwd": str(client.work), "mcpServers": []}
    )
    assert again["modes"]["currentModeId"] == other[0]
    assert again["configOptions"][0]["currentValue"] == value
    # A client that did not choose hears of it as the agent's updates would tell it.
    await client.hears(lambda: len(client.updates(session)) >= 2)
    mode, chosen = client.updates(session)
    assert (mode["sessionUpdate"], mode["currentModeId"]) == ("current_mode_update", other[0])
    assert mode["availableModes"] == made["modes"]["availableModes"]
    assert chosen["sessionUpdate"] == "config_option_update"
    assert chosen["configOptions"][0]["currentValue"] == value


async def test_a_mode_in_which_the_agent_does_not_ask_is_refused(client: Client) -> None:
    await client.initialize()
    session = await client.new()
    refused = await client.call("session/set_mode", {"sessionId": session, "modeId": "bypassPermissions"})
    assert refused["error"]["data"]["code"] == "legation/forbidden"


async def test_a_session_is_loaded_with_all_that_was_said_in_it(client: Client) -> None:
    await client.initialize()
    session = await client.new()
    await client.play(session, "say the first answer")
    await client.play(session, "say the second answer")
    client.follow()
    await client.result("session/load", {"sessionId": session, "cwd": str(client.work), "mcpServers": []})
    await client.until_text(session, "the first answerthe second answer")

    def told() -> int:
        kinds = [update["sessionUpdate"] for update in client.updates(session)]
        return kinds.count("user_message_chunk")

    await client.hears(lambda: told() >= 2)  # live they were not told: the client said them


async def test_loading_tells_the_history_before_the_answer(client: Client) -> None:
    await client.initialize()
    session = await client.new()
    await client.play(session, "say hello")
    client.follow()
    await client.until_text(session, "hello")
    heard = len(client.messages)
    await client.result("session/load", {"sessionId": session, "cwd": str(client.work), "mcpServers": []})
    await client.hears(lambda: any("modes" in each.get("result", {}) for each in client.messages[heard:]))
    told = client.messages[heard:]
    assert "modes" in told[-1]["result"]
    assert {message.get("method") for message in told[:-1]} == {"session/update"}


async def test_sessions_are_listed_by_folder_closed_and_deleted(client: Client) -> None:
    await client.initialize()
    first, second = await client.new(), await client.new()
    listed = await client.result("session/list", {"cwd": str(client.work)})
    assert {each["sessionId"] for each in listed["sessions"]} == {first, second}
    assert await client.result("session/close", {"sessionId": first}) == {}
    closed = await client.call("session/prompt", {"sessionId": first, "prompt": []})
    assert (closed["error"]["code"], closed["error"]["data"]["code"]) == (-32600, "legation/session-closed")
    assert await client.result("session/delete", {"sessionId": second}) == {}
    assert await client.result("session/delete", {"sessionId": second}) == {}
    listed = await client.result("session/list", {"cwd": str(client.work)})
    assert second not in {each["sessionId"] for each in listed["sessions"]}
    gone = await client.call("session/load", {"sessionId": second, "cwd": str(client.work), "mcpServers": []})
    assert (gone["error"]["code"], gone["error"]["data"]["code"]) == (-32002, "legation/not-found")


async def test_a_turn_is_cancelled(client: Client) -> None:
    await client.initialize()
    client.follow()
    session = await client.new()
    prompting = client.prompting(session, "say going", "stall 60")
    await client.until_text(session, "going")
    await client.notify("session/cancel", {"sessionId": session})
    assert (await prompting)["result"]["stopReason"] == "cancelled"
    assert (await client.play(session, "say still here"))["stopReason"] == "end_turn"


async def test_cancelling_the_request_cancels_the_turn(client: Client) -> None:
    await client.initialize()
    client.follow()
    session = await client.new()
    prompting = client.prompting(session, "say going", "stall 60")
    await client.until_text(session, "going")
    number = max(message["id"] for message in client.messages if isinstance(message.get("id"), int)) + 1
    await client.notify("$/cancel_request", {"requestId": number})
    assert (await prompting)["result"]["stopReason"] == "cancelled"


async def test_a_second_prompt_is_refused_while_the_first_runs(client: Client) -> None:
    await client.initialize()
    client.follow()
    session = await client.new()
    prompting = client.prompting(session, "say going", "stall 60")
    await client.until_text(session, "going")
    refused = await client.call("session/prompt", {"sessionId": session, "prompt": []})
    assert refused["error"]["code"] == -32600
    await client.notify("session/cancel", {"sessionId": session})
    await prompting


async def test_an_error_of_the_agent_is_passed_on_as_it_is(client: Client) -> None:
    await client.initialize()
    session = await client.new()
    answer = await client.prompting(session, "error -32077 out of luck")
    assert (answer["error"]["code"], answer["error"]["message"]) == (-32077, "out of luck")


async def test_methods_that_we_do_not_know_are_asked_of_the_agent(client: Client) -> None:
    await client.initialize()
    session = await client.new()
    answer = await client.call("_vendor/thing", {"sessionId": session})
    assert answer["error"]["code"] == -32601
    assert answer["error"]["message"] == "cannot find method _vendor/thing"  # the agent's own words


async def test_bad_parameters_are_told_by_name(client: Client) -> None:
    await client.initialize()
    session = await client.new()
    for method, params in (
        ("session/new", {}),
        ("session/new", {"cwd": "relative"}),
        ("session/prompt", {"sessionId": session, "prompt": "text"}),
        ("session/prompt", {"sessionId": "server", "prompt": []}),
        ("session/load", {"sessionId": "../x", "cwd": str(client.work)}),
        ("session/set_mode", {"sessionId": session}),
    ):
        refused = await client.call(method, params)
        assert refused["error"]["code"] == -32602, refused
    unknown = await client.call("session/prompt", {"sessionId": "ses_unknown", "prompt": []})
    assert unknown["error"]["code"] == -32002


async def test_parameters_that_nothing_can_hold_are_no_defect_of_ours(client: Client) -> None:
    await client.initialize()
    deep = "[" * 5000 + "]" * 5000
    body = f'{{"jsonrpc":"2.0","id":1,"method":"_vendor/thing","params":{deep}}}'
    headers = {"content-type": "application/json"}
    answer = await client.http.post(client.path, content=body, headers=headers)
    assert answer.json()["error"]["code"] == -32602, answer.text


async def test_an_agent_that_wants_a_sign_in_gets_it(client: Client) -> None:
    await client.initialize()
    assert await client.result("authenticate", {"methodId": "rehearsal-login"}) == {}
    refused = await client.call("authenticate", {"methodId": "another"})
    assert refused["error"]["code"] == -32602
    assert await client.result("logout", {}) == {}
