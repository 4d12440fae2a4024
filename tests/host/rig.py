"""A host with agents in their own processes, and a log in memory unless a test brings another."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.agents.scripted import scripted

from legation.agents.acp import AcpAgent
from legation.clock import Clock
from legation.host.host import AcpHost
from legation.host.session import Limits, PromptResult, Session
from legation.proc import Command, ProcessLauncher, child_environment
from legation.proc.lines import Redact, unchanged
from legation.store.backend import Backend
from legation.store.log import EventLog
from legation.store.memory import MemoryBackend
from legation.wire.acp.content import Text
from legation.wire.ask import ApproveAll, Approver, Ask, Decision
from legation.wire.diagnostic import Diagnostic
from legation.wire.events import Event

LIMIT = 60.0  # seconds of real time that one test may take, starts of agents on a busy machine included


@dataclass
class Rig:
    host: AcpHost
    log: EventLog
    place: Path
    reported: list[Diagnostic]

    @property
    def work(self) -> Path:
        return self.place / "work"

    def rehearsal(self, *options: str, env: dict[str, str] | None = None) -> Command:
        argv = (sys.executable, "-m", "legation.agents.rehearsal", *options)
        environment = child_environment(env or {}, home=self.place / "home", tmp=self.place / "tmp")
        return Command(argv, self.work, environment, "rehearsal")

    async def rehearse(self, *options: str, env: dict[str, str] | None = None) -> Session:
        return await self.open(await self.host.spawn_agent(self.rehearsal(*options, env=env)))

    async def script(self, source: str) -> Session:
        return await self.open(await self.host.spawn_agent(scripted(source, self.place)))

    async def open(self, agent: AcpAgent) -> Session:
        return await self.host.create_session(agent, self.work)


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
) -> AsyncIterator[Rig]:
    for name in ("work", "home", "tmp"):
        (place / name).mkdir(exist_ok=True)
    reported: list[Diagnostic] = []
    async with (
        asyncio.timeout(LIMIT),
        EventLog(backend or MemoryBackend(), clock=clock) as log,
        AcpHost(
            log=log,
            launcher=ProcessLauncher(),
            approver=approver or ApproveAll(),
            limits=limits or Limits(stop=0.5),
            redact=redact,
            max_line=max_line,
            report=reported.append,
        ) as host,
    ):
        yield Rig(host, log, place, reported)


async def play(session: Session, *steps: str) -> PromptResult:
    return await session.prompt((Text(text="\n".join(("#!rehearse", *steps))),))


async def go(session: Session) -> PromptResult:
    """A prompt to a scripted agent, which does not read it."""
    return await session.prompt((Text(text="go"),))


async def events(session: Session) -> list[Event]:
    return [event async for event in session.stream.subscribe(follow=False)]


async def of_type(session: Session, *types: str) -> list[Event]:
    return [event for event in await events(session) if event.type in types]


async def until(session: Session, matches: Callable[[Event], bool]) -> Event:
    async for event in session.stream.subscribe():
        if matches(event):
            return event
    raise AssertionError("the stream ended first")


async def until_type(session: Session, type_: str) -> Event:
    return await until(session, lambda event: event.type == type_)


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
