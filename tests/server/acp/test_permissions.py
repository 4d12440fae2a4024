"""What an agent asks: rules first, then the client and the inbox at once, and the first answer counts."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.cli.server_process import Running
from tests.server.acp.acp_server import Client, Json, connected, http_to

pytestmark = pytest.mark.heavy

ASK = "session/request_permission"
WITHDRAW = "$/cancel_request"


async def asked(client: Client, *steps: str) -> tuple[str, "asyncio.Task[Json]", Json]:
    await client.initialize()
    client.follow()
    session = await client.new()
    prompting = client.prompting(session, *steps)
    return session, prompting, await client.until(ASK)


def option(request: Json, kind: str) -> Json:
    chosen = next(each["optionId"] for each in request["params"]["options"] if each["kind"] == kind)
    return {"outcome": {"outcome": "selected", "optionId": chosen}}


async def test_a_client_allows_and_the_agent_goes_on(client: Client) -> None:
    session, prompting, request = await asked(client, "ask write a.txt hello", "say done")
    params = request["params"]
    assert params["sessionId"] == session
    assert params["toolCall"]["kind"] == "edit"
    assert params["toolCall"]["content"][0]["newText"] == "hello"
    await client.answer(request, option(request, "allow_once"))
    assert (await prompting)["result"]["stopReason"] == "end_turn"
    assert (client.work / "a.txt").read_text() == "hello"


async def test_the_tool_call_is_told_before_it_is_asked_about(client: Client) -> None:
    _, prompting, request = await asked(client, "ask write a.txt hello")
    call = request["params"]["toolCall"]["toolCallId"]
    before = client.messages[: client.messages.index(request)]
    assert any(each.get("params", {}).get("update", {}).get("toolCallId") == call for each in before)
    await client.answer(request, option(request, "reject_once"))
    await prompting


async def test_a_client_refuses_and_nothing_happens(client: Client) -> None:
    _, prompting, request = await asked(client, "ask write a.txt hello")
    await client.answer(request, option(request, "reject_once"))
    await prompting
    assert not (client.work / "a.txt").exists()


async def test_what_a_rule_decides_is_not_asked(client: Client) -> None:
    await client.initialize()
    client.follow()
    session = await client.new()
    await client.play(session, "ask run true", "say done")
    await client.until_text(session, "done")
    assert not [each for each in client.messages if each.get("method") == ASK]


async def test_the_inbox_answers_first_and_the_client_is_told_so(client: Client) -> None:
    _, prompting, request = await asked(client, "ask write a.txt hello", "say done")
    approval = request["params"]["_meta"]["legation"]["permissionId"]
    assert (await client.http.post(f"/approvals/{approval}/approve")).status_code == 200
    assert (await prompting)["result"]["stopReason"] == "end_turn"
    withdrawn = await client.until(WITHDRAW)
    assert withdrawn["params"] == {"requestId": request["id"]}
    await client.answer(request, option(request, "reject_once"))  # too late, and ignored
    assert (client.work / "a.txt").read_text() == "hello"
    assert (await client.http.get(f"/approvals/{approval}")).json()["status"] == "approved"


async def test_always_is_a_grant_for_this_session(client: Client) -> None:
    session, prompting, request = await asked(client, "ask write a.txt one")
    await client.answer(request, option(request, "allow_always"))
    await prompting
    await client.play(session, "ask write b.txt two")
    assert (client.work / "b.txt").read_text() == "two"
    assert len([each for each in client.messages if each.get("method") == ASK]) == 1
    other = await client.new()
    second = client.prompting(other, "ask write c.txt three")
    again = await client.until(ASK, 2)
    assert again["params"]["sessionId"] == other
    await client.answer(again, option(again, "reject_once"))
    await second


@pytest.mark.parametrize(
    "answer",
    [
        {"result": {"outcome": {"outcome": "cancelled"}}},
        {"error": {"code": -32601, "message": "unknown method"}},
        {"result": {"outcome": {"outcome": "selected", "optionId": "no such option"}}},
        {"result": None},
        {"result": [1, 2]},
    ],
)
async def test_a_client_that_does_not_decide_leaves_it_to_the_inbox(client: Client, answer: Json) -> None:
    _, prompting, request = await asked(client, "ask write a.txt hello")
    given = {"jsonrpc": "2.0", "id": request["id"], **answer}
    assert (await client.post(given)).status_code == 202
    approval = request["params"]["_meta"]["legation"]["permissionId"]
    assert (await client.http.get(f"/approvals/{approval}")).json()["status"] == "pending"
    await client.http.post(f"/approvals/{approval}/deny")
    await prompting
    assert not (client.work / "a.txt").exists()


async def test_a_cancelled_turn_withdraws_the_question(client: Client) -> None:
    session, prompting, request = await asked(client, "ask write a.txt hello")
    await client.notify("session/cancel", {"sessionId": session})
    assert (await prompting)["result"]["stopReason"] == "cancelled"
    assert (await client.until(WITHDRAW))["params"] == {"requestId": request["id"]}


async def test_without_a_supervisor_the_client_is_asked_at_once(client: Client) -> None:
    _, prompting, request = await asked(client, "ask something of no kind")
    await client.answer(request, option(request, "allow_once"))
    assert (await prompting)["result"]["stopReason"] == "end_turn"


async def test_two_clients_of_one_session_are_asked_and_the_first_answer_counts(
    server: Running, client: Client
) -> None:
    session, prompting, request = await asked(client, "ask write a.txt hello")
    async with connected(server, f"test-{uuid4()}", client.work) as other:
        await other.initialize()
        other.follow()
        given = {"sessionId": session, "cwd": str(client.work), "mcpServers": []}
        await other.result("session/load", given)
        theirs = await other.until(ASK)
        assert theirs["params"]["sessionId"] == session
        await other.answer(theirs, option(theirs, "allow_once"))
        assert (await prompting)["result"]["stopReason"] == "end_turn"
        assert (await client.until(WITHDRAW))["params"] == {"requestId": request["id"]}
    assert (client.work / "a.txt").read_text() == "hello"


async def test_who_may_not_approve_is_not_asked(server: Running, tmp_path: Path) -> None:
    async with http_to(server) as owner:
        made = await owner.post("/v1/tokens", json={"label": "t", "scopes": ["read", "operate"]})
        assert made.status_code == 201, made.text
        token = made.json()["secret"]
        async with http_to(server, token) as http:
            work = tmp_path / "work"
            work.mkdir()
            client = Client(http, f"test-{uuid4()}", work)
            await client.initialize()
            client.follow()
            session = await client.new()
            prompting = client.prompting(session, "ask write a.txt hello", "say done")
            approval = await _until_pending(owner)
            assert (await owner.post(f"/approvals/{approval}/approve")).status_code == 200
            await prompting
            await client.until_text(session, "done")
            assert not [each for each in client.messages if each.get("method") == ASK]
            await client.leave()
            await client.delete()


async def _until_pending(http: Any) -> str:
    async with asyncio.timeout(30):
        while not (found := (await http.get("/approvals?status=pending")).json()):
            await asyncio.sleep(0.02)  # the timeout bounds it
    return str(found[0]["id"])


async def test_a_form_is_filled_in_by_the_client(client: Client) -> None:
    await client.initialize(elicitation={"form": {}})
    client.follow()
    session = await client.new()
    prompting = client.prompting(session, "elicit What colour?")
    request = await client.until("elicitation/create")
    assert request["params"]["message"] == "What colour?"
    names = list(request["params"]["requestedSchema"]["properties"])
    await client.answer(request, {"action": "accept", "content": {names[0]: "blue"}})
    assert (await prompting)["result"]["stopReason"] == "end_turn"
    await client.until_text(session, "blue")


async def test_a_client_without_forms_is_not_asked_to_fill_one_in(client: Client) -> None:
    await client.initialize()
    client.follow()
    session = await client.new()
    prompting = client.prompting(session, "say asking", "elicit What colour?")
    await client.until_text(session, "asking")
    await client.notify("session/cancel", {"sessionId": session})
    await prompting
    assert not [each for each in client.messages if each.get("method") == "elicitation/create"]
