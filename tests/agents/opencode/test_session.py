"""Recordings of the real program, and what is made of them; and what no recording shows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.agents.opencode.session_by_hand import SessionByHand, feed, make_session, recorded, session_of

from legation.agents.native import PermissionDecision
from legation.agents.opencode.messages import read_event
from legation.agents.opencode.session import OpenCodeSession
from legation.agents.rpc import AgentRefused
from legation.errors import AgentExited
from legation.wire.acp.methods import CreateElicitationResponse, PromptResponse
from legation.wire.acp.updates import Text

ALL = ("abort", "abort-during-bootstrap", "errors", "permission", "planagent", "question", "subagent", "todo")
SETTLED = 1.0  # seconds: the test's patience


async def replay(name: str, bench: SessionByHand) -> list[PromptResponse | AgentRefused]:
    """Feeds the events of a recording; a prompt where it had one. What the prompts were answered, in order."""
    entries = recorded(name)
    session = make_session(bench, session_of(entries))
    answers: list[PromptResponse | AgentRefused] = []
    turns: list[asyncio.Task[Any]] = []
    for entry in entries:
        if entry.get("path") == "prompt_async":
            if turns:
                await asyncio.wait(turns, timeout=SETTLED)
            turns.append(asyncio.create_task(_prompt(session, answers)))
        elif entry.get("path") == "abort":
            await session.cancel()
        elif entry["dir"] == "sse":
            feed(session, entry["msg"])
        await asyncio.sleep(0)
    await asyncio.wait(turns, timeout=SETTLED)
    await session.close()
    for turn in turns:
        turn.cancel()
    return answers


async def _prompt(session: OpenCodeSession, answers: list[PromptResponse | AgentRefused]) -> None:
    try:
        answers.append(await session.prompt((Text(text="x"),), None))
    except AgentRefused as error:
        answers.append(error)


@pytest.mark.parametrize("name", ALL)
async def test_no_event_of_a_recording_is_unknown(name: str) -> None:
    bench = SessionByHand()
    await replay(name, bench)
    assert bench.unknown == []


async def test_a_question_is_put_and_its_answer_sent() -> None:
    bench = SessionByHand(answer=CreateElicitationResponse(action="accept", content={"question_0": "Blue"}))
    answers = await replay("question", bench)
    assert [each.stop_reason for each in answers if isinstance(each, PromptResponse)][:1] == ["end_turn"]
    assert bench.questions[0].message == "Which colour should the button be?"
    assert {"answers": [["Blue"]]} in [body for _, body in bench.sent]


async def test_a_todo_list_is_told_as_a_plan() -> None:
    bench = SessionByHand()
    await replay("todo", bench)
    assert "plan" in bench.kinds()


async def test_a_sub_agents_text_is_not_the_sessions() -> None:
    bench = SessionByHand()
    (answer,) = await replay("subagent", bench)
    assert isinstance(answer, PromptResponse)
    assert answer.stop_reason == "end_turn"
    assert bench.texts("agent_message_chunk") == "Delegating.The sub-agent answered."
    assert bench.texts("agent_thought_chunk") == ""
    assert bench.kinds().count("tool_call") == 2


async def test_each_error_ends_its_own_turn_though_idle_comes_twice() -> None:
    bench = SessionByHand()
    answers = await replay("errors", bench)
    told = [each.error.data for each in answers if isinstance(each, AgentRefused)]
    assert told[:3] == [
        {"errorKind": "invalid_request", "status": 400},
        {"errorKind": "authentication", "status": 401},
        {"errorKind": "rate_limit", "status": 429},
    ]
    assert bench.kinds().count("notice") >= 5


@pytest.mark.heavy
async def test_a_start_that_an_abort_has_hit_is_made_anew_and_the_prompt_sent_again() -> None:
    bench = SessionByHand()
    answers = await replay("abort-during-bootstrap", bench)
    assert [each.stop_reason for each in answers if isinstance(each, PromptResponse)] == ["cancelled"]
    sent = [path.rpartition("/")[2] for path, _ in bench.sent]
    assert sent[-3:] == ["prompt_async", "dispose", "prompt_async"]


async def test_a_denied_call_is_answered_with_words_and_an_approved_one_once() -> None:
    bench = SessionByHand()
    session = make_session(bench, "ses")
    for number in (1, 2):
        feed(session, _asked(f"per{number}"))
    (_, denied), (_, approved) = bench.permissions
    denied.set_result(PermissionDecision(allowed=False, message="not this one"))
    await _settle()
    assert bench.sent == []  # it would void the other
    approved.set_result(PermissionDecision(allowed=True))
    await _settle()
    assert bench.sent == [("/permission/per2/reply", {"reply": "once"})]
    feed(session, _replied("per2", "once"))
    await _settle()
    assert bench.sent[1:] == [("/permission/per1/reply", {"reply": "reject", "message": "not this one"})]
    await session.close()


async def test_what_is_open_when_the_host_cancels_is_the_hosts_to_answer_and_is_not_sent() -> None:
    bench = SessionByHand()
    session = make_session(bench, "ses")
    turn = asyncio.create_task(session.prompt((Text(text="x"),), None))
    await _settle()
    for number in (1, 2):
        feed(session, _asked(f"per{number}"))
    await session.cancel()
    await _settle()
    (_, answered), (_, forgotten) = bench.permissions
    assert not answered.cancelled()  # it would be told as taken back by the agent
    answered.set_result(PermissionDecision(allowed=True))
    await _settle()
    session.lost(AgentExited("cannot go on: it is gone"))
    await _settle()
    assert forgotten.cancelled()
    assert [path for path, _ in bench.sent if "permission" in path] == []
    with pytest.raises(AgentExited):
        await turn
    await session.close()


async def test_an_answer_that_nobody_here_gave_is_reported() -> None:
    bench = SessionByHand()
    session = make_session(bench, "ses")
    feed(session, _asked("per1"))
    feed(session, _replied("per1", "always"))
    assert "answered by somebody else" in bench.troubles[0]
    await session.close()


async def test_an_answer_to_what_was_not_asked_yet_is_reported() -> None:
    bench = SessionByHand()
    session = make_session(bench, "ses")
    feed(session, _asked("per1", tool={"messageID": "m", "callID": "later"}))
    feed(session, _replied("per1", "once"))
    assert "answered by somebody else" in bench.troubles[0]
    await session.close()


async def test_what_was_not_asked_yet_is_not_asked_when_the_server_is_gone() -> None:
    bench = SessionByHand()
    session = make_session(bench, "ses")
    feed(session, _asked("per1", tool={"messageID": "m", "callID": "later"}))
    await _settle()
    session.lost(AgentExited("cannot go on: it is gone"))
    await _settle()
    assert bench.permissions == []
    await session.close()


async def test_where_nobody_can_be_asked_a_question_is_answered_so() -> None:
    bench = SessionByHand(can_ask_questions=False)
    session = make_session(bench, "ses")
    question = {"question": "Which?", "header": "H", "options": [{"label": "A", "description": "a"}]}
    feed(session, _event("question.asked", id="q1", questions=[question]))
    await _settle()
    ((path, body),) = bench.sent
    assert path == "/question/q1/reply"
    assert "Nobody can be asked" in body["answers"][0][0]
    await session.close()


async def test_after_a_gap_deltas_are_not_said_twice() -> None:
    bench = SessionByHand(given={"/permission": [], "/question": []})
    session = make_session(bench, "ses")
    feed(session, _part(text="Hel"))
    await session.catch_up()
    feed(session, _event("message.part.delta", messageID="m", partID="p", field="text", delta="lo"))
    feed(session, _part(text="Hello", time={"start": 1, "end": 2}))
    assert bench.texts("agent_message_chunk") == "Hello"
    await session.close()


async def test_an_event_that_nobody_knows_is_kept() -> None:
    bench = SessionByHand()
    session = make_session(bench, "ses")
    event = read_event(b'{"type":"session.sang","properties":{"sessionID":"ses"}}')
    assert event is not None
    session.take(event)
    assert bench.unknown == [event.line]


def _event(type_: str, **properties: object) -> dict[str, Any]:
    return {"id": "evt", "type": type_, "properties": {"sessionID": "ses", **properties}}


def _part(**more: object) -> dict[str, Any]:
    part = {"id": "p", "messageID": "m", "sessionID": "ses", "type": "text", **more}
    return _event("message.part.updated", part=part, time=1)


def _asked(request_id: str, **more: object) -> dict[str, Any]:
    return _event(
        "permission.asked", id=request_id, permission="edit", patterns=["a"], metadata={}, always=[], **more
    )


def _replied(request_id: str, reply: str) -> dict[str, Any]:
    return _event("permission.replied", requestID=request_id, reply=reply)


async def _settle() -> None:
    """Tasks that wait for nothing but each other."""
    for _ in range(10):
        await asyncio.sleep(0)
