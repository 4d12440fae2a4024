"""A session that a client of ACP opened is a session like any other: seen, read and spoken to over /v1/sessions."""

import asyncio

import pytest
from tests.cli.cli import rehearse
from tests.server.acp.acp_server import Client

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
    assert (await client.play(session, "say here"))["stopReason"] == "end_turn"


async def test_it_goes_on_there_after_the_client_has_gone(client: Client) -> None:
    await client.initialize()
    session = await client.new()
    await client.play(session, "say hello")
    await client.delete()
    async with asyncio.timeout(30):
        while (await client.http.get(f"/v1/sessions/{session}")).json()["status"] == "active":
            await asyncio.sleep(0.02)  # the agent ends after the answer; bounded
    body = {"message": rehearse("recall")}
    async with client.http.stream(
        "POST", f"/v1/sessions/{session}/messages/stream", json=body, timeout=60
    ) as turn:
        told = (await turn.aread()).decode()
    assert "prompts before this one: 1" in told


async def test_one_that_was_ended_there_is_over_here(client: Client) -> None:
    await client.initialize()
    session = await client.new()
    assert (await client.http.post(f"/v1/sessions/{session}/terminate")).status_code == 204
    refused = await client.call("session/prompt", {"sessionId": session, "prompt": []})
    assert "error" in refused
    other = await client.new()
    assert (await client.play(other, "say on"))["stopReason"] == "end_turn"
