"""A session that is being made when its server is killed, or stopped: all of it is there, or nothing."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import msgspec
import pytest
from tests.cli.server_process import Running, running
from tests.server.sessions.session_client import LIMIT, SessionClient, open_session_client, script

from legation.host.options import SessionMeta
from legation.host.session import Session
from legation.wire.api.sessions import NewSession

pytestmark = pytest.mark.heavy

MCP = {"a": {"type": "local", "command": "a-mcp", "env": {"KEY": "secret-of-mcp"}}}
NEW = {"agent": "rehearsal", "mcp": MCP, "permissionMode": "bypass", "title": "Mine"}

# In the order of the commits; the session stands from the second on.
BEFORE_IT_STANDS = ("legation.host.session:Session.keep", 1)
IT_STANDS = ("legation.host.session:Session.attach", 1)
IT_HAS_EVENTS = ("legation.server.sessions.approvals:SessionApprovals.give_mode", 1)
ITS_GRANT_IS_NOTED = ("legation.approvals.grants:GrantService.give", 1)
ITS_GRANT_IS_GIVEN = ("legation.server.sessions.record:SessionRecords.save", 2)


@contextmanager
def dying(home: Path, where: tuple[str, int], **env: str) -> Iterator[httpx2.Client]:
    """A server that is killed there."""

    class Dying(Running):
        program = (str(Path(__file__).with_name("server_that_dies.py")), where[0], str(where[1]))

    server = Dying(home, "server", "--port", "0", **env)
    try:
        with speaking(server) as http:
            yield http
        assert server.process.wait(LIMIT) < 0
    finally:
        server.stop(9)


@contextmanager
def speaking(server: Running) -> Iterator[httpx2.Client]:
    server.line()
    found = server.server_file()
    headers = {"authorization": f"Bearer {found.token}"}
    with httpx2.Client(base_url=found.url, headers=headers, timeout=LIMIT, trust_env=False) as http:
        yield http


@contextmanager
def next_server(home: Path, **env: str) -> Iterator[httpx2.Client]:
    with running(home, "server", **env) as server, speaking(server) as http:
        yield http


def play(http: httpx2.Client, session: str, *steps: str) -> str:
    body = {"message": script(*steps)}
    answer = http.post(f"/v1/sessions/{session}/messages/stream", json=body)
    assert answer.status_code == 200, answer.text
    return answer.text


def rpc(http: httpx2.Client, method: str, **params: object) -> Any:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer = http.post("/v1/acp/client", params={"agent": "rehearsal"}, json=message)
    return answer.json()


def test_of_one_whose_server_is_killed_before_it_stands_nothing_is_left(tmp_path: Path) -> None:
    with dying(tmp_path, BEFORE_IT_STANDS) as http, pytest.raises(httpx2.HTTPError):
        http.post("/v1/sessions/s", json=NEW)
    with next_server(tmp_path) as http:
        assert http.get("/v1/sessions").json()["sessions"] == []
        assert http.post("/v1/sessions/s", json=NEW).status_code == 200
        assert "hello" in play(http, "s", "say hello")


@pytest.mark.parametrize("where", [IT_STANDS, IT_HAS_EVENTS, ITS_GRANT_IS_NOTED, ITS_GRANT_IS_GIVEN])
def test_one_that_stands_when_its_server_is_killed_is_used_like_any_other(
    tmp_path: Path, where: tuple[str, int]
) -> None:
    """Also what it was asked for with; but a mode that lets calls pass unasked is in force only if that was told."""
    with dying(tmp_path, where) as http, pytest.raises(httpx2.HTTPError):
        http.post("/v1/sessions/s", json=NEW)
    with next_server(tmp_path) as http:
        info = http.get("/v1/sessions/s").json()
        assert (info["title"], info["mcp"], info["permissionMode"]) == ("Mine", ["a"], "default")
        assert [each["active"] for each in http.get("/grants").json() if each["active"]] == []
        assert "hello" in play(http, "s", "say hello")
        for mode in ("plan", "default"):  # back to the mode in which its agent began
            changed = http.patch("/v1/sessions/s", json={"permissionMode": mode})
            assert changed.json()["permissionMode"] == mode, changed.text
        assert http.post("/v1/sessions/s/terminate").status_code == 204


@pytest.mark.parametrize("where", [IT_STANDS, ("legation.server.sessions.record:SessionRecords.add", 1)])
def test_one_of_a_client_of_acp_is_seen_everywhere_or_nowhere(tmp_path: Path, where: tuple[str, int]) -> None:
    work = str(tmp_path)
    with dying(tmp_path, where) as http:
        rpc(http, "initialize", protocolVersion=1)
        with pytest.raises(httpx2.HTTPError):
            rpc(http, "session/new", cwd=work, mcpServers=[])
    with next_server(tmp_path) as http:
        [listed] = http.get("/v1/sessions").json()["sessions"]
        [told] = rpc(http, "session/list")["result"]["sessions"]
        assert told["sessionId"] == listed["sessionId"]
        assert "hello" in play(http, told["sessionId"], "say hello")


@pytest.mark.parametrize("method", ["keep", "attach"])
async def test_one_that_is_given_up_when_it_is_about_to_stand_is_whole(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """A server that stops gives up whatever it is asked for."""
    real = getattr(Session, method)
    async with asyncio.timeout(110):
        async with open_session_client(tmp_path, request) as talk:
            principal = await talk.rig.principal(talk.rig.people["owner"])
            new = msgspec.convert({"agent": "mirror", "mcp": MCP}, NewSession)
            creating = asyncio.create_task(talk.rig.services.sessions.create(principal, "s", new))

            def given_up(session: Session, *args: Any) -> Any:
                creating.cancel()
                return real(session, *args)

            monkeypatch.setattr(Session, method, given_up)
            with pytest.raises(asyncio.CancelledError):
                await creating
            monkeypatch.setattr(Session, method, real)
            assert (await talk.info("s"))["status"] == "active"
        async with open_session_client(tmp_path, request) as talk:
            said = await talk.reflected("s")
            assert said["mcpServers"][0]["env"] == [{"name": "KEY", "value": "secret-of-mcp"}]
            assert Path(said["cwd"]).is_dir()


async def test_one_that_a_client_of_acp_gives_up_when_it_stands_is_seen_everywhere(
    talk: SessionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Session.keep

    async def call(**message: object) -> httpx2.Response:
        return await talk.call("POST", "/v1/acp/client?agent=rehearsal", {"jsonrpc": "2.0", **message})

    async def given_up(session: Session, meta: SessionMeta) -> None:
        await call(method="$/cancel_request", params={"requestId": 7})
        await real(session, meta)

    await call(id=1, method="initialize", params={"protocolVersion": 1})
    monkeypatch.setattr(Session, "keep", given_up)
    place = {"cwd": str(talk.work), "mcpServers": []}
    answer = (await call(id=7, method="session/new", params=place)).json()
    monkeypatch.setattr(Session, "keep", real)
    assert answer["error"]["code"] == -32800
    [told] = (await call(id=2, method="session/list", params={})).json()["result"]["sessions"]
    [listed] = (await talk.call("GET", "/v1/sessions")).json()["sessions"]
    assert listed["sessionId"] == told["sessionId"]
    await talk.played(told["sessionId"], "say hello")
    assert await talk.heard(told["sessionId"]) == "hello"


@pytest.mark.parametrize("name", ["a/b c:d", "../up", "ä" * 128, "=x", "日本語?&#%"])
async def test_an_id_is_any_text_of_one_line(talk: SessionClient, name: str) -> None:
    segment = quote(name, safe="")
    await talk.created(segment)
    info = (await talk.call("GET", f"/v1/sessions/{segment}")).json()
    assert info["sessionId"] == name
    work = talk.rig.services.settings.data_dir / "work" / "local"
    [folder] = work.iterdir()  # one folder, directly below, whatever the id says
    assert Path(info["directory"]) == folder
    permission = await talk.asked(segment, "ask write made.txt here")
    assert (await talk.call("POST", f"/approvals/{permission}/approve", {})).status_code == 200
    _, ended = await talk.until(segment, "prompt-finished")
    assert ended["stopReason"] == "end_turn"
    got = await talk.call("GET", f"/v1/fs/file?path=made.txt&sessionId={segment}")
    assert got.text == "here"
    page = (await talk.call("GET", "/v1/sessions?limit=1")).json()
    assert [each["sessionId"] for each in page["sessions"]] == [name]
    assert (await talk.call("DELETE", f"/v1/sessions/{segment}")).status_code == 204
    assert list(work.iterdir()) == []
