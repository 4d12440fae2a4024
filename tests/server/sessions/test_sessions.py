"""A session from its creation to its end, with a real rehearsal agent."""

import pytest
from tests.server.sessions.talk import Talk

pytestmark = pytest.mark.heavy


async def test_a_session_is_made_spoken_to_listed_and_ended(talk: Talk) -> None:
    made = await talk.created("first", title="The first")
    assert made["healthy"] is True
    assert made["nativeSessionId"].startswith("reh-")
    ended = await talk.played("first", "say hello")
    assert ended["stopReason"] == "end_turn"
    assert await talk.heard("first") == "hello"
    [listed] = (await talk.call("GET", "/v1/sessions")).json()["sessions"]
    assert listed == await talk.info("first")
    expected = {
        "sessionId": "first",
        "agent": "rehearsal",
        "title": "The first",
        "ended": False,
        "status": "active",
    }
    assert expected.items() <= listed.items()
    for _ in range(2):  # twice is as once
        assert (await talk.call("POST", "/v1/sessions/first/terminate")).status_code == 204
    assert (await talk.info("first"))["ended"] is True
    refused = await talk.call("POST", "/v1/sessions/first/messages", {"message": "go on"})
    assert refused.status_code == 410
