"""Sessions of the real Codex over HTTP: what seed 002 promises of every agent, in both schemas."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.agents.both_schemas import told
from tests.agents.codex.person import QUESTION
from tests.agents.codex.real_codex import KEY, MODEL, add_file
from tests.server.sessions.session_client import SessionClient, open_session_client

from legation.testing.model import ScriptedModel, Text
from legation.testing.model.openai_responses import OpenAiResponsesWire

pytestmark = [pytest.mark.heavy, pytest.mark.network]

PLAN = Text("<proposed_plan>\n1. Write planned.txt\n</proposed_plan>\n")


@dataclass
class Api:
    talk: SessionClient
    model: ScriptedModel

    async def open(self, session: str, **more: object) -> None:
        await self.talk.created(session, agent="codex", directory=str(self.talk.work), model=MODEL, **more)

    async def send(self, session: str, text: str) -> int:
        """The number of the last event before it."""
        stream = await self.talk.rig.services.log.stream(session)
        after = stream.head
        answer = await self.talk.call("POST", f"/v1/sessions/{session}/messages", {"message": text})
        assert answer.status_code == 204, answer.text
        return after

    async def ended(self, session: str, after: int) -> dict[str, Any]:
        _, said = await self.talk.until(session, "prompt-finished", after=after)
        return said  # type: ignore[no-any-return]

    async def asked(self, session: str, after: int) -> tuple[int, str]:
        seq, said = await self.talk.until(session, "permission-asked", after=after)
        return seq, str(said["id"])

    async def replied(self, session: str, after: int, reply: str) -> int:
        seq, permission = await self.asked(session, after)
        answer = await self.talk.reply(session, permission, reply)
        assert answer.status_code == 204, answer.text
        return seq

    async def pid(self, session: str) -> int:
        host = await self.talk.rig.services.hosts.host()
        return host.session(session).agent.processes[0]


@pytest.fixture
async def api(
    codex: Path, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Api]:
    """Codex is found on PATH, as a program that leads to the model on the loopback and nowhere else."""
    async with ScriptedModel(wires=(OpenAiResponsesWire(),)) as model:
        programs = tmp_path / "bin"
        programs.mkdir()
        _write_program(programs / "codex", codex, model)
        monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        async with asyncio.timeout(110), open_session_client(tmp_path, request) as talk:
            yield Api(talk, model)


def _write_program(path: Path, codex: Path, model: ScriptedModel) -> None:
    variables = [f"{name}={value}" for name, value in model.proxy_variables().items()]
    own = "model_providers.legation"
    last = [f'{own}.base_url="{model.url}/v1"', f"{own}.request_max_retries=0", f"{own}.stream_max_retries=0"]
    words = shlex.join(["env", *variables, str(codex)])
    settings = shlex.join([word for each in last for word in ("-c", each)])
    path.write_text(f'#!/bin/sh\nexec {words} "$@" {settings}\n')
    path.chmod(0o755)


async def test_permissions_questions_and_plans(api: Api) -> None:
    work, model = api.talk.work, api.model
    await api.open("s")
    model.reply(Text("One."), add_file("one.txt", "1"))
    model.reply(add_file("two.txt", "2"))
    model.reply(add_file("three.txt", "3"))
    model.reply(add_file("four.txt", "4"))
    model.say("All tried.")
    after = await api.send("s", "Write four files")
    seq = await api.replied("s", after, "once")
    seq = await api.replied("s", seq, "reject")
    await api.replied("s", seq, "always")
    assert (await api.ended("s", after))["stopReason"] == "end_turn"
    assert sorted(each.name for each in work.iterdir()) == ["four.txt", "one.txt", "three.txt"]
    by = [each["by"].partition(":")[0] for each in await api.talk.events("s", "permission-answered")]
    assert by[-1] == "grant"
    model.reply(QUESTION)
    model.say("Blue it is.")
    after = await api.send("s", "Ask me")
    _, question = await api.talk.until("s", "question-asked", after=after)
    path = f"/v1/sessions/s/questions/{question['id']}/reply"
    answer = await api.talk.call("POST", path, {"answers": [["Blue"]]})
    assert answer.status_code == 204, answer.text
    await api.ended("s", after)
    assert '"Blue"' in model.requests[-1].tool_results[0].text
    changed = await api.talk.call("PATCH", "/v1/sessions/s", {"agentMode": "plan"})
    assert changed.status_code == 200, changed.text
    model.reply(PLAN)
    model.reply(add_file("planned.txt", "p"))
    model.say("Carried out.")
    after = await api.send("s", "Plan it")
    await api.replied("s", after, "once")
    assert (await api.ended("s", after))["stopReason"] == "end_turn"
    assert (work / "planned.txt").exists()
    story = await told(api.talk)
    assert story.ends == ["end_turn"] * 3
    assert story.questions == [("Which colour?", "answered")]
    patches = [("apply_patch", outcome) for outcome in ("approved", "denied", "approved", "approved")]
    planned = [("approve_plan", "approved"), ("apply_patch", "approved")]
    assert story.permissions == [*patches, *planned]
    ended = {"approved": "completed", "denied": "failed"}
    assert story.calls == [(tool, ended[outcome]) for tool, outcome in story.permissions]
    assert story.files == [str(work / f"{name}.txt") for name in ("one", "three", "four", "planned")]
    assert story.modes[-2:] == ["plan", "default"]
    assert story.said == ["One.", "All tried.", "Blue it is.", "1. Write planned.txt\n", "Carried out."]
    assert (story.errors, story.exits) == ([], [])


async def test_cancelled_failed_and_crashed_turns(api: Api) -> None:
    model = api.model
    await api.open("s")
    stall = model.stall(Text("A first part"))
    after = await api.send("s", "Speak")
    await stall.reached()
    await api.talk.call("POST", "/v1/sessions/s/cancel")
    assert (await api.ended("s", after))["stopReason"] == "cancelled"
    model.reply(add_file("a.txt", "a"))
    after = await api.send("s", "Write")
    await api.asked("s", after)
    await api.talk.call("POST", "/v1/sessions/s/cancel")
    assert (await api.ended("s", after))["stopReason"] == "cancelled"
    model.fail(400, "that is no request")
    model.fail(429, "too fast")
    model.cut(Text("The beginning"))
    for words in ("that is no request", "429", "stream disconnected"):
        after = await api.send("s", "Fail")
        assert words in (await api.ended("s", after))["error"]["message"]
    model.reply(add_file("b.txt", "b"))
    after = await api.send("s", "Write again")
    await api.asked("s", after)
    os.kill(await api.pid("s"), signal.SIGKILL)
    assert "error" in await api.ended("s", after)
    await api.talk.until(
        "s", "session-status", after=after, where=lambda said: said["status"] == "disconnected"
    )
    model.say("Here again.")
    after = await api.send("s", "Go on")
    assert (await api.ended("s", after))["stopReason"] == "end_turn"
    assert model.requests[-1].mentions("Write again")
    story = await told(api.talk)
    assert story.ends == ["cancelled", "cancelled", "error", "error", "error", "error", "end_turn"]
    assert story.said[-1] == "Here again."
    assert story.permissions == [("apply_patch", "cancelled"), ("apply_patch", "superseded")]
    assert story.calls == [("apply_patch", "failed")] * 2
    for words, error in zip(
        ("that is no request", "429", "stream disconnected", "SIGKILL"), story.errors, strict=True
    ):
        assert words in error
    assert ["SIGKILL" in each for each in story.exits] == [True]


async def test_two_sessions_at_once_leave_no_process(api: Api) -> None:
    await asyncio.gather(api.open("one"), api.open("two"))
    pid = await api.pid("one")
    assert pid == await api.pid("two")
    fares = (await api.talk.call("GET", "/v1/agents/codex")).json()["serverStatus"]
    assert (fares["status"], fares["processes"]) == ("running", 1)
    for name in ("one", "two"):
        script = api.model.when(f"for {name}")
        script.reply(Text(f"I am {name}."), add_file(f"{name}.txt", name))
        script.say(f"{name} is done.")
    afters = {name: await api.send(name, f"for {name}") for name in ("one", "two")}
    for name, after in afters.items():
        await api.replied(name, after, "once")
    for name, after in afters.items():
        assert (await api.ended(name, after))["stopReason"] == "end_turn"
        assert await api.talk.heard(name) == f"I am {name}.{name} is done."
        assert (api.talk.work / f"{name}.txt").exists()
        answer = await api.talk.call("POST", f"/v1/sessions/{name}/terminate")
        assert answer.status_code in (200, 204), answer.text
    assert not Path(f"/proc/{pid}").exists()
    for name in ("one", "two"):
        story = await told(api.talk, name)
        assert story.said == [f"I am {name}.", f"{name} is done."]
        assert story.ends == ["end_turn"]
        assert (story.calls, story.permissions) == (
            [("apply_patch", "completed")],
            [("apply_patch", "approved")],
        )
        assert story.files == [str(api.talk.work / f"{name}.txt")]


async def test_a_session_begins_with_what_was_said_in_another(api: Api) -> None:
    await api.open("first")
    api.model.say("The word is heron.")
    assert (await api.ended("first", await api.send("first", "Say a word")))["stopReason"] == "end_turn"
    api.model.say("It was heron.")
    await api.open("fork", fork="first")
    assert (await api.ended("fork", await api.send("fork", "Which one?")))["stopReason"] == "end_turn"
    assert api.model.requests[-1].mentions("Say a word")
