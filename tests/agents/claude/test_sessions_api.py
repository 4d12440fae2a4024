"""Sessions of the real Claude Code over HTTP, driven by its own protocol, with a scripted model behind it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.agents.both_schemas import told
from tests.agents.claude.real_claude import ALL_TOOLS
from tests.agents.real_claude_acp import QUIET
from tests.agents.real_sessions import RealSessions, add_to_catalogue
from tests.server.sessions.session_client import open_session_client

from legation.agents.catalogue.entries import Direct, Way
from legation.proc.tree import process
from legation.testing.model import Cut, ScriptedModel, Stall, Text

pytestmark = [pytest.mark.network, pytest.mark.heavy, pytest.mark.timeout(600)]  # the first one may install


class Claude(RealSessions):
    def writes(self, name: str) -> Path:
        target = self.talk.work / name
        self.model.call_tool("Write", {"file_path": str(target), "content": name})
        self.model.say("Done.")
        return target


@pytest.fixture
async def real(claude: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Claude]:
    async with asyncio.timeout(110), ScriptedModel() as model, open_session_client(tmp_path, request) as talk:
        variables = {**QUIET, **ALL_TOOLS, "ANTHROPIC_BASE_URL": model.url, **model.proxy_variables()}
        add_to_catalogue(talk, Way("claude", Direct((claude,)), env=variables))
        yield Claude(talk, model)


async def test_permissions_once_never_and_always_and_a_resume_in_a_new_process(real: Claude) -> None:
    talk = real.talk
    await real.open()
    files = [real.writes(name) for name in ("once.txt", "never.txt", "always.txt", "granted.txt")]
    for reply in ("once", "reject", "always"):
        permission, after = await real.asked(f"Write {reply}")
        assert (await talk.reply("s", permission, reply)).status_code == 204
        _, ended = await talk.until("s", "prompt-finished", after=after)
        assert ended["stopReason"] == "end_turn"
    await real.said("Write granted")
    assert [file.is_file() for file in files] == [True, False, True, True]
    answered = await talk.events("s", "permission-answered")
    assert [each["outcome"] for each in answered] == ["approved", "denied", "approved", "approved"]
    assert answered[-1]["by"].startswith("grant:")
    was = await real.pid()
    host = await talk.rig.services.hosts.host()
    await host.dispose_agent(str(host.session("s").agent_id))
    assert process(was) is None
    real.model.say("I remember.")
    await real.said("And now?")
    assert real.model.requests[-1].mentions("Write granted")
    story = await told(talk)
    assert story.ends == ["end_turn"] * 5
    assert story.said == [*["Done."] * 4, "I remember."]
    assert story.permissions == [
        ("Write", outcome) for outcome in ("approved", "denied", "approved", "approved")
    ]
    assert story.calls == [("Write", status) for status in ("completed", "failed", "completed", "completed")]
    assert story.files == [str(file) for file in files if file.is_file()]
    assert (story.errors, story.exits) == ([], [])


async def test_a_question_is_answered_and_a_plan_approved(real: Claude) -> None:
    talk = real.talk
    await real.open(agentMode="plan")
    options = [{"label": each, "description": each} for each in ("Red", "Blue")]
    question = {"question": "Which colour?", "header": "Colour", "options": options, "multiSelect": False}
    real.model.call_tool("AskUserQuestion", {"questions": [question]})
    real.model.call_tool("ExitPlanMode", {"plan": "1. Paint it blue"})
    real.model.say("Painted.")
    after = await real.send("Plan it")
    _, asked = await talk.until("s", "question-asked", after=after)
    path = f"/v1/sessions/s/questions/{asked['id']}/reply"
    assert (await talk.call("POST", path, {"answers": [["Blue"]]})).status_code == 204
    _, permission = await talk.until("s", "permission-asked", after=after)
    assert permission["action"]["kind"] == "switch_mode"
    info = (await talk.call("GET", "/v1/sessions/s")).json()
    assert info["pendingPermissions"] == info["pendingQuestions"] == [permission["id"]]
    plan = (
        f"/v1/sessions/s/questions/{permission['id']}/reply"  # the same as a question, beside the permission
    )
    assert (await talk.call("POST", plan, {"answers": [["Whatever"]]})).status_code == 400
    assert (await talk.call("POST", plan, {"answers": [["Approve"]]})).status_code == 204
    _, ended = await talk.until("s", "prompt-finished", after=after)
    assert ended["stopReason"] == "end_turn"
    assert '"Which colour?"="Blue"' in real.model.requests[1].tool_results[0].text
    story = await told(talk)
    assert story.modes[-1] == "default"
    assert story.questions == [("Which colour?", "answered")]
    assert story.permissions == [("ExitPlanMode", "approved")]
    assert len(story.plans) == 1
    assert story.calls == [("AskUserQuestion", "completed"), ("ExitPlanMode", "completed")]
    assert (story.said, story.ends, story.errors) == (["Painted."], ["end_turn"], [])


async def test_cancels_in_mid_turn_and_in_mid_permission(real: Claude) -> None:
    talk = real.talk
    await real.open()
    real.model.stall(Text("I think"))
    after = await real.send("Think long")
    await talk.until("s", "agent-message-chunk", after=after)
    assert (await talk.call("POST", "/v1/sessions/s/cancel")).status_code == 204
    _, ended = await talk.until("s", "prompt-finished", after=after)
    assert ended["stopReason"] == "cancelled"
    target = talk.work / "never.txt"
    real.model.call_tool("Write", {"file_path": str(target), "content": "never"})
    permission, after = await real.asked("Write")
    await talk.call("POST", "/v1/sessions/s/cancel")
    _, ended = await talk.until("s", "prompt-finished", after=after)
    assert ended["stopReason"] == "cancelled"
    assert (await talk.reply("s", permission, "once")).status_code in (
        404,
        409,
    )  # nobody waits for it any more
    assert not target.exists()
    real.model.say("Still here.")
    assert (await real.said("Are you there?"))["stopReason"] == "end_turn"
    story = await told(talk)
    assert story.ends == ["cancelled", "cancelled", "end_turn"]
    assert (story.said[0], story.said[-1]) == ("I think", "Still here.")
    assert (story.calls, story.permissions) == ([("Write", "failed")], [("Write", "cancelled")])
    assert (story.errors, story.exits) == ([], [])


async def test_errors_a_rate_limit_a_cut_stream_and_a_crash(real: Claude) -> None:
    talk = real.talk
    await real.open()
    for status in (500, 429):
        real.model.fail(status, "the scripted reason")
        ended = await real.said("Say hello")
        assert "the scripted reason" in ended["error"]["message"]
    stall = Stall()
    real.model.reply(Text("Half an ans"), stall, Cut())
    real.model.say("wer.")
    after = await real.send("Say hello")
    await talk.until("s", "agent-message-chunk", after=after)
    stall.release()
    _, ended = await talk.until("s", "prompt-finished", after=after)
    assert "error" not in ended
    assert await talk.heard("s") == "Half an answer."
    stall = real.model.stall(Text("I think"))
    after = await real.send("Think long")
    await stall.reached()
    os.kill(await real.pid(), signal.SIGKILL)
    _, ended = await talk.until("s", "prompt-finished", after=after)
    assert "SIGKILL" in ended["error"]["message"]
    real.model.say("I am back.")
    await real.said("Are you there?")
    assert real.model.requests[-1].mentions("Half an ans")
    story = await told(talk)
    assert story.ends == ["error", "error", "end_turn", "error", "end_turn"]
    assert story.said[-1] == "I am back."
    *refused, killed = story.errors
    assert ["the scripted reason" in each for each in refused] == [True, True]
    assert "SIGKILL" in killed
    assert ["SIGKILL" in each for each in story.exits] == [True]


async def test_two_sessions_at_once_and_no_process_left(real: Claude) -> None:
    talk = real.talk
    names = ("one", "two")
    for name in names:
        await real.open(name, permissionMode="bypass")
        script = real.model.when(f"I am {name}")
        script.call_tool("Write", {"file_path": str(talk.work / name), "content": name})
        script.say(f"{name} done.")
    await asyncio.gather(*(real.said(f"I am {name}", name) for name in names))
    assert [(talk.work / name).read_text() for name in names] == ["one", "two"]
    assert [await talk.heard(name) for name in names] == ["one done.", "two done."]
    pids = [await real.pid(name) for name in names]
    assert len(set(pids)) == 2
    for name in names:
        assert (await talk.call("POST", f"/v1/sessions/{name}/terminate")).status_code == 204
    assert [pid for pid in pids if process(pid) is not None] == []
    for name in names:
        story = await told(talk, name)
        assert (story.said, story.ends) == ([f"{name} done."], ["end_turn"])
        assert (story.calls, story.permissions) == ([("Write", "completed")], [("Write", "approved")])
        assert story.files == [str(talk.work / name)]


async def test_a_session_begins_with_what_was_said_in_another(real: Claude) -> None:
    talk = real.talk
    await real.open()
    real.model.say("The word is heron.")
    await real.said("Say a word")
    real.model.say("It was heron.")
    await talk.created("fork", agent="real", fork="s")
    assert (await real.said("Which one?", "fork"))["stopReason"] == "end_turn"
    assert real.model.requests[-1].mentions("Say a word")
    first, second = await talk.info("s"), await talk.info("fork")
    assert first["directory"] == second["directory"]
    assert first["nativeSessionId"] != second["nativeSessionId"]
