"""Sessions outlive their server: one that stops, and one that is killed in mid-turn."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import httpx2
import pytest
from tests.cli.server_process import Running, running
from tests.server.sessions.session_client import LIMIT, open_session_client, script

from legation.proc.tree import process

pytestmark = pytest.mark.heavy

MCP = {"a": {"type": "local", "command": "a-mcp", "env": {"KEY": "secret-of-mcp"}}}


async def test_after_a_restart_sessions_are_listed_and_the_next_message_goes_on(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with asyncio.timeout(110):
        async with open_session_client(tmp_path, request) as talk:
            await talk.created("r", title="Kept", model="rehearsal-terse", permissionMode="bypass")
            await talk.created("m", agent="mirror", mcp=MCP, variant="high", agentMode="docs")
            await talk.created("over")
            await talk.played("r", "say one")
            await talk.call("POST", "/v1/sessions/over/terminate")
            before = {
                each["sessionId"]: each
                for each in (await talk.call("GET", "/v1/sessions")).json()["sessions"]
            }
        async with open_session_client(tmp_path, request) as talk:
            after = {
                each["sessionId"]: each
                for each in (await talk.call("GET", "/v1/sessions")).json()["sessions"]
            }
            assert after["over"] == before["over"]
            for name in ("r", "m"):
                same = {
                    key: value for key, value in before[name].items() if key not in ("status", "eventCount")
                }
                assert same.items() <= after[name].items()
                assert after[name]["status"] == "disconnected"
                assert after[name]["eventCount"] >= before[name]["eventCount"]
            assert await talk.heard("r") == "one"
            await talk.played("r", "recall", "ask write kept.txt x")
            assert await talk.heard("r") == "oneprompts before this one: 1"
            kept = talk.rig.services.settings.data_dir / "work/local/r/kept.txt"
            assert kept.read_text() == "x"  # the grant holds
            said = await talk.reflected("m")
            assert said["opened"] == "session/resume"
            assert said["mcpServers"][0]["env"] == [{"name": "KEY", "value": "secret-of-mcp"}]
            assert said["chosen"] == {"model": "small", "effort": "high", "mode": "docs"}
            refused = await talk.call("POST", "/v1/sessions/over/messages", {"message": "go on"})
            assert refused.status_code == 410


class Client:
    """Of a server in a process of its own."""

    def __init__(self, server: Running) -> None:
        server.line()
        found = server.server_file()
        headers = {"authorization": f"Bearer {found.token}"}
        self.http = httpx2.Client(base_url=found.url, headers=headers, timeout=LIMIT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def send(self, *steps: str) -> None:
        answer = self.http.post("/v1/sessions/s/messages", json={"message": script(*steps)})
        assert answer.status_code == 204, answer.text

    def events(self) -> list[dict[str, Any]]:
        """As the log has them."""
        answer = self.http.get("/v1/streams/s/events", params={"limit": 1000})
        assert answer.status_code == 200, answer.text
        return list(answer.json()["items"])

    def inbox(self) -> dict[str, str]:
        """By session, what it is there for."""
        items = self.http.get("/v1/inbox").json()["items"]
        return {item["sessionId"]: item["state"] for item in items}

    def until(self, found: Callable[[list[dict[str, Any]]], object]) -> list[dict[str, Any]]:
        end = time.monotonic() + LIMIT
        while not found(events := self.events()):
            assert time.monotonic() < end, [event["type"] for event in events]
            time.sleep(0.05)
        return events


def types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def test_a_server_that_is_killed_in_mid_turn_goes_on_where_it_was(tmp_path: Path) -> None:
    with running(tmp_path, "server") as server, Client(server) as client:
        made = client.http.post("/v1/sessions/s", json={"agent": "mock"})
        assert made.status_code == 200, made.text
        client.send("say before", "spawn-tree", "stall 600")
        events = client.until(lambda events: types(events).count("agent-message-chunk") == 2)
        tree = [event for event in events if event["type"] == "agent-message-chunk"][1]
        pids = [
            pid
            for pid in json.loads(tree["raw"]["update"]["content"]["text"]).values()
            if isinstance(pid, int)
        ]
        client.send("say queued")
        assert client.http.post("/v1/sessions/cut", json={"agent": "mock"}).status_code == 200
        asks = {"message": script("elicit Which? name:string")}
        assert client.http.post("/v1/sessions/cut/messages", json=asks).status_code == 204
        client.until(lambda _: client.inbox() == {"cut": "asks"})
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait(LIMIT)
    with running(tmp_path, "server") as server, Client(server) as client:
        assert [pid for pid in pids if (found := process(pid)) and not found.dead] == []
        events = client.until(lambda events: types(events).count("prompt-finished") == 2)  # by itself
        ended = next(event for event in events if event["type"] == "prompt-finished")
        assert "the server was restarted while it ran" in ended["raw"]["error"]["message"]
        # Nobody waits for the question any more, and what became of either session is told.
        client.until(lambda _: client.inbox() == {"cut": "cut", "s": "ended"})
        client.send("recall")
        events = client.until(lambda events: types(events).count("prompt-finished") == 3)
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        said = [
            event["raw"]["update"]["content"]["text"]
            for event in events
            if event["type"] == "agent-message-chunk"
        ]
        assert (said[0], said[2:]) == ("before", ["queued", "prompts before this one: 2"])
