"""ACP's proposal of streamable HTTP, at /acp: the HTTP transports of both official SDKs, and raw requests."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from acp import PROTOCOL_VERSION, RequestError, connect_to_agent, text_block
from acp.client.connection import ClientSideConnection
from acp.http import create_http_stream
from acp.schema import AllowedOutcome, ClientCapabilities, RequestPermissionResponse
from tests import real_agents
from tests.cli.command import environment, rehearse
from tests.cli.server_process import Running
from tests.server.acp.acp_server import LIMIT, Json, http_to, prompt, serving
from tests.server.rig import open_rig

from legation.errors import NotFound
from legation.server.acp.connections import IDLE
from legation.server.routes.acp import CONNECTION_ID

pytestmark = pytest.mark.heavy

TS_CLIENT = Path(__file__).parent / "ts_http_client.mjs"
HELLO = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}
STREAM = {"accept": "text/event-stream"}


def address(server: Running) -> str:
    return f"{server.server_file().url}/acp?agent=rehearsal"


# The SDKs.


class Sdk:
    """The client's side as the Python SDK wants it; the nth permission is answered by the nth kind."""

    def __init__(self, *kinds: str) -> None:
        self.kinds = list(kinds)
        self.said: list[str] = []
        self.news = asyncio.Event()

    async def request_permission(self, options: list[Any], **_: Any) -> RequestPermissionResponse:
        kind = self.kinds.pop(0)
        chosen = next(each.option_id for each in options if each.kind == kind)
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=chosen))

    async def session_update(self, update: Any, **_: Any) -> None:
        if update.session_update == "agent_message_chunk":
            self.said.append(update.content.text)
            self.news.set()

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None: ...

    def on_connect(self, conn: Any) -> None: ...

    async def until(self, text: str) -> None:
        while text not in "".join(self.said):
            self.news.clear()
            await self.news.wait()


@asynccontextmanager
async def python_sdk(server: Running, sdk: Sdk) -> AsyncIterator[ClientSideConnection]:
    token = server.server_file().token
    transport = create_http_stream(address(server), headers={"Authorization": f"Bearer {token}"})
    connection = connect_to_agent(sdk, transport)  # type: ignore[arg-type]
    try:
        async with asyncio.timeout(LIMIT):
            await connection.initialize(PROTOCOL_VERSION, client_capabilities=ClientCapabilities())
            yield connection
    finally:
        await connection.close()


def script(*steps: str) -> list[Any]:
    return [text_block(rehearse(*steps))]


async def test_the_python_sdks_transport_prompts_is_asked_cancels_and_loads(
    server: Running, tmp_path: Path
) -> None:
    before = await served(server)
    sdk = Sdk("allow_once", "reject_once")
    async with python_sdk(server, sdk) as agent:
        session = (await agent.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        steps = script("say one", "ask write allowed.txt yes", "say two", "ask write denied.txt no")
        assert (await agent.prompt(session_id=session, prompt=steps)).stop_reason == "end_turn"
        await sdk.until("onetwo")
        waiting = asyncio.create_task(
            agent.prompt(session_id=session, prompt=script("say before", "stall 60"))
        )
        await sdk.until("before")
        await agent.cancel(session_id=session)
        assert (await waiting).stop_reason == "cancelled"
        with pytest.raises(RequestError):
            await agent.set_session_mode(session_id=session, mode_id="no such mode")
    assert (tmp_path / "allowed.txt").read_text() == "yes"
    assert not (tmp_path / "denied.txt").exists()
    again = Sdk()
    async with python_sdk(server, again) as agent:
        await agent.load_session(cwd=str(tmp_path), session_id=session, mcp_servers=[])
        await again.until("onetwo")
        await agent.prompt(session_id=session, prompt=script("say again"))
        await again.until("again")
    assert await served(server) <= before  # each said that it goes


@pytest.mark.network
@pytest.mark.timeout(600)  # it may have to be installed
def test_the_typescript_sdks_transport_prompts_is_asked_cancels_and_loads(
    server: Running, tmp_path: Path
) -> None:
    try:
        folder = real_agents.install("typescript-sdk") / "node_modules" / "@agentclientprotocol" / "sdk"
        node = real_agents.node()
    except real_agents.NotAvailable as error:
        pytest.skip(str(error))
    done = subprocess.run(
        [node, TS_CLIENT, folder, tmp_path, address(server), server.server_file().token],
        env=environment(server.home),
        capture_output=True,
        text=True,
        timeout=2 * LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["name"], seen["stopReason"], seen["cancelled"]) == ("legation", "end_turn", "cancelled")
    assert seen["first"][:3] == ["one", "two", "answered"]  # in the order in which it was said
    assert seen["asked"] == ["edit", "edit"]
    assert (tmp_path / "allowed.txt").read_text() == "yes"
    assert not (tmp_path / "denied.txt").exists()
    assert seen["refused"] < 0
    assert seen["order"][:3] == ["one", "two", "before"]
    assert seen["order"][-1] == "again"


# Raw requests.


async def opened(http: httpx2.AsyncClient) -> dict[str, str]:
    """The header of a new connection."""
    answer = await http.post("/acp?agent=rehearsal", json=HELLO, timeout=LIMIT)
    assert (answer.status_code, answer.json()["id"]) == (200, 1)
    return {CONNECTION_ID: answer.headers[CONNECTION_ID]}


async def heard(http: httpx2.AsyncClient, headers: dict[str, str]) -> AsyncIterator[tuple[int, Json]]:
    async with http.stream("GET", "/acp", headers={**STREAM, **headers}, timeout=LIMIT) as response:
        assert response.status_code == 200, await response.aread()
        number = 0
        async for line in response.aiter_lines():
            if line.startswith("id: "):
                number = int(line[4:])
            elif line.startswith("data: "):
                yield number, json.loads(line[6:])


async def answer_to(http: httpx2.AsyncClient, headers: dict[str, str], wanted: object) -> list[Json]:
    """Everything up to the answer to that id."""
    found: list[Json] = []
    async for _, message in heard(http, headers):
        found.append(message)
        if message.get("id") == wanted and "method" not in message:
            break
    return found


async def served(server: Running) -> set[str]:
    async with http_to(server) as http:
        return {each["serverId"] for each in (await http.get("/v1/acp")).json()["servers"]}


async def test_initialize_is_answered_once_and_all_else_among_the_events(
    server: Running, tmp_path: Path
) -> None:
    async with http_to(server) as http:
        connection = await opened(http)
        new = {"id": 2, "method": "session/new", "params": {"cwd": str(tmp_path), "mcpServers": []}}
        taken = await http.post("/acp", json={"jsonrpc": "2.0", **new}, headers=connection)
        assert (taken.status_code, taken.content) == (202, b"")
        messages = await answer_to(http, connection, 2)
        assert 1 not in [each.get("id") for each in messages]
        session = messages[-1]["result"]["sessionId"]
        play = {"jsonrpc": "2.0", "id": 3, "method": "session/prompt", "params": prompt(session, "say hi")}
        # A header that names the session is taken, and not asked for: the Python SDK's answers have none.
        posted = await http.post("/acp", json=play, headers={**connection, "Acp-Session-Id": session})
        assert posted.status_code == 202
        messages = await answer_to(http, connection, 3)
        assert "hi" in json.dumps(messages[:-1])
        assert messages[-1]["result"]["stopReason"] == "end_turn"


async def test_who_comes_back_with_the_last_number_gets_what_follows_and_nothing_twice(
    server: Running, tmp_path: Path
) -> None:
    async with http_to(server) as http:
        connection = await opened(http)
        for number in (2, 3):
            new = {"id": number, "method": "session/new", "params": {"cwd": str(tmp_path), "mcpServers": []}}
            await http.post("/acp", json={"jsonrpc": "2.0", **new}, headers=connection)
            await answer_to(http, connection, number)
        numbers = []
        async for number, message in heard(http, connection):
            numbers.append(number)
            if message.get("id") == 2:
                break
        follows = heard(http, {**connection, "Last-Event-ID": str(numbers[-1])})
        later = [number async for number, message in _until(follows, 3)]
        assert later[0] > numbers[-1]


async def _until(messages: AsyncIterator[tuple[int, Json]], wanted: int) -> AsyncIterator[tuple[int, Json]]:
    async for number, message in messages:
        yield number, message
        if message.get("id") == wanted:
            return


async def test_a_body_of_a_session_is_open_and_silent_and_ends_with_its_connection(server: Running) -> None:
    async with http_to(server) as http, asyncio.timeout(LIMIT):
        connection = await opened(http)
        named = {**STREAM, **connection, "Acp-Session-Id": "ses_whichever"}
        async with http.stream("GET", "/acp", headers=named, timeout=LIMIT) as response:
            assert response.status_code == 200
            lines = response.aiter_lines()
            assert await anext(lines) == ": legation"
            assert (await http.delete("/acp", headers=connection)).status_code == 202
            assert [line async for line in lines if line.startswith("data")] == []
        assert (await http.delete("/acp", headers=connection)).status_code == 404


@pytest.mark.parametrize(
    ("query", "headers", "status", "words"),
    [
        ("", {}, 400, "/acp?agent=NAME"),
        ("?agent=nosuchagent", {}, 400, "nosuchagent"),
        ("?agent=rehearsal", {CONNECTION_ID: "con_1"}, 400, "twice"),
    ],
)
async def test_what_opens_no_connection_says_why(
    server: Running, query: str, headers: dict[str, str], status: int, words: str
) -> None:
    before = await served(server)
    async with http_to(server) as http:
        answer = await http.post(f"/acp{query}", json=HELLO, headers=headers)
    assert (answer.status_code, words in answer.json()["detail"]) == (status, True), answer.text
    assert await served(server) == before


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_a_connection_must_be_named_and_there(server: Running, method: str) -> None:
    body = {"json": {**HELLO, "method": "session/list"}} if method == "POST" else {}
    accept = STREAM if method == "GET" else {}
    async with http_to(server) as http:
        unnamed = await http.request(method, "/acp", headers=accept, **body)  # type: ignore[arg-type]
        assert (unnamed.status_code, CONNECTION_ID in unnamed.json()["detail"]) == (400, True)
        for name in ("con_none", "../x", "x" * 300):
            headers = {**accept, CONNECTION_ID: name}
            answer = await http.request(method, "/acp", headers=headers, **body)  # type: ignore[arg-type]
            assert (answer.status_code, "connect again" in answer.json()["detail"]) == (404, True), name


async def test_a_request_that_is_refused_at_once_is_answered_among_the_events(server: Running) -> None:
    async with http_to(server) as http:
        connection = await opened(http)
        bad = {"jsonrpc": "2.0", "id": 9, "method": "session/prompt", "params": {"sessionId": "none"}}
        assert (await http.post("/acp", json=bad, headers=connection)).status_code == 202
        assert "error" in (await answer_to(http, connection, 9))[-1]


async def test_a_connection_goes_on_in_the_next_server(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with serving(home) as first:
        async with http_to(first) as http:
            connection = await opened(http)
        first.stop()
    with serving(home) as second:
        async with http_to(second) as http:
            ask = {"jsonrpc": "2.0", "id": 5, "method": "session/list", "params": {}}
            assert (await http.post("/acp", json=ask, headers=connection)).status_code == 202
            assert "sessions" in (await answer_to(http, connection, 5))[-1]["result"]


async def test_what_its_client_left_without_a_word_is_ended_when_the_next_one_comes(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with open_rig("sqlite", tmp_path / "data", request) as rig:
        acp = rig.services.acp
        left, _ = await acp.open("local", "rehearsal")
        read, _ = await acp.open("local", "rehearsal")
        await acp.get("local", "a-name-of-theirs", "rehearsal")
        with acp.reading("local", read):
            rig.clock.advance(IDLE)
            new, _ = await acp.open("local", "rehearsal")
            assert {name for name, _ in await acp.list("local")} == {read, new, "a-name-of-theirs"}
            with pytest.raises(NotFound):
                await acp.find("local", left)
