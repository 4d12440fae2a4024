"""Sessions of the real Claude Code, through its ACP adapter, with a scripted model behind it and nothing else."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests import real_agents
from tests.agents.real_claude_acp import QUIET
from tests.server.sessions.session_client import SessionClient, open_session_client

from legation.testing.model import ScriptedModel

pytestmark = [pytest.mark.network, pytest.mark.heavy, pytest.mark.timeout(600)]  # the first one may install


@dataclass
class Claude:
    talk: SessionClient
    model: ScriptedModel

    async def said(self, *texts: str) -> None:
        """One turn for each."""
        for text in texts:
            stream = await self.talk.rig.services.log.stream("s")
            after = stream.head
            answer = await self.talk.call("POST", "/v1/sessions/s/messages", {"message": text})
            assert answer.status_code == 204, answer.text
            _, ended = await self.talk.until("s", "prompt-finished", after=after)
            assert "error" not in ended, ended

    def writes(self, name: str) -> Path:
        target = self.talk.work / name
        self.model.call_tool("Write", {"file_path": str(target), "content": name})
        self.model.say("Done.")
        return target


@pytest.fixture
async def claude(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Claude]:
    try:
        argv = await asyncio.to_thread(real_agents.agent, "claude-acp")
    except real_agents.NotAvailable as error:
        pytest.skip(str(error))
    async with ScriptedModel() as model, open_session_client(tmp_path, request) as talk:
        variables = {**QUIET, "ANTHROPIC_BASE_URL": model.url, **model.proxy_variables()}
        args = [f"{name}={value}" for name, value in variables.items()] + list(argv)
        file = talk.rig.services.settings.agents
        assert file is not None
        file.write_text(f'{file.read_text()}[agents.real]\ncommand = "env"\nargs = {args!r}\n')
        yield Claude(talk, model)


async def test_a_turn_a_permission_for_ever_and_a_resume(claude: Claude) -> None:
    talk = claude.talk
    await talk.created("s", agent="real", directory=str(talk.work))
    first, second = claude.writes("one.txt"), claude.writes("two.txt")
    await talk.call("POST", "/v1/sessions/s/messages", {"message": "Write one"})
    _, asked = await talk.until("s", "permission-asked")
    assert (await talk.reply("s", asked["id"], "always")).status_code == 204
    seq, _ = await talk.until("s", "prompt-finished")
    assert first.read_text() == "one.txt"
    await claude.said("Write two")
    assert second.read_text() == "two.txt"
    [by] = [each["by"] for each in await talk.events("s", "permission-answered")][1:]
    assert by.startswith("grant:")
    host = await talk.rig.services.hosts.host()
    await host.dispose_agent(str(host.session("s").agent_id))
    claude.model.say("I remember.")
    await claude.said("And now?")
    assert claude.model.requests[-1].mentions("Write two")
    assert (await talk.info("s"))["status"] == "active"
    head = (await talk.rig.services.log.stream("s")).head
    assert head > seq


async def test_modes_and_models_are_set_in_mid_session(claude: Claude) -> None:
    talk = claude.talk
    await talk.created("s", agent="real", directory=str(talk.work), agentMode="plan")
    [facts] = await talk.events("s", "setup-facts")
    assert facts["modes"]["currentModeId"] == "plan"
    refused = await talk.call("PATCH", "/v1/sessions/s", {"agentMode": "acceptEdits"})
    assert refused.status_code == 403
    changed = await talk.call("PATCH", "/v1/sessions/s", {"agentMode": "build", "model": "haiku"})
    assert changed.status_code == 200, changed.text
    claude.model.say("Hello.")
    await claude.said("Hello")
    assert "haiku" in claude.model.requests[-1].model


async def test_a_denied_call_stays_denied_in_bypass(claude: Claude) -> None:
    talk = claude.talk
    await talk.created("s", agent="real", directory=str(talk.work), permissionMode="bypass")
    free, forbidden = claude.writes("free.txt"), claude.writes("forbidden.txt")
    await claude.said("Write free", "Write forbidden")
    assert free.is_file()
    assert not forbidden.exists()
    outcomes = [
        (each["outcome"], each["by"].partition(":")[0])
        for each in await talk.events("s", "permission-answered")
    ]
    assert outcomes == [("approved", "grant"), ("denied", "policy")]
