"""A session that begins with another: refused where it cannot be. With real agents: tests/agents/claude."""

import pytest
from tests.server.sessions.session_client import SessionClient

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize(
    ("agent", "fork", "status", "said"),
    [
        ("rehearsal", "first", 422, "cannot fork a session of 'rehearsal'"),
        ("mirror", "first", 400, "it is of rehearsal"),
        ("rehearsal", "nobody", 404, "cannot find the session"),
    ],
)
async def test_what_cannot_be_forked_is_no_session(
    talk: SessionClient, agent: str, fork: str, status: int, said: str
) -> None:
    await talk.created("first")
    answer = await talk.create("second", agent=agent, fork=fork)
    assert (answer.status_code, said in answer.text) == (status, True), answer.text
    assert [each["sessionId"] for each in (await talk.call("GET", "/v1/sessions")).json()["sessions"]] == [
        "first"
    ]
