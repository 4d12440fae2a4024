"""Sessions over HTTP in a real application, with real rehearsal agents: made, spoken to, and waited for by events."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx2
import pytest
from tests.server.rig import Rig, open_rig

from legation.store.stream import Stream

LIMIT = 60.0  # seconds: an agent's time to start, work and end on a busy machine

POLICY = """
name: p
agent: "*"
loop: off
rules:
  - {id: forbidden, kind: edit, action: deny, message: Never that one., when: {paths: {glob: "**/forbidden.txt"}}}
  - {id: runs, kind: execute, action: allow, when: {command: {"==": "true"}}}
  - {id: edits, kind: edit, action: supervisor}
  - {id: rest, action: human_approval}
"""


# The mirror of `mirror.py`, by what it can do with sessions of another process.
MIRRORS = {
    "mirror": (),
    "loading": ("--load",),
    "forgetful": ("--new",),
    "slow": ("--load", "--resume", "--wait"),
    "late": ("--load", "--late"),
    "lossy": ("--load", "--resume", "--refuse"),
    "held": ("--load", "--resume", "--held"),
    "closing": ("--load", "--resume", "--close", "--held"),
}


def _stanza(name: str, *args: str) -> str:
    argv = [str(Path(__file__).with_name("mirror_agent.py")), *args]
    return f"[agents.{name}]\ncommand = {sys.executable!r}\nargs = {argv!r}\n"


def script(*steps: str) -> str:
    return "\n".join(("#!rehearse", *steps))


@dataclass
class SessionClient:
    rig: Rig
    work: Path  # what is served
    headers: dict[str, str]

    async def call(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> httpx2.Response:
        return await self.rig.client.request(
            method, path, json=body, headers=headers or self.headers, timeout=LIMIT
        )

    async def create(self, session: str, **body: object) -> httpx2.Response:
        return await self.call("POST", f"/v1/sessions/{session}", {"agent": "rehearsal", **body})

    async def created(self, session: str, **body: object) -> dict[str, Any]:
        answer = await self.create(session, **body)
        assert answer.status_code == 200, answer.text
        return answer.json()  # type: ignore[no-any-return]

    async def send(self, session: str, *steps: str, **body: object) -> None:
        message = {"message": script(*steps), **body}
        answer = await self.call("POST", f"/v1/sessions/{session}/messages", message)
        assert answer.status_code == 204, answer.text

    async def info(self, session: str) -> dict[str, Any]:
        answer = await self.call("GET", f"/v1/sessions/{session}")
        assert answer.status_code == 200, answer.text
        return answer.json()  # type: ignore[no-any-return]

    async def _stream(self, session: str) -> Stream:
        """Its stream in the log; `session` is the id as it stands in a path."""
        return await self.rig.services.log.stream(unquote(session))

    async def until(
        self, session: str, *types: str, after: int = 0, where: Callable[[Any], bool] = lambda _: True
    ) -> tuple[int, Any]:
        """The first event of such a type above a number: its number and what it says."""
        stream = await self._stream(session)
        async with asyncio.timeout(LIMIT):
            async for event in stream.subscribe(after):
                if event.type in types and where(said := json.loads(event.payload)):
                    return event.seq, said
        raise AssertionError("the log ended")

    async def played(self, session: str, *steps: str) -> dict[str, Any]:
        """One whole turn: how it ended."""
        stream = await self._stream(session)
        after = stream.head
        await self.send(session, *steps)
        _, ended = await self.until(session, "prompt-finished", after=after)
        return ended  # type: ignore[no-any-return]

    async def events(self, session: str, *types: str) -> list[Any]:
        stream = await self._stream(session)
        return [
            json.loads(event.payload) async for event in stream.subscribe(follow=False) if event.type in types
        ]

    async def heard(self, session: str) -> str:
        chunks = await self.events(session, "agent-message-chunk")
        return "".join(each["content"]["text"] for each in chunks)

    async def reflected(self, session: str, **body: object) -> dict[str, Any]:
        """What the mirror says that it was given."""
        stream = await self._stream(session)
        after = stream.head
        answer = await self.call("POST", f"/v1/sessions/{session}/messages", {"message": "say", **body})
        assert answer.status_code == 204, answer.text
        _, said = await self.until(session, "agent-message-chunk", after=after)
        await self.until(session, "prompt-finished", after=after)
        return json.loads(said["content"]["text"])  # type: ignore[no-any-return]

    async def asked(self, session: str, *steps: str) -> str:
        """A permission that the agent waits for."""
        stream = await self._stream(session)
        after = stream.head
        await self.send(session, *steps)
        _, asked = await self.until(session, "permission-asked", after=after)
        return str(asked["id"])

    async def reply(
        self, session: str, permission: str, reply: str, headers: dict[str, str] | None = None
    ) -> httpx2.Response:
        path = f"/v1/sessions/{session}/permissions/{permission}/reply"
        return await self.call("POST", path, {"reply": reply}, headers)

    def agent_state(self, native: str) -> dict[str, Any]:
        """What the rehearsal agent itself has on its session."""
        home = self.rig.services.settings.data_dir / "agents/local/rehearsal/home"
        return json.loads((home / ".rehearsal/sessions" / native / "session.json").read_text())  # type: ignore[no-any-return]


@asynccontextmanager
async def open_session_client(
    place: Path, request: pytest.FixtureRequest, dialect: str = "sqlite", **flags: object
) -> AsyncIterator[SessionClient]:
    policy, work = place / "policy.yaml", place / "work"
    policy.write_text(POLICY)
    work.mkdir(exist_ok=True)
    agents = place / "agents.toml"
    agents.write_text("".join(_stanza(name, *args) for name, args in MIRRORS.items()))
    chosen = {"policy": policy, "folders": [str(work)], "agents": agents, **flags}
    async with open_rig(dialect, place / "data", request, **chosen) as rig:
        yield SessionClient(rig, work, await rig.bearer(rig.people["owner"]))
