"""`/v1/agents`: the union of two versions of sandbox-agent."""

import json

import pytest
from tests.server.sessions.session_client import MIRRORS, SessionClient

pytestmark = pytest.mark.heavy

ABILITIES = 18


async def test_every_agent_is_listed_in_both_shapes(talk: SessionClient) -> None:
    agents = {each["id"]: each for each in (await talk.call("GET", "/v1/agents")).json()["agents"]}
    assert {"rehearsal", "claude", "codex", "opencode", "mirror"} <= agents.keys()
    rehearsal = agents["rehearsal"]
    assert rehearsal["installed"] is rehearsal["credentialsAvailable"] is True
    assert agents["mock"]["installed"] is agents["mock"]["credentialsAvailable"] is True
    assert len(rehearsal["capabilities"]) == ABILITIES
    assert all(isinstance(each, bool) for each in rehearsal["capabilities"].values())
    assert rehearsal["configOptions"] is None
    assert rehearsal["serverStatus"]["status"] == "stopped"


async def test_one_agent_with_what_can_be_chosen(talk: SessionClient) -> None:
    await talk.created("s")
    agent = (await talk.call("GET", "/v1/agents/rehearsal?config=true")).json()
    assert agent["id"] == "rehearsal"
    modes, models = agent["configOptions"]
    assert [each["value"] for each in models["options"]] == ["rehearsal-steady", "rehearsal-terse"]
    assert "bypass" not in json.dumps(modes)
    assert agent["serverStatus"]["status"] == "running"
    assert (await talk.call("GET", "/v1/agents/none")).status_code == 404


async def test_the_mock_offers_what_sandbox_agents_does(talk: SessionClient) -> None:
    agent = (await talk.call("GET", "/v1/agents/mock?config=true&what=ever")).json()
    assert agent["id"] == "mock"
    offered = {each["category"]: each for each in agent["configOptions"]}
    values = {name: [choice["value"] for choice in each["options"]] for name, each in offered.items()}
    assert values == {
        "mode": ["normal", "plan"],
        "model": ["mock", "mock-fast"],
        "thought_level": ["low", "medium", "high"],
    }
    assert [offered[name]["currentValue"] for name in ("mode", "model", "thought_level")] == [
        "normal",
        "mock",
        "low",
    ]


async def test_how_its_processes_fare(talk: SessionClient) -> None:
    async def fares() -> tuple[str, int, bool]:
        found = (await talk.call("GET", "/v1/agents/rehearsal")).json()["serverStatus"]
        return found["status"], found["processes"], (found["uptimeMs"] or 0) > 0

    assert await fares() == ("stopped", 0, False)
    for session in ("s", "t"):
        await talk.created(session)
    assert await fares() == ("running", 2, True)
    for session in ("s", "t"):
        await talk.call("POST", f"/v1/sessions/{session}/terminate")
    assert await fares() == ("stopped", 0, False)


async def test_modes_and_models(talk: SessionClient) -> None:
    modes = (await talk.call("GET", "/v1/agents/rehearsal/modes")).json()["modes"]
    assert [each["id"] for each in modes] == ["build", "plan", "default"]
    models = (await talk.call("GET", "/v1/agents/rehearsal/models")).json()
    assert [each["id"] for each in models["models"]] == ["rehearsal-steady", "rehearsal-terse"]
    assert models["defaultModel"] == "rehearsal-steady"
    for what in ("modes", "models"):
        assert (await talk.call("GET", f"/v1/agents/none/{what}")).status_code == 404


async def test_variants_are_listed_with_the_model_that_they_are_of(talk: SessionClient) -> None:
    models = (await talk.call("GET", "/v1/agents/mirror/models")).json()["models"]
    assert [(each["id"], each["variants"], each["defaultVariant"]) for each in models] == [
        ("small", ["low", "high"], "low"),
        ("large", None, None),
    ]


async def test_abilities_are_those_of_the_agents_driver(talk: SessionClient) -> None:
    agents = {each["id"]: each for each in (await talk.call("GET", "/v1/agents")).json()["agents"]}
    shared = {name for name, each in agents.items() if each["capabilities"]["sharedProcess"]}
    assert shared == {"codex", "opencode"}
    for name in agents.keys() - MIRRORS.keys() - {"cursor"}:  # which is not locked: nobody knows its modes
        modes = (await talk.call("GET", f"/v1/agents/{name}/modes")).json()["modes"]
        plans = "plan" in [mode["id"] for mode in modes]
        assert agents[name]["capabilities"]["planMode"] == plans, name
    assert agents["amp"]["capabilities"]["questions"] is False


async def test_installing_what_is_there_and_what_cannot_be(talk: SessionClient) -> None:
    for body in ({}, {"reinstall": False}, None):
        answer = await talk.call("POST", "/v1/agents/mock/install", body)
        assert answer.status_code == 200
        assert answer.json()["already_installed"] is True
        assert answer.json()["artifacts"][0]["source"] == "builtin"
    assert (await talk.call("POST", "/v1/agents/none/install", {})).status_code == 404
    assert (await talk.call("POST", "/v1/agents/mirror/install", {"reinstall": True})).status_code == 400
    assert (await talk.call("POST", "/v1/agents/mock/install", {"agentVersion": "9"})).status_code == 400
    assert (await talk.call("POST", "/v1/agents/mock/install", {"other": 1})).status_code == 400
