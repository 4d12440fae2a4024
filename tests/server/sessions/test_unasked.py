"""Sessions of agents that would rather not ask: they ask all the same, or their turn ends."""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.agents.bytes_agent import PRELUDE
from tests.agents.modes_agent import QWEN, VIBE, moody
from tests.server.sessions.session_client import SessionClient, open_session_client

pytestmark = pytest.mark.heavy

CAN: dict[str, object] = {"sessionCapabilities": {"resume": {}}}
AGENTS = {
    "qwen": (QWEN, ""),
    "vibe": (VIBE, ""),
    "none": (moody(offers=["auto", "yolo"]), ""),
    "returns": (moody(can=CAN), ""),
    "own": (moody(opens="turbo", offers=["turbo", "default"]), 'unasking_modes = ["turbo"]\n'),
}


@pytest.fixture
async def at(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[SessionClient]:
    stanzas = []
    for name, (agent, more) in AGENTS.items():
        (tmp_path / f"{name}.py").write_text(PRELUDE + agent)
        argv = json.dumps(["-I", "-S", str(tmp_path / f"{name}.py")])
        stanzas.append(f'[agents.{name}]\ncommand = "{sys.executable}"\nargs = {argv}\n{more}')
    agents = tmp_path / "moody.toml"
    agents.write_text("".join(stanzas))
    async with open_session_client(tmp_path, request, agents=agents) as talk:
        yield talk


async def say(talk: SessionClient) -> None:
    answer = await talk.call("POST", "/v1/sessions/s/messages", {"message": "go"})
    assert answer.status_code == 204, answer.text


@pytest.mark.parametrize("agent", ["qwen", "vibe", "own"])
async def test_a_session_works_in_a_mode_in_which_its_agent_asks(agent: str, at: SessionClient) -> None:
    await at.created("s", agent=agent, directory=str(at.work))
    await say(at)
    _, asked = await at.until("s", "permission-asked")
    assert (await at.reply("s", asked["id"], "reject")).status_code in (200, 204)
    _, finished = await at.until("s", "prompt-finished")
    assert "error" not in finished
    assert not (at.work / "out.txt").exists()


async def test_it_asks_again_when_its_agent_was_stopped_and_comes_back(at: SessionClient) -> None:
    await at.created("s", agent="returns", directory=str(at.work))
    host = await at.rig.services.hosts.host("local")
    await host.dispose_agent(host.session("s").agent_id or "")
    await say(at)
    _, asked = await at.until("s", "permission-asked")
    assert asked["action"]["kind"] == "edit"
    await at.reply("s", asked["id"], "reject")


async def test_what_was_done_unasked_ends_the_turn_and_is_on_the_trace(at: SessionClient) -> None:
    await at.created("s", agent="none", directory=str(at.work))
    await say(at)
    _, effect = await at.until("s", "unasked-effect")
    assert (effect["policy"], effect["rule"], effect["endsTurn"]) == ("supervisor", "p:edits", True)
    _, finished = await at.until("s", "prompt-finished")
    assert "p:edits" in finished["error"]["message"]
    found = (await at.call("GET", "/traces?session=s")).json()
    assert [each["reason"] for each in found] == ["unasked", "unasked"]
    assert {each["tool"] for each in found} == {"edit", "switch_mode"}


async def test_a_mode_that_the_owner_calls_unasking_is_neither_chosen_nor_listed(at: SessionClient) -> None:
    refused = await at.create("s", agent="own", agentMode="turbo", directory=str(at.work))
    assert refused.status_code == 403
    listed = (await at.call("GET", "/v1/agents/own/modes")).json()["modes"]
    assert "turbo" not in [each["id"] for each in listed]
