"""What one client can make the server hold: connections, requests, notifications, names of sessions."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from tests.server.sessions.session_client import SessionClient, open_session_client

from legation.agents import acp as agents
from legation.errors import Unavailable
from legation.server.acp import connection, connections
from legation.server.acp.connection import AcpConnection

pytestmark = pytest.mark.heavy

HELLO = {"protocolVersion": 1, "clientCapabilities": {}}


@pytest.fixture
async def talk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SessionClient]:
    async with asyncio.timeout(110), open_session_client(tmp_path, request) as made:
        yield made


async def call(talk: SessionClient, server_id: str, method: str, params: object) -> httpx2.Response:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return await talk.call("POST", f"/v1/acp/{server_id}?agent=rehearsal", message)


async def opened(talk: SessionClient, server_id: str) -> AcpConnection:
    answer = await call(talk, server_id, "initialize", HELLO)
    assert "result" in answer.json(), answer.text
    return await talk.rig.services.acp.get("local", server_id, None)


async def test_connections_that_are_opened_at_once_are_no_more_than_those_one_after_the_other(
    talk: SessionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MOST_SERVERS", 2)
    made = await asyncio.gather(*[call(talk, f"c{number}", "initialize", HELLO) for number in range(6)])
    assert sorted(answer.status_code for answer in made) == [200, 200, 409, 409, 409, 409]
    first = next(number for number, answer in enumerate(made) if answer.status_code == 200)
    assert (await talk.call("DELETE", f"/v1/acp/c{first}")).status_code == 204
    assert (await call(talk, "another", "initialize", HELLO)).status_code == 200


async def test_a_connection_that_takes_long_to_end_takes_no_other_of_its_name_along(
    talk: SessionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await opened(talk, "c")
    closing, close = asyncio.Event(), client.close

    async def slow() -> None:
        await closing.wait()
        await close()

    monkeypatch.setattr(client, "close", slow)
    monkeypatch.setattr(connections, "END_LIMIT", 0.05)
    assert (await talk.call("DELETE", "/v1/acp/c")).status_code == 204
    refused = await call(talk, "c", "initialize", HELLO)
    closing.set()
    monkeypatch.undo()
    assert (refused.status_code, "still ending" in refused.text) == (409, True)
    again = await opened(talk, "c")
    assert again.outlet.stream.info().state == "open"


async def test_requests_that_are_large_together_are_refused(
    talk: SessionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await opened(talk, "c")
    monkeypatch.setattr(connection, "REQUEST_BYTES", 1000)
    answer = await call(talk, "c", "session/prompt", {"text": "x" * 2000})
    assert "too many" in answer.json()["error"]["message"]


async def test_an_agent_that_does_not_read_gets_no_more_notifications(
    talk: SessionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what waits for it would fill our memory."""
    client = await opened(talk, "c")
    host = await talk.rig.services.hosts.host()
    (agent,) = host.get_agents()
    monkeypatch.setattr(agents, "OUTBOX_LIMIT", -1)
    note = {"jsonrpc": "2.0", "method": "_example/note", "params": {}}
    assert (await talk.call("POST", "/v1/acp/c", note)).status_code == 202
    with pytest.raises(Unavailable):
        await host.driver(agent.agent_id).tell("_example/note", {})
    assert client.slot.agent == "rehearsal"


async def test_a_message_held_back_does_not_outlive_its_credential(talk: SessionClient) -> None:
    owner = talk.rig.people["owner"]
    headers = {**talk.headers, "content-type": "application/json"}

    async def held_back() -> AsyncIterator[bytes]:
        yield b'{"jsonrpc":"2.0","id":1,'
        await talk.rig.remove(owner)
        talk.rig.clock.advance(5)
        yield b'"method":"initialize","params":{"protocolVersion":1}}'

    answer = await talk.rig.client.post("/v1/acp/c?agent=rehearsal", content=held_back(), headers=headers)
    assert answer.status_code == 401
    assert await talk.rig.services.acp.list("local") == []
