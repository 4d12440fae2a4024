"""A real server for the clients of ACP, and a raw client of it: POST, SSE, DELETE, each as bytes."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
from tests.cli.command import rehearse
from tests.cli.server_process import Running, running

LIMIT = 60.0  # seconds for anything a test waits for

POLICY = """
name: p
agent: "*"
loop: off
rules:
  - {id: runs, kind: execute, action: allow}
  - {id: reads, kind: read, action: allow}
  - {id: edits, kind: edit, action: human_approval}
  - {id: supervised, kind: other, action: supervisor}
  - {id: rest, action: deny, message: Leave it.}
"""

Json = dict[str, Any]


@contextmanager
def serving(home: Path, *args: str, **env: str) -> Iterator[Running]:
    """With rules: running and reading pass, edits ask a person, what has no kind asks a supervisor."""
    home.mkdir(exist_ok=True)
    policy = home / "policy.yaml"
    policy.write_text(POLICY)
    # Tests keep their folders beside the server's home, wherever that is.
    given = {"LEGATION_POLICY": str(policy), "LEGATION_FOLDERS": home.anchor, **env}
    with running(home, "server", *args, **given) as server:
        server.line()
        yield server


class Client:
    """One client of one server id. Everything that it hears by SSE is kept, in order."""

    def __init__(self, http: httpx2.AsyncClient, server_id: str, work: Path) -> None:
        self.http = http
        self.path = f"/v1/acp/{server_id}"
        self.work = work
        self.heard: list[tuple[int, Json]] = []
        self._news = asyncio.Event()
        self._ids = itertools.count(1)
        self._reading: asyncio.Task[None] | None = None

    # Sending.

    async def post(self, message: object, agent: str | None = None) -> httpx2.Response:
        query = {"agent": agent} if agent else {}
        return await self.http.post(self.path, json=message, params=query, timeout=LIMIT)

    async def call(self, method: str, params: object, agent: str | None = None) -> Json:
        """The whole envelope of the answer."""
        message = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
        answer = await self.post(message, agent)
        assert answer.status_code == 200, answer.text
        envelope: Json = answer.json()
        assert envelope["id"] == message["id"]
        return envelope

    async def result(self, method: str, params: object, agent: str | None = None) -> Json:
        envelope = await self.call(method, params, agent)
        assert "error" not in envelope, envelope
        found: Json = envelope["result"]
        return found

    async def notify(self, method: str, params: object) -> None:
        assert (await self.post({"jsonrpc": "2.0", "method": method, "params": params})).status_code == 202

    async def answer(self, request: Json, result: object) -> None:
        response = await self.post({"jsonrpc": "2.0", "id": request["id"], "result": result})
        assert response.status_code == 202

    async def initialize(self, agent: str | None = "rehearsal", **capabilities: object) -> Json:
        given = {"protocolVersion": 1, "clientCapabilities": capabilities}
        return await self.result("initialize", given, agent)

    async def new(self) -> str:
        made = await self.result("session/new", {"cwd": str(self.work), "mcpServers": []})
        return str(made["sessionId"])

    def prompting(self, session: str, *steps: str) -> asyncio.Task[Json]:
        return asyncio.create_task(self.call("session/prompt", prompt(session, *steps)))

    async def play(self, session: str, *steps: str) -> Json:
        return await self.result("session/prompt", prompt(session, *steps))

    async def delete(self) -> int:
        return (await self.http.delete(self.path)).status_code

    # Hearing.

    def follow(self, after: int | None = None) -> None:
        self._reading = asyncio.create_task(self._read(after))

    async def _read(self, after: int | None) -> None:
        async for number, message in follow(self.http, self.path, after):
            self.heard.append((number, message))
            self._news.set()

    @property
    def messages(self) -> list[Json]:
        return [message for _, message in self.heard]

    def updates(self, session: str) -> list[Json]:
        return [
            message["params"]["update"]
            for message in self.messages
            if message.get("method") == "session/update" and message["params"]["sessionId"] == session
        ]

    def text(self, session: str) -> str:
        chunks = [each for each in self.updates(session) if each["sessionUpdate"] == "agent_message_chunk"]
        return "".join(each["content"]["text"] for each in chunks)

    async def until(self, method: str, count: int = 1) -> Json:
        """The nth message of that method."""

        def found() -> list[Json]:
            return [message for message in self.messages if message.get("method") == method]

        await self.hears(lambda: len(found()) >= count)
        return found()[count - 1]

    async def until_text(self, session: str, wanted: str) -> None:
        await self.hears(lambda: wanted in self.text(session))

    async def hears(self, wanted: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT):
            while not wanted():
                self._news.clear()
                await self._news.wait()

    async def leave(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})


def prompt(session: str, *steps: str) -> Json:
    return {"sessionId": session, "prompt": [{"type": "text", "text": rehearse(*steps)}]}


async def follow(
    http: httpx2.AsyncClient, path: str, after: int | None = None
) -> AsyncIterator[tuple[int, Json]]:
    headers = {"accept": "text/event-stream"}
    if after is not None:
        headers["last-event-id"] = str(after)
    async with http.stream("GET", path, headers=headers, timeout=LIMIT) as response:
        assert response.status_code == 200, await response.aread()
        rest = b""
        async for chunk in response.aiter_raw():
            *frames, rest = (rest + chunk).split(b"\n\n")
            for frame in frames:
                fields = dict(line.split(b": ", 1) for line in frame.split(b"\n") if b": " in line)
                if b"data" in fields:
                    assert fields[b"event"] == b"message"
                    yield int(fields[b"id"]), json.loads(fields[b"data"])


@asynccontextmanager
async def connected(server: Running, server_id: str, work: Path) -> AsyncIterator[Client]:
    """With a session's folder of its own; not yet initialized."""
    work.mkdir(exist_ok=True, parents=True)
    async with http_to(server) as http:
        client = Client(http, server_id, work)
        try:
            yield client
        finally:
            await client.leave()
            await client.delete()


@asynccontextmanager
async def http_to(server: Running, token: str | None = None) -> AsyncIterator[httpx2.AsyncClient]:
    found = server.server_file()
    headers = {"authorization": f"Bearer {token or found.token}"}
    async with httpx2.AsyncClient(base_url=found.url, headers=headers, trust_env=False) as http:
        yield http
