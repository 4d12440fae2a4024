"""A session that a client of ACP opened is a session like any other: seen, read and spoken to over /v1/sessions."""

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest
from tests.cli.command import rehearse
from tests.cli.server_process import Running
from tests.server.acp.acp_server import LIMIT, Client, Json, connected

pytestmark = pytest.mark.heavy


async def test_it_is_listed_and_its_events_are_read(client: Client) -> None:
    await client.initialize()
    session = await client.new()
    await client.play(session, "say hello")
    listed = (await client.http.get("/v1/sessions")).json()["sessions"]
    found = next(each for each in listed if each["sessionId"] == session)
    assert (found["agent"], found["status"], found["ended"]) == ("rehearsal", "active", False)
    events = (await client.http.get(f"/v1/sessions/{session}/events")).json()["events"]
    assert {"session.started", "item.completed"} <= {each["type"] for each in events}


async def test_what_is_sent_there_is_told_to_the_client(client: Client) -> None:
    await client.initialize()
    client.follow()
    session = await client.new()
    body = {"message": rehearse("say from elsewhere")}
    assert (await client.http.post(f"/v1/sessions/{session}/messages", json=body)).status_code == 204
    await client.until_text(session, "from elsewhere")
    async with asyncio.timeout(LIMIT):
        while (await client.http.get(f"/v1/sessions/{session}")).json()["busy"]:
            await asyncio.sleep(0.02)
    assert (await client.play(session, "say here"))["stopReason"] == "end_turn"


async def test_what_is_sent_there_waits_for_the_turn_of_the_client(client: Client) -> None:
    await client.initialize()
    client.follow()
    session = await client.new()
    turn = client.prompting(session, "ask write a.txt x", "say of the client")
    asked = await client.until("session/request_permission")
    body, told = {"message": rehearse("say from elsewhere")}, b""
    path = f"/v1/sessions/{session}/messages/stream"
    async with client.http.stream("POST", path, json=body, timeout=LIMIT) as answer:
        async for chunk in answer.aiter_raw():
            if not told:  # it is accepted, and the client's turn runs
                options = {each["kind"]: each["optionId"] for each in asked["params"]["options"]}
                chosen = {"outcome": "selected", "optionId": options["allow_once"]}
                await client.answer(asked, {"outcome": chosen})
            told += chunk
    assert (await turn)["result"]["stopReason"] == "end_turn"
    assert b"from elsewhere" in told
    assert b"of the client" not in told


async def test_it_goes_on_there_after_the_client_has_gone(client: Client) -> None:
    await client.initialize()
    session = await client.new()
    await client.play(session, "say hello")
    await client.delete()  # its agent ends after the answer; what is sent meanwhile is for the next one
    body = {"message": rehearse("recall")}
    async with client.http.stream(
        "POST", f"/v1/sessions/{session}/messages/stream", json=body, timeout=60
    ) as turn:
        told = (await turn.aread()).decode()
    assert "prompts before this one: 1" in told


async def test_it_goes_on_with_another_client_as_soon_as_the_one_that_began_it_has_gone(
    server: Running, client: Client, tmp_path: Path
) -> None:
    await client.initialize()
    session = await client.new()
    await client.play(session, "say hello")
    async with connected(server, f"other-{uuid4()}", tmp_path / "work") as other:
        await other.initialize()
        await other.result("session/load", {"sessionId": session, "cwd": str(client.work), "mcpServers": []})
        other.follow()
        await client.delete()
        assert (await other.play(session, "recall"))["stopReason"] == "end_turn"
        await other.until_text(session, "prompts before this one: 1")


async def test_one_that_was_ended_there_is_over_here(client: Client) -> None:
    await client.initialize()
    session = await client.new()
    assert (await client.http.post(f"/v1/sessions/{session}/terminate")).status_code == 204
    refused = await client.call("session/prompt", {"sessionId": session, "prompt": []})
    assert "error" in refused
    other = await client.new()
    assert (await client.play(other, "say on"))["stopReason"] == "end_turn"


async def until_grants(client: Client, session: str, *, active: bool) -> None:
    async with asyncio.timeout(LIMIT):
        while [each["active"] for each in await grants_of(client, session)] != [active]:
            await asyncio.sleep(0.02)  # it is ended after the answer; bounded


async def grants_of(client: Client, session: str) -> list[Json]:
    found = (await client.http.get("/grants")).json()
    return [each for each in found if each["reason"] == f"permissionMode bypass of session {session}"]


async def test_one_that_is_closed_here_is_over_there(client: Client) -> None:
    """With what was granted to it; and the agent goes on for the other sessions of the client."""
    await client.initialize()
    session, other = await client.new(), await client.new()
    path = f"/v1/sessions/{session}"
    changed = await client.http.patch(path, json={"permissionMode": "bypass"}, timeout=LIMIT)
    assert changed.json()["permissionMode"] == "bypass", changed.text
    await client.result("session/close", {"sessionId": session})
    found = (await client.http.get(path)).json()
    assert (found["status"], found["ended"]) == ("closed", True)
    sent = await client.http.post(f"{path}/messages", json={"message": rehearse("say no")})
    assert (sent.status_code, "may load it again" in sent.json()["detail"]) == (410, True)
    await until_grants(client, session, active=False)
    assert (await client.http.get(path)).json()["permissionMode"] == "default"
    assert (await client.http.post(f"{path}/terminate")).status_code == 204
    playing = await client.http.get(f"/v1/sessions/{other}")
    assert playing.json()["status"] == "active"


async def test_one_that_is_deleted_here_is_gone_there(client: Client) -> None:
    await client.initialize()
    session = await client.new()
    await client.play(session, "say hello")
    changed = await client.http.patch(
        f"/v1/sessions/{session}", json={"permissionMode": "bypass"}, timeout=LIMIT
    )
    assert changed.status_code == 200, changed.text
    await client.result("session/delete", {"sessionId": session})
    listed = (await client.http.get("/v1/sessions")).json()["sessions"]
    assert session not in [each["sessionId"] for each in listed]
    for path in (f"/v1/sessions/{session}", f"/v1/sessions/{session}/events"):
        assert (await client.http.get(path)).status_code == 404
    await until_grants(client, session, active=False)


async def test_ending_one_there_leaves_the_agent_of_the_others_alone(client: Client) -> None:
    await client.initialize()
    client.follow()
    session, other = await client.new(), await client.new()
    playing = client.prompting(other, "say begun", "stall 2", "say ended")
    await client.until_text(other, "begun")
    assert (await client.http.post(f"/v1/sessions/{session}/terminate")).status_code == 204
    assert (await playing)["result"]["stopReason"] == "end_turn"
    assert client.text(other) == "begunended"
