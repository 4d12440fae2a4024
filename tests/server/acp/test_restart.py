"""A server that stops, or is killed, while clients are connected: they find their server id and sessions again."""

import asyncio
import signal
from pathlib import Path

import pytest
from tests.server.acp.acp_server import Client, connected, follow, http_to, prompt, serving

pytestmark = pytest.mark.heavy


async def test_a_client_finds_its_server_id_and_its_session_again(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with serving(home) as server:
        async with http_to(server) as http:
            first = Client(http, "mine", tmp_path)
            await first.initialize(elicitation={"form": {}})
            first.follow()
            session = await first.new()
            await first.play(session, "say before")
            await first.until_text(session, "before")
            last, before = first.heard[-1][0], list(first.heard)
            await first.leave()
        server.stop(signal.SIGKILL)
    with serving(home) as server:
        async with http_to(server) as http:
            again = Client(http, "mine", tmp_path)
            again.follow(last)
            listed = (await http.get("/v1/acp")).json()["servers"]
            assert [each["serverId"] for each in listed] == ["mine"]
            assert (await again.play(session, "recall", "say after"))["stopReason"] == "end_turn"
            await again.until_text(session, "after")
            assert "prompts before this one: 1" in again.text(session)
            assert again.heard[0][0] == last + 1
            whole = []
            async for item in follow(http, again.path, 0):
                whole.append(item)
                if item[0] == last:
                    break
            assert whole == before
            await again.leave()
            assert await again.delete() == 204


async def test_a_stop_in_mid_turn_answers_the_prompt(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with serving(home) as server:
        async with http_to(server) as http:
            client = Client(http, "mine", tmp_path)
            await client.initialize()
            client.follow()
            session = await client.new()
            prompting = client.prompting(session, "say going", "stall 60")
            await client.until_text(session, "going")
            server.process.terminate()
            answer = await prompting
            assert answer["error"]["data"]["code"] == "legation/unavailable"
            assert "the server stops" in answer["error"]["message"]
            assert await asyncio.to_thread(server.process.wait, 30) == 0
            await client.leave()


async def test_a_session_that_no_agent_knows_any_more_is_an_error_and_no_hang(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with serving(home) as server:
        async with http_to(server) as http:
            client = Client(http, "mine", tmp_path)
            await client.initialize()
            session = await client.new()
            await client.play(session, "say before")
        server.stop(signal.SIGKILL)
    for state in (home / ".local/share/legation").rglob(".rehearsal"):
        for file in state.rglob("*"):
            if file.is_file():
                file.unlink()
    with serving(home) as server:
        async with connected(server, "mine", tmp_path) as client:
            async with asyncio.timeout(30):
                answer = await client.call("session/prompt", prompt(session, "say after"))
            assert "error" in answer


async def test_what_a_killed_server_had_taken_is_answered_once_by_the_next(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with serving(home) as server:
        async with http_to(server) as http:
            client = Client(http, "mine", tmp_path)
            await client.initialize()
            client.follow()
            session = await client.new()
            await client.play(session, "say answered")
            params = prompt(session, "ask write a.txt", "say on")
            late = {"jsonrpc": "2.0", "id": "late", "method": "session/prompt", "params": params}
            sent = await http.post(client.path, json=late, headers={"prefer": "Respond-Async"})
            assert sent.status_code == 202
            asked = await client.until("session/request_permission")
            last = client.heard[-1][0]
            await client.leave()
        server.stop(signal.SIGKILL)
    for _ in range(2):  # the second time there is nothing left to say
        with serving(home) as server:
            async with http_to(server) as http:
                again = Client(http, "mine", tmp_path)
                again.follow(last)
                withdrawn = await again.until("$/cancel_request")
                assert withdrawn["params"] == {"requestId": asked["id"]}
                await again.play(session, "say after")
                await again.until_text(session, "after")
                [error] = [said for said in again.messages if "error" in said]
                assert (error["id"], error["error"]["data"]["code"]) == ("late", "legation/unavailable")
                await again.leave()
