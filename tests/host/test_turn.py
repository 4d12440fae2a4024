"""One turn: begun at once or not at all, and its one end, as whoever took it is told."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.host.rig import Hand, events, of_type, play, rig, until_type

from legation.errors import AgentExited, Cancelled, PromptInFlight, SessionClosed, TimedOut
from legation.host.turn import PromptResult, TurnEnd, unplayed_turn
from legation.wire import event_types
from legation.wire.acp.rpc import ErrorCode, RpcError
from legation.wire.acp.updates import Text

GO = (Text(text="go"),)
REFUSED = RpcError(ErrorCode.REQUEST_CANCELLED, "cancelled")
GONE, STUCK = AgentExited("cannot go on: it is gone"), TimedOut("cannot go on: it is stuck")


@pytest.mark.heavy
async def test_a_turn_that_cannot_begin_leaves_nothing_in_the_log(tmp_path: Path) -> None:
    async with rig(tmp_path, approver=(hand := Hand())) as made:
        session = await made.rehearse()
        turn = asyncio.create_task(play(session, "ask something"))
        await hand.until_asked()
        await until_type(session, "permission-asked")
        with pytest.raises(PromptInFlight):
            session.talk.begin(GO)
        await session.cancel()
        await turn
        assert session.agent_id
        await made.host.dispose_agent(session.agent_id)
        with pytest.raises(AgentExited, match="cannot reach the agent"):
            session.talk.begin(GO)
        await made.host.close_session(session.id)
        with pytest.raises(SessionClosed):
            session.talk.begin(GO)
        assert len(await of_type(session, "prompt-started")) == 1


@pytest.mark.heavy
async def test_a_turn_has_begun_when_that_is_said_and_ends_once(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        turn = session.talk.begin((Text(text="#!rehearse\nsay hello"),), message="msg_1")
        assert session.busy
        end = await session.talk.until_over(turn)
        assert (end.told(), end.cut, end.cancelled) == (end.result, None, False)
        assert await session.talk.until_over(turn) is end
        (begun,) = await of_type(session, "prompt-started")
        assert json.loads(begun.payload)["message"] == "msg_1"
        assert end.result.stop_reason == "end_turn"


@pytest.mark.heavy
@pytest.mark.parametrize(("step", "cancelled"), [("crash 3", False), ("ask something", True)])
async def test_the_end_of_a_turn_says_whether_its_agent_was_gone_or_it_was_cancelled(
    tmp_path: Path, step: str, cancelled: bool
) -> None:
    async with rig(tmp_path, approver=(hand := Hand())) as made:
        session = await made.rehearse()
        turn = session.talk.begin((Text(text=f"#!rehearse\n{step}"),))
        if cancelled:
            await hand.until_asked()
            await session.cancel()
        end = await session.talk.until_over(turn)
        assert end.cancelled is cancelled
        assert (end.cut is None) is cancelled
        if cancelled:
            assert end.told().stop_reason == "cancelled"
        else:
            with pytest.raises(AgentExited):
                end.told()


def test_who_cancelled_a_turn_gets_what_he_asked_for_however_that_came() -> None:
    """Some agents answer by the error of a cancelled request, some end, some hang until they are stopped."""
    by_error = PromptResult("end_turn", error=REFUSED)
    assert TurnEnd(by_error, cancelled=True).told() == PromptResult("cancelled")
    assert TurnEnd(by_error).told() == by_error
    for error in (GONE, STUCK):
        with pytest.raises(Cancelled, match="it was cancelled"):
            TurnEnd(by_error, error=error, cancelled=True).told()
        with pytest.raises(type(error)):
            TurnEnd(by_error, error=error).told()
    assert (TurnEnd(by_error, error=GONE).cut, TurnEnd(by_error, error=STUCK).cut) == (GONE.message, None)


@pytest.mark.heavy
async def test_a_turn_that_no_agent_has_seen_is_a_whole_one(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        payloads = unplayed_turn("trn_1", GO, RpcError(ErrorCode.INTERNAL_ERROR, "no"), message="msg_1")
        await session.stream.append([event_types.draft(each) for each in payloads])
        types = [event.type for event in await events(session)][-3:]
        assert types == ["prompt-started", "prompt-finished", "turn-state"]
        assert not session.busy
