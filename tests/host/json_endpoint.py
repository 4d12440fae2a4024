"""An endpoint whose every message goes through JSON, both ways, as a transport would carry it (INV-3)."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from tests.agents.bytes_agent import scripted
from tests.host.rig import LIMIT, definition_of

from legation.host.endpoint import HostEndpoint, create_host_endpoint
from legation.host.host import AcpHost
from legation.host.options import AgentDefinition, HostOptions
from legation.store.log import EventLog

Message = dict[str, Any]


def carry(value: Any) -> Any:
    """Over the wire: what comes out is what went in, or the test fails."""
    arrived = json.loads(json.dumps(value, allow_nan=False))
    assert arrived == value
    return arrived


@dataclass
class Heard:
    """A handler that keeps what it hears."""

    messages: list[Message] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __call__(self, message: Message) -> None:
        self.messages.append(carry(message))
        self._changed.set()

    async def until(self, matches: Callable[[Message], bool]) -> Message:
        while True:
            for message in self.messages:
                if matches(message):
                    return message
            self._changed.clear()
            await self._changed.wait()

    async def until_type(self, type_: str) -> Message:
        return await self.until(lambda message: message["type"] == type_)

    async def until_code(self, code: str) -> Message:
        return await self.until(lambda message: message["payload"].get("code") == code)


@dataclass
class Client:
    endpoint: HostEndpoint
    host: AcpHost
    place: Path
    _ids: "count[int]" = field(default_factory=count)

    async def answer(self, method: object, **params: object) -> Message:
        number = next(self._ids)
        request = carry({"id": number, "method": method, "params": params})
        answer: Message = carry(await self.endpoint.request(request))
        assert answer.pop("id") == number
        return answer

    async def call(self, method: str, **params: object) -> Any:
        answer = await self.answer(method, **params)
        assert list(answer) == ["result"], answer
        return answer["result"]

    async def error(self, method: object, **params: object) -> Message:
        answer = await self.answer(method, **params)
        assert list(answer) == ["error"], answer
        error: Message = answer["error"]
        return error

    async def spawn(self, definition: AgentDefinition | None = None) -> str:
        agent = await self.call("agents/spawn", definition=self.defined(definition))
        return str(agent["agentId"])

    def defined(self, given: AgentDefinition | None = None) -> Message:
        if given is None:
            args = ["-m", "legation.agents.rehearsal", "--execute"]
            return {"id": "rehearsal", "command": sys.executable, "args": args, "cwd": str(self.place)}
        return {
            "command": given.command,
            "args": list(given.args),
            "cwd": str(given.cwd),
            "env": dict(given.env),
        }

    async def script(self, source: str) -> str:
        """The id of a session with an agent that does that."""
        return await self.open(await self.spawn_script(source))

    async def spawn_script(self, source: str) -> str:
        return await self.spawn(definition_of(scripted(source, self.place)))

    async def open(self, agent_id: str) -> str:
        made = await self.call("sessions/create", agentId=agent_id, cwd=str(self.place))
        return str(made["sessionId"])

    async def play(self, session_id: str, *steps: str) -> Message:
        played: Message = await self.call("sessions/prompt", sessionId=session_id, prompt=script(*steps))
        return played


def script(*steps: str) -> list[Message]:
    return [{"type": "text", "text": "\n".join(("#!rehearse", *steps))}]


@asynccontextmanager
async def client(place: Path, log: EventLog | None = None, **options: Any) -> AsyncIterator[Client]:
    """Without an approver: permissions wait for an answer from outside."""
    made = HostOptions(data_dir=place / "data", kill_timeout_ms=500, **options)
    async with asyncio.timeout(LIMIT), AcpHost(made, log=log) as host:
        endpoint = create_host_endpoint(host)
        yield Client(endpoint, host, place)
        await endpoint.close()
