"""Turns: their one end, cancelling, and agents that show no sign of life."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.host.rig import YES, Hand, go, of_type, play, rig, until_type

from legation.errors import AgentError, AgentExited, LegationError, PromptInFlight, SessionClosed, TimedOut
from legation.host.conversation import Conversation
from legation.host.options import Limits
from legation.host.session import Session
from legation.host.turn import CANCEL_GRACE, SessionTurn
from legation.testing.clock import FakeClock
from legation.wire.acp.methods import PromptResponse

IDLE = 100.0
LIMITS = Limits(idle=IDLE, permission=1000)


async def finished(session: Session) -> list[dict[str, object]]:
    return [json.loads(event.payload) for event in await of_type(session, "prompt-finished")]


async def test_the_stop_reason_is_the_agents_own(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        for step, reason in (("stop max_tokens", "max_tokens"), ("refuse", "refusal"), ("stop! odd", "odd")):
            assert (await play(session, step)).stop_reason == reason
        assert [each["stopReason"] for each in await finished(session)] == ["max_tokens", "refusal", "odd"]


async def test_an_error_of_the_agent_is_a_result_and_the_session_goes_on(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        result = await play(session, "error -32000 sign in first")
        assert result.error is not None
        assert (result.error.code, result.error.message) == (-32000, "sign in first")
        assert (await play(session, "say on")).error is None


async def test_an_answer_without_a_stop_reason_is_an_error_and_the_turn_is_over(tmp_path: Path) -> None:
    source = "hello(); session(); send(id=prompted(), result={}); done(prompted()); stay()"
    async with rig(tmp_path) as made:
        session = await made.script(source)
        with pytest.raises(AgentError, match="stopReason"):
            await go(session)
        assert (await go(session)).stop_reason == "end_turn"


async def test_a_cancel_that_is_obeyed_ends_the_turn(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        prompting = asyncio.create_task(play(session, "say hi", "stall 60"))
        await until_type(session, "agent-message-chunk")
        await session.cancel()
        await session.cancel()
        assert (await prompting).stop_reason == "cancelled"
        assert (await play(session, "say next")).stop_reason == "end_turn"


async def test_an_agent_that_ignores_a_cancel_is_stopped_after_the_grace(tmp_path: Path) -> None:
    clock = FakeClock()
    async with rig(tmp_path, clock=clock, limits=LIMITS) as made:
        session = await made.script("hello(); session(); prompted(); update('hi'); stay()")
        prompting = asyncio.create_task(go(session))
        await until_type(session, "agent-message-chunk")
        await session.cancel()
        await clock.until_sleeping()
        clock.advance(CANCEL_GRACE - 1)
        await asyncio.sleep(0)
        assert not prompting.done()
        await clock.until_sleeping()
        clock.advance(1)
        with pytest.raises(AgentExited):
            await prompting
        codes = [json.loads(event.payload)["code"] for event in await of_type(session, "diagnostic")]
        assert codes == ["agent/kill"]
        assert [each["stopReason"] for each in await finished(session)] == ["cancelled"]


async def test_a_cancel_without_a_turn_is_never_sent(tmp_path: Path) -> None:
    source = """
hello(); session(); done(prompted())
message = read(); update(message["method"])
done(message["id"]); stay()
"""
    async with rig(tmp_path) as made:
        session = await made.script(source)
        await session.cancel()
        await go(session)
        await session.cancel()
        await go(session)
        (heard,) = await of_type(session, "agent-message-chunk")
        assert b'"session/prompt"' in heard.raw


async def test_a_cancel_between_the_answer_and_the_return_of_prompt_is_not_sent(tmp_path: Path) -> None:
    source = "hello(); session(); done(prompted()); message = read(); update(message['method']);"
    async with rig(tmp_path) as made:
        session = await made.script(source + "done(message['id']); stay()")
        prompting = asyncio.create_task(go(session))
        await until_type(session, "prompt-finished")
        await session.cancel()
        await prompting
        await go(session)
        (heard,) = await of_type(session, "agent-message-chunk")
        assert b'"session/prompt"' in heard.raw


async def test_a_cancel_never_overtakes_its_prompt(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        prompting = asyncio.create_task(play(session, "stall 60"))
        await asyncio.sleep(0)
        await session.cancel()
        assert (await prompting).stop_reason == "cancelled"
        assert await of_type(session, "diagnostic") == []


async def test_a_second_prompt_in_flight_is_refused(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        prompting = asyncio.create_task(play(session, "stall 60"))
        await until_type(session, "turn-state")
        with pytest.raises(PromptInFlight):
            await play(session, "say me too")
        await session.cancel()
        await prompting
        assert len(await finished(session)) == 1


async def test_a_caller_that_goes_away_cancels_the_turn(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        prompting = asyncio.create_task(play(session, "say hi", "stall 60"))
        await until_type(session, "agent-message-chunk")
        prompting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await prompting
        await until_type(session, "prompt-finished")
        assert [each["stopReason"] for each in await finished(session)] == ["cancelled"]
        assert (await play(session, "say next")).stop_reason == "end_turn"


async def test_an_idle_agent_is_cancelled_and_the_client_told(tmp_path: Path) -> None:
    clock = FakeClock()
    async with rig(tmp_path, clock=clock, limits=LIMITS) as made:
        session = await made.rehearse()
        prompting = asyncio.create_task(play(session, "say hi", "stall 60"))
        await until_type(session, "agent-message-chunk")
        await clock.until_sleeping()
        clock.advance(IDLE)
        with pytest.raises(TimedOut, match="idle_timeout"):
            await prompting
        (end,) = await finished(session)
        assert end["stopReason"] == "cancelled"
        assert end["error"]
        assert (await play(session, "say next")).stop_reason == "end_turn"


async def test_an_answer_that_comes_as_the_time_is_up_ends_the_turn_and_does_not_hold_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, answered = FakeClock(), Conversation._answered

    def answer_late(self: Conversation, turn: SessionTurn, answer: PromptResponse | LegationError) -> None:
        answered(self, turn, answer)
        clock.advance(2 * IDLE)

    monkeypatch.setattr(Conversation, "_answered", answer_late)
    async with rig(tmp_path, clock=clock, limits=LIMITS) as made:
        session = await made.rehearse()
        ask = session.agent.prompt

        async def hear_late(*args: Any, **more: Any) -> PromptResponse:
            found = await ask(*args, **more)
            for _ in range(20):  # whoever watches the time is woken first
                await asyncio.sleep(0)
            return found

        monkeypatch.setattr(session.agent, "prompt", hear_late)
        assert (await play(session, "say hi")).stop_reason == "end_turn"


async def test_a_sign_of_life_starts_the_idle_time_anew(tmp_path: Path) -> None:
    clock = FakeClock()
    source = """
hello(); session(); prompt = prompted(); update("one"); os.read(os.open("go", os.O_RDONLY), 1)
update("two"); stay()
"""
    os.mkfifo(tmp_path / "go")
    async with rig(tmp_path, clock=clock, limits=LIMITS) as made:
        session = await made.script(source)
        prompting = asyncio.create_task(go(session))
        await until_type(session, "agent-message-chunk")
        await clock.until_sleeping()
        clock.advance(IDLE - 1)
        await asyncio.to_thread((tmp_path / "go").write_text, "x")
        while len(await of_type(session, "agent-message-chunk")) < 2:
            await asyncio.sleep(0.001)
        clock.advance(2)
        await asyncio.sleep(0)
        await clock.until_sleeping()
        assert not prompting.done()
        clock.advance(IDLE)
        await clock.until_sleeping()
        clock.advance(CANCEL_GRACE)
        with pytest.raises(TimedOut):
            await prompting


async def test_waiting_for_a_person_is_not_idleness(tmp_path: Path) -> None:
    clock, hand = FakeClock(), Hand()
    async with rig(tmp_path, approver=hand, clock=clock, limits=LIMITS) as made:
        session = await made.rehearse()
        prompting = asyncio.create_task(play(session, "ask something", "say done"))
        await hand.until_asked()
        for _ in range(5):
            await clock.until_sleeping(2)
            clock.advance(IDLE)
            for _ in range(5):
                await asyncio.sleep(0)
        assert not prompting.done()
        hand.answer(hand.asked[0].id, YES)
        assert (await prompting).stop_reason == "end_turn"


async def test_a_closed_session_takes_no_prompt_and_is_not_left_with_a_turn(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        await made.host.close_session(session.id)
        for _ in range(2):
            with pytest.raises(SessionClosed):
                await play(session, "say hi")


async def test_a_prompt_to_a_dead_agent_says_how_it_ended(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        for _ in range(2):
            with pytest.raises(LegationError, match="exit code 7"):
                await play(session, "crash 7")
