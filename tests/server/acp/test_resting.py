"""A connection that nobody uses: its agent is stopped, and started again by the next message."""

import asyncio
from pathlib import Path

import pytest
from tests.cli.command import rehearse
from tests.server.rig import Rig, bearer, open_rig
from tests.server.sessions.session_client import open_session_client

from legation.server.acp.connections import IDLE
from legation.server.sessions.agents import LOOK_EVERY

pytestmark = pytest.mark.heavy

LIMIT = 60.0  # seconds: an agent's time to start and to end on a busy machine


async def test_an_idle_agent_is_stopped_and_comes_back(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with (
        asyncio.timeout(LIMIT),
        open_rig("sqlite", tmp_path / "data", request, folders=str(tmp_path)) as rig,
    ):
        await _call(rig, 0, "initialize", {"protocolVersion": 1})
        made = await _call(rig, 1, "session/new", {"cwd": str(tmp_path), "mcpServers": []})
        prompt = {"sessionId": made["sessionId"], "prompt": [{"type": "text", "text": rehearse("recall")}]}
        await _call(rig, 2, "session/prompt", prompt)
        host = await rig.services.hosts.host()
        rig.clock.advance(LOOK_EVERY)
        await asyncio.sleep(0)
        assert [agent.status for agent in host.get_agents()] == ["ready"]
        rig.clock.advance(IDLE + 1)
        while host.get_agents():
            rig.clock.advance(LOOK_EVERY)
            await asyncio.sleep(0.02)  # LIMIT bounds it
        answer = await _call(rig, 3, "session/prompt", prompt)
        assert answer["stopReason"] == "end_turn"
        assert [agent.status for agent in host.get_agents()] == ["ready"]


async def test_an_agent_is_not_stopped_in_a_turn_that_is_not_its_clients(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with asyncio.timeout(LIMIT), open_session_client(tmp_path, request) as talk:
        await _call(talk.rig, 0, "initialize", {"protocolVersion": 1})
        made = await _call(talk.rig, 1, "session/new", {"cwd": str(talk.work), "mcpServers": []})
        session = str(made["sessionId"])
        permission = await talk.asked(session, "ask something")
        connection = await talk.rig.services.acp.get("local", "x", None)
        connection.slot.idle_after = 0.001
        for _ in range(2):  # at the first it is seen that something has happened
            await connection.slot.stop_if_idle()
            talk.rig.clock.advance(1)
        assert (await talk.reply(session, permission, "once")).status_code == 204
        _, ended = await talk.until(session, "prompt-finished")
        assert ended["stopReason"] == "end_turn"
        while (await talk.info(session))["busy"]:
            await asyncio.sleep(0.02)  # the turn's end is noted; LIMIT bounds it
        host = await talk.rig.services.hosts.host()
        while host.get_agents():  # when all of that is noted; LIMIT bounds it
            talk.rig.clock.advance(1)
            await connection.slot.stop_if_idle()
            await asyncio.sleep(0.02)


async def _call(rig: Rig, number: int, method: str, params: object) -> dict[str, object]:
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    headers = bearer(rig.services.own_token.reveal())
    answer = await rig.client.post("/v1/acp/x?agent=rehearsal", json=message, headers=headers, timeout=LIMIT)
    assert answer.status_code == 200, answer.text
    result: dict[str, object] = answer.json()["result"]
    return result
