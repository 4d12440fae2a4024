"""What holds for a session whichever way it is used: over /v1/acp as over /v1/sessions.

Those that are expected to fail do so for as long as the two have machinery of their own (design/0009).
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.acp.acp_server import Client, http_to, serving
from tests.server.sessions.session_client import LIMIT, SessionClient, open_session_client, script

pytestmark = pytest.mark.heavy

MCP = {"files": {"type": "local", "command": ["files-mcp", "--all"]}}
OVER_ACP = [{"name": "files", "command": "files-mcp", "args": ["--all"], "env": []}]


@pytest.fixture
async def talk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SessionClient]:
    async with asyncio.timeout(110), open_session_client(tmp_path, request) as made:
        yield made


async def rpc(talk: SessionClient, method: str, agent: str, **params: object) -> dict[str, Any]:
    """To a client connection of that agent's."""
    message = {"jsonrpc": "2.0", "id": method, "method": method, "params": params}
    answer = await talk.call("POST", f"/v1/acp/of-{agent}?agent={agent}", message)
    assert answer.status_code == 200, answer.text
    assert "error" not in answer.json(), answer.text
    return answer.json()["result"]  # type: ignore[no-any-return]


async def new(talk: SessionClient, agent: str, servers: object = ()) -> str:
    await rpc(talk, "initialize", agent, protocolVersion=1)
    made = await rpc(talk, "session/new", agent, cwd=str(talk.work), mcpServers=[*servers])  # type: ignore[misc]
    return str(made["sessionId"])


async def prompt(talk: SessionClient, agent: str, session: str, text: str) -> None:
    said = [{"type": "text", "text": text}]
    result = await rpc(talk, "session/prompt", agent, sessionId=session, prompt=said)
    assert result["stopReason"] == "end_turn"


async def reflected(talk: SessionClient, agent: str, session: str) -> dict[str, Any]:
    """What the mirror says that it was given, to a client."""
    before = len(await talk.events(session, "agent-message-chunk"))
    await prompt(talk, agent, session, "say")
    said = (await talk.events(session, "agent-message-chunk"))[before:]
    return json.loads("".join(each["content"]["text"] for each in said))  # type: ignore[no-any-return]


def servers(said: dict[str, Any]) -> list[str]:
    return [each["name"] for each in said["mcpServers"] or ()]


async def kill_mirror(talk: SessionClient, session: str) -> None:
    """Its process is killed; the session is known to be without an agent."""
    native = str((await talk.info(session))["nativeSessionId"])
    os.kill(int(native.removeprefix("mir-")), signal.SIGKILL)
    async with asyncio.timeout(LIMIT):
        while (await talk.info(session))["status"] != "disconnected":
            await asyncio.sleep(0.02)


async def test_a_session_is_busy_during_the_turn_of_a_client(talk: SessionClient) -> None:
    session = await new(talk, "rehearsal")
    turn = asyncio.create_task(prompt(talk, "rehearsal", session, script("ask something")))
    _, asked = await talk.until(session, "permission-asked")
    during = (await talk.info(session))["busy"]
    assert (await talk.reply(session, asked["id"], "once")).status_code == 204
    await turn
    assert during
    async with asyncio.timeout(LIMIT):
        while (await talk.info(session))["busy"]:
            await asyncio.sleep(0.02)


async def test_how_an_agent_ended_is_told_only_until_another_runs(talk: SessionClient) -> None:
    await talk.created("s", directory=str(talk.work))
    await talk.played("s", "crash 3")
    async with asyncio.timeout(LIMIT):
        while (await talk.info("s"))["exit"] is None:
            await asyncio.sleep(0.02)
    await rpc(talk, "initialize", "rehearsal", protocolVersion=1)
    await prompt(talk, "rehearsal", "s", script("say back"))
    info = await talk.info("s")
    assert info["status"] == "active"
    assert info["exit"] is None


async def test_a_session_that_a_client_wakes_has_its_mcp_servers(talk: SessionClient) -> None:
    await talk.created("s", agent="mirror", directory=str(talk.work), mcp=MCP)
    assert servers(await talk.reflected("s")) == ["files"]
    await kill_mirror(talk, "s")
    await rpc(talk, "initialize", "mirror", protocolVersion=1)
    said = await reflected(talk, "mirror", "s")
    assert said["opened"] == "session/resume"
    assert servers(said) == ["files"]


async def test_a_session_that_a_client_made_keeps_its_mcp_servers(talk: SessionClient) -> None:
    session = await new(talk, "mirror", OVER_ACP)
    assert servers(await reflected(talk, "mirror", session)) == ["files"]
    await kill_mirror(talk, session)
    said = await talk.reflected(session)
    assert said["opened"] == "session/resume"
    assert servers(said) == ["files"]


async def test_a_session_that_a_client_wakes_is_set_as_it_was(talk: SessionClient) -> None:
    chosen = {"model": "large", "effort": "high", "mode": "plan"}
    await talk.created(
        "s", agent="mirror", directory=str(talk.work), model="large", variant="high", agentMode="plan"
    )
    assert (await talk.reflected("s"))["chosen"] == chosen
    await kill_mirror(talk, "s")
    await rpc(talk, "initialize", "mirror", protocolVersion=1)
    said = await reflected(talk, "mirror", "s")
    assert said["opened"] == "session/resume"
    assert said["chosen"] == chosen


async def until_stopped(talk: SessionClient, *sessions: str) -> None:
    """By the clock alone."""
    async with asyncio.timeout(LIMIT):
        while {(await talk.info(each))["status"] for each in sessions} != {"disconnected"}:
            talk.rig.clock.advance(60)
            await asyncio.sleep(0.02)


# In whichever order the idle ones are looked at: when the first and the last are stopped, so is the one between them, or it
# was left alone.


async def test_an_agent_without_a_memory_is_not_stopped_when_its_client_is_idle(talk: SessionClient) -> None:
    first = await new(talk, "mirror")
    session = await new(talk, "forgetful")  # it can neither resume nor load
    await until_stopped(talk, first, await new(talk, "rehearsal"))
    assert (await talk.info(session))["status"] == "active"


async def test_an_agent_with_a_tool_at_work_is_not_stopped_when_its_client_is_idle(
    talk: SessionClient,
) -> None:
    first = await new(talk, "mirror")
    session = await new(talk, "loading")
    await prompt(talk, "loading", session, "background")
    await until_stopped(talk, first, await new(talk, "rehearsal"))
    assert (await talk.info(session))["status"] == "active"


async def test_a_client_deletes_a_session_that_was_terminated(talk: SessionClient) -> None:
    session = await new(talk, "rehearsal")
    await prompt(talk, "rehearsal", session, script("say hello"))
    assert (await talk.call("POST", f"/v1/sessions/{session}/terminate")).status_code == 204
    assert await rpc(talk, "session/delete", "rehearsal", sessionId=session) == {}
    for path in (f"/v1/sessions/{session}", f"/v1/sessions/{session}/events"):
        assert (await talk.call("GET", path)).status_code == 404


async def test_a_client_does_not_find_a_session_that_was_deleted(talk: SessionClient) -> None:
    session = await new(talk, "rehearsal")
    assert await rpc(talk, "session/delete", "rehearsal", sessionId=session) == {}
    message = {"jsonrpc": "2.0", "id": 1, "method": "session/close", "params": {"sessionId": session}}
    answer = await talk.call("POST", "/v1/acp/of-rehearsal", message)
    assert "cannot find session" in answer.text


async def test_a_turn_of_a_client_that_a_kill_has_cut_is_over_when_the_next_server_is_up(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    with serving(home) as server:
        async with http_to(server) as http:
            client = Client(http, "mine", tmp_path)
            await client.initialize()
            client.follow()
            session = await client.new()
            turn = client.prompting(session, "say going", "stall 60")
            await client.until_text(session, "going")
            server.stop(signal.SIGKILL)
            await asyncio.gather(turn, return_exceptions=True)
            await client.leave()
    with serving(home) as server:
        async with http_to(server) as http:
            answer = await http.get(f"/v1/sessions/{session}/events")
            told = [each["type"] for each in answer.json()["events"]]
            assert told.count("turn.started") == 1, told
            assert told.count("turn.ended") == 1, told
