"""Every route of sessions with bad input, and with what is another workspace's."""

from typing import Any

import pytest
from tests.server.sessions.session_client import SessionClient

pytestmark = pytest.mark.heavy

JSON = {"content-type": "application/json"}


async def test_ids_that_cannot_be(talk: SessionClient) -> None:
    for name in (
        "server",
        "host",
        "approvals",
        "run_1",
        "acp:x",
        "...",
        "%00",
        "x" * 257,
        "%C3%A4" * 129,
        "%E0%A4%A",
        "a%1Fb",
    ):
        answer = await talk.create(name)
        assert answer.status_code == 400, (name, answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
    assert (await talk.call("GET", "/v1/sessions")).json()["sessions"] == []


async def test_bodies_of_a_new_session_that_cannot_be(talk: SessionClient) -> None:
    good = {"agent": "rehearsal"}
    bodies: list[Any] = [
        {},
        [],
        None,
        {"agent": ""},
        {"agent": 1},
        {"agent": "x" * 300},
        {**good, "permissionMode": "yolo"},
        {**good, "agentMode": ""},
        {**good, "title": "x" * 600},
        {**good, "directory": ""},
        {**good, "directory": "a\0b"},
        {**good, "mcp": []},
        {**good, "skills": {"sources": "all"}},
        {**good, "unknown": 1},
    ]
    for body in bodies:
        answer = await talk.call("POST", "/v1/sessions/s", body)
        assert answer.status_code == 400, (body, answer.text)
    for content, headers, status in (
        (b"{", JSON, 400),
        (b"\xff", JSON, 400),
        (b"{}", {"content-type": "text/plain"}, 415),
        (b'{"agent":"' + b"x" * (1 << 21) + b'"}', JSON, 413),
    ):
        answer = await talk.rig.client.post(
            "/v1/sessions/s", content=content, headers={**talk.headers, **headers}
        )
        assert answer.status_code == status
    assert (await talk.call("GET", "/v1/sessions")).json()["sessions"] == []


async def test_a_name_is_given_once(talk: SessionClient) -> None:
    await talk.created("s")
    answer = await talk.create("s")
    assert (answer.status_code, answer.json()["data"]["type"]) == (409, "session_already_exists")


async def test_an_agent_that_cannot_start_leaves_no_session(talk: SessionClient) -> None:
    stanza = '[agents.broken]\ncommand = "/nowhere/agent"\n[agents.ending]\ncommand = "/bin/false"\n'
    file = talk.rig.services.settings.agents
    assert file is not None
    file.write_text(file.read_text() + stanza)
    assert (await talk.create("s", agent="broken")).status_code in (500, 502, 503)
    assert (await talk.create("s", agent="ending")).status_code == 502
    await talk.created("s")


ON_A_SESSION: list[tuple[str, str, object]] = [
    ("GET", "", None),
    ("PATCH", "", {"title": "x"}),
    ("DELETE", "", None),
    ("POST", "/messages", {"message": "x"}),
    ("POST", "/steer", {"message": "x"}),
    ("POST", "/messages/stream", {"message": "x"}),
    ("GET", "/events", None),
    ("GET", "/events/sse", None),
    ("POST", "/cancel", None),
    ("POST", "/terminate", None),
    ("POST", "/questions/q/reply", {"answers": []}),
    ("POST", "/questions/q/reject", None),
    ("POST", "/permissions/p/reply", {"reply": "once"}),
]


async def test_a_session_of_another_workspace_is_as_none_at_all(talk: SessionClient) -> None:
    await talk.created("s")
    theirs = await talk.rig.bearer(talk.rig.people["stranger"], workspace=talk.rig.other)
    for method, path, body in ON_A_SESSION:
        foreign = await talk.call(method, f"/v1/sessions/s{path}", body, theirs)
        absent = await talk.call(method, f"/v1/sessions/none{path}", body, theirs)
        assert (foreign.status_code, absent.status_code) == (404, 404), path
        texts = [answer.text.partition('"instance"')[0].replace("none", "s") for answer in (foreign, absent)]
        assert texts[0] == texts[1]
    assert (await talk.call("GET", "/v1/sessions", headers=theirs)).json() == {"sessions": []}
    assert (await talk.info("s"))["ended"] is False


async def test_the_same_name_in_two_workspaces_is_two_sessions(talk: SessionClient) -> None:
    theirs = await talk.rig.bearer(talk.rig.people["stranger"], workspace=talk.rig.other)
    await talk.created("s", title="mine")
    answer = await talk.call("POST", "/v1/sessions/s", {"agent": "mirror", "title": "theirs"}, theirs)
    assert answer.status_code == 200, answer.text
    shown = (await talk.call("GET", "/v1/sessions/s", headers=theirs)).json()
    assert (shown["title"], shown["agent"]) == ("theirs", "mirror")
    assert talk.rig.other in shown["directory"]
    assert (await talk.info("s"))["title"] == "mine"
    await talk.call("POST", "/v1/sessions/s/terminate", headers=theirs)
    assert (await talk.info("s"))["ended"] is False


async def test_bodies_on_a_session_that_cannot_be(talk: SessionClient) -> None:
    await talk.created("s")
    for method, path, body in (
        ("PATCH", "", {"agentMode": ""}),
        ("PATCH", "", {"permissionMode": "all"}),
        ("PATCH", "", {"sessionId": "t"}),
        ("POST", "/messages", {"message": ""}),
        ("POST", "/messages", {"message": " \n"}),
        ("POST", "/messages", {"message": 1}),
        ("POST", "/messages", {}),
        ("POST", "/messages", {"message": "x", "attachments": [{}]}),
        ("POST", "/questions/q/reply", {"answers": "x"}),
        ("POST", "/questions/q/reply", {}),
        ("POST", "/permissions/p/reply", {"reply": "never"}),
        ("POST", "/permissions/p/reply", {}),
        ("GET", "/events?offset=-1", None),
        ("GET", "?unknown=1", None),
    ):
        answer = await talk.call(method, f"/v1/sessions/s{path}", body)
        assert answer.status_code == 400, (path, body, answer.text)
    assert await talk.events("s", "prompt-started") == []


async def test_what_is_left_out_says_so(talk: SessionClient) -> None:
    for path in (
        "/v1/desktop",
        "/v1/desktop/status?verbose=true",
        "/opencode/session/a/message",
        "/opencode?directory=%2Ftmp",
    ):
        for method in ("GET", "POST"):
            answer = await talk.call(method, path)
            assert answer.status_code == 501
            assert answer.headers["content-type"] == "application/problem+json"
            assert "leaves out" in answer.json()["detail"]
