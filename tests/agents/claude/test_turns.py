"""Which prompt a result ends."""

from __future__ import annotations

import pytest

from legation.agents.claude.messages import Result, ResultOrigin
from legation.agents.claude.turn import ClaudeTurns
from legation.agents.native import PendingReply
from legation.agents.rpc import AgentRefused
from legation.errors import AgentExited
from legation.wire.acp.methods import PromptResponse
from legation.wire.acp.rpc import ErrorCode

TASK = ResultOrigin(kind="task-notification")


def begin(turns: ClaudeTurns, *uuids: str) -> list[PendingReply[PromptResponse]]:
    replies: list[PendingReply[PromptResponse]] = [PendingReply() for _ in uuids]
    for uuid, reply in zip(uuids, replies, strict=True):
        turns.begin(uuid, reply)
    return replies


def result(*uuids: str, **members: object) -> Result:
    return Result(subtype="success", stop_reason="end_turn", user_message_uuids=uuids, **members)  # type: ignore[arg-type]


async def test_a_result_ends_the_prompt_that_it_names() -> None:
    turns = ClaudeTurns()
    first, second = begin(turns, "a", "b")
    assert turns.ended(result("b"), None)
    assert (first.given, second.given) == (False, True)


async def test_a_turn_that_nobody_asked_for_ends_none() -> None:
    turns = ClaudeTurns()
    [reply] = begin(turns, "a")
    assert not turns.ended(result(origin=TASK), None)
    assert not reply.given
    assert turns.ended(result("a", origin=TASK), None)  # but one that it was folded into does
    assert (await reply.value()).stop_reason == "end_turn"


async def test_what_was_said_meanwhile_keeps_the_turn_open_until_it_is_answered() -> None:
    turns = ClaudeTurns()
    [reply] = begin(turns, "a")
    taken = turns.add("steer")
    turns.moved("steer", "queued")
    assert taken.done()
    turns.ended(result("a"), None)
    assert not reply.given
    turns.ended(result("steer", is_error=True, result="API Error"), "server_error")
    with pytest.raises(AgentRefused, match="API Error"):
        await reply.value()


async def test_a_prompt_that_was_taken_back_is_cancelled() -> None:
    turns = ClaudeTurns()
    [reply] = begin(turns, "a")
    turns.cancel()
    turns.moved("a", "cancelled")
    assert (await reply.value()).stop_reason == "cancelled"
    assert (turns.running, turns.ends) == (False, 1)


@pytest.mark.parametrize(
    ("members", "cancelled", "stop"),
    [
        ({"terminal_reason": "aborted_tools", "is_error": True}, False, "cancelled"),
        ({"is_error": True, "result": "whatever"}, True, "cancelled"),
        ({"stop_reason": "refusal", "is_error": True}, False, "refusal"),
        ({"subtype": "error_max_turns", "is_error": True}, False, "max_turn_requests"),
        ({"stop_reason": "max_tokens"}, False, "max_tokens"),
        ({"stop_reason": "stop_sequence"}, False, "end_turn"),
    ],
)
async def test_how_a_turn_stopped(members: dict[str, object], cancelled: bool, stop: str) -> None:
    turns = ClaudeTurns()
    [reply] = begin(turns, "a")
    if cancelled:
        turns.cancel()
    given = {"subtype": "success", "stop_reason": "end_turn", **members}
    turns.ended(Result(user_message_uuid="a", **given), None)  # type: ignore[arg-type]
    assert (await reply.value()).stop_reason == stop


async def test_who_is_not_signed_in_is_told_so() -> None:
    turns = ClaudeTurns()
    [reply] = begin(turns, "a")
    turns.ended(result("a", is_error=True, result="Not logged in · Please run /login"), None)
    with pytest.raises(AgentRefused) as caught:
        await reply.value()
    assert caught.value.error.code == ErrorCode.AUTH_REQUIRED
    assert caught.value.error.message.endswith(
        "give it ANTHROPIC_API_KEY, or run `legation agents login claude`"
    )


async def test_with_the_process_every_prompt_is_lost() -> None:
    turns = ClaudeTurns()
    [reply] = begin(turns, "a")
    taken = turns.add("steer")
    turns.fail(AgentExited("gone"))
    for waiting in (reply.value(), taken):
        with pytest.raises(AgentExited):
            await waiting
