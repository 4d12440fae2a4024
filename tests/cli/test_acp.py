"""`legation acp`: the official Python SDK's client drives it, and raw lines where that one would not look."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from acp import PROTOCOL_VERSION, RequestError, spawn_agent_process, text_block
from acp.client.connection import ClientSideConnection
from acp.interfaces import Client
from acp.schema import AllowedOutcome, ClientCapabilities, DeniedOutcome, RequestPermissionResponse
from tests import real_agents
from tests.cli.command import environment, legation, rehearse
from tests.cli.server_process import Running
from tests.server.acp.acp_server import http_to, serving

from legation.cli.acp_bridge import LONGEST

pytestmark = pytest.mark.heavy

TS_CLIENT = Path(__file__).parents[1] / "server" / "acp" / "ts_client.mjs"
LIMIT = 90.0  # seconds for one conversation, the start of several interpreters on a busy machine included


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("acp") / "home") as found:
        yield found


class Sdk:
    """The client's side as the SDK wants it. `decide` says which kind of option is chosen; None: nothing yet."""

    def __init__(self, decide: str | None = "allow_once") -> None:
        self.decide = decide
        self.asked: list[Any] = []
        self.updates: list[Any] = []
        self.news = asyncio.Event()

    async def request_permission(self, options: list[Any], **more: Any) -> RequestPermissionResponse:
        self.asked.append(more)
        self.news.set()
        if self.decide is None:
            await asyncio.Event().wait()
        chosen = [option.option_id for option in options if option.kind == self.decide]
        if not chosen:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=chosen[0]))

    async def session_update(self, update: Any, **_: Any) -> None:
        self.updates.append(update)
        self.news.set()

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None: ...

    def on_connect(self, conn: Any) -> None:
        pass

    def text(self) -> str:
        chunks = [update for update in self.updates if update.session_update == "agent_message_chunk"]
        return "".join(chunk.content.text for chunk in chunks)

    async def until(self, wanted: Callable[[], bool]) -> None:
        while not wanted():
            self.news.clear()
            await self.news.wait()


@asynccontextmanager
async def connected(
    sdk: Sdk, home: Path, *more: str, agent: str = "rehearsal"
) -> AsyncIterator[ClientSideConnection]:
    client: Client = sdk  # type: ignore[assignment]
    argv = (sys.executable, "-m", "legation", "acp", "--agent", agent, *more)
    async with (
        asyncio.timeout(LIMIT),
        spawn_agent_process(client, *argv, env=environment(home)) as (connection, _),
    ):
        await connection.initialize(PROTOCOL_VERSION, client_capabilities=ClientCapabilities())
        yield connection


def script(*steps: str) -> list[Any]:
    return [text_block(rehearse(*steps))]


async def test_a_prompt_streams_and_a_permission_is_given_by_the_client(
    server: Running, tmp_path: Path
) -> None:
    sdk = Sdk()
    async with connected(sdk, server.home) as agent:
        session = await agent.new_session(cwd=str(tmp_path), mcp_servers=[])
        steps = script("say one", "ask write a.txt allowed", "say two")
        response = await agent.prompt(session_id=session.session_id, prompt=steps)
        assert response.stop_reason == "end_turn"
        await sdk.until(lambda: sdk.text() == "onetwo")
    assert (tmp_path / "a.txt").read_text() == "allowed"
    assert len(sdk.asked) == 1


async def test_a_permission_is_denied_by_the_client(server: Running, tmp_path: Path) -> None:
    sdk = Sdk("reject_once")
    async with connected(sdk, server.home) as agent:
        session = await agent.new_session(cwd=str(tmp_path), mcp_servers=[])
        await agent.prompt(session_id=session.session_id, prompt=script("ask write a.txt no"))
    assert sdk.asked
    assert not (tmp_path / "a.txt").exists()


async def test_the_inbox_is_faster_than_the_client(server: Running, tmp_path: Path) -> None:
    sdk = Sdk(None)
    async with connected(sdk, server.home) as agent, http_to(server) as http:
        session = await agent.new_session(cwd=str(tmp_path), mcp_servers=[])
        prompting = asyncio.create_task(
            agent.prompt(session_id=session.session_id, prompt=script("ask write a.txt inbox"))
        )
        await sdk.until(lambda: bool(sdk.asked))
        pending = (await http.get("/approvals?status=pending")).json()
        approval = next(each["id"] for each in pending if each["session_id"] == session.session_id)
        assert (await http.post(f"/approvals/{approval}/approve")).status_code == 200
        assert (await prompting).stop_reason == "end_turn"
    assert (tmp_path / "a.txt").read_text() == "inbox"


async def test_a_turn_is_cancelled_and_the_mode_set(server: Running, tmp_path: Path) -> None:
    sdk = Sdk()
    async with connected(sdk, server.home) as agent:
        session = await agent.new_session(cwd=str(tmp_path), mcp_servers=[])
        assert session.modes
        other = next(m.id for m in session.modes.available_modes if m.id != session.modes.current_mode_id)
        await agent.set_session_mode(mode_id=other, session_id=session.session_id)
        prompting = asyncio.create_task(
            agent.prompt(session_id=session.session_id, prompt=script("say on", "stall 60"))
        )
        await sdk.until(lambda: "on" in sdk.text())
        await agent.cancel(session_id=session.session_id)
        assert (await prompting).stop_reason == "cancelled"


async def test_a_session_is_loaded_after_a_reconnect(server: Running, tmp_path: Path) -> None:
    async with connected(Sdk(), server.home) as agent:
        session = (await agent.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        await agent.prompt(session_id=session, prompt=script("say kept"))
    sdk = Sdk()
    async with connected(sdk, server.home) as agent:
        listed = await agent.list_sessions(cwd=str(tmp_path))
        assert [each.session_id for each in listed.sessions] == [session]
        loaded = await agent.load_session(cwd=str(tmp_path), session_id=session, mcp_servers=[])
        assert loaded.modes
        await sdk.until(lambda: "kept" in sdk.text())
        await agent.prompt(session_id=session, prompt=script("recall"))
        await sdk.until(lambda: "prompts before this one: 1" in sdk.text())


async def test_a_crash_is_an_error_with_its_reason(server: Running, tmp_path: Path) -> None:
    async with connected(Sdk(), server.home) as agent:
        session = (await agent.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
        with pytest.raises(RequestError) as refused:
            await agent.prompt(session_id=session, prompt=script("crash 7"))
        assert (refused.value.data or {})["exitCode"] == 7


async def test_without_a_server_one_is_started_and_ends_with_it(tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "home" / "work"
    work.mkdir(parents=True)
    sdk = Sdk()
    async with connected(sdk, home, "--cwd", str(work)) as agent:
        session = (await agent.new_session(cwd=str(work), mcp_servers=[])).session_id
        await agent.prompt(session_id=session, prompt=script("say alone"))
        await sdk.until(lambda: "alone" in sdk.text())
    found = legation(home, "status")
    assert found.returncode != 0  # none is left


@pytest.mark.network
@pytest.mark.timeout(600)  # it may have to be installed
def test_the_typescript_sdks_client_drives_it(server: Running, tmp_path: Path) -> None:
    try:
        folder = real_agents.install("typescript-sdk") / "node_modules" / "@agentclientprotocol" / "sdk"
        node = real_agents.node()
    except real_agents.NotAvailable as error:
        pytest.skip(str(error))
    main = folder / json.loads((folder / "package.json").read_text())["main"]
    agent = (sys.executable, "-m", "legation", "acp", "--agent", "rehearsal")
    done = subprocess.run(
        [str(node), str(TS_CLIENT), str(main), str(tmp_path), *agent],
        env=environment(server.home),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["name"], seen["stopReason"], seen["cancelled"]) == ("legation", "end_turn", "cancelled")
    assert seen["asked"] == ["edit"] * 3
    assert seen["withdrawn"] == 1
    assert (tmp_path / "allowed.txt").read_text() == "yes"
    assert not (tmp_path / "denied.txt").exists()
    assert seen["exit"] == 0


# Raw lines.


class Raw:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    def send(self, *lines: object) -> None:
        assert self.process.stdin is not None
        for line in lines:
            self.process.stdin.write((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n")

    async def line(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(await self.process.stdout.readline())

    async def answer(self, number: object) -> Any:
        while True:
            found = await self.line()
            if found.get("id") == number and "method" not in found:
                return found


@asynccontextmanager
async def raw(home: Path, *more: str, **env: str) -> AsyncIterator[Raw]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "legation", "acp", "--agent", "rehearsal", *more),
        env=environment(home, **env),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=1 << 26,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(LIMIT):
            yield Raw(process)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()


def request(number: object, method: str, **params: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


HELLO = request(0, "initialize", protocolVersion=1)


async def test_garbage_is_told_and_ends_nothing(server: Running) -> None:
    async with raw(server.home) as client:
        client.send(b"hello", b"[]", b"", b"{}", HELLO)
        for code in (-32700, -32600, -32600):
            found = await client.line()
            assert (found["id"], found["error"]["code"]) == (None, code)
        assert (await client.answer(0))["result"]["agentInfo"]["name"] == "legation"


async def test_a_line_that_is_too_long_is_told_by_its_id_and_ends_nothing(server: Running) -> None:
    async with raw(server.home) as client:
        client.send(HELLO)
        await client.answer(0)
        client.send(request(1, "session/prompt", text="A" * LONGEST))
        assert (await client.answer(1))["error"]["code"] == -32600
        client.send({"text": "A" * LONGEST})
        assert (await client.answer(None))["error"]["code"] == -32600
        client.send(request(2, "session/list"))
        assert "result" in await client.answer(2)


async def test_requests_with_one_id_are_answered_each(server: Running, tmp_path: Path) -> None:
    async with raw(server.home) as client:
        client.send(HELLO, request(1, "session/new", cwd=str(tmp_path), mcpServers=[]))
        session = (await client.answer(1))["result"]["sessionId"]
        ask = [{"type": "text", "text": rehearse("ask write a.txt x")}]
        client.send(request("twice", "session/prompt", sessionId=session, prompt=ask))
        while (asked := await client.line()).get("method") != "session/request_permission":
            pass
        client.send(request("twice", "session/list"))
        assert "sessions" in (await client.answer("twice"))["result"]
        chosen = {"outcome": "selected", "optionId": asked["params"]["options"][0]["optionId"]}
        client.send({"jsonrpc": "2.0", "id": asked["id"], "result": {"outcome": chosen}})
        assert (await client.answer("twice"))["result"]["stopReason"] == "end_turn"


async def test_the_folder_of_the_command_counts_where_the_client_names_none(
    server: Running, tmp_path: Path
) -> None:
    async with raw(server.home, "--cwd", str(tmp_path)) as client:
        client.send(HELLO, request(1, "session/new", mcpServers=[]))
        session = (await client.answer(1))["result"]["sessionId"]
        client.send(request(2, "session/list", cwd=str(tmp_path)))
        listed = (await client.answer(2))["result"]["sessions"]
    assert [each["sessionId"] for each in listed] == [session]


async def test_it_ends_when_stdin_closes_and_the_connection_with_it(server: Running) -> None:
    before = await connections(server)
    async with raw(server.home) as client:
        client.send(HELLO)
        await client.answer(0)
        assert len(await connections(server) - before) == 1
        assert client.process.stdin is not None
        client.process.stdin.close()
        assert await client.process.wait() == 0
    assert await connections(server) <= before


async def connections(server: Running) -> set[str]:
    async with http_to(server) as http:
        return {each["serverId"] for each in (await http.get("/v1/acp")).json()["servers"]}


async def test_what_was_asked_last_is_answered_before_it_ends(server: Running) -> None:
    async with raw(server.home) as client:
        client.send(HELLO)
        assert client.process.stdin is not None
        client.process.stdin.close()
        assert "result" in await client.answer(0)
        assert await client.process.wait() == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_a_signal_ends_it(server: Running, number: signal.Signals, code: int) -> None:
    async with raw(server.home) as client:
        client.send(HELLO)
        await client.answer(0)
        client.process.send_signal(number)
        assert await client.process.wait() == code


async def test_a_server_that_goes_away_is_an_error_and_one_that_comes_back_is_used(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with serving(home) as server:
        async with raw(home) as client:
            client.send(HELLO, request(1, "session/new", cwd=str(tmp_path), mcpServers=[]))
            session = (await client.answer(1))["result"]["sessionId"]
            text = {"type": "text", "text": rehearse("say going", "stall 60")}
            client.send(request(2, "session/prompt", sessionId=session, prompt=[text]))
            while "going" not in json.dumps(await client.line()):
                pass
            server.stop(signal.SIGKILL)
            lost = await client.answer(2)
            assert "gone" in lost["error"]["message"] or "cannot" in lost["error"]["message"]
            # It has started a server of its own by now, or does so for the next message.
            text = {"type": "text", "text": rehearse("recall")}
            number = 3
            while True:
                client.send(request(number, "session/prompt", sessionId=session, prompt=[text]))
                found = await client.answer(number)
                if "result" in found:
                    break
                number += 1
            assert found["result"]["stopReason"] == "end_turn"
            assert client.process.stdin is not None
            client.process.stdin.close()
            assert await client.process.wait() == 0


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["term", "kill"])
async def test_a_server_that_is_restarted_is_waited_for_and_what_it_asked_is_withdrawn(
    tmp_path: Path, end: signal.Signals
) -> None:
    home = tmp_path / "home"
    with serving(home) as server:
        async with raw(home) as client:
            client.send(HELLO, request(1, "session/new", cwd=str(tmp_path), mcpServers=[]))
            session = (await client.answer(1))["result"]["sessionId"]
            text = {"type": "text", "text": rehearse("ask write a.txt one")}
            client.send(request(2, "session/prompt", sessionId=session, prompt=[text]))
            while (asked := await client.line()).get("method") != "session/request_permission":
                pass
            server.stop(end)
            heard: list[Any] = []
            while not heard or heard[-1].get("id") != 2:
                heard.append(await client.line())
            assert "error" in heard[-1]
            # A request that comes meanwhile waits for the next server, which the bridge leaves to its owner.
            text = {"type": "text", "text": rehearse("recall")}
            client.send(request(3, "session/prompt", sessionId=session, prompt=[text]))
            with serving(home) as second:
                while True:
                    heard.append(await client.line())
                    if heard[-1].get("id") == 3 and "method" not in heard[-1]:
                        break
                assert heard[-1]["result"]["stopReason"] == "end_turn"
                assert second.process.poll() is None
                assert second.server_file().pid == second.process.pid
            withdrawn = [
                each["params"]["requestId"] for each in heard if each.get("method") == "$/cancel_request"
            ]
            assert withdrawn == [asked["id"]]
            assert [each["id"] for each in heard if "id" in each and "method" not in each] == [2, 3]


async def test_what_a_client_was_asked_in_a_turn_of_others_is_withdrawn_after_a_kill(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with serving(home) as server:
        async with raw(home) as client:
            client.send(HELLO, request(1, "session/new", cwd=str(tmp_path), mcpServers=[]))
            session = (await client.answer(1))["result"]["sessionId"]
            sent = await asyncio.to_thread(
                legation, home, "sessions", "send", session, rehearse("ask write a.txt one"), "--detach"
            )
            assert sent.returncode == 0, sent.stderr
            while (asked := await client.line()).get("method") != "session/request_permission":
                pass
            server.stop(signal.SIGKILL)
            with serving(home):
                while (heard := await client.line()).get("method") != "$/cancel_request":
                    pass
                assert heard["params"]["requestId"] == asked["id"]


async def test_a_request_that_finds_another_server_is_answered_by_that_one(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with serving(home) as server:
        async with raw(home) as client:
            client.send(b"hello")
            assert (await client.line())["error"]["code"] == -32700  # it has found its server
            server.stop(signal.SIGKILL)
            with serving(home):
                client.send(HELLO)
                assert "result" in await client.answer(0)


async def test_a_server_elsewhere_answers_when_it_is_back_what_it_was_killed_over(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with serving(home) as server:
        place, token = server.server_file().url, legation(home, "tokens", "new", "editor").stdout.strip()
        async with raw(home, "--url", place, LEGATION_TOKEN=token) as client:
            client.send(HELLO, request(1, "session/new", cwd=str(tmp_path), mcpServers=[]))
            session = (await client.answer(1))["result"]["sessionId"]
            text = {"type": "text", "text": rehearse("say going", "stall 60")}
            client.send(request(2, "session/prompt", sessionId=session, prompt=[text]))
            while "going" not in json.dumps(await client.line()):
                pass
            server.stop(signal.SIGKILL)
            with serving(home, "--port", place.rpartition(":")[2]):
                lost = await client.answer(2)
                assert "cannot" in lost["error"]["message"]


async def test_a_wrong_token_is_said(server: Running) -> None:
    done = await asyncio.to_thread(
        legation, server.home, "acp", "--agent", "rehearsal", "--url", server.server_file().url,
        stdin=json.dumps(HELLO) + "\n", LEGATION_TOKEN="wrong",
    )  # fmt: skip
    assert "cannot accept this credential" in json.loads(done.stdout)["error"]["message"]


async def test_a_flood_arrives_whole_and_in_order(server: Running, tmp_path: Path) -> None:
    async with raw(server.home) as client:
        client.send(HELLO, request(1, "session/new", cwd=str(tmp_path), mcpServers=[]))
        session = (await client.answer(1))["result"]["sessionId"]
        text = {"type": "text", "text": rehearse("flood 5000 100", "big 2000000")}
        client.send(request(2, "session/prompt", sessionId=session, prompt=[text]))
        told = 0
        while True:
            found = await client.line()
            if found.get("id") == 2:
                break
            told += found.get("method") == "session/update"
        assert found["result"]["stopReason"] == "end_turn"
        assert told >= 5001


async def test_a_wrong_agent_is_said_at_once(server: Running) -> None:
    done = await asyncio.to_thread(
        legation, server.home, "acp", "--agent", "nosuch", stdin=json.dumps(HELLO) + "\n"
    )
    answer = json.loads(done.stdout)
    assert "cannot find agent" in answer["error"]["message"]


def test_help_says_what_it_is(tmp_path: Path) -> None:
    done = legation(tmp_path, "acp", "--help")
    assert done.returncode == 0
    assert "ACP" in done.stdout
