"""The laws, for the logs that a real agent in its own process leaves behind."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.host.rig import NO, YES, Hand, events, play, rig, say_for_the_agent, until_status
from tests.wire.universal.laws import check, messages_of

from legation.errors import LegationError
from legation.host.requests.handlers import ApproveAll, Approver, DenyAll
from legation.host.session import Session
from legation.wire.acp.methods import CreateElicitationRequest, CreateElicitationResponse
from legation.wire.events import UPDATE_TYPES, Event

pytestmark = pytest.mark.heavy  # a process or more for each test

EVERYTHING = (
    *("plan look; fix", "think I wonder.", "say Here is what I found.", "user an echo", "plan-done 1"),
    *("named-plan other look; leap", "plan-removed other"),
    *("content image", "content audio", "content resource_link", "content resource"),
    *(
        "write a.txt wrold",
        "read a.txt",
        "edit a.txt wrold => world",
        "run echo out; exit 3",
        "run echo fine",
    ),
    *("usage 10 200 0.5", "mode plan", "model rehearsal-terse", "commands one, two", "title A title"),
    *("notice! warning slow", "compact! in short", "unknown-update", "out-of-order", "flood 20"),
    *("garbage text", "garbage lone-surrogate", "garbage invalid-utf8", "garbage depth", "garbage nan"),
    *("ask edit a.txt world => moon", "ask something", "late after the end"),
)


class Answers:
    """Fills in every form."""

    modes = frozenset(("form", "url"))

    def __init__(self, action: str) -> None:
        self._action = action

    async def ask(self, request: CreateElicitationRequest) -> CreateElicitationResponse:
        content = {"name": "Ada"} if self._action == "accept" and request.mode == "form" else None
        return CreateElicitationResponse(action=self._action, content=content)


def checked(log: Sequence[Event]) -> list[dict[str, Any]]:
    found = check(log)
    assert messages_of(log)
    return found


def data_of(found: list[dict[str, Any]], type_: str) -> list[dict[str, Any]]:
    return [event["data"] for event in found if event["type"] == type_]


async def log_of(session: Session) -> list[Event]:
    return await events(session)


async def test_every_kind_of_update_of_a_real_agent_keeps_the_laws(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse("--early")
        await play(session, *EVERYTHING)
        await play(session, "say again")
        log = await log_of(session)
        assert {event.type for event in log} >= {*UPDATE_TYPES.values(), "unrecognized-update", "diagnostic"}
        found = checked(log)
    kinds = {event["data"]["item"]["kind"] for event in found if event["type"] == "item.completed"}
    assert kinds == {"message", "tool_call", "tool_result", "system", "status", "unknown"}
    said = [data["item"] for data in data_of(found, "item.completed") if data["item"]["kind"] == "message"]
    texts = ["".join(part.get("text", "") for part in item["content"]) for item in said]
    assert {"I wonder.", "Here is what I found.", "an echo", "after the end", "again"} <= set(texts)
    failed = [data["item"] for data in data_of(found, "item.completed") if data["item"]["status"] == "failed"]
    assert any("out" in part.get("output", "") for item in failed for part in item["content"])
    diffs = [
        part["diff"]
        for data in data_of(found, "item.completed")
        for part in data["item"]["content"]
        if part["type"] == "file_ref" and part["diff"]
    ]
    assert any("-world" in diff and "+moon" in diff for diff in diffs)


@pytest.mark.parametrize(("approver", "status"), [(ApproveAll(), "accept"), (DenyAll(), "reject")])
async def test_a_permission_is_asked_and_answered_each_way(
    tmp_path: Path, approver: Approver, status: str
) -> None:
    async with rig(tmp_path, approver=approver) as made:
        session = await made.rehearse()
        await play(session, "ask run echo hi")
        found = checked(await log_of(session))
    (asked,), (answered,) = data_of(found, "permission.requested"), data_of(found, "permission.resolved")
    assert asked["permission_id"] == answered["permission_id"] == asked["metadata"]["id"]
    assert (asked["action"], answered["status"]) == ("execute", status)
    order = [event["type"] for event in found if event["type"] != "item.started"]
    assert order.index("item.completed", 3) < order.index("permission.requested")  # the call, whole


@pytest.mark.parametrize(
    ("action", "status", "response"), [("accept", "answered", "Ada"), ("decline", "rejected", None)]
)
async def test_a_question_is_asked_and_answered_each_way(
    tmp_path: Path, action: str, status: str, response: str | None
) -> None:
    async with rig(tmp_path, questions=Answers(action)) as made:
        session = await made.rehearse()
        await play(session, "elicit Who are you? name:string", "elicit-url https://example.org/ Sign in")
        found = checked(await log_of(session))
    form, page = data_of(found, "question.resolved")
    assert form["prompt"] == "Who are you?\n- name (string)"
    assert (form["status"], form["response"]) == (status, response)
    assert (page["status"], page["prompt"]) == (status, "Sign in\nhttps://example.org/")


async def test_a_cancelled_turn_ends_and_the_session_goes_on(tmp_path: Path) -> None:
    async with rig(tmp_path, approver=(hand := Hand())) as made:
        session = await made.rehearse()
        prompting = asyncio.create_task(play(session, "say before", "ask something"))
        await hand.until_asked()
        await session.cancel()
        assert (await prompting).stop_reason == "cancelled"
        again = asyncio.create_task(play(session, "ask another"))
        await hand.until_asked(2)
        hand.answer(hand.asked[1].id, YES)
        await again
        last = asyncio.create_task(play(session, "ask a third"))
        await hand.until_asked(3)
        hand.answer(hand.asked[2].id, NO)
        await last
        found = checked(await log_of(session))
    ends = [data["metadata"]["stopReason"] for data in data_of(found, "turn.ended")]
    assert ends[:2] == ["cancelled", "end_turn"]
    assert [data["status"] for data in data_of(found, "permission.resolved")] == [
        "reject",
        "accept",
        "reject",
    ]
    assert not data_of(found, "session.ended")


async def test_a_crash_ends_the_session_with_its_code_and_a_load_begins_it_again(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        await play(session, "say remembered")
        with pytest.raises(LegationError):
            await play(session, "stderr 120", "say half", "crash 3")
        await until_status(session, "disconnected")
        before = await log_of(session)
        found = checked(before)
        (ended,) = data_of(found, "session.ended")
        assert (ended["reason"], ended["terminated_by"], ended["exit_code"]) == ("error", "agent", 3)
        assert "something to say" in ended["stderr"]["head"]
        order = [
            event["type"] for event in found if event["type"] in ("error", "turn.ended", "session.ended")
        ]
        assert order == ["turn.ended", "error", "turn.ended", "session.ended"]

        await say_for_the_agent(session, "something else")
        agent = await made.host.spawn_agent(made.rehearsal())
        await made.host.load_session(agent.agent_id, session.id)
        await play(session, "say on")
        after = await log_of(session)
        await made.host.close_session(session.id)
        closed = await log_of(session)
    # The log from the reset on, and both together as one saw them who followed.
    assert after[0].type == "session-reset"
    again = checked(after)
    assert again[0]["sequence"] > found[-1]["sequence"]
    checked([*before, *after])
    assert data_of(checked(closed), "session.ended") == [{"reason": "terminated", "terminated_by": "daemon"}]


async def test_a_host_that_stops_ends_no_session(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        await play(session, "say hi")
        agent_id = session.agent_id
        assert agent_id
        await made.host.dispose_agent(agent_id)
        found = checked(await log_of(session))
    assert not data_of(found, "session.ended")
    assert found[-1]["data"]["item"]["content"][0]["detail"].startswith("disconnected: disposed")
