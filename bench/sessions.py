"""One rehearsal agent floods many sessions at once, through the whole host: does an event cost more for it?"""

from __future__ import annotations

import asyncio
import sys

from bench.flood import LIMIT, take
from bench.measure import Sample, Stopwatch, emit
from legation.agents import catalogue
from legation.host.host import AcpHost
from legation.host.options import AgentDefinition, HostOptions
from legation.host.requests.handlers import ApproveAll
from legation.host.session import Session
from legation.wire.acp.updates import Text

OF_THE_TURN = 4  # events that the host adds to a turn


async def flood(session: Session, events: int) -> None:
    stream = session.stream
    subscriber = asyncio.create_task(take(stream.subscribe(stream.visible), events + OF_THE_TURN))
    await session.prompt((Text(text=f"#!rehearse\nflood {events} 60"),))
    await subscriber


async def measure(sessions: int, events: int) -> Sample:
    program, *args = (*catalogue.command_of("rehearsal"), "--execute")
    options = HostOptions(approver=ApproveAll())
    async with asyncio.timeout(LIMIT), AcpHost(options) as host:
        agent = await host.spawn_agent(AgentDefinition(command=program, args=tuple(args)))
        opened = [await host.create_session(agent.agent_id) for _ in range(sessions)]
        live = [host.session(each.session_id) for each in opened]
        await asyncio.gather(*[flood(session, 10) for session in live])
        stopwatch = Stopwatch()
        await asyncio.gather(*[flood(session, events // sessions) for session in live])
        return stopwatch.stop().per_event(events)


if __name__ == "__main__":
    del sys.argv[3:]  # no scratch needed: the log is in memory
    emit(asyncio.run(measure(int(sys.argv[1]), int(sys.argv[2]))))
