"""The driver with recordings of the real program: what it says in a session's log, and what it writes in its turn."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.agents.claude.recorded_claude import RECORDINGS, VERSION, Person, playing
from tests.host.rig import Hand, Rig, events, modes_told, of_type, until, until_type

from legation.errors import AgentError, InvalidParams
from legation.host.session import Session
from legation.testing.replay import Replay
from legation.wire.acp.methods import CreateElicitationResponse, ElicitationValue
from legation.wire.acp.rpc import ErrorCode
from legation.wire.acp.updates import Audio, Text


@dataclass
class Played:
    made: Rig
    replay: Replay
    session: Session

    async def ask(self, text: str) -> str | None:
        return (await self.session.prompt((Text(text=text),))).stop_reason

    async def of(self, *types: str) -> list[dict[str, Any]]:
        return [json.loads(event.payload) for event in await of_type(self.session, *types)]

    async def said(self) -> str:
        return "".join(each["content"]["text"] for each in await self.of("agent-message-chunk"))

    def written(self, kind: str) -> list[dict[str, Any]]:
        lines = [each for each in self.replay.children[-1].written if isinstance(each, dict)]
        return [each for each in lines if each["type"] == kind]

    def answers(self) -> list[dict[str, Any]]:
        return [each["response"]["response"] for each in self.written("control_response")]


@asynccontextmanager
async def played(place: Path, name: str, **options: Any) -> AsyncIterator[Played]:
    recordings = (VERSION, RECORDINGS / f"{name}.jsonl")
    async with playing(place, *recordings, **options) as (made, replay, agent_id):
        yield Played(made, replay, await made.open(agent_id))


async def test_a_turn_is_told_once_and_its_call_asked_for_once(tmp_path: Path) -> None:
    async with played(tmp_path, "turn") as at:
        assert await at.ask("Write a.txt") == "end_turn"
        assert await at.said() == "I write.Done."
        assert [each["content"]["text"] for each in await at.of("agent-thought-chunk")] == ["short"]
        [call] = await at.of("tool-call")
        assert (call["name"], call["kind"], call["status"]) == ("Write", "edit", "pending")
        assert call["content"][0]["path"] == str(tmp_path / "work" / "a.txt")
        assert [each["status"] for each in await at.of("tool-call-update")] == ["in_progress", "completed"]
        assert len(await at.of("permission-asked")) == 1
        hook, permission = at.answers()
        assert hook["hookSpecificOutput"]["permissionDecision"] == "ask"
        assert permission["behavior"] == "allow"
        assert "updatedPermissions" not in permission
        [usage] = await at.of("usage-update")
        assert usage["cost"]["currency"] == "USD"
        assert await at.of("unrecognized-update") == []
        assert at.made.reported == []


async def test_the_native_line_stands_beside_what_was_made_of_it(tmp_path: Path) -> None:
    async with played(tmp_path, "turn") as at:
        await at.ask("Write a.txt")
        [call] = await of_type(at.session, "tool-call")
        assert json.loads(call.native)["message"]["content"][0]["type"] == "tool_use"


async def test_a_session_has_modes_that_ask_models_and_commands(tmp_path: Path) -> None:
    async with played(tmp_path, "turn") as at:
        offers = at.session.offers
        assert offers.modes is not None
        assert [each.id for each in offers.modes.available_modes] == ["default", "plan"]
        models, effort = offers.choice("model"), offers.choice("thought_level")
        assert models is not None
        assert [each.value for each in models.options] == ["default", "haiku"]
        assert effort is not None
        assert effort.current_value == "default"
        await until_type(at.session, "available-commands-update")
        await at.ask("Write a.txt")


async def test_questions_become_a_form_and_its_answers_go_back_by_their_text(tmp_path: Path) -> None:
    content: dict[str, ElicitationValue] = {"question_0": "Blue", "question_1": ("Small",)}
    person = Person(CreateElicitationResponse(action="accept", content=content))
    async with played(tmp_path, "question", questions=person) as at:
        assert await at.ask("Ask me") == "end_turn"
        [asked] = person.asked
        assert asked.requested_schema is not None
        assert asked.requested_schema["required"] == ["question_0", "question_1"]
        answer = at.answers()[-1]
        assert answer["updatedInput"]["answers"] == {
            "Which colour should the button be?": "Blue",
            "Which sizes are there?": "Small",
        }
        assert await at.of("permission-asked") == []


async def test_a_plan_is_a_permission_to_change_the_mode(tmp_path: Path) -> None:
    async with played(tmp_path, "plan") as at:
        await at.made.host.set_mode(at.session.id, "plan")
        assert await at.ask("Plan") == "end_turn"
        [asked] = await at.of("permission-asked")
        assert asked["action"]["kind"] == "switch_mode"
        [call] = await at.of("tool-call")
        assert call["content"] == [{"type": "content", "content": {"type": "text", "text": "1. Do it"}}]
        assert (await modes_told(at.session))[-1] == "default"


async def test_a_question_that_the_program_takes_back_gets_no_answer(tmp_path: Path) -> None:
    hand = Hand()
    async with played(tmp_path, "withdrawn", approver=hand) as at:
        turn = asyncio.create_task(at.ask("Write"))
        await hand.until_asked()
        await at.session.cancel()
        assert await turn == "cancelled"
        assert [each["outcome"] for each in await at.of("permission-answered")] == ["cancelled"]
        interrupt = at.written("control_request")[-1]["request"]
        assert interrupt == {"subtype": "interrupt", "cancel_queued": True}


async def test_a_turn_that_nobody_asked_for_ends_no_other_and_is_told(tmp_path: Path) -> None:
    async with played(tmp_path, "background") as at:
        assert await at.ask("Delegate") == "end_turn"
        await until(at.session, lambda event: b"Home." in event.raw)
        assert await at.ask("Next") == "end_turn"
        assert await at.said() == "Started.Home.Next."
        assert len(await at.of("prompt-finished")) == 2
        agent, read = await at.of("tool-call")
        assert read["_meta"]["claudeCode"]["parentToolUseId"] == agent["toolCallId"]
        own = [each for each in await at.of("tool-call-update") if each["toolCallId"] == agent["toolCallId"]]
        assert [each["status"] for each in own][-1] == "completed"
        texts = [each["content"][0]["content"]["text"] for each in own if "content" in each]
        assert "Look." in texts
        assert "Sub done." in texts[-1]


async def test_a_retry_is_announced_and_an_error_that_calls_itself_success_is_one(tmp_path: Path) -> None:
    async with played(tmp_path, "errors") as at:
        result = await at.session.prompt((Text(text="One"),))
        assert result.error is not None
        assert isinstance(result.error.data, dict)
        assert (result.error.code, result.error.data["errorKind"]) == (ErrorCode.INTERNAL_ERROR, "rate_limit")
        retry, failed = await at.of("notice")
        assert retry["title"].endswith("rate_limit (429)")
        assert failed["severity"] == "error"
        assert await at.ask("Two") == "end_turn"
        assert await at.said() == "Fine."


async def test_a_prompt_that_cannot_be_sent_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    async with played(tmp_path, "turn") as at:
        sound = Audio(data="AAAA", mime_type="audio/wav")
        with pytest.raises(InvalidParams, match="audio"):
            await at.session.prompt((sound,))
        assert at.written("user") == []
        await at.ask("Write a.txt")
        assert (await events(at.session))[-1].type == "turn-state"


async def test_a_program_of_another_name_is_no_claude_code(tmp_path: Path) -> None:
    said = tmp_path / "version.jsonl"
    said.write_text(VERSION.read_text().replace("Claude Code", "Another"))
    with pytest.raises(AgentError, match="as Claude Code"):
        async with playing(tmp_path, said):
            pass
