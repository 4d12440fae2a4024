"""The real @agentclientprotocol/claude-agent-acp, from npm, with a scripted model behind it and nothing else."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.agents.real_claude_acp import RealAgent, real_claude_acp
from tests.host.rig import Hand

from legation.host.requests.handlers import DenyAll
from legation.proc.tree import Process, children, process
from legation.testing.model import Cut, ModelRequest, Stall, Text, Thinking, ToolCall, Usage
from legation.wire.acp.rpc import ErrorCode, RpcError

pytestmark = [
    pytest.mark.network,
    pytest.mark.heavy,
    pytest.mark.timeout(600),  # the first one may install
    pytest.mark.asyncio(loop_scope="module"),
]

MODULE_LIMIT = 600.0  # seconds of real time for all that share a session, on a busy machine


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def claude(
    claude_agent_acp: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RealAgent]:
    """A session that many have turns in; whoever counts processes or gives the agent variables of its own starts another."""
    place = tmp_path_factory.mktemp("claude")
    async with real_claude_acp(claude_agent_acp, place, limit=MODULE_LIMIT) as made:
        yield made


RETRY_AFTER = 2.0  # seconds; on its own the agent would ask again after about half a second


async def test_a_turn_with_thought_and_text(claude: RealAgent) -> None:
    async with claude.turns() as at:
        usage = Usage(input_tokens=11, output_tokens=5, cache_read_tokens=3, cache_write_tokens=2)
        at.model.reply(Thinking("a short greeting"), Text("Hello from the script."), usage=usage)
        result = await at.ask("Say hello")
        assert (result.stop_reason, result.error) == ("end_turn", None)
        assert await at.said() == "Hello from the script."
        assert await at.said("agent-thought-chunk") == "a short greeting"
        assert "Say hello" in at.requests[0].prompt
        assert result.usage is not None
        told = (result.usage.input_tokens, result.usage.output_tokens, result.usage.cached_read_tokens)
        assert told == (11, 5, 3)


async def test_a_second_turn_knows_the_first(claude: RealAgent) -> None:
    async with claude.turns() as at:
        at.model.say("First answer.")
        at.model.say("Second answer.")
        await at.ask("First question")
        result = await at.ask("Second question")
        assert result.stop_reason == "end_turn"
        assert await at.said() == "First answer.Second answer."
        second = at.requests[1]
        assert second.mentions("First question")
        assert second.mentions("First answer.")
        assert "Second question" in second.prompt


async def test_an_allowed_tool_call_is_carried_out(claude: RealAgent) -> None:
    async with claude.turns() as at:
        target = at.work / "hello.txt"
        call = at.model.call_tool("Write", {"file_path": str(target), "content": "hello\n"}, say="I write.")
        at.model.say("Done.")
        result = await at.ask("Write hello.txt")
        assert result.stop_reason == "end_turn"
        assert target.read_text() == "hello\n"
        asked, answered = await at.events("permission-asked", "permission-answered")
        assert json.loads(asked.payload)["action"]["paths"] == [str(target)]
        assert json.loads(answered.payload)["optionId"] == "allow-once"
        assert (await at.tool_calls())[call.id][-1] == "completed"
        (told,) = at.requests[1].tool_results
        assert (told.id, told.is_error) == (call.id, False)


async def test_a_rejected_tool_call_is_not_carried_out_and_the_model_is_told(claude: RealAgent) -> None:
    async with claude.turns(approver=DenyAll()) as at:
        target = at.work / "hello.txt"
        call = at.model.call_tool("Write", {"file_path": str(target), "content": "hello\n"})
        at.model.say("Then not.")
        result = await at.ask("Write hello.txt")
        assert (result.stop_reason, result.error) == ("end_turn", None)
        assert not target.exists()
        assert (await at.tool_calls())[call.id][-1] == "failed"
        (told,) = at.requests[1].tool_results
        assert (told.id, told.is_error) == (call.id, True)
        assert await at.said() == "Then not."


async def test_parallel_tool_calls_are_each_asked_for(claude: RealAgent) -> None:
    async with claude.turns() as at:
        targets = [at.work / name for name in ("a.txt", "b.txt")]
        calls = [ToolCall("Write", {"file_path": str(path), "content": path.name}) for path in targets]
        at.model.reply(*calls)
        at.model.say("Both done.")
        await at.ask("Write two files")
        assert [path.read_text() for path in targets] == ["a.txt", "b.txt"]
        assert len(await at.events("permission-asked")) == 2
        assert {told.id for told in at.requests[1].tool_results} == {call.id for call in calls}


async def test_a_cancel_ends_the_turn_and_the_request_to_the_model(claude: RealAgent) -> None:
    async with claude.turns() as at:
        stall = at.model.stall(Text("I think about it and "))
        turn = asyncio.create_task(at.ask("Think long"))
        await at.until_type("agent-message-chunk")
        await at.session.cancel()
        result = await turn
        assert (result.stop_reason, result.error) == ("cancelled", None)
        await stall.abandoned()


async def test_a_cancel_withdraws_an_open_permission(claude: RealAgent) -> None:
    hand = Hand()
    async with claude.turns(approver=hand) as at:
        target = at.work / "hello.txt"
        at.model.call_tool("Write", {"file_path": str(target), "content": "hello\n"})
        at.model.stall()  # between our two messages the agent may ask the model once more: a race of its own
        turn = asyncio.create_task(at.ask("Write hello.txt"))
        await at.until_type("permission-asked")
        await at.session.cancel()
        assert (await turn).stop_reason == "cancelled"
        at.model.clear()
        assert not target.exists()
        (answered,) = await at.events("permission-answered")
        assert json.loads(answered.payload)["outcome"] == "cancelled"


async def test_a_session_goes_on_after_a_cancel(claude: RealAgent) -> None:
    async with claude.turns() as at:
        at.model.stall(Text("I think about it and "))
        turn = asyncio.create_task(at.ask("Think long"))
        await at.until_type("agent-message-chunk")
        await at.session.cancel()
        await turn
        at.model.say("Still here.")
        assert (await at.ask("Are you there?")).stop_reason == "end_turn"
        assert "Still here." in await at.said()


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (401, ErrorCode.AUTH_REQUIRED, None),
        (402, ErrorCode.INTERNAL_ERROR, "unknown"),
        (429, ErrorCode.INTERNAL_ERROR, "rate_limit"),
        (500, ErrorCode.INTERNAL_ERROR, "server_error"),
        (529, ErrorCode.INTERNAL_ERROR, "server_error"),
    ],
)
async def test_an_error_of_the_model_is_told_as_it_is(
    claude: RealAgent, status: int, code: int, kind: str | None
) -> None:
    async with claude.turns() as at:
        at.model.fail(status, "the scripted reason")
        result = await at.ask("Say hello")
        assert result.error is not None
        assert (result.error.code, _kind(result.error)) == (code, kind)
        (finished,) = await at.events("prompt-finished")
        assert json.loads(finished.payload)["error"]["message"] == result.error.message
        assert "the scripted reason" in await at.said()  # where the agent hides it from the error, it says it


async def test_a_rate_limit_is_waited_out_as_long_as_the_model_says(
    claude_agent_acp: tuple[str, ...], tmp_path: Path
) -> None:
    arrived: list[float] = []

    def note_time(request: ModelRequest) -> bool:
        if request.tools:
            arrived.append(time.monotonic())
        return False

    async with real_claude_acp(claude_agent_acp, tmp_path, env={"CLAUDE_CODE_MAX_RETRIES": "1"}) as at:
        at.model.when(note_time)
        at.model.fail(429, "slow down", retry_after=RETRY_AFTER)
        at.model.say("Hello after all.")
        result = await at.ask("Say hello")
        assert (result.stop_reason, result.error) == ("end_turn", None)
        assert await at.said() == "Hello after all."
        first, second = arrived
        assert second - first >= RETRY_AFTER


async def test_a_conversation_that_grew_too_long_is_an_error(claude: RealAgent) -> None:
    async with claude.turns(fresh=True) as at:  # with a history it would compact that first
        at.model.fail_too_long(tokens=250_000, limit=200_000)
        result = await at.ask("Say hello")
        assert result.error is not None
        assert "too long" in result.error.message
        assert _kind(result.error) == "invalid_request"


async def test_a_cut_stream_is_not_the_end_of_the_turn(claude: RealAgent) -> None:
    async with claude.turns() as at:
        stall = Stall()  # so that the first half is on its way before the cut: else the agent may drop it
        at.model.reply(Text("Half an ans"), stall, Cut())
        at.model.say("wer, and the rest.")
        turn = asyncio.create_task(at.ask("Say hello"))
        await at.until_type("agent-message-chunk")
        stall.release()
        result = await turn
        assert (result.stop_reason, result.error) == ("end_turn", None)
        assert len(at.requests) == 2
        assert await at.said() == "Half an answer, and the rest."


async def test_titles_and_suggestions_use_up_no_script(
    claude_agent_acp: tuple[str, ...], tmp_path: Path
) -> None:
    async with real_claude_acp(
        claude_agent_acp, tmp_path, env={"CLAUDE_CODE_ENABLE_PROMPT_SUGGESTION": "true"}
    ) as at:
        at.model.say("First answer.")
        at.model.say("Second answer.")
        await at.ask("First question")
        await at.ask("Second question")
        await at.model.until_side_requests(2)
        assert len(at.model.requests) == 2
        assert {bool(request.tools) for request in at.model.side_requests} == {True, False}


async def test_no_process_of_the_agent_is_left(claude_agent_acp: tuple[str, ...], tmp_path: Path) -> None:
    async with real_claude_acp(claude_agent_acp, tmp_path) as at:
        at.model.say("Hello.")
        await at.ask("Say hello")
        adapter = at.session.agent.processes[0]
        family = {pid: process(pid) for pid in (adapter, *children(adapter))}
        assert len(family) > 1  # the adapter in Node, and the agent itself
    assert [pid for pid, was in family.items() if _lives(pid, was)] == []


def _kind(error: RpcError) -> object:
    return error.data.get("errorKind") if isinstance(error.data, dict) else None


def _lives(pid: int, was: Process | None) -> bool:
    now = process(pid)
    return was is not None and now is not None and now.identity == was.identity
