"""How turns of the real Codex end before their time: cancelled, failed, crashed; and how they go on."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from pathlib import Path

import pytest
from tests.agents.codex.real_codex import IMPATIENT, add_file, ask, payload, real_codex, run, said, tool_calls
from tests.host.rig import NO, YES, Hand, of_type, say_for_the_agent, until_status, until_type

from legation.errors import AgentExited
from legation.host.requests.handlers import ApproveAll
from legation.testing.model import Text
from legation.wire.acp.updates import Text as Prompt

PATIENCE = 10.0  # seconds for a killed process to be gone: the kernel's time

pytestmark = [pytest.mark.heavy, pytest.mark.network]


async def test_a_turn_is_cancelled_while_the_model_speaks(codex: Path, tmp_path: Path) -> None:
    async with real_codex(codex, tmp_path) as at:
        session = await at.open()
        stall = at.model.stall(Text("A first part of the answer"))
        turn = asyncio.create_task(ask(session))
        await stall.reached()
        await until_type(session, "agent-message-chunk")
        await session.cancel()
        assert (await turn).stop_reason == "cancelled"
        await stall.abandoned()
        at.model.say("And on.")
        assert (await ask(session)).stop_reason == "end_turn"


async def test_a_turn_is_cancelled_while_it_waits_for_a_permission(codex: Path, tmp_path: Path) -> None:
    async with real_codex(codex, tmp_path) as at:
        session = await at.open()
        at.model.reply(add_file("a.txt", "a"))
        turn = asyncio.create_task(ask(session))
        await at.hand.until_asked()
        await session.cancel()
        assert (await turn).stop_reason == "cancelled"
        assert at.hand.withdrawn == [at.hand.asked[0].id]
        assert not (at.work / "a.txt").exists()
        at.model.say("And on.")
        assert (await ask(session)).stop_reason == "end_turn"


async def test_a_cancelled_turn_takes_its_command_with_it(codex: Path, tmp_path: Path) -> None:
    async with real_codex(codex, tmp_path, approver=ApproveAll()) as at:
        session = await at.open()
        os.mkfifo(at.work / "ready")
        at.model.reply(run("echo $$ > ready; exec sleep 60"))
        turn = asyncio.create_task(ask(session))
        process = os.pidfd_open(int(await asyncio.to_thread((at.work / "ready").read_text)))
        await session.cancel()
        assert (await turn).stop_reason == "cancelled"
        gone, _, _ = await asyncio.to_thread(select.select, [process], [], [], PATIENCE)
        os.close(process)
        assert gone
        assert await tool_calls(session) == {"exec_command": ["in_progress", "failed"]}


async def test_errors_of_the_model_end_the_turn_and_say_what_they_are(codex: Path, tmp_path: Path) -> None:
    async with real_codex(codex, tmp_path, *IMPATIENT) as at:
        session = await at.open()
        at.model.fail(400, "that is no request")
        refused = await ask(session)
        at.model.fail(429, "too fast")
        limited = await ask(session)
        at.model.cut(Text("The beginning"))
        at.model.say("All of it.")
        mended = await ask(session)
        at.model.cut(Text("The beginning"))
        at.model.cut(Text("The beginning"))
        cut = await ask(session)
        assert refused.error is not None
        assert "that is no request" in refused.error.message
        assert limited.error is not None
        assert limited.error.data == {"kind": "responseTooManyFailedAttempts", "httpStatus": 429}
        assert (mended.stop_reason, mended.error) == ("end_turn", None)
        assert cut.error is not None
        assert "stream disconnected" in cut.error.message
        notices = [payload(each) for each in await of_type(session, "notice")]
        assert {each["severity"] for each in notices} == {"warning"}
        assert await of_type(session, "unrecognized-update") == []


async def test_a_killed_server_ends_the_turns_of_all_and_all_go_on_in_another(
    codex: Path, tmp_path: Path
) -> None:
    async with real_codex(codex, tmp_path, restart="on-crash", restart_backoff={"initial_ms": 1}) as at:
        one, two = await at.open(), await at.open()
        (pid,) = {*at.driver(one).processes, *at.driver(two).processes}
        first, second = at.model.when("first"), at.model.when("second")
        first.reply(add_file("a.txt", "a"))
        second.reply(add_file("b.txt", "b"))
        turns = [asyncio.create_task(ask(one, "first")), asyncio.create_task(ask(two, "second"))]
        await at.hand.until_asked(2)
        os.kill(pid, signal.SIGKILL)
        for turn in turns:
            with pytest.raises(AgentExited):
                await turn
        for session in (one, two):
            lost = await until_status(session, "disconnected")
            await until_status(session, "active", after=lost.seq)
        (other,) = {*at.driver(one).processes, *at.driver(two).processes}
        assert other != pid
        first.say("Here again.")
        assert (await ask(one, "go on")).stop_reason == "end_turn"
        assert at.model.requests[-1].mentions("first")
        assert not at.model.requests[-1].mentions("second")
    assert not _lives(other)


async def test_a_session_goes_on_in_a_new_process_and_its_history_can_be_loaded(
    codex: Path, tmp_path: Path
) -> None:
    async with real_codex(codex, tmp_path, approver=ApproveAll()) as at:
        session = await at.open()
        at.model.reply(Text("I write."), add_file("a.txt", "remember"))
        at.model.say("Written.")
        await ask(session, "the first prompt")
        pid, name = at.driver(session).processes[0], session.meta.agent_session_id
        assert session.agent_id
        await at.made.host.dispose_agent(session.agent_id)
        assert not _lives(pid)
        agent = await at.made.host.spawn_agent(at.definition)
        await at.made.host.resume_session(agent.agent_id, session.id)
        at.model.say("I remember.")
        assert (await ask(session, "the second prompt")).stop_reason == "end_turn"
        assert at.model.requests[-1].mentions("the first prompt")
        assert await said(session) == "I write.Written.I remember."
        listed = await at.made.host.list_sessions(agent.agent_id)
        assert [(each.session_id, each.cwd, each.title) for each in listed.sessions] == [
            (name, str(at.work), "the first prompt")
        ]
        await at.made.host.load_session(agent.agent_id, session.id)
        assert await of_type(session, "session-reset") == []  # it tells what is recorded
        await say_for_the_agent(session, "which it never said")
        await at.made.host.load_session(agent.agent_id, session.id)
        types = [
            each.type for each in await of_type(session, "user-message-chunk", "tool-call", "session-reset")
        ]
        assert types == ["session-reset", "user-message-chunk", "tool-call", "user-message-chunk"]
        assert await said(session) == "I write.Written.I remember."


async def test_two_sessions_at_once_share_a_server_and_nothing_else(codex: Path, tmp_path: Path) -> None:
    async with real_codex(codex, tmp_path) as at:
        one, two = await at.open(), await at.open()
        (pid,) = {*at.driver(one).processes, *at.driver(two).processes}
        first, second = at.model.when("first"), at.model.when("second")
        first.reply(Text("One."), add_file("one.txt", "1"))
        first.say("One is done.")
        second.reply(Text("Two."), add_file("two.txt", "2"))
        second.say("Two is done.")
        turns = [asyncio.create_task(ask(one, "first")), asyncio.create_task(ask(two, "second"))]
        await at.hand.until_asked(2)
        for asked in at.hand.asked:
            at.hand.answer(asked.id, YES if asked.session_id == one.id else NO)
        await asyncio.gather(*turns)
        assert (await said(one), await said(two)) == ("One.One is done.", "Two.Two is done.")
        assert ((at.work / "one.txt").exists(), (at.work / "two.txt").exists()) == (True, False)
        assert one.agent_id
        await at.made.host.dispose_agent(one.agent_id)
        assert _lives(pid)
        second.say("Still here.")
        assert (await ask(two, "second again")).stop_reason == "end_turn"
    assert not _lives(pid)


async def test_a_turn_is_steered(codex: Path, tmp_path: Path) -> None:
    hand = Hand()
    async with real_codex(codex, tmp_path, approver=hand) as at:
        session = await at.open()
        at.model.reply(run("ls"))
        at.model.say("As you wish.")
        turn = asyncio.create_task(ask(session))
        await hand.until_asked()
        await session.steer((Prompt(text="blue, please"),))
        hand.answer(hand.asked[0].id, NO)
        assert (await turn).stop_reason == "end_turn"
        assert at.model.requests[-1].mentions("blue, please")


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
