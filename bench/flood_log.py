"""The flood through Legation's parts: pipe, driver, event log, one subscriber."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable
from pathlib import Path

from bench.flood import ARGV, LIMIT, place, sample, take, warm_up
from bench.measure import Sample, Stopwatch, emit
from legation.agents.acp import AcpAgent
from legation.agents.driver import OpenRequest
from legation.agents.rpc import RpcFault
from legation.proc import Command, Pipes, ProcessLauncher
from legation.store.codec import Backend, MemoryBackend
from legation.store.jsonl import JsonlBackend
from legation.store.log import EventLog
from legation.store.sqlite import SqliteBackend
from legation.store.stream import Stream
from legation.wire.acp.methods import ClientCapabilities
from legation.wire.acp.rpc import ErrorCode
from legation.wire.acp.updates import Text
from legation.wire.event_types import DiagnosticCode
from legation.wire.events import Draft


def backend(kind: str, folder: Path) -> Backend:
    match kind:
        case "memory":
            return MemoryBackend()
        case "sqlite":
            return SqliteBackend(folder / "events.db")
        case "jsonl":
            return JsonlBackend(folder / "events")
        case _:
            raise ValueError(f"there is no store {kind!r}")


class LogInbox:
    """Everything the agent says goes to one stream."""

    def __init__(self, log: EventLog, stream: Stream) -> None:
        self._log = log
        self._stream = stream

    def updates(self, _: str, drafts: list[Draft]) -> None:
        self._stream.append(drafts)

    def trouble(self, code: DiagnosticCode, message: str) -> None:
        raise RuntimeError(f"{code}: {message}")

    def notification(self, method: str, _: bytes) -> None:
        raise RuntimeError(f"unexpected notification {method}")

    def request(self, method: str, _: bytes) -> Awaitable[object]:
        raise RpcFault(ErrorCode.METHOD_NOT_FOUND, f"{method} is not offered")

    async def keep(self, _session_id: str, draft: Draft) -> Draft:
        return draft

    async def room(self) -> None:
        await self._log.room()


async def flood(agent: AcpAgent, session_id: str, stream: Stream, events: int, size: int) -> None:
    """Returns when the turn is over, the subscriber has seen every event, and all are on the disk."""
    subscriber = asyncio.create_task(take(stream.subscribe(stream.visible), events))
    await agent.prompt(session_id, (Text(text=f"{events} {size}"),))
    await subscriber
    await stream.durable(stream.info().head)


async def measure(kind: str, events: int, size: int, scratch: Path) -> Sample:
    with place(scratch) as (folder, env):
        async with asyncio.timeout(LIMIT), EventLog(backend(kind, folder)) as log:
            stream = await log.stream("ses_flood")
            agent = await AcpAgent.start(
                ProcessLauncher(),
                Command(ARGV, folder, env, "flood"),
                LogInbox(log, stream),
                pipes=Pipes(),
                capabilities=ClientCapabilities(),
                timeout=LIMIT,
            )
            session_id = (await agent.new_session(OpenRequest(str(folder)), LIMIT)).session_id
            await flood(agent, session_id, stream, warm_up(size), size)
            stopwatch = Stopwatch()
            await flood(agent, session_id, stream, events, size)
            spent = stopwatch.stop()
            await agent.stop(grace=1)
    return sample(spent, events, size)


if __name__ == "__main__":
    kind, events, size, scratch = sys.argv[1:]
    emit(asyncio.run(measure(kind, int(events), int(size), Path(scratch))))
