"""The snapshot of a real session, by itself and with what follows it."""

import json
from typing import Any

import pytest
from tests.server.sessions.session_client import SessionClient
from tests.wire.naive_snapshot import assert_same, naive_of

pytestmark = pytest.mark.heavy

MANY = (
    *("plan look; fix", "think I wonder.", "say Here it is.", "plan-done 1", "named-plan other look; leap"),
    *("content image", "usage 10 200 0.5", "title A title", "commands one, two", "run true", "flood 20"),
    *("mode plan", "say the end"),
)


async def snapshot(talk: SessionClient, session: str = "s") -> dict[str, Any]:
    answer = await talk.call("GET", f"/v1/sessions/{session}/snapshot")
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


async def test_the_snapshot_sums_up_what_a_session_said(talk: SessionClient) -> None:
    await talk.created("s")
    await talk.played("s", *MANY)
    found = await snapshot(talk)
    stream = await talk.rig.services.log.stream("s")
    assert found["seq"] == stream.visible
    naive = naive_of([each async for each in stream.subscribe(follow=False)])
    assert assert_same(json.dumps(found["snapshot"]).encode(), naive) == []
    told = found["snapshot"]
    assert told["title"] == "A title"
    assert told["usage"]["used"] == 10
    assert told["plan"][0]["status"] == "completed"
    assert told["toolCalls"][0]["status"] == "completed"
    assert [each["prompt"][0]["type"] for each in told["prompts"]] == ["text"]


async def test_who_begins_with_it_hears_the_rest_once(talk: SessionClient) -> None:
    await talk.created("s")
    await talk.played("s", "say one", "run true")
    middle = await snapshot(talk)
    await talk.played("s", "say two")
    shown = (await talk.call("GET", "/v1/sessions/s/events")).json()["events"]
    rest = await talk.call("GET", f"/v1/sessions/s/events?offset={middle['offset']}")
    assert rest.json()["events"] == [each for each in shown if each["sequence"] > middle["offset"]]
    stored = await talk.call("GET", f"/v1/streams/s/events?after={middle['seq']}")
    assert stored.json()["items"][0]["seq"] == middle["seq"] + 1


async def test_no_session_no_snapshot(talk: SessionClient) -> None:
    assert (await talk.call("GET", "/v1/sessions/none/snapshot")).status_code == 404
