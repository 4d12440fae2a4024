"""Turns and sessions in the projection: how they begin, fail and end."""

from typing import Any

import pytest
from tests.wire.samples import tagged
from tests.wire.universal.laws import check, completed, only, types
from tests.wire.universal.logs import ACTIVE, call, chunk, log, turn

from legation.wire.acp.rpc import RpcError
from legation.wire.action import Action
from legation.wire.event_types import (
    AgentExited,
    Diagnostic,
    DiagnosticCode,
    PromptFinished,
    SessionReset,
    SessionStatus,
    TurnState,
    UnaskedEffect,
    UnaskingMode,
)
from legation.wire.events import Draft
from legation.wire.universal.shapes import floor


def test_a_prompt_that_failed_is_an_error_before_the_end_of_its_turn() -> None:
    started, running, *_ = turn()
    error = RpcError(-32603, "overloaded", {"retry": 3})
    found = check(log(started, running, PromptFinished(turn="trn_1", stop_reason="end_turn", error=error)))
    assert types(found)[-2:] == ["error", "turn.ended"]
    assert only(found, "error") == {
        "message": "overloaded",
        "code": "prompt_failed",
        "details": {"code": -32603, "message": "overloaded", "data": {"retry": 3}},
    }


def test_what_was_done_unasked_is_an_error_and_so_is_a_mode_that_stays_unasking() -> None:
    effect = UnaskedEffect(title="Write a.py", action=Action(agent="a", tool="edit"), rule="p:edits")
    found = check(log(ACTIVE, effect, UnaskingMode(mode="yolo", found="opened", reason="it has no other")))
    errors = [event["data"] for event in found if event["type"] == "error"]
    assert [each["code"] for each in errors] == ["unasked_effect", "unasking_mode"]
    assert errors[0]["message"] == "Write a.py: done, and nobody had allowed it"
    assert errors[0]["details"]["rule"] == "p:edits"
    put = check(log(ACTIVE, UnaskingMode(mode="auto", found="opened", put_into="default")))
    assert "error" not in types(put)
    (item,) = completed(put, "status")
    assert item["content"][0]["detail"] == "default: in auto it would not ask"


def test_a_turn_that_no_prompt_began_is_told_by_its_state() -> None:
    found = check(
        log(
            *(TurnState(turn="t", state=state) for state in ("accepted", "running")),
            chunk("by myself"),
            TurnState(turn="t", state="idle", reason="end_turn"),
            TurnState(turn="t", state="running"),
        )
    )
    assert types(found) == [
        *("session.started", "turn.started", "item.started", "item.delta", "item.completed", "turn.ended"),
    ]


def test_a_prompt_ends_a_turn_that_was_left_open() -> None:
    found = check(log(*turn(chunk("a"))[:3], *turn(name="trn_2")))
    ended = [each["data"]["turn_id"] for each in found if each["type"] == "turn.ended"]
    assert ended == ["trn_1", "trn_2"]


CRASH = AgentExited(code=3, stderr_tail="one\ntwo")


@pytest.mark.parametrize(
    ("entries", "ended"),
    [
        (
            (CRASH, SessionStatus(status="disconnected", reason="crashed: exit code 3")),
            {
                "reason": "error",
                "terminated_by": "agent",
                "message": "the agent crashed: exit code 3",
                "exit_code": 3,
                "stderr": {"truncated": False, "head": "one\ntwo", "total_lines": 2},
            },
        ),
        (
            (
                AgentExited(signal=9, stderr_tail="\n".join(map(str, range(99)))),
                SessionStatus(status="disconnected", reason="crashed: signal 9"),
            ),
            {
                "reason": "error",
                "terminated_by": "agent",
                "message": "the agent crashed: signal 9",
                "stderr": {"truncated": True, "tail": "\n".join(map(str, range(49, 99)))},
            },
        ),
        (
            (AgentExited(code=0), SessionStatus(status="disconnected", reason="ended: exit code 0")),
            {"reason": "completed", "terminated_by": "agent"},
        ),
        ((SessionStatus(status="closed"),), {"reason": "terminated", "terminated_by": "daemon"}),
    ],
)
def test_the_end_of_a_session_says_why(entries: tuple[Any, ...], ended: dict[str, Any]) -> None:
    found = check(log(ACTIVE, *turn(chunk("a"))[:3], *entries))
    assert types(found)[-2:] == ["turn.ended", "session.ended"]
    assert found[-1]["data"] == ended


@pytest.mark.parametrize("reason", ["disposed: exit code 0", "stopped: signal 15"])
def test_a_session_whose_agent_we_stopped_goes_on(reason: str) -> None:
    found = check(log(ACTIVE, CRASH, SessionStatus(status="disconnected", reason=reason), ACTIVE))
    assert "session.ended" not in types(found)
    details = [item["content"][0]["detail"] for item in completed(found, "status")]
    assert details == [f"disconnected: {reason}", "active"]


def test_what_is_shown_of_our_own_events_is_not_said_to_be_the_agents() -> None:
    stopped = SessionStatus(status="disconnected", reason="disposed: exit code 0")
    restart = Diagnostic(code=DiagnosticCode.AGENT_RESTART_SCHEDULED, message="soon")
    found = check(
        log(ACTIVE, stopped, restart, SessionReset(reason="loaded"), Draft("of-tomorrow", b"{}"), ACTIVE)
    )
    ends = [event for event in found if event["type"] == "item.completed"]
    assert [(event["source"], event["synthetic"]) for event in ends] == [("daemon", True)] * 4
    (said,) = (each for each in check(log(ACTIVE, tagged("plan"))) if each["type"] == "item.completed")
    assert said["source"] == "agent"


def test_a_session_that_comes_back_after_its_end_is_started_again() -> None:
    gone = SessionStatus(status="disconnected", reason="crashed: exit code 3")
    found = check(log(ACTIVE, CRASH, gone, ACTIVE, *turn(), SessionStatus(status="closed")))
    life = [type_ for type_ in types(found) if type_.startswith("session.")]
    assert life == ["session.started", "session.ended", "session.started", "session.ended"]


def test_a_reset_begins_anew_beyond_every_number_of_before() -> None:
    whole = log(ACTIVE, *turn(call(), chunk("a"))[:4], SessionReset(reason="loaded"), chunk("b"), ACTIVE)
    found = check(whole)
    place = next(n for n, event in enumerate(found) if event["sequence"] > floor(6))
    assert types(found)[place - 2 : place] == ["item.completed", "turn.ended"]
    assert [event["sequence"] for event in found[place:]] == [floor(6) + n for n in range(1, 6)]
    assert types(found)[place:] == [
        *("session.started", "item.started", "item.completed", "item.started", "item.delta"),
    ]
    assert completed(found[place:])[0]["content"][0] == {
        "type": "status",
        "label": "session-reset",
        "detail": "loaded",
    }
    ids = {each["data"]["item"]["item_id"] for each in found if each["type"] == "item.started"}
    assert {f"itm_{floor(6) + 1}", f"itm_{floor(6) + 2}"} <= ids
