"""Sessions of the real claude-agent-acp that outlive its process: listed, loaded, resumed, recovered after a crash."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest
from tests.agents.real_claude_acp import RealAgent, real_claude_acp
from tests.host.rig import events, of_type, say_for_the_agent, status_of, until_status

from legation.agents.rpc import AgentRefused
from legation.errors import AgentExited
from legation.host.options import Backoff
from legation.proc.tree import Process, children, process
from legation.testing.model import Text
from legation.wire.acp.rpc import ErrorCode

pytestmark = [pytest.mark.network, pytest.mark.heavy, pytest.mark.timeout(600)]  # the first one may install

AT_ONCE = Backoff(initial_ms=1)


async def talk(at: RealAgent, number: int) -> None:
    at.model.say(f"Answer {number}.")
    result = await at.ask(f"Question {number}")
    assert (result.stop_reason, result.error) == ("end_turn", None)


def lives(was: Process) -> bool:
    now = process(was.pid)
    return now is not None and now.identity == was.identity and not now.dead


def knows(at: RealAgent, number: int) -> bool:
    """Whether the newest request to the model has that turn in it."""
    newest = at.model.requests[-1]
    return newest.mentions(f"Question {number}") and newest.mentions(f"Answer {number}.")


async def test_a_loaded_session_has_its_history_told_again_and_goes_on(
    claude_agent_acp: tuple[str, ...], tmp_path: Path
) -> None:
    async with real_claude_acp(claude_agent_acp, tmp_path) as at:
        await talk(at, 1)
        call = at.model.call_tool("Write", {"file_path": str(at.work / "a.txt"), "content": "a"})
        at.model.say("Answer 2.")
        await at.ask("Question 2")
        agent = await at.replace_agent()
        await until_status(at.session, "disconnected")

        loaded = await at.host.load_session(agent, at.session.id)

        assert (loaded.status, loaded.agent_id) == ("active", agent)
        assert await of_type(at.session, "session-reset") == []  # it tells what is recorded
        last = await say_for_the_agent(at.session, "which it never said")
        await at.host.load_session(agent, at.session.id)
        found = await events(at.session)
        assert found[0].type == "session-reset"
        first = found[0].seq
        assert first > last
        assert [event.seq for event in found] == list(range(first, first + len(found)))
        assert "active" in [status_of(event) for event in found]
        assert await at.said("user-message-chunk") == "Question 1Question 2"
        assert await at.said() == "Answer 1.Answer 2."
        assert (await at.tool_calls())[call.id][-1] == "completed"
        assert await of_type(at.session, "permission-asked", "prompt-started") == []
        await talk(at, 3)
        assert knows(at, 1)
        assert knows(at, 2)
        found = await events(at.session)
        assert [event.seq for event in found] == list(range(first, first + len(found)))


async def test_a_resumed_session_keeps_its_history_and_goes_on(
    claude_agent_acp: tuple[str, ...], tmp_path: Path
) -> None:
    async with real_claude_acp(claude_agent_acp, tmp_path) as at:
        await talk(at, 1)
        agent = await at.replace_agent()
        await until_status(at.session, "disconnected")
        before = await events(at.session)

        resumed = await at.host.resume_session(agent, at.session.id)

        assert (resumed.status, resumed.agent_id) == ("active", agent)
        await talk(at, 2)
        assert knows(at, 1)
        found = await events(at.session)
        assert found[: len(before)] == before
        assert [event.seq for event in found] == list(range(1, len(found) + 1))
        assert await of_type(at.session, "session-reset", "user-message-chunk") == []
        assert await at.said() == "Answer 1.Answer 2."


async def test_a_session_that_only_the_agent_knows_is_listed_and_loaded(
    claude_agent_acp: tuple[str, ...], tmp_path: Path
) -> None:
    async with real_claude_acp(claude_agent_acp, tmp_path) as at:
        await talk(at, 1)
        name = at.session.meta.agent_session_id
    async with real_claude_acp(claude_agent_acp, tmp_path) as at:  # a log of its own, and the same HOME
        (listed,) = (await at.host.list_sessions(at.agent_id, cwd=at.work)).sessions
        assert (listed.session_id, listed.cwd) == (name, str(at.work))
        await at.host.load_session(at.agent_id, name, cwd=at.work)
        at.session = at.host.session(name)
        assert await at.said() == "Answer 1."
        await talk(at, 2)
        assert knows(at, 1)


async def test_a_session_that_nobody_knows_is_not_found_and_leaves_nothing(
    claude_agent_acp: tuple[str, ...], tmp_path: Path
) -> None:
    async with real_claude_acp(claude_agent_acp, tmp_path) as at:
        unknown = "01234567-89ab-4def-8123-456789abcdef"
        for take_up in (at.host.load_session, at.host.resume_session):
            with pytest.raises(AgentRefused) as caught:
                await take_up(at.agent_id, unknown, cwd=at.work)
            assert caught.value.error.code == ErrorCode.RESOURCE_NOT_FOUND
        assert at.host.get_session(unknown) is None
        await talk(at, 1)


async def test_a_session_is_active_again_after_its_agent_was_killed(
    claude_agent_acp: tuple[str, ...], tmp_path: Path
) -> None:
    async with real_claude_acp(claude_agent_acp, tmp_path, restart="on-crash", restart_backoff=AT_ONCE) as at:
        await talk(at, 1)
        adapter = at.session.agent.processes[0]
        family = [each for pid in (adapter, *children(adapter)) if (each := process(pid))]
        assert len(family) > 1  # the adapter in Node, and the agent itself

        os.kill(adapter, signal.SIGKILL)
        lost = await until_status(at.session, "disconnected")
        await until_status(at.session, "active", after=lost.seq)

        assert [each.pid for each in family if lives(each)] == []
        await talk(at, 2)
        assert knows(at, 1)
        assert await of_type(at.session, "session-reset") == []  # resumed, as it can
        (exited,) = await of_type(at.session, "agent-exited")
        assert json.loads(exited.payload)["signal"] == signal.SIGKILL


async def test_a_session_killed_in_mid_turn_tells_its_end_and_goes_on(
    claude_agent_acp: tuple[str, ...], tmp_path: Path
) -> None:
    async with real_claude_acp(claude_agent_acp, tmp_path, restart="on-crash", restart_backoff=AT_ONCE) as at:
        await talk(at, 1)
        stall = at.model.stall(Text("I think about it and "))
        turn = asyncio.create_task(at.ask("Think long"))
        await stall.reached()
        os.kill(at.session.agent.processes[0], signal.SIGKILL)
        with pytest.raises(AgentExited, match="SIGKILL"):
            await turn
        await stall.abandoned()
        lost = await until_status(at.session, "disconnected")
        await until_status(at.session, "active", after=lost.seq)
        await talk(at, 2)
        assert knows(at, 1)
        told = [status_of(event) for event in await of_type(at.session, "session-status")]
        assert told == ["active", "disconnected", "active"]
