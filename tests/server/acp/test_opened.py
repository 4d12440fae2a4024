"""Sessions as a connection finds them: what was ended elsewhere stays so, and what is taken up is seen elsewhere."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.sessions.talk import Talk, open_talk, script

pytestmark = pytest.mark.heavy


@pytest.fixture
async def talk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Talk]:
    async with asyncio.timeout(110), open_talk(tmp_path, request) as made:
        yield made


async def rpc(talk: Talk, method: str, agent: str = "loading", **params: object) -> Any:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer = await talk.call("POST", f"/v1/acp/client?agent={agent}", message)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_session_that_was_terminated_is_not_loaded_by_an_agent_that_takes_any_name(
    talk: Talk,
) -> None:
    await talk.created("s", agent="loading", directory=str(talk.work))
    await talk.reflected("s")
    await talk.call("POST", "/v1/sessions/s/terminate")
    before = (await talk.call("GET", "/v1/sessions/s/events")).json()
    await rpc(talk, "initialize", protocolVersion=1)
    refused = await rpc(talk, "session/load", sessionId="s", cwd=str(talk.work), mcpServers=[])
    assert "it has ended" in refused["error"]["message"]
    assert (await talk.call("GET", "/v1/sessions/s/events")).json() == before
    found = await rpc(talk, "session/load", sessionId="of-the-agent", cwd=str(talk.work), mcpServers=[])
    assert "result" in found


async def test_a_session_that_only_the_agent_knew_is_one_like_any_other_once_it_is_loaded(talk: Talk) -> None:
    await rpc(talk, "initialize", protocolVersion=1)
    await rpc(talk, "session/load", sessionId="of-the-agent", cwd=str(talk.work), mcpServers=[])
    info = await talk.info("of-the-agent")
    assert (info["agent"], info["status"]) == ("loading", "active")


async def test_a_session_that_is_taken_up_after_a_restart_is_seen_and_ended_like_any_other(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with asyncio.timeout(110):
        async with open_talk(tmp_path, request) as talk:
            await rpc(talk, "initialize", "rehearsal", protocolVersion=1)
            made = await rpc(talk, "session/new", "rehearsal", cwd=str(talk.work), mcpServers=[])
            session = made["result"]["sessionId"]
            await talk.call("PATCH", f"/v1/sessions/{session}", {"permissionMode": "bypass"})
            made = await rpc(talk, "session/new", "rehearsal", cwd=str(talk.work), mcpServers=[])
            unused = made["result"]["sessionId"]
        async with open_talk(tmp_path, request) as talk:
            said = [{"type": "text", "text": script("say back")}]
            await rpc(talk, "session/prompt", "rehearsal", sessionId=session, prompt=said)
            assert (await talk.info(session))["status"] == "active"
            await rpc(talk, "session/close", "rehearsal", sessionId=session)
            while (await talk.info(session))["permissionMode"] != "default":
                await asyncio.sleep(0.02)  # the end is noted after the answer; bounded
            assert (await talk.info(session))["ended"] is True
            await rpc(talk, "session/close", "rehearsal", sessionId=unused)
            assert (await talk.info(unused))["ended"] is True
            assert await talk.rig.rows("select id from approval_grant where revoked_at is null") == []


async def test_a_request_to_a_server_that_stops_is_answered_and_not_with_a_status(talk: Talk) -> None:
    await rpc(talk, "initialize", protocolVersion=1)
    talk.rig.services.acp.shut()
    refused = await rpc(talk, "session/list")
    assert "the server stops" in refused["error"]["message"]
    told = {"jsonrpc": "2.0", "method": "session/cancel", "params": {}}
    assert (await talk.call("POST", "/v1/acp/client", told)).status_code == 503  # nobody waits for more
