"""The real OpenCode, from npm, with a scripted model behind it and nothing else: turns, permissions, cancels."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.agents.opencode.real_opencode import RealOpencode, open_opencode
from tests.host.rig import NO, YES, Hand, until_type

from legation.host.requests.handlers import DenyAll
from legation.testing.model import Text, Thinking, ToolCall, Usage

pytestmark = [
    pytest.mark.network,
    pytest.mark.heavy,
    pytest.mark.timeout(600),  # the first one may install
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def opencode_at_work(
    opencode: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RealOpencode]:
    async with open_opencode(opencode, tmp_path_factory.mktemp("opencode")) as made:
        yield made


async def test_a_turn_with_thought_and_text(opencode_at_work: RealOpencode) -> None:
    async with opencode_at_work.seat() as at:
        usage = Usage(input_tokens=11, output_tokens=5, cache_read_tokens=3)
        at.script.reply(Thinking("a short greeting"), Text("Hello from the script."), usage=usage)
        result = await at.ask("Say hello")
        assert (result.stop_reason, result.error) == ("end_turn", None)
        assert await at.said() == "Hello from the script."
        assert await at.said("agent-thought-chunk") == "a short greeting"
        assert result.usage is not None
        told = (result.usage.input_tokens, result.usage.output_tokens, result.usage.cached_read_tokens)
        assert told == (11, 5, 3)
        (spent,) = await at.updates("usage-update")
        assert (spent["size"], spent["cost"]["currency"]) == (200_000, "USD")
        assert spent["cost"]["amount"] > 0


async def test_an_allowed_tool_call_changes_a_file(opencode_at_work: RealOpencode) -> None:
    async with opencode_at_work.seat() as at:
        target = at.work / "hello.txt"
        call = at.script.call_tool("write", {"filePath": str(target), "content": "hello\n"}, say="I write.")
        at.script.say("Done.")
        result = await at.ask("Write hello.txt")
        assert result.stop_reason == "end_turn"
        assert target.read_text() == "hello\n"
        (ask,) = at.asked
        assert (ask.action.tool, ask.action.kind, ask.action.paths) == ("write", "edit", (str(target),))
        assert [(diff.path, diff.old_text, diff.new_text) for diff in ask.diffs] == [
            (str(target), None, "hello\n")
        ]
        assert (await at.statuses())[call.id][-1] == "completed"
        assert await at.said() == "I write.Done."


async def test_a_denied_call_is_not_carried_out_and_the_turn_goes_on(opencode_at_work: RealOpencode) -> None:
    async with opencode_at_work.seat(approver=DenyAll()) as at:
        target = at.work / "hello.txt"
        call = at.script.call_tool("write", {"filePath": str(target), "content": "hello\n"})
        at.script.say("Then not.")
        result = await at.ask("Write hello.txt")
        assert (result.stop_reason, result.error) == ("end_turn", None)
        assert not target.exists()
        assert (await at.statuses())[call.id][-1] == "failed"
        (told,) = at.requests()[-1].tool_results
        assert "rejected permission" in told.text
        assert await at.said() == "Then not."


async def test_reading_is_asked_for_too(opencode_at_work: RealOpencode) -> None:
    async with opencode_at_work.seat() as at:
        (at.work / "notes.txt").write_text("a note\n")
        at.script.call_tool("read", {"filePath": str(at.work / "notes.txt")})
        at.script.call_tool("bash", {"command": "echo hi", "description": "greet"})
        at.script.say("Read.")
        await at.ask("Read it")
        assert [(ask.action.tool, ask.action.kind) for ask in at.asked] == [
            ("read", "read"),
            ("bash", "execute"),
        ]
        assert at.asked[0].action.paths == (str(at.work / "notes.txt"),)
        assert at.asked[1].action.command == "echo hi"


async def test_of_two_calls_at_once_one_is_denied_and_the_other_done(opencode_at_work: RealOpencode) -> None:
    hand = Hand()
    async with opencode_at_work.seat(approver=hand) as at:
        names = ("a.txt", "b.txt")
        calls = [ToolCall("write", {"filePath": str(at.work / name), "content": name}) for name in names]
        at.script.reply(*calls)
        at.script.say("One of two.")
        turn = asyncio.create_task(at.ask("Write two files"))
        await hand.until_asked(2)
        denied, approved = hand.asked
        hand.answer(denied.id, NO)
        await until_type(at.session, "permission-answered")
        hand.answer(approved.id, YES)
        result = await turn
        assert (result.stop_reason, result.error) == ("end_turn", None)
        kept = [path.name for path in at.work.iterdir() if path.name in names]
        assert kept == [approved.action.paths[0].rpartition("/")[2]]
        assert await at.said() == "One of two."


async def test_a_cancel_ends_the_turn_and_the_request_to_the_model(opencode_at_work: RealOpencode) -> None:
    async with opencode_at_work.seat() as at:
        stall = at.script.stall(Text("I think about it and "))
        turn = asyncio.create_task(at.ask("Think long"))
        await until_type(at.session, "agent-message-chunk")
        await at.session.cancel()
        result = await turn
        assert (result.stop_reason, result.error) == ("cancelled", None)
        await stall.abandoned()
        at.script.say("Here again.")
        assert (await at.ask("Go on")).stop_reason == "end_turn"


async def test_a_cancel_withdraws_an_open_permission(opencode_at_work: RealOpencode) -> None:
    hand = Hand()
    async with opencode_at_work.seat(approver=hand) as at:
        target = at.work / "hello.txt"
        at.script.call_tool("write", {"filePath": str(target), "content": "hello\n"})
        turn = asyncio.create_task(at.ask("Write hello.txt"))
        await hand.until_asked()
        await at.session.cancel()
        result = await turn
        assert (result.stop_reason, result.error) == ("cancelled", None)
        assert hand.withdrawn == [hand.asked[0].id]
        assert not target.exists()
        at.script.say("Here again.")
        assert (await at.ask("Go on")).stop_reason == "end_turn"


async def test_a_cancel_right_behind_the_prompt_is_not_lost(opencode_at_work: RealOpencode) -> None:
    async with opencode_at_work.seat() as at:
        at.script.stall(Text("never"))
        turn = asyncio.create_task(at.ask("Think long"))
        await until_type(at.session, "prompt-started")
        await at.session.cancel()
        assert (await turn).stop_reason == "cancelled"
        at.script.clear()
        at.script.say("Here again.")
        assert (await at.ask("Go on")).stop_reason == "end_turn"
