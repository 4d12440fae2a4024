"""Real agents that are driven by ACP and have quirks of their own, through the sessions API.

Codex's adapter must be told to use its key, and ends a turn whose permission is refused; so does OpenCode. What Legation
does about it knows neither by name.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests import real_agents
from tests.agents.real_acp_agents import (
    CODEX,
    GEMINI,
    OPENCODE,
    Kind,
    definition,
    furnish,
    scripted_model,
    start_of,
    variables,
)
from tests.host.rig import rig
from tests.server.sessions.session_client import SessionClient, open_session_client

from legation.agents.catalogue import Catalogue, Start
from legation.errors import TimedOut
from legation.host.options import Limits
from legation.host.session import Session
from legation.proc.tree import process
from legation.testing.model import ScriptedModel
from legation.testing.model import Text as Said
from legation.wire.acp.updates import Text

pytestmark = [pytest.mark.network, pytest.mark.heavy, pytest.mark.timeout(600)]  # the first one may install
BOTH = pytest.mark.parametrize("kind", [CODEX, OPENCODE], ids=lambda kind: kind.name)


@dataclass
class At:
    kind: Kind
    talk: SessionClient
    model: ScriptedModel

    async def send(self, text: str) -> int:
        """The number after which its events come."""
        after = (await self.talk.rig.services.log.stream("s")).head
        answer = await self.talk.call("POST", "/v1/sessions/s/messages", {"message": text})
        assert answer.status_code == 204, answer.text
        return after

    async def ended(self, after: int) -> dict[str, Any]:
        _, said = await self.talk.until("s", "prompt-finished", after=after)
        return said  # type: ignore[no-any-return]

    async def answered(self, text: str, reply: str) -> dict[str, Any]:
        """A turn in which one permission is asked for: how it ended."""
        after = await self.send(text)
        _, asked = await self.talk.until("s", "permission-asked", after=after)
        assert (await self.talk.reply("s", asked["id"], reply)).status_code == 204
        return await self.ended(after)

    def runs(self, command: str, *then: str) -> None:
        self.model.call_tool(*self.kind.command(command))
        for text in then:
            self.model.say(text)


@asynccontextmanager
async def at_work(
    kind: Kind, place: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[At]:
    await asyncio.to_thread(start_of, kind)
    monkeypatch.setenv(
        "OPENAI_API_KEY", "not-a-key"
    )  # as its owner has it: told to the agent by `authenticate`
    async with scripted_model() as model, open_session_client(place, request) as talk:
        furnish(kind, place / "data", model)

        def start(name: str) -> Start:
            found = Catalogue(real_agents.INSTALLED).start(name)
            return replace(found, env={**found.env, **variables(model)})

        monkeypatch.setattr(talk.rig.services.hosts.launcher.catalogue, "start", start)
        yield At(kind, talk, model)


@BOTH
async def test_permissions_a_cancel_and_a_resume(
    kind: Kind, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with at_work(kind, tmp_path, request, monkeypatch) as at:
        talk = at.talk
        await talk.created("s", agent=kind.name, directory=str(talk.work))

        at.runs("echo one > one.txt", "It is done.")
        assert (await at.answered("Write one", "once"))["stopReason"] == "end_turn"
        assert (talk.work / "one.txt").read_text() == "one\n"

        at.runs("echo two > two.txt")
        assert (await at.answered("Write two", "reject"))["stopReason"] == kind.refused
        assert not (talk.work / "two.txt").exists()

        stall = at.model.stall(Said("I think about it and "))
        after = await at.send("Think long")
        await stall.reached()
        assert (await talk.call("POST", "/v1/sessions/s/cancel")).status_code == 204
        assert (await at.ended(after))["stopReason"] == "cancelled"

        at.runs("echo three > three.txt")
        after = await at.send("Write three")
        await talk.until("s", "permission-asked", after=after)
        assert (await talk.call("POST", "/v1/sessions/s/cancel")).status_code == 204
        assert (await at.ended(after))["stopReason"] == "cancelled"
        assert not (talk.work / "three.txt").exists()

        host = await talk.rig.services.hosts.host()
        session = host.session("s")
        pids = session.agent.processes
        await host.dispose_agent(str(session.agent_id))
        assert [pid for pid in pids if (left := process(pid)) and not left.dead] == []
        at.model.say("I remember.")
        ended = await at.ended(await at.send("And now?"))
        assert ended["stopReason"] == "end_turn"
        assert at.model.requests[-1].mentions("Write one")

        for schema in ("sandbox-agent", "universal"):
            answer = await talk.call("GET", f"/v1/sessions/s/events?schema={schema}&limit=500")
            assert answer.status_code == 200, answer.text
            assert len(answer.json()["events"]) > 10
            assert "unparsed" not in answer.text
        shown = (await talk.call("GET", "/v1/sessions/s/events?limit=500")).json()["events"]
        types = [each["type"] for each in shown]
        assert types.count("permission.requested") == types.count("permission.resolved") == 3


@asynccontextmanager
async def hosted(kind: Kind, place: Path, **options: Any) -> AsyncIterator[tuple[Session, ScriptedModel]]:
    start = (await asyncio.to_thread(start_of, kind)).within(place, trusted=False)
    async with scripted_model() as model, rig(place, **options) as made:
        furnish(kind, place / "data", model)
        agent = await made.host.spawn_agent(definition(kind, start, made.work, model))
        if kind.sign_in:
            await made.host.authenticate(agent.agent_id, kind.sign_in)
        yield await made.open(agent.agent_id), model


async def test_a_file_request_that_was_not_offered_is_answered_and_the_turn_goes_on(tmp_path: Path) -> None:
    """OpenCode writes a file itself, and then asks its client to write it, whatever that offered."""
    asked: list[bytes] = []

    def note(line: bytes) -> bytes:
        if b'"fs/write_text_file"' in line:
            asked.append(line)
        return line

    async with hosted(OPENCODE, tmp_path, fs=None, redact=note) as (session, model):
        target = tmp_path / "work" / "new.txt"
        model.call_tool("write", {"filePath": str(target), "content": "new\n"})
        model.say("Done.")
        result = await session.prompt((Text(text="Write it"),))
        assert (result.stop_reason, result.error) == ("end_turn", None)
        assert target.read_text() == "new\n"
    assert len(asked) == 1


async def test_a_rate_limit_is_told_and_the_session_goes_on(tmp_path: Path) -> None:
    async with hosted(CODEX, tmp_path) as (session, model):
        model.fail(429, "slow down", times=8)
        result = await session.prompt((Text(text="Question 1"),))
        assert result.error is not None
        assert "429" in str(result.error.data)
        model.clear()
        model.say("Again.")
        after = await session.prompt((Text(text="Question 2"),))
        assert (after.stop_reason, after.error) == ("end_turn", None)


async def test_a_prompt_that_is_not_answered_ends_at_our_limit_and_the_session_goes_on(
    tmp_path: Path,
) -> None:
    """OpenCode asks a model that fails again and again, without a word and without an end."""
    async with hosted(OPENCODE, tmp_path, limits=Limits(idle=15.0)) as (session, model):
        model.say("Hello.")
        assert (await session.prompt((Text(text="Question 1"),))).error is None
        model.fail(500, "broken", times=50)
        with pytest.raises(TimedOut, match=r"cannot .* 15 s"):
            await session.prompt((Text(text="Question 2"),))
        model.clear()
        model.say("Again.")
        after = await session.prompt((Text(text="Question 3"),))
        assert (after.stop_reason, after.error) == ("end_turn", None)
        assert model.requests[-1].mentions("Question 1")


async def test_gemini_creates_a_file_for_it_is_offered_no_fs(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offered `fs` it fails at every file that is not there yet."""
    monkeypatch.setenv("GEMINI_API_KEY", "not-a-key")
    async with at_work(GEMINI, tmp_path, request, monkeypatch) as at:
        talk = at.talk
        await talk.created("s", agent="gemini", directory=str(talk.work))
        path = talk.work / "new.txt"
        at.model.call_tool("write_file", {"file_path": str(path), "content": "hello\n"})
        at.model.say("It is written.")
        assert (await at.answered("Write new.txt", "once"))["stopReason"] == "end_turn"
        assert path.read_text() == "hello\n"
