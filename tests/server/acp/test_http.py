"""Every rule of the HTTP surface: statuses, headers, numbers, ends, and what bad input and bad agents make of it."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx2
import pytest
from tests.cli.server_process import Running
from tests.server.acp.acp_server import LIMIT, Client, Json, connected, follow, http_to, prompt

from legation.proc import tree

pytestmark = pytest.mark.heavy


async def test_the_first_message_names_the_agent_and_another_is_a_conflict(client: Client) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}
    assert (await client.post(message)).status_code == 400
    assert (await client.post(message, "nosuchagent")).status_code == 400
    assert (await client.post(message, "rehearsal")).status_code == 200
    assert (await client.post(message, "mock")).status_code == 409
    assert (await client.post(message, "claude")).status_code == 409
    assert (await client.post(message)).status_code == 200


async def test_requests_are_200_and_everything_else_202(client: Client) -> None:
    await client.initialize()
    notification = {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "x"}}
    response = {"jsonrpc": "2.0", "id": "unknown", "result": {}}
    nobodys = {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "no"}}
    for message in (notification, response, nobodys):
        answer = await client.post(message)
        assert (answer.status_code, answer.content) == (202, b"")


async def test_a_request_whose_id_is_null_is_answered_under_that_id(client: Client) -> None:
    await client.initialize()
    client.follow()
    for method, member in (("session/list", "result"), ("_no/such", "error")):
        answer = await client.post({"jsonrpc": "2.0", "id": None, "method": method, "params": {}})
        assert answer.status_code == 200
        assert answer.json()["id"] is None
        assert member in answer.json()
    await client.hears(lambda: sum("method" not in each for each in client.messages) >= 2)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'[{"jsonrpc":"2.0"}]',
        b"null",
        b"7",
        b'"x"',
        b"{}",
        b'{"id":1}',
        b'{"method":7}',
        b'{"method":"x","id":{}}',
        b'{"method":"x","id":[1]}',
        b'{"method":"x","params":"\xff"}',
        b"\xff\xfe",
    ],
)
async def test_what_is_no_message_is_400(client: Client, body: bytes) -> None:
    await client.initialize()
    answer = await client.http.post(client.path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert await client.new()  # nothing is broken by it


async def test_types_are_agreed_on(client: Client) -> None:
    body = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}'

    async def status(**headers: str) -> int:
        path = f"{client.path}?agent=rehearsal"
        return (await client.http.post(path, content=body, headers=headers)).status_code

    assert await status(**{"content-type": "text/plain"}) == 415
    assert await status(**{"content-type": "application/json", "accept": "text/html"}) == 406
    assert await status(**{"content-type": "application/json; charset=utf-8", "accept": "*/*"}) == 200
    assert await status(**{"content-type": "application/json", "accept": "text/html, application/*"}) == 200
    assert (await client.http.get(client.path, headers={"accept": "application/json"})).status_code == 406
    bad = {"accept": "text/event-stream", "last-event-id": "soon"}
    assert (await client.http.get(client.path, headers=bad)).status_code == 400


async def test_a_reader_from_beyond_the_end_hears_what_comes_next(client: Client) -> None:
    await client.initialize()
    client.follow(after=99_999)
    session = await client.new()
    await client.play(session, "say next")
    await client.until_text(session, "next")


async def test_what_the_query_has_beside_is_ignored(client: Client) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}
    answer = await client.http.post(f"{client.path}?agent=rehearsal&bootstrap=1", json=message)
    assert answer.status_code == 200
    for path in ("/v1/health?x=1", "/v1/agents?x=1", "/v1/acp?x=1"):
        assert (await client.http.get(path)).status_code == 200
    assert (await client.http.get("/v1/sessions?x=1")).status_code == 400  # not sandbox-agent 0.4's


@pytest.mark.parametrize("server_id", ["a/b c:d", "é" * 128, "x" * 256, "日本語 / ~", "…"])
async def test_a_server_id_is_any_text_of_one_line(server: Running, tmp_path: Path, server_id: str) -> None:
    async with connected(server, quote(f"{server_id}", safe=""), tmp_path / "work") as client:
        await client.initialize()
        session = await client.new()
        client.follow()
        await client.play(session, "say here")
        await client.until_text(session, "here")
        servers = (await client.http.get("/v1/acp")).json()["servers"]
        assert server_id in [each["serverId"] for each in servers]
        assert await client.delete() == 204


@pytest.mark.parametrize("server_id", ["%00", "a%0Ab", "x" * 257, "%C3%A9" * 129, "%2E"])
async def test_what_is_no_text_of_one_line_is_no_server_id(server: Running, server_id: str) -> None:
    async with http_to(server) as http:
        for method in ("POST", "DELETE", "GET"):
            headers = {"content-type": "application/json"} if method == "POST" else {}
            body = b'{"method":"x"}' if method == "POST" else None
            path = f"/v1/acp/{server_id}?agent=rehearsal" if method == "POST" else f"/v1/acp/{server_id}"
            answer = await http.request(method, path, content=body, headers=headers)
            assert answer.status_code == 400, (method, answer.text)


async def test_connections_are_listed_and_gone_after_delete(server: Running, client: Client) -> None:
    await client.initialize()
    server_id = client.path.rpartition("/")[2]

    async def listed() -> dict[str, Json]:
        servers = (await client.http.get("/v1/acp")).json()["servers"]
        assert [each["serverId"] for each in servers] == sorted(each["serverId"] for each in servers)
        return {each["serverId"]: each for each in servers}

    found = (await listed())[server_id]
    assert set(found) == {"serverId", "agent", "createdAtMs"}
    assert found["agent"] == "rehearsal"
    assert await client.delete() == 204
    assert await client.delete() == 204
    assert server_id not in await listed()


async def test_delete_is_at_once_and_ends_the_process_group(server: Running, client: Client) -> None:
    await client.initialize()
    client.follow()
    session = await client.new()
    prompting = client.prompting(
        session, "ignore-signals", "ignore-stdin-eof", "spawn-tree", "say up", "stall-hard 60"
    )
    await client.until_text(session, "up")
    agents = below(server.process.pid)
    assert len(agents) > 1  # it has children of its own
    assert await client.delete() == 204
    assert any(map(runs, agents))  # they take no hint: nobody waited until they were killed
    answer = await prompting
    assert answer["error"]["data"]["code"] == "legation/unavailable"
    async with asyncio.timeout(30):
        while any(map(runs, agents)):
            await asyncio.sleep(0.05)  # the kernel tells nobody; bounded


async def test_delete_ends_the_bodies_of_those_who_read(client: Client) -> None:
    await client.initialize()
    read = b""
    async with client.http.stream("GET", client.path, timeout=LIMIT) as response:
        async for chunk in response.aiter_raw():
            if not read:
                assert await client.delete() == 204
            read += chunk
    assert b": ping" not in read  # at once: a reader that is not woken finds out with the next keep-alive


def runs(known: tree.Process) -> bool:
    found = tree.process(known.pid)
    return found is not None and found.identity == known.identity and not found.dead


def below(pid: int) -> list[tree.Process]:
    """The processes that a process has started, and those that they have."""
    found = [each for each in map(tree.process, tree.children(pid)) if each is not None]
    return [*found, *(deeper for each in found for deeper in below(each.pid))]


async def test_an_id_can_be_used_again_after_delete_and_its_numbers_go_on(client: Client) -> None:
    await client.initialize()
    client.follow()
    await client.new()
    await client.hears(lambda: len(client.heard) >= 2)
    last = max(number for number, _ in client.heard)
    assert await client.delete() == 204
    await client.leave()
    client.heard.clear()
    await client.initialize()
    client.follow()
    session = await client.new()
    await client.play(session, "say again")
    await client.until_text(session, "again")
    assert min(number for number, _ in client.heard) > last


async def test_a_reader_that_comes_too_early_waits_for_the_first_message(client: Client) -> None:
    client.follow()
    hello = await client.initialize()
    await client.hears(lambda: bool(client.heard))
    assert client.messages[0]["result"] == hello


async def test_replies_come_on_the_stream_too_and_are_the_same(client: Client) -> None:
    await client.initialize()
    client.follow()
    session = await client.new()
    envelope = await client.call("session/prompt", prompt(session, "say hi"))
    await client.hears(lambda: envelope in client.messages)


async def test_a_reader_goes_on_exactly_after_its_last_number(client: Client) -> None:
    await client.initialize()
    client.follow()
    session = await client.new()
    await client.play(session, "flood 3000 50")
    await client.hears(lambda: len(client.updates(session)) >= 3000)
    heard = list(client.heard)  # the answer to the prompt may come later
    numbers = [number for number, _ in heard]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    for after in (numbers[0], numbers[1700], numbers[-2]):
        again: list[tuple[int, Json]] = []
        async for item in follow(client.http, client.path, after):
            again.append(item)
            if item[0] == numbers[-1]:
                break
        assert again == [item for item in heard if item[0] > after]


async def test_updates_are_the_bytes_of_the_log(client: Client) -> None:
    await client.initialize()
    session = await client.new()
    await client.play(session, "unknown-update", "say ünïcödé")
    log = (await client.http.get(f"/v1/streams/{session}/events?limit=1000")).text
    server_id = client.path.rpartition("/")[2]
    told = (await client.http.get(f"/v1/streams/acp:{server_id}/events?limit=1000")).text
    for line in json.loads(log)["items"]:
        if line["type"] in ("agent-message-chunk", "unrecognized-update"):
            start = log.index('"raw":', log.index(f'"seq":{line["seq"]},')) + 6 + line["update"][0]
            update = log[start : start + 40]
            assert f'"update":{update}' in told


async def test_headers_and_spaces_come_early_on_a_long_prompt(client: Client) -> None:
    await client.initialize()
    session = await client.new()
    message = {"jsonrpc": "2.0", "id": 7, "method": "session/prompt", "params": prompt(session, "stall 8")}
    started = time.monotonic()
    pieces: list[tuple[float, bytes]] = []
    async with client.http.stream("POST", client.path, json=message, timeout=LIMIT) as response:
        headers_after = time.monotonic() - started
        assert response.status_code == 200
        assert response.headers["content-type"] == "application/json"
        async for piece in response.aiter_raw():
            pieces.append((time.monotonic() - started, piece))
    assert headers_after < 6
    assert pieces[0][1] == b" "
    assert len([piece for _, piece in pieces if piece == b" "]) >= 2
    whole = b"".join(piece for _, piece in pieces)
    assert json.loads(whole)["result"]["stopReason"] == "end_turn"


async def test_who_prefers_it_gets_the_answer_by_the_stream_alone(client: Client) -> None:
    await client.initialize()
    client.follow()
    session = await client.new()
    message = {"jsonrpc": "2.0", "id": "p", "method": "session/prompt", "params": prompt(session, "say hi")}
    answer = await client.http.post(client.path, json=message, headers={"prefer": "respond-async"})
    assert (answer.status_code, answer.content) == (202, b"")
    await client.hears(lambda: any(each.get("id") == "p" for each in client.messages))


async def test_a_prompt_goes_on_when_its_sender_hangs_up(client: Client) -> None:
    await client.initialize()
    client.follow()
    session = await client.new()
    message = {
        "jsonrpc": "2.0",
        "id": "p",
        "method": "session/prompt",
        "params": prompt(session, "stall 2", "say on"),
    }
    with pytest.raises(httpx2.ReadTimeout):
        await client.http.post(client.path, json=message, timeout=0.3)
    await client.until_text(session, "on")
    await client.hears(lambda: any(each.get("id") == "p" and "result" in each for each in client.messages))


async def test_a_crash_answers_at_once_with_reason_code_and_stderr(client: Client) -> None:
    await client.initialize()
    client.follow()
    session = await client.new()
    answer = await client.prompting(session, "say before", "stderr 300", "crash 7")
    error = answer["error"]
    assert error["code"] == -32603
    assert (error["data"]["reason"], error["data"]["exitCode"]) == ("crashed", 7)
    assert error["data"]["agentStderr"]
    exited = await client.until("_adapter/agent_exited")
    assert exited["params"]["code"] == 7
    # The next message finds another process, which goes on with the session.
    assert (await client.play(session, "recall", "say after"))["stopReason"] == "end_turn"
    await client.until_text(session, "after")
    assert "prompts before this one: 1" in client.text(session)


async def test_the_end_of_a_process_is_told_once_however_many_sessions_it_had(client: Client) -> None:
    await client.initialize()
    client.follow()
    sessions = [await client.new() for _ in range(3)]
    for round_ in (1, 2):  # another process, another end
        assert "error" in await client.prompting(sessions[0], "crash 7")
        for number, session in enumerate(sessions):
            await client.play(session, f"say {round_}.{number}")
            await client.until_text(session, f"{round_}.{number}")
        told = [each for each in client.messages if each.get("method") == "_adapter/agent_exited"]
        assert len(told) == round_


async def test_a_killed_agent_says_so(client: Client) -> None:
    await client.initialize()
    session = await client.new()
    error = (await client.prompting(session, "kill-self KILL"))["error"]
    assert (error["data"]["reason"], error["data"]["signal"]) == ("killed", 9)


@pytest.mark.parametrize(
    ("command", "said"), [("/bin/false", "ended with"), ("/no/such/program", "cannot start")]
)
async def test_an_agent_that_cannot_be_started_is_an_error_not_a_status(
    server: Running, client: Client, command: str, said: str
) -> None:
    server.data_dir.joinpath("agents.toml").write_text(f'[agents.broken]\ncommand = "{command}"\n')
    refused = await client.call("initialize", {"protocolVersion": 1}, "broken")
    assert said in refused["error"]["message"]
    assert "error" in await client.call("session/new", {"cwd": str(client.work), "mcpServers": []})


async def test_an_agent_that_ends_before_it_has_a_session_says_why_as_one_that_has(
    server: Running, client: Client
) -> None:
    program = "/bin/sh -c 'echo no licence >&2; exit 3'"
    server.data_dir.joinpath("agents.toml").write_text(f'[agents.unlicensed]\ncommand = "{program}"\n')
    refused = (await client.call("initialize", {"protocolVersion": 1}, "unlicensed"))["error"]["data"]
    assert (refused["reason"], refused["exitCode"], refused["signal"]) == ("crashed", 3, None)
    assert refused["agentStderr"] == ["no licence"]
    client.follow()
    exited = await client.until("_adapter/agent_exited")
    assert exited["params"] == {"success": False, "code": 3, "signal": None}


async def test_an_error_of_the_agent_comes_with_the_end_of_its_stderr(client: Client) -> None:
    await client.initialize()
    session = await client.new()
    error = (await client.prompting(session, "stderr 5000", "error -32055 out of paper"))["error"]
    assert (error["code"], error["message"]) == (-32055, "out of paper")
    assert len(error["data"]["agentStderr"]) == 16


async def test_large_messages_are_taken_and_larger_ones_refused(client: Client) -> None:
    await client.initialize()
    session = await client.new()
    image = {"type": "image", "mimeType": "image/png", "data": "A" * (5 * 1024 * 1024)}
    text = {"type": "text", "text": "#!rehearse\nsay seen"}
    params = {"sessionId": session, "prompt": [text, image]}
    assert (await client.result("session/prompt", params))["stopReason"] == "end_turn"
    headers = {"content-type": "application/json", "content-length": str(65 * 1024 * 1024)}
    reader, writer = await asyncio.open_connection(*_address(client))
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    authorization = client.http.headers["authorization"]
    writer.write(
        f"POST {client.path} HTTP/1.1\r\nhost: localhost\r\nauthorization: {authorization}\r\n{head}\r\n".encode()
    )
    async with asyncio.timeout(LIMIT):
        assert b" 413 " in await reader.readline()
    writer.close()


def _address(client: Client) -> tuple[str, int]:
    url = client.http.base_url
    return str(url.host), int(url.port or 80)


async def test_several_sessions_share_one_process(server: Running, client: Client) -> None:
    before = set(tree.children(server.process.pid))
    await client.initialize()
    client.follow()
    sessions = [await client.new() for _ in range(3)]
    assert len(set(tree.children(server.process.pid)) - before) == 1
    prompts = [client.prompting(each, f"say words of {each}") for each in sessions]
    assert [(await each)["result"]["stopReason"] for each in prompts] == ["end_turn"] * 3
    for session in sessions:
        await client.until_text(session, f"words of {session}")
        assert client.text(session) == f"words of {session}"


async def test_two_clients_at_once_each_get_their_own_answer(client: Client) -> None:
    """The same ids from two clients of one server id: each POST is answered by its own."""
    await client.initialize()
    session = await client.new()

    async def ask(method: str, params: object) -> Json:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return dict((await client.post(message)).json())

    first, second = await asyncio.gather(
        ask("session/prompt", prompt(session, "stall 1", "say hi")), ask("session/list", {})
    )
    assert first["result"]["stopReason"] == "end_turn"
    assert "sessions" in second["result"]


async def test_a_flood_of_requests_is_bounded_and_all_are_answered(client: Client) -> None:
    await client.initialize()
    session = await client.new()
    prompting = client.prompting(session, "say x", "stall 3")
    calls = [client.call("session/prompt", {"sessionId": session, "prompt": []}) for _ in range(60)]
    answers = await asyncio.gather(*calls)
    assert all("error" in answer for answer in answers)
    assert (await prompting)["result"]["stopReason"] == "end_turn"


async def test_garbage_of_the_agent_ends_nothing(client: Client) -> None:
    await client.initialize()
    client.follow()
    session = await client.new()
    await client.play(session, "garbage text", "garbage null", "out-of-order", "say fine")
    await client.until_text(session, "fine")


async def test_what_needs_a_scope_is_refused_without_it(server: Running, tmp_path: Path) -> None:
    async with http_to(server) as owner:
        made = (await owner.post("/v1/tokens", json={"label": "t", "scopes": ["read", "approve"]})).json()
    async with http_to(server, made["secret"]) as http:
        client = Client(http, f"test-{uuid4()}", tmp_path)
        message: Any = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
        assert (await client.post(message, "rehearsal")).status_code == 403
        assert (await http.get(client.path)).status_code == 403
        assert await client.delete() == 403
        assert (await http.get("/v1/acp")).status_code == 200
    async with http_to(server, "wrong") as http:
        assert (await http.post(client.path, json=message)).status_code == 401


async def test_a_session_is_shared_by_two_connections(server: Running, client: Client) -> None:
    await client.initialize()
    session = await client.new()
    async with connected(server, f"test-{uuid4()}", client.work) as other:
        await other.initialize()
        other.follow()
        await other.result("session/load", {"sessionId": session, "cwd": str(client.work), "mcpServers": []})
        await client.play(session, "say to both")
        await other.until_text(session, "to both")
        await client.delete()
        await other.until("_adapter/agent_exited")
        # Its agent is gone with the first connection; the second takes the session up with its own.
        assert (await other.play(session, "say alone"))["stopReason"] == "end_turn"
        await other.until_text(session, "alone")
