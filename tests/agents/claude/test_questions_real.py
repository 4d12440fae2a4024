"""The real Claude Code asks its user: questions with choices, and whether a plan is good."""

from __future__ import annotations

import asyncio
import json
from itertools import groupby
from pathlib import Path

import pytest
from tests.agents.claude.real_claude import real_claude
from tests.agents.claude.recorded_claude import Person
from tests.host.rig import YES, Hand, modes_told, of_type

from legation.testing.model import ToolCall
from legation.wire.acp.methods import CreateElicitationResponse, ElicitationValue
from legation.wire.action import Decision

pytestmark = [pytest.mark.network, pytest.mark.heavy, pytest.mark.timeout(600)]  # the first one may install

TOOL = "AskUserQuestion"
COLOUR = "Which colour should the button be?"
SIZES = "Which sizes are there?"


def _question(text: str, header: str, *labels: str, many: bool = False) -> dict[str, object]:
    options = [{"label": each, "description": f"It is {each}"} for each in labels]
    return {"question": text, "header": header, "options": options, "multiSelect": many}


ASKED = {
    "questions": [
        _question(COLOUR, "Colour", "Red", "Blue"),
        _question(SIZES, "Sizes", "Small", "Large", many=True),
    ]
}


async def test_questions_are_a_form_and_the_model_gets_the_answers(claude: str, tmp_path: Path) -> None:
    content: dict[str, ElicitationValue] = {"question_0": "Blue", "question_1": ("Small", "Large")}
    person = Person(CreateElicitationResponse(action="accept", content=content))
    async with real_claude(claude, tmp_path, questions=person) as at:
        call = at.model.call_tool(TOOL, ASKED)
        at.model.say("Blue it is.")
        result = await at.ask("Ask me")
        assert (result.stop_reason, result.error) == ("end_turn", None)
        (told,) = at.model.requests[1].tool_results
        assert (told.id, told.is_error) == (call.id, False)
        assert f'"{COLOUR}"="Blue"' in told.text
        assert f'"{SIZES}"="Small, Large"' in told.text
        (asked,) = [json.loads(event.payload) for event in await of_type(at.session, "question-asked")]
        fields = asked["requestedSchema"]["properties"]
        assert [each["const"] for each in fields["question_0"]["oneOf"]] == ["Red", "Blue"]
        assert [each["const"] for each in fields["question_1"]["items"]["anyOf"]] == ["Small", "Large"]
        assert asked["toolCallId"] == call.id
        assert await of_type(at.session, "permission-asked") == []


async def test_a_declined_question_ends_neither_turn_nor_session(claude: str, tmp_path: Path) -> None:
    person = Person(CreateElicitationResponse(action="decline"))
    async with real_claude(claude, tmp_path, questions=person) as at:
        at.model.call_tool(TOOL, ASKED)
        at.model.say("Then I choose.")
        assert (await at.ask("Ask me")).stop_reason == "end_turn"
        (told,) = at.model.requests[1].tool_results
        assert told.is_error
        assert "declined" in told.text


async def test_where_nobody_can_be_asked_the_tool_is_not_there(claude: str, tmp_path: Path) -> None:
    async with real_claude(claude, tmp_path) as at:
        at.model.say("Hello.")
        await at.ask("Hello")
        assert "Write" in at.model.requests[0].tools
        assert TOOL not in at.model.requests[0].tools


async def test_a_plan_is_asked_for_sent_back_and_approved(claude: str, tmp_path: Path) -> None:
    hand = Hand()
    async with real_claude(claude, tmp_path, approver=hand) as at:
        await at.host.set_mode(at.session.id, "plan")
        plan = ToolCall("ExitPlanMode", {"plan": "# Plan\n\n1. Write it"})
        better = ToolCall("ExitPlanMode", {"plan": "# Plan\n\n1. Write it\n2. Test it"})
        at.model.reply(plan)
        at.model.reply(better)
        at.model.say("Now I work.")
        turn = asyncio.create_task(at.ask("Plan it"))
        await hand.until_asked(1)
        first = hand.asked[0]
        assert (first.action.tool, first.action.kind) == ("ExitPlanMode", "switch_mode")
        hand.answer(first.id, Decision("denied", "test", "no", message="Add tests."))
        await hand.until_asked(2)
        hand.answer(hand.asked[1].id, YES)
        assert (await turn).stop_reason == "end_turn"
        (told,) = at.model.requests[1].tool_results
        assert (told.text, told.is_error) == ("Add tests.", True)
        calls = [json.loads(event.payload) for event in await of_type(at.session, "tool-call")]
        assert [each["content"][0]["content"]["text"] for each in calls] == [
            plan.input["plan"],
            better.input["plan"],
        ]
        assert [mode for mode, _ in groupby(await modes_told(at.session))] == ["default", "plan", "default"]
