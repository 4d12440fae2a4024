"""What the real Codex asks: questions, plans, MCP tools, sub-agents; and who may not answer for us."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from tests.agents.codex import mcp_server
from tests.agents.codex.person import BLUE, QUESTION, Person
from tests.agents.codex.real_codex import (
    KEY,
    add_file,
    ask,
    open_with,
    payload,
    real_codex,
    run,
    said,
    tool_calls,
)
from tests.agents.hostile_repository import VARIABLE, hostile_repository
from tests.host.rig import NO, YES, modes_told, of_type, until

from legation.host.requests.handlers import ApproveAll
from legation.testing.model import Text, ToolCall
from legation.wire.acp.methods import CreateElicitationResponse, McpServer

pytestmark = [pytest.mark.heavy, pytest.mark.network]

ECHO = McpServer.stdio("echo", sys.executable, (mcp_server.__file__,))


async def test_a_question_is_asked_and_its_answer_reaches_the_model(codex: Path, tmp_path: Path) -> None:
    person = Person(BLUE)
    async with real_codex(codex, tmp_path, questions=person) as at:
        session = await at.open()
        at.model.reply(QUESTION)
        at.model.say("Blue it is.")
        assert (await ask(session)).stop_reason == "end_turn"
        assert '"Blue"' in at.model.requests[-1].tool_results[0].text
        (asked,) = person.asked
        assert asked.message == "Which colour?"
        assert asked.requested_schema is not None
        assert asked.requested_schema["properties"] == {
            "colour": {
                "type": "string",
                "title": "Colour",
                "description": "Which colour?",
                "oneOf": [
                    {"const": "Red", "title": "Red", "description": "like a rose"},
                    {"const": "Blue", "title": "Blue", "description": "like the sky"},
                ],
            }
        }
        person.answer = CreateElicitationResponse(action="decline")
        at.model.reply(QUESTION)
        at.model.say("Then not.")
        assert (await ask(session)).stop_reason == "end_turn"
        assert "declined" in at.model.requests[-1].tool_results[0].text


async def test_where_nobody_can_be_asked_the_model_is_told_so(codex: Path, tmp_path: Path) -> None:
    async with real_codex(codex, tmp_path) as at:
        session = await at.open()
        at.model.reply(QUESTION)
        at.model.say("Red, then.")
        assert (await ask(session)).stop_reason == "end_turn"
        assert "Nobody can be asked" in at.model.requests[-1].tool_results[0].text


async def test_a_plan_is_carried_out_when_it_is_approved_and_only_then(codex: Path, tmp_path: Path) -> None:
    async with real_codex(codex, tmp_path) as at:
        session = await at.open()
        await at.made.host.set_mode(session.id, "plan")
        plan = "<proposed_plan>\n1. Write a.txt\n</proposed_plan>\n"
        at.model.reply(Text(f"I looked around.\n{plan}"))
        turn = asyncio.create_task(ask(session, "plan it"))
        await at.hand.until_asked()
        refused = at.hand.asked[0]
        assert (refused.action.tool, refused.action.kind) == ("approve_plan", "switch_mode")
        assert refused.action.params == {"plan": "1. Write a.txt\n"}
        at.hand.answer(refused.id, NO)
        assert (await turn).stop_reason == "end_turn"
        at.model.reply(Text(plan))
        at.model.reply(add_file("a.txt", "planned"))
        at.model.say("Carried out.")
        turn = asyncio.create_task(ask(session, "again"))
        for count in (2, 3):
            await at.hand.until_asked(count)
            at.hand.answer(at.hand.asked[-1].id, YES)
        result = await turn
        assert result.stop_reason == "end_turn"
        assert result.usage is not None
        assert result.usage.output_tokens == 75
        assert (at.work / "a.txt").read_text() == "planned\n"
        assert (await modes_told(session))[-2:] == ["plan", "default"]
        assert (await said(session)).endswith("Carried out.")
        assert await of_type(session, "unrecognized-update") == []


async def test_a_turn_is_cancelled_while_its_plan_waits(codex: Path, tmp_path: Path) -> None:
    async with real_codex(codex, tmp_path) as at:
        session = await at.open()
        await at.made.host.set_mode(session.id, "plan")
        at.model.reply(Text("<proposed_plan>\n1. Write a.txt\n</proposed_plan>\n"))
        turn = asyncio.create_task(ask(session, "plan it"))
        await at.hand.until_asked()
        await session.cancel()
        assert (await turn).stop_reason == "cancelled"


async def test_every_mcp_tool_is_asked_about_and_may_ask_itself(codex: Path, tmp_path: Path) -> None:
    person = Person(CreateElicitationResponse(action="accept", content={"colour": "Red"}))
    async with real_codex(codex, tmp_path, questions=person) as at:
        session = await open_with(at, ECHO)
        calls = [ToolCall(f"mcp__echo.{name}", {"text": name}) for name in ("echo", "look", "ask")]
        for call in calls:
            at.model.reply(call)
        at.model.say("done")
        turn = asyncio.create_task(ask(session))
        for count, answer in enumerate((NO, YES, YES), start=1):
            await at.hand.until_asked(count)
            at.hand.answer(at.hand.asked[-1].id, answer)
        assert (await turn).stop_reason == "end_turn"
        assert [(each.action.tool, each.action.params) for each in at.hand.asked] == [
            ("echo.echo", {"text": "echo"}),
            ("echo.look", {"text": "look"}),
            ("echo.ask", {"text": "ask"}),
        ]
        assert [each.tool_call_id for each in at.hand.asked] == [call.id for call in calls]
        refused, looked, asked = (each.tool_results[0].text for each in at.model.requests[1:])
        assert "echo:" not in refused
        assert 'look: {"text": "look"}' in looked
        assert '"colour": "Red"' in asked
        assert person.asked[0].message == "Which colour?"
        assert await of_type(session, "unrecognized-update") == []


async def test_a_sub_agent_asks_in_the_session_of_its_parent(codex: Path, tmp_path: Path) -> None:
    async with real_codex(codex, tmp_path) as at:
        session = await at.open()
        sub = at.model.when("for the sub-agent")
        begin = {"message": "for the sub-agent", "agent_type": "default"}
        at.model.reply(ToolCall("multi_agent_v1.spawn_agent", begin))
        at.model.say("Delegated.")
        sub.reply(run("echo sub > sub.txt"))
        sub.say("The sub-agent has done it.")
        turn = asyncio.create_task(ask(session))
        await at.hand.until_asked()
        (asked,) = at.hand.asked
        assert (asked.session_id, asked.action.command) == (session.id, "echo sub > sub.txt")
        at.hand.answer(asked.id, YES)
        assert (await turn).stop_reason == "end_turn"
        report = await until(session, lambda event: b"has done it" in event.raw)
        calls = [payload(each) for each in await of_type(session, "tool-call")]
        assert payload(report)["toolCallId"] == calls[0]["toolCallId"]
        assert [each["name"] for each in calls] == ["spawn_agent", "exec_command"]
        assert "_meta" in calls[1]
        assert await said(session) == "Delegated."
        assert await of_type(session, "unrecognized-update") == []


async def test_a_hostile_repository_changes_nothing(codex: Path, tmp_path: Path) -> None:
    async with real_codex(codex, tmp_path) as at:
        repository = hostile_repository(at.work, tmp_path / "marks")
        session = await at.open()
        at.model.reply(run(f"touch a; echo ${VARIABLE}-${{OPENAI_API_KEY:-none}}"))
        at.model.reply(add_file("b.txt", "b"))
        at.model.say("done")
        turn = asyncio.create_task(ask(session))
        for count, answer in enumerate((YES, NO), start=1):
            await at.hand.until_asked(count)
            at.hand.answer(at.hand.asked[-1].id, answer)
        assert (await turn).stop_reason == "end_turn"
        assert "-none" in at.model.requests[1].tool_results[0].text
        assert KEY not in at.model.requests[1].tool_results[0].text
        assert repository.left() == set()
        assert not (at.work / "b.txt").exists()
        assert session.home is not None
        home = Path(session.home)
        assert not (home / ".codex" / "config.toml").exists()
        assert [
            each for each in home.rglob("*") if each.is_file() and KEY.encode() in each.read_bytes()
        ] == []


async def test_the_newest_models_ask_as_well(codex: Path, tmp_path: Path) -> None:
    """They write programs that call the tools."""
    async with real_codex(codex, tmp_path) as at:
        agent = await at.made.host.spawn_agent(at.definition)
        session = await at.made.open(agent.agent_id)
        program = (
            'text(JSON.stringify(await tools.exec_command({"cmd": "echo one > one.txt"})));'
            'text(await tools.apply_patch("*** Begin Patch\\n*** Add File: two.txt\\n+two\\n*** End Patch\\n"));'
        )
        at.model.reply(ToolCall("exec", {"input": program}))
        at.model.say("done")
        turn = asyncio.create_task(ask(session))
        for count in (1, 2):
            await at.hand.until_asked(count)
            at.hand.answer(at.hand.asked[-1].id, YES)
        assert (await turn).stop_reason == "end_turn"
        assert [each.action.tool for each in at.hand.asked] == ["exec_command", "apply_patch"]
        assert (at.work / "one.txt").read_text() == "one\n"
        assert (at.work / "two.txt").read_text() == "two\n"
        assert await of_type(session, "unrecognized-update") == []


async def test_the_same_command_is_asked_about_each_time(codex: Path, tmp_path: Path) -> None:
    async with real_codex(codex, tmp_path, approver=ApproveAll()) as at:
        session = await at.open()
        at.model.reply(run("echo again >> a.txt"))
        at.model.reply(run("echo again >> a.txt"))
        at.model.say("done")
        await ask(session)
        assert len(await of_type(session, "permission-asked")) == 2
        assert (at.work / "a.txt").read_text() == "again\n" * 2
        assert await tool_calls(session) == {"exec_command": ["in_progress", "completed"] * 2}
