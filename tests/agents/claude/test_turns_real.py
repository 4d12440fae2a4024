"""Turns and permissions of the real Claude Code, from npm, with a scripted model behind it and nothing else."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.agents.claude.real_claude import real_claude
from tests.host.rig import YES, Hand, of_type, until

from legation.host.requests.handlers import DenyAll
from legation.testing.model import Stall, Text, Thinking, ToolCall, Usage
from legation.wire.acp.updates import Text as Prompt
from legation.wire.action import Decision

pytestmark = [pytest.mark.network, pytest.mark.heavy, pytest.mark.timeout(600)]  # the first one may install


async def test_a_turn_with_thought_and_text_is_said_once(claude: str, tmp_path: Path) -> None:
    async with real_claude(claude, tmp_path) as at:
        usage = Usage(input_tokens=11, output_tokens=5, cache_read_tokens=3, cache_write_tokens=2)
        at.model.reply(Thinking("a short greeting"), Text("Hello from the script."), usage=usage)
        result = await at.ask("Say hello")
        assert (result.stop_reason, result.error) == ("end_turn", None)
        assert await at.said() == "Hello from the script."
        assert await at.said("agent-thought-chunk") == "a short greeting"
        assert "Say hello" in at.model.requests[0].prompt
        assert result.usage is not None
        told = (result.usage.input_tokens, result.usage.output_tokens, result.usage.cached_read_tokens)
        assert told == (11, 5, 3)
        [used] = [json.loads(event.payload) for event in await of_type(at.session, "usage-update")]
        assert (used["used"], used["cost"]["currency"]) == (11 + 5 + 3 + 2, "USD")
        assert used["cost"]["amount"] > 0
        assert await of_type(at.session, "unrecognized-update") == []
        assert at.made.reported == []


async def test_each_call_is_asked_for_once_also_those_that_claude_allows_by_itself(
    claude: str, tmp_path: Path
) -> None:
    async with real_claude(claude, tmp_path) as at:
        (at.work / "a.txt").write_text("hello\n")
        target = at.work / "b.txt"
        calls = [
            ToolCall("Read", {"file_path": str(at.work / "a.txt")}),
            ToolCall("Bash", {"command": "echo hi", "description": "Say hi"}),
            ToolCall("Write", {"file_path": str(target), "content": "new\n"}),
        ]
        at.model.reply(Text("Three things."), *calls)
        at.model.say("Done.")
        result = await at.ask("Do three things")
        assert result.stop_reason == "end_turn"
        asked = [
            json.loads(event.payload)["action"] for event in await of_type(at.session, "permission-asked")
        ]
        assert [(each["tool"], each["kind"]) for each in asked] == [
            ("Read", "read"),
            ("Bash", "execute"),
            ("Write", "edit"),
        ]
        assert asked[1]["command"] == "echo hi"
        assert asked[2]["paths"] == [str(target)]
        assert target.read_text() == "new\n"
        statuses = await at.tool_calls()
        assert [statuses[call.id] for call in calls] == [["pending", "in_progress", "completed"]] * 3
        assert [told.is_error for told in at.model.requests[1].tool_results] == [False] * 3


async def test_a_denied_call_is_not_carried_out_and_the_turn_goes_on(claude: str, tmp_path: Path) -> None:
    async with real_claude(claude, tmp_path, approver=DenyAll()) as at:
        target = at.work / "hello.txt"
        call = at.model.call_tool("Write", {"file_path": str(target), "content": "hello\n"})
        at.model.say("Then not.")
        result = await at.ask("Write hello.txt")
        assert (result.stop_reason, result.error) == ("end_turn", None)
        assert not target.exists()
        assert (await at.tool_calls())[call.id] == ["pending", "failed"]
        (told,) = at.model.requests[1].tool_results
        assert (told.id, told.is_error) == (call.id, True)
        assert await at.said() == "Then not."


async def test_the_model_hears_why_a_call_was_denied(claude: str, tmp_path: Path) -> None:
    hand = Hand()
    async with real_claude(claude, tmp_path, approver=hand) as at:
        at.model.call_tool("Bash", {"command": "rm -rf build", "description": "Clean"})
        at.model.say("Then not.")
        turn = asyncio.create_task(at.ask("Clean up"))
        await hand.until_asked()
        hand.answer(hand.asked[0].id, Decision("denied", "test", "no", message="Keep the build folder."))
        await turn
        (told,) = at.model.requests[1].tool_results
        assert (told.is_error, told.text) == (True, "Keep the build folder.")


async def test_it_acts_on_the_arguments_that_were_approved(claude: str, tmp_path: Path) -> None:
    hand = Hand()
    async with real_claude(claude, tmp_path, approver=hand) as at:
        asked_for, approved = at.work / "asked.txt", at.work / "approved.txt"
        call = at.model.call_tool("Write", {"file_path": str(asked_for), "content": "a\n"})
        at.model.say("Done.")
        turn = asyncio.create_task(at.ask("Write"))
        await hand.until_asked()
        assert hand.asked[0].editable
        params = {"file_path": str(approved), "content": "b\n"}
        hand.answer(hand.asked[0].id, Decision("approved", "test", "so", params=params))
        await turn
        assert approved.read_text() == "b\n"
        assert not asked_for.exists()
        updates = [json.loads(event.payload) for event in await of_type(at.session, "tool-call-update")]
        assert [each["rawInput"] for each in updates if "rawInput" in each] == [params]
        assert updates[-1]["toolCallId"] == call.id


async def test_a_cancel_ends_the_turn_and_the_request_to_the_model(claude: str, tmp_path: Path) -> None:
    async with real_claude(claude, tmp_path) as at:
        stall = at.model.stall(Text("I think about it and "))
        turn = asyncio.create_task(at.ask("Think long"))
        await until(at.session, lambda event: event.type == "agent-message-chunk")
        await at.session.cancel()
        result = await turn
        assert (result.stop_reason, result.error) == ("cancelled", None)
        await stall.abandoned()
        at.model.say("Still here.")
        assert (await at.ask("Are you there?")).stop_reason == "end_turn"
        assert (await at.said()).endswith("Still here.")


async def test_a_cancel_before_the_turn_began_takes_the_prompt_back(claude: str, tmp_path: Path) -> None:
    async with real_claude(claude, tmp_path) as at:
        at.model.say("First.")
        await at.ask("First")
        at.model.stall()  # for a request that is faster than the cancel
        turn = asyncio.create_task(at.ask("Second"))
        await until(at.session, lambda event: event.type == "prompt-started" and b"Second" in event.raw)
        await at.session.cancel()
        assert (await turn).stop_reason == "cancelled"
        at.model.clear()
        at.model.say("Third.")
        assert (await at.ask("Third")).stop_reason == "end_turn"
        assert (await at.said()).endswith("Third.")


async def test_a_cancel_withdraws_an_open_permission(claude: str, tmp_path: Path) -> None:
    hand = Hand()
    async with real_claude(claude, tmp_path, approver=hand) as at:
        target = at.work / "hello.txt"
        at.model.call_tool("Write", {"file_path": str(target), "content": "hello\n"})
        turn = asyncio.create_task(at.ask("Write hello.txt"))
        await hand.until_asked()
        await at.session.cancel()
        assert (await turn).stop_reason == "cancelled"
        assert not target.exists()
        (answered,) = await of_type(at.session, "permission-answered")
        assert json.loads(answered.payload)["outcome"] == "cancelled"
        assert len(at.model.requests) == 1


async def test_a_sub_agent_in_the_background_asks_too_and_its_words_stand_under_its_call(
    claude: str, tmp_path: Path
) -> None:
    hand = Hand()
    async with real_claude(claude, tmp_path, approver=hand) as at:
        target = at.work / "sub.txt"
        sub = at.model.when("SUBTASK")
        arguments = {"description": "Sub", "prompt": "SUBTASK", "subagent_type": "general-purpose"}
        agent = at.model.call_tool("Agent", arguments)
        at.model.say("It works for me.")
        write = sub.call_tool("Write", {"file_path": str(target), "content": "sub\n"}, say="I write.")
        sub.say("Sub done.")
        turn = asyncio.create_task(at.ask("Delegate"))
        await hand.until_asked(1)
        hand.answer(hand.asked[0].id, YES)
        await turn
        # The sub-agent goes on, and so does its question: what was asked in the turn is asked again outside it.
        while (last := hand.asked[-1]).turn is not None:
            await hand.until_asked(len(hand.asked) + 1)
        at.model.say("Home again.")
        assert (last.action.tool, last.action.paths) == ("Write", (str(target),))
        hand.answer(last.id, YES)
        await until(at.session, lambda event: b"Home again." in event.raw)
        assert target.read_text() == "sub\n"
        assert await at.said() == "It works for me.Home again."
        statuses = await at.tool_calls()
        assert statuses[agent.id][-1] == "completed"
        assert statuses[write.id][-1] == "completed"
        [made] = [
            json.loads(event.payload)
            for event in await of_type(at.session, "tool-call")
            if write.id.encode() in event.raw
        ]
        assert made["_meta"]["claudeCode"]["parentToolUseId"] == agent.id
        assert len(await of_type(at.session, "prompt-finished")) == 1
        at.model.say("Next.")
        assert (await at.ask("And now?")).stop_reason == "end_turn"
        assert (await at.said()).endswith("Next.")


async def test_what_is_said_while_a_tool_works_is_heard_after_it_and_the_turn_ends_once(
    claude: str, tmp_path: Path
) -> None:
    hand = Hand()
    async with real_claude(claude, tmp_path, approver=hand) as at:
        at.model.call_tool("Bash", {"command": "sleep 0.7", "description": "Wait"})
        at.model.say("Both heard.")
        turn = asyncio.create_task(at.ask("Wait a little"))
        await hand.until_asked()
        await at.session.steer((Prompt(text="And be quick"),))
        hand.answer(hand.asked[0].id, YES)
        result = await turn
        assert (result.stop_reason, await at.said()) == ("end_turn", "Both heard.")
        assert "And be quick" in json.dumps(
            at.model.requests[-1].body["messages"]
        )  # as a remark of the system's
        assert len(at.model.requests) == 2


async def test_what_is_said_while_the_model_speaks_is_answered_in_the_same_turn(
    claude: str, tmp_path: Path
) -> None:
    async with real_claude(claude, tmp_path) as at:
        stall = Stall()
        at.model.reply(Text("One. "), stall, Text("Two. "))
        at.model.say("Three.")
        turn = asyncio.create_task(at.ask("Count"))
        await stall.reached()
        await at.session.steer((Prompt(text="Count further"),))
        stall.release()
        assert (await turn).stop_reason == "end_turn"
        assert await at.said() == "One. Two. Three."
        assert len(await of_type(at.session, "prompt-finished")) == 1


async def test_a_command_in_the_background_is_over_when_it_is_over(claude: str, tmp_path: Path) -> None:
    async with real_claude(claude, tmp_path) as at:
        gate = at.work / "gate"
        command = f"until [ -e {gate} ]; do sleep 0.05; done"
        arguments = {"command": command, "description": "Wait", "run_in_background": True}
        call = at.model.call_tool("Bash", arguments)
        at.model.say("Started.")
        assert (await at.ask("Wait in the background")).stop_reason == "end_turn"
        assert (await at.tool_calls())[call.id][-1] == "in_progress"
        at.model.say("It is over.")
        gate.touch()
        await until(at.session, lambda event: b"It is over." in event.raw)
        assert (await at.tool_calls())[call.id][-1] == "completed"
        assert len(await of_type(at.session, "prompt-finished")) == 1
