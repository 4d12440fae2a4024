"""A program that says what the real one rarely does, or never: each request is answered, each line kept, nothing hangs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.agents.claude.recorded_claude import VERSION, Person, playing
from tests.host.rig import Hand, Rig, of_type, until

from legation.agents.driver import OpenRequest
from legation.agents.rpc import AgentRefused
from legation.errors import AgentExited, TimedOut
from legation.host.options import Limits
from legation.host.session import Session
from legation.testing.replay import Replay
from legation.wire.acp.methods import CreateElicitationResponse
from legation.wire.acp.updates import Text
from legation.wire.action import Decision

READY = {"commands": [], "models": [], "hooks_applied": True}
HELLO = {"type": "control_request", "request": {"subtype": "initialize"}, "request_id": "legation_1"}
PROMPT = {"type": "user", "uuid": "00000000-0000-4000-8000-000000000001", "message": {"content": []}}
RESULT = {
    "type": "result",
    "subtype": "success",
    "is_error": False,
    "stop_reason": "end_turn",
    "user_message_uuids": [PROMPT["uuid"]],
}


def greeting(response: dict[str, object]) -> dict[str, object]:
    return {
        "type": "control_response",
        "response": {"subtype": "success", "request_id": "legation_1", "response": response},
    }


def asks(number: str, **request: object) -> dict[str, object]:
    return {"type": "control_request", "request_id": number, "request": request}


ANSWERED = {"type": "control_response", "response": {"subtype": "success", "request_id": "x"}}
REFUSED = {"type": "control_response", "response": {"subtype": "error", "request_id": "x"}}


@dataclass
class Odd:
    """Lines that the program says, or with `hears` waits for."""

    lines: list[tuple[str, object]] = field(default_factory=list)

    def says(self, *messages: object) -> Odd:
        self.lines += [("out", each) for each in messages]
        return self

    def hears(self, *messages: object) -> Odd:
        self.lines += [("in", each) for each in messages]
        return self

    def ready(self) -> Odd:
        return self.hears(HELLO).says(greeting(READY))

    def write(self, path: Path, end: str, code: int) -> Path:
        start = ("start", {"argv": ["/a/claude"], "env": {}, "cwd": "/w"})
        entries = [start, *self.lines, ("note", end), ("exit", {"rc": code})]
        path.write_text(
            "".join(json.dumps({"t": 0, "dir": way, "msg": each}) + "\n" for way, each in entries)
        )
        return path


@dataclass
class Played:
    made: Rig
    replay: Replay
    agent_id: str

    async def open(self) -> Session:
        return await self.made.open(self.agent_id)

    def answers(self) -> list[dict[str, Any]]:
        lines = [each for each in self.replay.children[-1].written if isinstance(each, dict)]
        return [each["response"] for each in lines if each["type"] == "control_response"]


@asynccontextmanager
async def played(
    place: Path, odd: Odd, *, end: str = "stdin closed", code: int = 0, **options: Any
) -> AsyncIterator[Played]:
    recorded = odd.write(place / "odd.jsonl", end, code)
    async with playing(place, VERSION, recorded, **options) as (made, replay, agent_id):
        yield Played(made, replay, agent_id)


async def say(session: Session, text: str = "Go") -> str | None:
    return (await session.prompt((Text(text=text),))).stop_reason


async def test_what_it_asks_and_we_do_not_know_is_answered_with_an_error(tmp_path: Path) -> None:
    odd = Odd().ready().hears(PROMPT)
    odd.says(
        asks("a", subtype="mcp_message", server_name="x"), asks("b", subtype="can_use_tool", tool_name=7)
    )
    odd.hears(REFUSED, ANSWERED).says(RESULT)
    async with played(tmp_path, odd) as at:
        session = await at.open()
        assert await say(session) == "end_turn"
        unknown, unreadable = at.answers()
        assert (unknown["subtype"], unknown["request_id"]) == ("error", "a")
        assert unreadable["response"]["behavior"] == "deny"
        assert await of_type(session, "permission-asked") == []


async def test_a_question_of_an_mcp_server_reaches_its_user(tmp_path: Path) -> None:
    odd = Odd().ready().hears(PROMPT)
    schema = {"type": "object", "properties": {"question_0": {"type": "string"}}}
    odd.says(asks("a", subtype="elicitation", mcp_server_name="x", message="Who?", requested_schema=schema))
    odd.says(
        asks("b", subtype="elicitation", mcp_server_name="x", message="Go", mode="url", url="https://x.test")
    )
    odd.hears(ANSWERED, ANSWERED).says(RESULT)
    person = Person(CreateElicitationResponse(action="accept", content={"question_0": "Blue"}))
    async with played(tmp_path, odd, questions=person) as at:
        assert await say(await at.open()) == "end_turn"
        answers = {each["request_id"]: each["response"] for each in at.answers()}
        assert (answers["a"]["action"], answers["a"]["content"]["question_0"]) == ("accept", "Blue")
        assert answers["b"] == {"action": "decline"}
        assert [each.message for each in person.asked] == ["Who?"]


async def test_a_question_that_came_in_spite_of_all_is_answered_that_nobody_is_there(tmp_path: Path) -> None:
    given = {"questions": [{"question": "Which?", "header": "W", "options": [], "multiSelect": False}]}
    odd = Odd().ready().hears(PROMPT)
    odd.says(asks("a", subtype="can_use_tool", tool_name="AskUserQuestion", input=given, tool_use_id="t"))
    odd.hears(ANSWERED).says(RESULT)
    async with played(tmp_path, odd) as at:
        assert await say(await at.open()) == "end_turn"
        [answer] = at.answers()
        assert answer["response"]["behavior"] == "deny"
        assert "Nobody can be asked" in answer["response"]["message"]


async def test_lines_that_nobody_knows_are_kept_and_text_is_reported(tmp_path: Path) -> None:
    news = {"type": "news", "text": "hear, hear"}
    odd = Odd().ready().hears(PROMPT).says(news, "Segmentation fault (not really)", RESULT)
    async with played(tmp_path, odd) as at:
        session = await at.open()
        assert await say(session) == "end_turn"
        [kept] = await of_type(session, "unrecognized-update")
        assert json.loads(kept.payload) == news
        assert [each.code for each in at.made.reported] == ["agent/stray-line"]


@pytest.mark.parametrize("said", [False, None, "maybe"])
async def test_a_program_that_takes_no_hook_gets_no_session(tmp_path: Path, said: object) -> None:
    """Nor does one that does not say so."""
    odd = Odd().hears(HELLO).says(greeting({**READY, "hooks_applied": said}))
    async with played(tmp_path, odd) as at:
        with pytest.raises(AgentRefused, match="every call"):
            await at.open()


async def test_a_session_that_is_only_beginning_ends_with_its_agent(tmp_path: Path) -> None:
    async with played(tmp_path, Odd().hears(HELLO).says("still starting"), end="stop") as at:
        heard = asyncio.Event()
        at.made.host.subscribe(None, 0, lambda event: heard.set() if b"stray-line" in event.raw else None)
        opening = asyncio.create_task(at.open())
        await heard.wait()
        await at.made.host.dispose_agent(at.agent_id)
        with pytest.raises(AgentExited):
            await opening


async def test_a_program_that_does_not_answer_is_given_up_and_left_behind_nowhere(tmp_path: Path) -> None:
    async with played(tmp_path, Odd().hears(HELLO), end="stop", limits=Limits(start=0.2)) as at:
        with pytest.raises(TimedOut, match="session/new"):
            await at.open()


async def test_a_prompt_is_not_lost_with_the_process(tmp_path: Path) -> None:
    odd = Odd().ready().hears(PROMPT)
    async with played(tmp_path, odd, end="by itself", code=3) as at:
        session = await at.open()
        with pytest.raises(AgentExited, match="exit code 3"):
            await say(session)


async def test_a_turn_of_an_older_program_ends_though_its_result_names_no_prompt(tmp_path: Path) -> None:
    unnamed = {key: value for key, value in RESULT.items() if key != "user_message_uuids"}
    foreign = {**unnamed, "origin": {"kind": "task-notification"}}
    odd = Odd().ready().hears(PROMPT).says(foreign, {"type": "system", "subtype": "status"}, unnamed)
    async with played(tmp_path, odd) as at:
        assert await say(await at.open()) == "end_turn"


async def test_what_a_background_task_waits_for_is_asked_again_when_its_turn_is_over(tmp_path: Path) -> None:
    hand = Hand()
    odd = Odd().ready().hears(PROMPT)
    odd.says(asks("a", subtype="can_use_tool", tool_name="Bash", input={"command": "ls"}, tool_use_id="t"))
    odd.says({"type": "system", "subtype": "status"}, RESULT).hears(ANSWERED)
    async with played(tmp_path, odd, approver=hand) as at:
        session = await at.open()
        assert await say(session) == "end_turn"
        await hand.until_asked()
        while (last := hand.asked[-1]).turn is not None:
            await hand.until_asked(len(hand.asked) + 1)
        hand.answer(last.id, Decision("approved", "test", "so"))
        await until(session, lambda event: event.type == "tool-call-update")
        [answer] = at.answers()
        assert answer["response"] == {"behavior": "allow", "updatedInput": {"command": "ls"}}
        outcomes = [
            json.loads(each.payload)["outcome"] for each in await of_type(session, "permission-answered")
        ]
        assert outcomes == ["cancelled", "approved"]


@pytest.mark.parametrize(
    "name", ["/elsewhere/conversation.jsonl", "../x", "", "11111111-2222-4333-8444-55555555555g"]
)
async def test_only_an_id_is_resumed_and_no_file(tmp_path: Path, name: str) -> None:
    async with played(tmp_path, Odd().ready()) as at:
        session = await at.open()
        for take_up in (session.agent.resume_session, session.agent.fork_session):
            with pytest.raises(AgentRefused, match="no such session"):
                await take_up(OpenRequest(str(tmp_path), session_id=name), 1.0)
