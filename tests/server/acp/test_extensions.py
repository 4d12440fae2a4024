"""Messages that no protocol names (`_vendor/...`): between an agent and the clients of its sessions."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import uuid4

import pytest
from tests.cli.server_process import Running
from tests.server.acp.acp_server import Client, Json, connected

NOTE, ASK, CANCEL = "_rehearsal/note", "_rehearsal/ask", "$/cancel_request"

pytestmark = pytest.mark.heavy


async def refuse(client: Client, request: Json, **error: object) -> None:
    response = await client.post({"jsonrpc": "2.0", "id": request["id"], "error": error})
    assert response.status_code == 202


def answered(client: Client, session: str) -> object:
    return client.text(session).removeprefix("answered: ")


async def test_a_notification_of_an_agent_reaches_its_client_in_its_place(client: Client) -> None:
    client.follow()
    await client.initialize()
    session = await client.new()
    await client.play(session, "say before", "vendor-note hello", "say after")
    note = await client.until(NOTE)
    assert note["params"] == {"sessionId": session, "text": "hello"}
    assert "id" not in note
    order = [
        message["params"]["update"]["content"]["text"] if message["method"] == "session/update" else "note"
        for message in client.messages
        if message.get("method") == NOTE
        or message.get("params", {}).get("update", {}).get("sessionUpdate") == "agent_message_chunk"
    ]
    assert "".join(order).replace(" ", "") == "beforenoteafter"


async def test_a_clients_answer_reaches_the_agent(client: Client) -> None:
    client.follow()
    await client.initialize()
    session = await client.new()
    turn = client.prompting(session, "vendor-ask which")
    asked = await client.until(ASK)
    assert asked["params"] == {"sessionId": session, "text": "which"}
    await client.answer(asked, {"this": [1, None]})
    assert (await turn)["result"]["stopReason"] == "end_turn"
    assert answered(client, session) == '{"this": [1, null]}'


async def test_a_clients_error_reaches_the_agent_whole(client: Client) -> None:
    client.follow()
    await client.initialize()
    session = await client.new()
    turn = client.prompting(session, "vendor-ask which")
    await refuse(client, await client.until(ASK), code=-32050, message="no", data={"why": 7})
    await turn
    said = str(answered(client, session)).removeprefix("error ")
    assert json.loads(said) == {"code": -32050, "message": "no", "data": {"why": 7}}


async def test_the_first_answer_counts_and_the_others_are_told(
    client: Client, server: Running, tmp_path: Path
) -> None:
    client.follow()
    await client.initialize()
    session = await client.new()
    where = {"sessionId": session, "cwd": str(client.work), "mcpServers": []}
    async with (
        connected(server, f"test-{uuid4()}", tmp_path / "work") as second,
        connected(server, f"test-{uuid4()}", tmp_path / "work") as third,
    ):
        for other in (second, third):
            other.follow()
            await other.initialize()
            await other.result("session/resume", where)
        turn = client.prompting(session, "vendor-ask which")
        # One that does not know the method has not answered for the others.
        await refuse(third, await third.until(ASK), code=-32601, message="what?")
        asked = await client.until(ASK)
        await second.answer(await second.until(ASK), "second")
        await turn
        assert answered(client, session) == '"second"'
        withdrawn = await client.until(CANCEL)
        assert withdrawn["params"] == {"requestId": asked["id"]}
        assert not [each for each in second.messages if each.get("method") == CANCEL]


async def test_what_no_client_knows_is_refused_in_the_clients_words(client: Client) -> None:
    client.follow()
    await client.initialize()
    session = await client.new()
    turn = client.prompting(session, "vendor-ask which")
    await refuse(client, await client.until(ASK), code=-32601, message="what?")
    await turn
    assert '"code": -32601' in str(answered(client, session))


async def test_a_request_is_taken_back_when_its_turn_is_cancelled(client: Client) -> None:
    client.follow()
    await client.initialize()
    session = await client.new()
    turn = client.prompting(session, "vendor-ask which")
    asked = await client.until(ASK)
    await client.notify("session/cancel", {"sessionId": session})
    assert (await client.until(CANCEL))["params"] == {"requestId": asked["id"]}
    assert (await turn)["result"]["stopReason"] == "cancelled"
