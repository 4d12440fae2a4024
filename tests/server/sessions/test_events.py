"""The events of a real session as a client of sandbox-agent reads them."""

import asyncio
import json
import threading
from typing import Any

import httpx2
import pytest
from tests.server.sessions.session_client import LIMIT, SessionClient, script

from legation.server.sessions import service
from legation.server.sessions.messages import links_to

pytestmark = pytest.mark.heavy


async def events(talk: SessionClient, session: str = "s") -> list[dict[str, Any]]:
    answer = await talk.call("GET", f"/v1/sessions/{session}/events")
    assert answer.status_code == 200, answer.text
    return list(answer.json()["events"])


def events_in(answer: httpx2.Response) -> list[dict[str, Any]]:
    """Of a body of server-sent events that has ended."""
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]


async def test_a_session_in_the_events_of_sandbox_agent(talk: SessionClient) -> None:
    native = (await talk.created("s", model="rehearsal-terse"))["nativeSessionId"]
    await talk.played("s", "say hello")
    await talk.call("POST", "/v1/sessions/s/terminate")
    shown = await events(talk)
    types = [event["type"] for event in shown]
    assert types[0] == "session.started"
    assert types[-1] == "session.ended"
    assert {"turn.started", "item.started", "item.delta", "item.completed", "turn.ended"} <= set(types)
    assert {(event["session_id"], event["native_session_id"]) for event in shown} == {("s", native)}
    assert shown[0]["data"]["metadata"]["model"] == "rehearsal-terse"
    assert shown[-1]["data"]["reason"] == "terminated"


async def test_a_turn_is_streamed_to_its_end(talk: SessionClient) -> None:
    await talk.created("s")
    body = {"message": script("say one", "say two")}
    answer = await talk.call("POST", "/v1/sessions/s/messages/stream", body)
    told = events_in(answer)
    assert [event["type"] for event in told][-1] == "turn.ended"
    deltas = [event["data"]["delta"] for event in told if event["type"] == "item.delta"]
    assert "".join(deltas).endswith("onetwo")


async def test_a_turn_that_ends_while_the_next_message_is_read_is_not_in_the_body_of_the_next(
    talk: SessionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await talk.created("s", directory=str(talk.work))
    await talk.send("s", "elicit Who? name:string", "say not mine")
    _, asked = await talk.until("s", "question-asked")
    reading, read_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow_disk(*args: Any) -> Any:
        loop.call_soon_threadsafe(reading.set)
        assert read_on.wait(LIMIT)
        return links_to(*args)

    monkeypatch.setattr(service, "links_to", slow_disk)
    (talk.work / "read").write_text("slowly")  # of a message with nothing attached the disk is not asked
    body = {"message": script("say mine"), "attachments": [{"path": "read"}]}
    streamed = asyncio.create_task(talk.call("POST", "/v1/sessions/s/messages/stream", body))
    await reading.wait()
    await talk.call("POST", f"/v1/sessions/s/questions/{asked['id']}/reply", {"answers": [["me"]]})
    await talk.until("s", "prompt-finished")
    while (await talk.info("s"))["busy"]:
        await asyncio.sleep(0)
    read_on.set()
    told = events_in(await streamed)
    assert (told[0]["type"], told[-1]["type"]) == ("turn.started", "turn.ended")
    assert "".join(event["data"]["delta"] for event in told if event["type"] == "item.delta") == "mine"


async def test_the_body_of_a_turn_does_not_hold_how_its_agent_came_back(talk: SessionClient) -> None:
    await talk.created("s")
    await talk.played("s", "say before", "crash 3")
    await talk.until("s", "session-status", where=lambda status: status["status"] == "disconnected")
    told = events_in(
        await talk.call("POST", "/v1/sessions/s/messages/stream", {"message": script("say after")})
    )
    assert (told[0]["type"], told[-1]["type"]) == ("turn.started", "turn.ended")


async def test_a_crash_is_told_as_the_sessions_end_and_a_resume_as_a_start(talk: SessionClient) -> None:
    await talk.created("s")
    await talk.played("s", "say before", "crash 3")
    await talk.until("s", "session-status", where=lambda status: status["status"] == "disconnected")
    [ended] = [event["data"] for event in await events(talk) if event["type"] == "session.ended"]
    assert (ended["reason"], ended["exit_code"]) == ("error", 3)
    await talk.played("s", "say after")
    types = [event["type"] for event in await events(talk)]
    assert types.count("session.started") == 2
    assert types[-1] == "turn.ended"


async def test_permissions_and_questions_are_answered_by_the_ids_of_their_events(talk: SessionClient) -> None:
    await talk.created("s", directory=str(talk.work))
    await talk.send("s", "ask write a.txt x", "ask write b.txt x", "elicit who? name:string")
    await talk.until("s", "permission-asked")
    [asked] = [event["data"] for event in await events(talk) if event["type"] == "permission.requested"]
    assert (await talk.reply("s", asked["permission_id"], "always")).status_code == 204
    await talk.until("s", "question-asked")
    [question] = [event["data"] for event in await events(talk) if event["type"] == "question.requested"]
    path = f"/v1/sessions/s/questions/{question['question_id']}/reply"
    assert (await talk.call("POST", path, {"answers": [["Ada"]]})).status_code == 204
    await talk.until("s", "prompt-finished")
    shown = await events(talk)
    resolved = [event["data"]["status"] for event in shown if event["type"] == "permission.resolved"]
    assert resolved[1] == "accept_for_session"  # by the grant
    assert resolved[0] in ("accept", "accept_for_session")
    [answered] = [event["data"] for event in shown if event["type"] == "question.resolved"]
    assert (answered["status"], answered["response"]) == ("answered", "Ada")
