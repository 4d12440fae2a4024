"""The flood through the whole host: a session with its turn, its watch for signs of life, its permissions."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from bench.flood import ARGV, LIMIT, SMALL_LINE, WARM_UP, place, take
from bench.measure import Sample, Stopwatch, emit
from legation.host.host import AcpHost
from legation.host.options import AgentDefinition, HostOptions
from legation.host.requests.handlers import ApproveAll
from legation.host.session import Session
from legation.wire.acp.updates import Text

OF_THE_TURN = 4  # events that the host adds to a turn: it started, it runs; it finished, it is idle


async def flood(session: Session, events: int) -> None:
    stream = session.stream
    subscriber = asyncio.create_task(take(stream.subscribe(stream.visible), events + OF_THE_TURN))
    await session.prompt((Text(text=f"{events} {SMALL_LINE}"),))
    await subscriber


async def measure(events: int, scratch: Path) -> Sample:
    with place(scratch) as (folder, env):
        async with (
            asyncio.timeout(LIMIT),
            AcpHost(HostOptions(approver=ApproveAll())) as host,
        ):
            program, *args = ARGV
            definition = AgentDefinition(command=program, args=tuple(args), cwd=folder, env=env)
            agent = await host.spawn_agent(definition)
            opened = await host.create_session(agent.agent_id)
            session = host.session(opened.session_id)
            await flood(session, WARM_UP)
            stopwatch = Stopwatch()
            await flood(session, events)
            spent = stopwatch.stop()
    return spent.per_event(events)


if __name__ == "__main__":
    emit(asyncio.run(measure(int(sys.argv[1]), Path(sys.argv[2]))))
