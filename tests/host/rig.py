"""A host with agents in their own processes, and a log in memory unless a test brings another."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.agents.bytes_agent import scripted

from legation.clock import Clock, new_id
from legation.host.host import AcpHost
from legation.host.options import AgentDefinition, HostOptions, Limits
from legation.host.requests.handlers import ApproveAll, Approver
from legation.host.session import Session
from legation.host.turn import PromptResult
from legation.proc import Command
from legation.proc.lines import Redact, unchanged
from legation.store.codec import Backend, MemoryBackend
from legation.store.log import EventLog
from legation.wire import event_types
from legation.wire.acp.updates import Text
from legation.wire.action import Ask, Decision
from legation.wire.event_types import Diagnostic
from legation.wire.events import Draft, Event

LIMIT = 150.0  # seconds of real time that one test may take, starts of agents on a busy machine included


# What every agent's life brings; the rest is trouble.
ORDINARY = frozenset(
    ("agent/spawn", "agent/initialized", "agent/exit", "agent/stderr", "agent/restart-suppressed")
)


@dataclass
class Rig:
    host: AcpHost
    log: EventLog
    place: Path
    reported: list[Diagnostic]

    @property
    def work(self) -> Path:
        return self.place / "work"

    def rehearsal(self, *options: str, env: dict[str, str] | None = None) -> AgentDefinition:
        return AgentDefinition(
            id="rehearsal",
            command=sys.executable,
            args=("-m", "legation.agents.rehearsal", "--execute", *options),
            cwd=self.work,
            env=env or {},
        )

    async def rehearse(self, *options: str, env: dict[str, str] | None = None) -> Session:
        return await self.open((await self.host.spawn_agent(self.rehearsal(*options, env=env))).agent_id)

    async def script(self, source: str) -> Session:
        return await self.run(scripted(source, self.place))

    async def run(self, command: Command) -> Session:
        return await self.open((await self.host.spawn_agent(definition_of(command))).agent_id)

    def scripted(self, source: str) -> AgentDefinition:
        return definition_of(scripted(source, self.place))

    async def open_another(self, session: Session) -> Session:
        """With the same agent."""
        assert session.agent_id
        return await self.open(session.agent_id)

    async def open(self, agent_id: str) -> Session:
        opened = await self.host.create_session(agent_id, cwd=self.work, session_id=new_id("ses"))
        return self.host.session(opened.session_id)


def definition_of(command: Command) -> AgentDefinition:
    own = ("HOME", "TMPDIR")  # these the host gives
    env = {name: value for name, value in command.env.items() if name not in own}
    program, *args = command.argv
    return AgentDefinition(id=command.name, command=program, args=tuple(args), cwd=command.cwd, env=env)


@asynccontextmanager
async def rig(
    place: Path,
    *,
    approver: Approver | None = None,
    limits: Limits | None = None,
    clock: Clock | None = None,
    redact: Redact = unchanged,
    backend: Backend | None = None,
    max_line: int = 32 * 1024 * 1024,
    limit: float = LIMIT,
    **options: Any,
) -> AsyncIterator[Rig]:
    (place / "work").mkdir(exist_ok=True)
    made = HostOptions(
        approver=approver or ApproveAll(),
        limits=limits or Limits(),
        kill_timeout_ms=500,
        redact=redact,
        max_line=max_line,
        data_dir=place / "data",
        **options,
    )
    reported: list[Diagnostic] = []

    def note(event: Event) -> None:
        payload = event_types.decode(event)
        if isinstance(payload, Diagnostic) and payload.code not in ORDINARY:
            reported.append(payload)

    async with (
        asyncio.timeout(limit),
        EventLog(backend or MemoryBackend(), clock=clock) as log,
        AcpHost(made, log=log) as host,
    ):
        host.subscribe(None, 0, note)
        yield Rig(host, log, place, reported)


async def play(session: Session, *steps: str) -> PromptResult:
    return await session.prompt((Text(text="\n".join(("#!rehearse", *steps))),))


async def go(session: Session) -> PromptResult:
    """A prompt to a scripted agent, which does not read it."""
    return await session.prompt((Text(text="go"),))


async def events(session: Session) -> list[Event]:
    return [event async for event in session.stream.subscribe(follow=False)]


async def say_for_the_agent(session: Session, text: str) -> int:
    """Into the record alone, so that the agent tells something else when it loads it. The event's number."""
    content = {"type": "text", "text": text}
    raw = json.dumps({"sessionUpdate": "agent_message_chunk", "content": content}).encode()
    receipt = session.stream.append([Draft("agent-message-chunk", raw)])
    await receipt
    return receipt.last_seq


def mode_told(event: Event) -> str | None:
    """By the agent, or in its answers."""
    said = json.loads(event.payload) if event.type in ("current-mode-update", "setup-facts") else {}
    mode: str | None = said.get("modes", said).get("currentModeId")
    return mode


async def modes_told(session: Session) -> list[str]:
    return [mode for event in await events(session) if (mode := mode_told(event)) is not None]


async def of_type(session: Session, *types: str, after: int = 0) -> list[Event]:
    return [event for event in await events(session) if event.type in types and event.seq > after]


async def until(session: Session, matches: Callable[[Event], bool], after: int = 0) -> Event:
    async for event in session.stream.subscribe(after):
        if matches(event):
            return event
    raise AssertionError("the stream ended first")


async def until_type(session: Session, type_: str) -> Event:
    return await until(session, lambda event: event.type == type_)


def status_of(event: Event) -> object:
    """What the event says of its session's status, if it does."""
    return json.loads(event.payload)["status"] if event.type == "session-status" else None


async def until_status(session: Session, status: str, after: int = 0) -> Event:
    async for event in session.stream.subscribe(after):
        if status_of(event) == status:
            return event
    raise AssertionError("the stream ended first")


@dataclass
class Hand:
    """An approver moved by the test: `asked` holds what waits, `answer` decides it."""

    asked: list[Ask] = field(default_factory=list)
    withdrawn: list[str] = field(default_factory=list)
    _answers: dict[str, "asyncio.Future[Decision]"] = field(default_factory=dict)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def decide(self, ask: Ask) -> Decision:
        self._answers[ask.id] = asyncio.get_running_loop().create_future()
        async with self._changed:
            self.asked.append(ask)
            self._changed.notify_all()
        try:
            return await self._answers[ask.id]
        except asyncio.CancelledError:
            self.withdrawn.append(ask.id)
            raise

    async def until_asked(self, count: int = 1) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.asked) >= count)

    def answer(self, ask_id: str, decision: Decision) -> None:
        self._answers[ask_id].set_result(decision)


YES = Decision("approved", "test", "because")
NO = Decision("denied", "test", "because not")
