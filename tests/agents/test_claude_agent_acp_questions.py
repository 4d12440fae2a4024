"""Questions of the real claude-agent-acp to its user: its AskUserQuestion tool, as a form to fill in."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.agents.real_claude_acp import RealAgent, real_claude_acp
from tests.host.rig import of_type, until_type

from legation.wire.acp.methods import CreateElicitationRequest, CreateElicitationResponse

pytestmark = [pytest.mark.network, pytest.mark.heavy, pytest.mark.timeout(600)]  # the first one may install

TOOL = "AskUserQuestion"
QUESTION = "Which colour should the button be?"
COLOURS = ("Red", "Blue")
ASKED = {
    "questions": [
        {
            "question": QUESTION,
            "header": "Colour",
            "options": [{"label": each, "description": f"It is {each}"} for each in COLOURS],
            "multiSelect": False,
        }
    ]
}


@dataclass
class Person:
    """Fills in every form alike, or never comes back to one."""

    answer: CreateElicitationResponse | None
    asked: list[CreateElicitationRequest] = field(default_factory=list)
    modes: frozenset[str] = frozenset(("form",))

    async def ask(self, request: CreateElicitationRequest) -> CreateElicitationResponse:
        self.asked.append(request)
        return self.answer or await asyncio.Future[CreateElicitationResponse]()


async def answered(at: RealAgent) -> dict[str, object]:
    (event,) = await of_type(at.session, "question-answered")
    found: dict[str, object] = json.loads(event.payload)
    return found


async def test_a_question_is_asked_as_a_form_and_the_model_gets_the_choice(
    claude_agent_acp: tuple[str, ...], tmp_path: Path
) -> None:
    person = Person(CreateElicitationResponse(action="accept", content={"question_0": "Blue"}))
    async with real_claude_acp(claude_agent_acp, tmp_path, questions=person) as at:
        call = at.model.call_tool(TOOL, ASKED)
        at.model.say("Blue it is.")
        result = await at.ask("Ask me")
        assert (result.stop_reason, result.error) == ("end_turn", None)
        (told,) = at.model.requests[1].tool_results
        assert (told.id, told.is_error) == (call.id, False)
        assert f'"{QUESTION}"="Blue"' in told.text
        (asked,) = [json.loads(event.payload) for event in await of_type(at.session, "question-asked")]
        assert (asked["message"], asked["mode"], asked["toolCallId"]) == (QUESTION, "form", call.id)
        choices = asked["requestedSchema"]["properties"]["question_0"]["oneOf"]
        assert tuple(each["const"] for each in choices) == COLOURS
        assert [each.message for each in person.asked] == [QUESTION]
        recorded = await answered(at)
        assert (recorded["outcome"], recorded["content"]) == ("accepted", {"question_0": "Blue"})
        assert await of_type(at.session, "permission-asked") == []


async def test_a_declined_question_ends_neither_turn_nor_tool(
    claude_agent_acp: tuple[str, ...], tmp_path: Path
) -> None:
    person = Person(CreateElicitationResponse(action="decline"))
    async with real_claude_acp(claude_agent_acp, tmp_path, questions=person) as at:
        call = at.model.call_tool(TOOL, ASKED)
        at.model.say("Then I choose.")
        assert (await at.ask("Ask me")).stop_reason == "end_turn"
        assert (await answered(at))["outcome"] == "declined"
        (told,) = at.model.requests[1].tool_results
        assert told.id == call.id
        assert "did not answer" in told.text
        assert await at.said() == "Then I choose."


async def test_a_cancel_ends_a_turn_that_waits_for_an_answer(
    claude_agent_acp: tuple[str, ...], tmp_path: Path
) -> None:
    async with real_claude_acp(claude_agent_acp, tmp_path, questions=Person(None)) as at:
        at.model.call_tool(TOOL, ASKED)
        at.model.stall()  # between our two messages the agent may ask the model once more: a race of its own
        turn = asyncio.create_task(at.ask("Ask me"))
        await until_type(at.session, "question-asked")
        await at.session.cancel()
        assert (await turn).stop_reason == "cancelled"
        at.model.clear()
        assert (await answered(at))["outcome"] == "cancelled"
        at.model.say("Still here.")
        assert (await at.ask("Are you there?")).stop_reason == "end_turn"


async def test_without_anybody_to_ask_the_model_is_not_offered_to_ask(
    claude_agent_acp: tuple[str, ...], tmp_path: Path
) -> None:
    """INV-6: what is not served was not offered."""
    async with real_claude_acp(claude_agent_acp, tmp_path) as at:
        at.model.say("Hello.")
        await at.ask("Say hello")
        assert "Write" in at.model.requests[0].tools
        assert TOOL not in at.model.requests[0].tools
