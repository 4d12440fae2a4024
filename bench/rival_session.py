"""One session on either surface: opened, prompted, and whether its turn is over."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable
from typing import Final

from bench.rival_server import NAME, Server, Side

TURN: Final = 120.0  # seconds for one prompt on a loaded machine
LOOK: Final = 0.1  # seconds between two looks at a session that has no answer to a prompt: they cost it time


class Session:
    """`reading` asks for its live body, in whose events the agent's text is a `member`; `began` and `ended` are of its last prompt."""

    def __init__(self, server: Server, live: str, member: bytes) -> None:
        self.member = member
        self.began = self.ended = 0.0
        self.events = ""
        self.reading = server.reading(live)
        self._server = server
        self._turn: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        return self._turn is None or self._turn.done()

    async def prompt(self, text: str) -> None:
        self.began = time.perf_counter()
        self._turn = asyncio.create_task(self._until_over(self._send(text)))

    async def idle(self) -> None:
        if self._turn is not None:
            await self._turn

    async def _until_over(self, turn: Awaitable[None]) -> None:
        await turn
        self.ended = time.perf_counter()

    async def _send(self, text: str) -> None:
        raise NotImplementedError

    async def _call(self, method: str, path: str, body: object = None) -> bytes:
        return await asyncio.to_thread(self._server.call, method, path, body, TURN)


class AcpSession(Session):
    def __init__(self, server: Server, server_id: str, agent: str) -> None:
        self._path = f"/v1/acp/{server_id}"
        self._agent = agent
        self._calls = 0
        self._id = ""
        super().__init__(server, self._path, b"text")

    async def open(self) -> None:
        hello = {"protocolVersion": 1, "clientCapabilities": {}}
        await self._request("initialize", hello, f"?agent={self._agent}")
        self._id = (await self._request("session/new", {"cwd": str(self._server.folder), "mcpServers": []}))[
            "sessionId"
        ]

    async def _send(self, text: str) -> None:
        prompt = [{"type": "text", "text": text}]
        await self._request("session/prompt", {"sessionId": self._id, "prompt": prompt})

    async def _request(self, method: str, params: object, query: str = "") -> dict[str, str]:
        self._calls += 1
        message = {"jsonrpc": "2.0", "id": self._calls, "method": method, "params": params}
        answer = json.loads(await self._call("POST", self._path + query, message))
        if "result" not in answer:
            raise RuntimeError(f"{method} was answered with {answer}")
        found: dict[str, str] = answer["result"]
        return found


class ApiSession(Session):
    def __init__(self, server: Server, session_id: str) -> None:
        self._path = f"/v1/sessions/{session_id}"
        super().__init__(server, f"{self._path}/events/sse", b"delta")
        self.events = f"{self._path}/events"

    async def open(self) -> None:
        await self._call("POST", self._path, {"agent": NAME})

    async def _send(self, text: str) -> None:
        await self._call("POST", f"{self._path}/messages", {"message": text})
        while True:
            found = json.loads(await self._call("GET", self._path))
            if not found["busy"] and not found["queued"]:
                return
            await asyncio.sleep(LOOK)


async def open_session(side: Side, server: Server, name: str = "bench") -> Session:
    session: AcpSession | ApiSession
    if side == "legation-sessions":
        session = ApiSession(server, name)
    else:
        session = AcpSession(server, name, "mock" if side == "sandbox-agent" else NAME)
    await session.open()
    return session
