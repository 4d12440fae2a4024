"""Sessions of the real OpenCode over HTTP, with a scripted model behind it: what is promised of every agent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.agents.both_schemas import told
from tests.agents.opencode.real_opencode import NOWHERE, Wire, provider
from tests.agents.real_sessions import RealSessions, add_to_catalogue
from tests.server.sessions.session_client import open_session_client

from legation.agents.catalogue.entries import Direct, Way
from legation.proc.tree import process
from legation.testing.model import Cut, Script, ScriptedModel, Text

pytestmark = [pytest.mark.network, pytest.mark.heavy, pytest.mark.timeout(600)]  # the first one may install

LIMIT = 110.0  # seconds of real time for a test


class Real(RealSessions):
    def writes(self, name: str) -> Path:
        target = self.talk.work / name
        self.model.call_tool("write", {"filePath": str(target), "content": name})
        self.model.say("Done.")
        return target

    async def cancel(self) -> None:
        assert (await self.talk.call("POST", "/v1/sessions/s/cancel")).status_code == 204


@pytest.fixture
async def real(opencode: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Real]:
    async with (
        asyncio.timeout(LIMIT),
        ScriptedModel(wires=(Wire(),)) as model,
        open_session_client(tmp_path, request) as talk,
    ):
        variables = {
            "OPENCODE_CONFIG_CONTENT": json.dumps(provider(model.url)),
            "npm_config_registry": NOWHERE,
            **model.proxy_variables(),
        }
        add_to_catalogue(talk, Way("opencode", Direct((opencode,)), env=variables))
        yield Real(talk, model)


async def test_permissions_a_question_and_a_plan(real: Real) -> None:
    talk = real.talk
    await real.open()
    files = [real.writes(name) for name in ("once.txt", "never.txt", "always.txt", "granted.txt")]
    for reply in ("once", "reject", "always"):
        permission, after = await real.asked(f"Write {reply}")
        assert (await talk.reply("s", permission, reply)).status_code == 204
        assert (await real.ended(after))["stopReason"] == "end_turn"
    await real.said("Write granted")
    assert [file.is_file() for file in files] == [True, False, True, True]
    answered = await talk.events("s", "permission-answered")
    assert [each["outcome"] for each in answered] == ["approved", "denied", "approved", "approved"]
    assert answered[-1]["by"].startswith("grant:")
    await _question(real)
    story = await told(talk)
    assert story.ends == ["end_turn"] * 5
    assert story.said == [*["Done."] * 4, "Blue it is."]
    assert story.permissions == [
        ("write", outcome) for outcome in ("approved", "denied", "approved", "approved")
    ]
    writes = [("write", status) for status in ("completed", "failed", "completed", "completed")]
    assert story.calls == [*writes, ("question", "completed")]
    assert story.files == [str(file) for file in files if file.is_file()]
    assert story.questions == [("Which colour?", "answered")]
    assert story.errors == []


async def _question(real: Real) -> None:
    options = [{"label": each, "description": each} for each in ("Red", "Blue")]
    question = {"question": "Which colour?", "header": "Colour", "options": options}
    real.model.call_tool("question", {"questions": [question]})
    real.model.say("Blue it is.")
    after = await real.send("Ask me")
    _, asked = await real.talk.until("s", "question-asked", after=after)
    path = f"/v1/sessions/s/questions/{asked['id']}/reply"
    assert (await real.talk.call("POST", path, {"answers": [["Blue"]]})).status_code == 204
    assert (await real.ended(after))["stopReason"] == "end_turn"
    assert "Blue" in real.model.requests[-1].tool_results[0].text


async def test_a_plan_is_approved_and_built(real: Real) -> None:
    await real.open(agentMode="plan", permissionMode="bypass")
    real.model.call_tool("plan_exit", {})
    target = real.writes("built.txt")
    after = await real.send("Plan it")
    _, asked = await real.talk.until("s", "question-asked", after=after)
    path = f"/v1/sessions/s/questions/{asked['id']}/reply"
    assert (await real.talk.call("POST", path, {"answers": [["Yes"]]})).status_code == 204
    assert (await real.ended(after))["stopReason"] == "end_turn"
    assert target.is_file()
    story = await told(real.talk)
    assert story.modes[-1] == "default"
    assert [outcome for _, outcome in story.questions] == ["answered"]
    assert story.calls == [("plan_exit", "completed"), ("write", "completed")]
    assert story.files == [str(target)]
    assert story.permissions == [("write", "approved")]
    assert (story.ends, story.errors) == (["end_turn"], [])


async def test_cancels_errors_a_crash_and_a_resume(real: Real) -> None:
    talk = real.talk
    await real.open()
    real.model.stall(Text("I think"))
    after = await real.send("Think long")
    await talk.until("s", "agent-message-chunk", after=after)
    await real.cancel()
    assert (await real.ended(after))["stopReason"] == "cancelled"
    target = talk.work / "never.txt"
    real.model.call_tool("write", {"filePath": str(target), "content": "never"})
    _, after = await real.asked("Write")
    await real.cancel()
    assert (await real.ended(after))["stopReason"] == "cancelled"
    assert not target.exists()
    real.model.fail(400, "the scripted reason")
    assert "the scripted reason" in (await real.said("Say hello"))["error"]["message"]
    real.model.fail(429, "slow down", retry_after=1)
    real.model.reply(Text("Half an ans"), Cut())
    real.model.say("An answer.")
    assert "error" not in await real.said("Say hello")
    stall = real.model.stall(Text("I think"))
    after = await real.send("Think long")
    await stall.reached()
    os.kill(await real.pid(), signal.SIGKILL)
    assert "SIGKILL" in (await real.ended(after))["error"]["message"]
    real.model.say("I am back.")
    await real.said("Are you there?")
    assert real.model.requests[-1].mentions("An answer.")
    story = await told(talk)
    assert story.ends == ["cancelled", "cancelled", "error", "end_turn", "error", "end_turn"]
    assert (story.said[0], story.said[-1]) == ("I think", "I am back.")
    assert "An answer." in "".join(story.said)  # after what had come of the one that was cut
    assert (story.calls, story.permissions) == ([("write", "failed")], [("write", "cancelled")])
    assert story.notices == ["The model is asked again"] * 2
    refused, killed = story.errors
    assert "the scripted reason" in refused
    assert "SIGKILL" in killed
    assert ["SIGKILL" in each for each in story.exits] == [True]


async def test_two_sessions_at_once_and_no_process_left(real: Real) -> None:
    talk = real.talk
    names = ("one", "two")
    scripts = {name: real.model.when(f"I am {name}") for name in names}
    for name, script in scripts.items():
        await real.open(name, permissionMode="bypass")
        script.call_tool("write", {"filePath": str(talk.work / name), "content": name})
        script.say(f"{name} done.")
    await asyncio.gather(*(real.said(f"I am {name}", name) for name in names))
    assert [(talk.work / name).read_text() for name in names] == ["one", "two"]
    assert [await talk.heard(name) for name in names] == ["one done.", "two done."]
    (pid,) = {await real.pid(name) for name in names}
    await _forked(real, scripts["one"])
    for name in (*names, "fork"):
        assert (await talk.call("POST", f"/v1/sessions/{name}/terminate")).status_code == 204
    assert process(pid) is None
    for name in names:
        story = await told(talk, name)
        assert (story.said, story.ends) == ([f"{name} done."], ["end_turn"])
        assert (story.calls, story.permissions) == ([("write", "completed")], [("write", "approved")])
        assert story.files == [str(talk.work / name)]


async def _forked(real: Real, script: Script) -> None:
    """Of a session that another driver object has open: what was said there is what its script is chosen by."""
    await real.open("fork", fork="one")
    script.say("One.")
    assert (await real.said("Which one are you?", "fork"))["stopReason"] == "end_turn"
    assert await real.talk.heard("fork") == "One."
