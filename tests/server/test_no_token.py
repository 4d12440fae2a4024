"""`legation server --no-token`, as sandbox-agent's providers start theirs: obeyed, warned of, and not for deciding."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import websockets
from tests.agents.bytes_agent import PRELUDE
from tests.cli.command import legation
from tests.cli.server_process import Running, running
from tests.server.acp.acp_server import LIMIT, Client

from legation.client import Legation
from legation.errors import Unauthenticated
from legation.secret import Secret

pytestmark = pytest.mark.heavy

START = ("server", "--no-token", "--host", "0.0.0.0", "--processes")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """In a folder beside its home, which counts as listed."""
    home = tmp_path_factory.mktemp("open")
    with running(home, *START) as found:
        found.said = found.line().encode()
        yield found


@pytest.fixture
def url(server: Running) -> str:
    return server.server_file().url


def call(url: str, method: str, path: str, token: str = "", **more: Any) -> httpx2.Response:
    headers = {**({"authorization": f"Bearer {token}"} if token else {}), **more.pop("headers", {})}
    return httpx2.request(method, f"{url}{path}", headers=headers, timeout=LIMIT, **more)


def test_it_warns_once_of_what_that_means(server: Running) -> None:
    lines = [json.loads(line) for line in server.said.splitlines()]
    [warning] = [each["message"] for each in lines if each["level"] == "warning"]
    assert warning.startswith("--no-token: whoever reaches http://127.0.0.1:")
    assert "over /v1/acp a client answers what its own connection was asked" in warning


def test_callers_need_no_token_and_a_wrong_one_is_refused(url: str) -> None:
    for path in ("/v1/agents", "/v1/acp", "/v1/sessions", "/v1/fs/entries", "/v1/processes"):
        assert call(url, "GET", path).status_code == 200, path
        assert call(url, "GET", path, "wrong").status_code == 401, path


def test_what_is_the_installations_stays_closed(url: str) -> None:
    for method, path in (
        ("GET", "/v1/tokens"),
        ("POST", "/v1/tokens"),
        ("GET", "/v1/users"),
        ("GET", "/v1/audit"),
        ("GET", "/v1/backup"),
        ("POST", "/v1/stop"),
        ("POST", "/v1/keys/rotate"),
    ):
        assert call(url, method, path).status_code == 403, path
    links = call(url, "POST", "/v1/sign-in-links", json={})
    assert links.status_code in (401, 404), links.text
    assert call(url, "POST", "/v1/sign-out").status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-origin", "host": "rebound.example"},
        {"origin": "http://rebound.example", "host": "rebound.example"},
    ],
)
def test_a_page_of_another_site_is_refused(url: str, headers: dict[str, str]) -> None:
    assert call(url, "POST", "/v1/fs/mkdir?path=made", headers=headers).status_code == 403
    assert call(url, "GET", "/v1/fs/entries", headers=headers).status_code == 403


def test_a_page_of_a_listed_origin_is_taken(tmp_path: Path) -> None:
    allowed = "https://app.example.com"
    with running(tmp_path, *START, "--cors-allow-origin", allowed) as server:
        server.line()
        url = server.server_file().url
        got = call(url, "GET", "/v1/agents", headers={"origin": allowed})
        assert (got.status_code, got.headers["access-control-allow-origin"]) == (200, allowed)
        assert call(url, "GET", "/v1/agents", headers={"origin": "https://b.example"}).status_code == 403


async def test_deciding_takes_a_credential_while_agents_run_but_a_client_answers_its_own(
    server: Running, url: str, tmp_path: Path
) -> None:
    async with httpx2.AsyncClient(base_url=url, timeout=LIMIT) as http:
        client = Client(http, "decides", server.home)
        await client.initialize("mock")
        made = await client.result("session/new", {"cwd": str(server.home), "mcpServers": []})
        session = made["sessionId"]
        client.follow()
        text = {"sessionId": session, "prompt": [{"type": "text", "text": "a permission, please"}]}
        asking = asyncio.create_task(client.result("session/prompt", text))
        ask = await client.until("session/request_permission")
        permission = ask["params"]["_meta"]["legation"]["permissionId"]
        for method, path, body in (
            ("GET", "/approvals", None),
            ("POST", f"/approvals/{permission}/approve", {}),
            ("POST", f"/v1/sessions/{session}/permissions/{permission}/reply", {"reply": "once"}),
            ("GET", "/grants", None),
            ("POST", "/grants", {}),
            ("GET", "/v1/trust", None),
            ("POST", "/v1/trust", {"folder": str(tmp_path)}),
            ("GET", "/v1/tokens", None),
        ):
            got = await http.request(method, path, json=body)
            assert got.status_code == 401, (path, got.text)
            assert "while agents run" in got.json()["detail"]
        own = server.server_file().token
        got = await http.get("/approvals", headers={"authorization": f"Bearer {own}"})
        assert [each["id"] for each in got.json()] == [permission]
        await client.answer(ask, {"outcome": {"outcome": "selected", "optionId": "allow-once"}})
        assert (await asking)["stopReason"] == "end_turn"
        await client.until_text(session, "mock permission approved: allow-once")
        assert await client.delete() == 204
        await client.leave()


def test_no_way_round_the_routes_that_decide_while_agents_run(tmp_path: Path) -> None:
    """An agent could turn its own asking off, or start one that does not ask."""
    with running(tmp_path, *START) as server:
        server.line()
        url, own = server.server_file().url, server.server_file().token
        # Nobody runs yet: no agent can be the caller.
        body = {"agent": "mock", "permissionMode": "bypass"}
        assert call(url, "POST", "/v1/sessions/first", json=body).status_code == 200
        assert call(url, "POST", "/v1/sessions/usual", json={"agent": "mock"}).status_code == 200
        for mode in ("bypass", "acceptEdits"):
            for method, name, more in (("POST", "second", {"agent": "mock"}), ("PATCH", "usual", {})):
                got = call(url, method, f"/v1/sessions/{name}", json={**more, "permissionMode": mode})
                assert got.status_code == 403, (method, mode, got.text)
                assert "send the credential of one" in got.json()["detail"]
        assert call(url, "GET", "/v1/sessions/second").status_code == 404
        changed = call(url, "PATCH", "/v1/sessions/usual", own, json={"permissionMode": "bypass"})
        assert changed.json()["permissionMode"] == "bypass"
        # To have it ask again takes nobody's word.
        less = call(url, "PATCH", "/v1/sessions/first", json={"permissionMode": "default"})
        assert less.json()["permissionMode"] == "default"


PLANS = """
hello(); session()
prompt = prompted()
permission(7, title="1. Paint it", kind="switch_mode")
answer(7)
done(prompt)
stay()
"""


def test_a_plan_is_not_approved_as_a_question_without_a_credential(tmp_path: Path) -> None:
    agents = tmp_path / "agents.toml"
    args = json.dumps(["-I", "-S", "-c", PRELUDE + PLANS])
    agents.write_text(f"[agents.plans]\ncommand = {sys.executable!r}\nargs = {args}\n")
    with running(tmp_path, *START, LEGATION_AGENTS=str(agents)) as server:
        server.line()
        url = server.server_file().url
        made = call(url, "POST", "/v1/sessions/s", json={"agent": "plans"})
        assert made.status_code == 200, made.text
        stream = {"message": "go"}  # which ends where something is asked
        assert "question.requested" in call(url, "POST", "/v1/sessions/s/messages/stream", json=stream).text
        [waits] = call(url, "GET", "/v1/sessions/s").json()["pendingQuestions"]
        path, yes = f"/v1/sessions/s/questions/{waits}", {"answers": [["Approve"]]}
        assert call(url, "POST", f"{path}/reply", json=yes).status_code == 403
        assert call(url, "POST", f"{path}/reject").status_code == 403
        assert call(url, "POST", f"{path}/reply", server.server_file().token, json=yes).status_code == 204


def test_limits_of_processes_are_raised_by_the_owner_alone(server: Running, url: str) -> None:
    usual = call(url, "GET", "/v1/processes/config").json()
    more = {**usual, "maxOutputBytes": usual["maxOutputBytes"] + 1}
    assert call(url, "POST", "/v1/processes/config", json=more).json() == more  # it stands for the owner
    with Legation.connect(url, server.server_file().token) as owner:
        operator = owner.tokens.create("o", scopes=["read", "operate"]).secret
    got = call(url, "POST", "/v1/processes/config", operator, json=more)
    assert got.status_code == 403
    assert "max_output_bytes" in got.json()["detail"]
    assert call(url, "POST", "/v1/processes/config", operator, json=usual).json() == usual


async def test_a_terminal_opens_with_an_empty_access_token(url: str) -> None:
    body = {"command": "cat", "tty": True}
    process = (await asyncio.to_thread(call, url, "POST", "/v1/processes", json=body)).json()["id"]
    place = f"{url.replace('http', 'ws', 1)}/v1/processes/{process}/terminal/ws"
    async with asyncio.timeout(LIMIT), websockets.connect(f"{place}?access_token=") as socket:
        assert json.loads(await socket.recv())["type"] == "ready"
    with pytest.raises(websockets.InvalidStatus):
        async with websockets.connect(f"{place}?access_token=wrong"):
            raise AssertionError
    await asyncio.to_thread(call, url, "POST", f"/v1/processes/{process}/kill")


def test_a_client_connects_without_a_token(url: str, tmp_path: Path) -> None:
    with Legation.connect(url) as client:
        assert client.token is None
        assert "mock" in [agent.id for agent in client.agents.list()]
    with running(tmp_path, "server") as closed:
        closed.line()
        with Legation.connect(closed.server_file().url) as client, pytest.raises(Unauthenticated):
            client.agents.list()


def test_a_client_that_started_its_own_server_has_its_token(tmp_path: Path) -> None:
    from legation.client.request import Spawn

    with Legation.start(Spawn(data_dir=tmp_path)) as client:
        assert isinstance(client.token, Secret)
        assert client.token.reveal() not in repr(client.token)
        with Legation.connect(client.url, client.token) as other:
            assert other.health().status == "ok"


def test_it_is_never_a_default(tmp_path: Path) -> None:
    done = legation(tmp_path, "server", "--host", "0.0.0.0", "--port", "0")
    assert done.returncode != 0
    assert "--no-token" in done.stderr
    done = legation(tmp_path, "server", LEGATION_NO_TOKEN="true")
    assert "LEGATION_NO_TOKEN is unknown" in done.stderr
    done = legation(tmp_path, "up", "--no-token")
    assert done.returncode == 2
    done = legation(tmp_path, "server", "--no-token", LEGATION_DATABASE_URL="postgresql://u:p@h/d")
    assert "--no-token is for one server alone" in done.stderr


def test_the_folder_of_the_start_is_served_and_others_are_named_by_a_flag(tmp_path: Path) -> None:
    home, work, other = tmp_path / "home", tmp_path / "work", tmp_path / "other"
    for each in (home, work, other):
        each.mkdir()
        (each / "a.txt").write_text("a")

    class AtWork(Running):
        started_in = work

    def statuses(*more: str) -> list[int]:
        server = AtWork(home, *START, "--port", "0", *more)
        try:
            server.line()
            url = server.server_file().url
            found = [call(url, "GET", f"/v1/fs/stat?path={each}/a.txt") for each in (home, work, other)]
            for each in found:
                if each.status_code == 403:
                    assert "`--folder`" in each.json()["detail"]
                    assert str(more[1] if more else home) in each.json()["detail"]
            return [each.status_code for each in found]
        finally:
            server.stop()

    assert statuses() == [200, 200, 403]
    assert statuses("--folder", str(other), "--folder", str(home)) == [200, 403, 200]


@pytest.mark.parametrize("command", ["server", "up"])
def test_a_folder_that_is_not_there_is_told_at_the_start(tmp_path: Path, command: str) -> None:
    done = legation(tmp_path, command, "--port", "0", "--folder", str(tmp_path), "--folder", "/no/such")
    assert (done.returncode, "folders has /no/such, which is no folder" in done.stderr) == (2, True)
    assert done.stderr.rstrip().endswith("correct --folder")
    done = legation(tmp_path, command, "--port", "0", LEGATION_FOLDERS="/no/such")
    assert done.stderr.rstrip().endswith("correct LEGATION_FOLDERS")


def test_an_agent_decides_nothing_at_a_server_beside_its_own(tmp_path: Path) -> None:
    with running(tmp_path, *START) as first:
        first.line()
        with running(tmp_path, *START) as second:
            second.line()
            beside = tmp_path / ".local/share/legation/servers/2/server.json"
            urls = [first.server_file().url, str(json.loads(beside.read_bytes())["url"])]
            assert [call(url, "GET", "/grants").status_code for url in urls] == [200, 200]
            for url in urls:
                assert call(url, "POST", "/v1/sessions/s", json={"agent": "mock"}).status_code == 200
                assert [call(each, "GET", "/grants").status_code for each in urls] == [401, 401]
                assert call(url, "POST", "/v1/sessions/s/terminate").status_code == 204


def test_two_at_once_have_a_data_folder_each(tmp_path: Path) -> None:
    token = "x" * 24
    args = ("server", "--host", "127.0.0.1", "--token", token)
    with running(tmp_path, *args) as first, running(tmp_path, *args) as second:
        lines = [first.line(), second.line()]
        assert sum("is another server's: this one keeps its data in" in each for each in lines) == 1
        places = [tmp_path / ".local/share/legation", tmp_path / ".local/share/legation/servers/2"]
        for place in places:
            assert (place / "server.json").exists()
        # Not where somebody chose the folder, or starts the one of the machine.
        assert legation(tmp_path, "server", LEGATION_TOKEN=token).returncode != 0
        assert legation(tmp_path, "server", "--token", token, "--data-dir", str(places[0])).returncode != 0
