"""The real OpenCode: its questions, plans, todo lists and sub-agents, and what can be chosen."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.agents.opencode.real_opencode import OpencodeSession, RealOpencode, open_opencode
from tests.host.rig import modes_told

from legation.errors import InvalidParams
from legation.wire.acp.methods import CreateElicitationResponse
from legation.wire.acp.updates import ResourceLink

pytestmark = [
    pytest.mark.network,
    pytest.mark.heavy,
    pytest.mark.timeout(600),  # the first one may install
    pytest.mark.asyncio(loop_scope="module"),
]

QUESTION = {
    "questions": [
        {
            "question": "Which colour should the button be?",
            "header": "Colour",
            "options": [
                {"label": "Red", "description": "A red button"},
                {"label": "Blue", "description": "A blue button"},
            ],
        }
    ]
}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def opencode_at_work(
    opencode: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RealOpencode]:
    async with open_opencode(opencode, tmp_path_factory.mktemp("opencode")) as made:
        yield made


async def test_a_question_is_answered(opencode_at_work: RealOpencode) -> None:
    async with opencode_at_work.seat() as at:
        at.script.call_tool("question", QUESTION)
        at.script.say("Blue it is.")
        _answers(at, CreateElicitationResponse(action="accept", content={"question_0": "Blue"}))
        result = await at.ask("Ask me")
        assert (result.stop_reason, result.error) == ("end_turn", None)
        (told,) = at.requests()[-1].tool_results
        assert "Blue" in told.text
        (asked,) = await at.updates("question-asked")
        assert asked["message"] == "Which colour should the button be?"
        assert [each["const"] for each in asked["requestedSchema"]["properties"]["question_0"]["oneOf"]] == [
            "Red",
            "Blue",
        ]


async def test_a_declined_question_does_not_end_the_turn(opencode_at_work: RealOpencode) -> None:
    async with opencode_at_work.seat() as at:
        at.script.call_tool("question", QUESTION)
        at.script.say("I choose myself.")
        _answers(at, CreateElicitationResponse(action="decline"))
        result = await at.ask("Ask me")
        assert (result.stop_reason, result.error) == ("end_turn", None)
        assert await at.said() == "I choose myself."


async def test_a_todo_list_is_a_plan(opencode_at_work: RealOpencode) -> None:
    async with opencode_at_work.seat() as at:
        todos = [
            {"content": "Write the file", "status": "in_progress", "priority": "high"},
            {"content": "Check it", "status": "pending", "priority": "low"},
            {"content": "Forget it", "status": "cancelled", "priority": "low"},
        ]
        at.script.call_tool("todowrite", {"todos": todos})
        at.script.say("Planned.")
        await at.ask("Plan it")
        (plan,) = await at.updates("plan")
        assert [(each["content"], each["status"]) for each in plan["entries"]] == [
            ("Write the file", "in_progress"),
            ("Check it", "pending"),
        ]
        assert at.asked == []  # it touches nothing


async def test_a_sub_agents_calls_are_asked_for_and_its_words_are_not_the_sessions(
    opencode_at_work: RealOpencode,
) -> None:
    async with opencode_at_work.seat() as at:
        target = at.work / "sub.txt"
        task = {"description": "Sub task", "prompt": f"Delegated work {at.mark}", "subagent_type": "general"}
        at.script.call_tool("task", task, say="I delegate.")
        at.script.call_tool(
            "write", {"filePath": str(target), "content": "by another"}, say="I am the other."
        )
        at.script.say("The other is done.")
        at.script.say("It is done.")
        result = await at.ask("Delegate it")
        assert (result.stop_reason, result.error) == ("end_turn", None)
        assert target.read_text() == "by another"
        assert await at.said() == "I delegate.It is done."
        assert [ask.action.tool for ask in at.asked] == ["task", "write"]
        calls = await at.updates("tool-call")
        assert [("_meta" in call, call["name"]) for call in calls] == [(False, "task"), (True, "write")]


async def test_planning_changes_no_file_and_an_approved_plan_is_built(opencode_at_work: RealOpencode) -> None:
    async with opencode_at_work.seat() as at:
        await at.choose_mode("plan")
        target = at.work / "built.txt"
        at.script.call_tool("write", {"filePath": str(target), "content": "too early"})
        at.script.call_tool("plan_exit", {}, say="Here is my plan.")
        at.script.call_tool("write", {"filePath": str(target), "content": "as planned"})
        at.script.say("Built.")
        _answers(at, CreateElicitationResponse(action="accept", content={"question_0": "Yes"}))
        result = await at.ask("Plan it")
        assert (result.stop_reason, result.error) == ("end_turn", None)
        assert target.read_text() == "as planned"
        assert [ask.action.params["content"] for ask in at.asked] == ["as planned"]
        assert (await modes_told(at.session))[-1] == "default"


async def test_a_plan_that_is_not_approved_is_not_built(opencode_at_work: RealOpencode) -> None:
    async with opencode_at_work.seat() as at:
        await at.choose_mode("plan")
        at.script.call_tool("plan_exit", {})
        at.script.say("I think again.")
        _answers(at, CreateElicitationResponse(action="accept", content={"question_0": "No"}))
        result = await at.ask("Plan it")
        assert (result.stop_reason, result.error) == ("end_turn", None)
        assert (await modes_told(at.session))[-1] == "plan"


async def test_modes_models_and_variants_are_offered_and_used(opencode_at_work: RealOpencode) -> None:
    async with opencode_at_work.seat() as at:
        modes = at.session.offers.modes
        assert modes is not None
        assert [mode.id for mode in modes.available_modes] == ["default", "plan"]
        variants = at.session.offers.choice("thought_level")
        assert variants is not None
        assert [each.value for each in variants.options] == ["default", "low", "medium", "high"]
        await at.choose("variant", "high")
        at.script.say("Thought hard.")
        await at.ask("Go")
        assert at.requests()[-1].body["reasoning_effort"] == "high"
        await at.choose("model", "scripted/second")
        at.script.say("Second.")
        await at.ask("Go")
        assert at.requests()[-1].model == "second"
        with pytest.raises(InvalidParams, match="cannot set 'model'"):
            await at.choose("model", "scripted/third")


async def test_a_linked_file_is_read_to_the_model(opencode_at_work: RealOpencode) -> None:
    async with opencode_at_work.seat() as at:
        note = at.work / "note.txt"
        note.write_text("the note's own words")
        at.script.say("Read.")
        await at.ask("Look", ResourceLink(name="note.txt", uri=note.as_uri()))
        assert at.requests()[-1].mentions("the note's own words")


def _answers(at: OpencodeSession, answer: CreateElicitationResponse) -> None:
    at.opencode_at_work.people.answering[at.session.meta.agent_session_id] = answer
