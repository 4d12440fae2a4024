"""The flood through the official Python ACP SDK, whose handler only counts. It stores nothing."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, cast

from acp import PROTOCOL_VERSION, spawn_agent_process, text_block
from acp.interfaces import Client

from bench.flood import ARGV, LIMIT, SMALL_LINE, WARM_UP, place
from bench.measure import Sample, Stopwatch, emit


class Counter:
    """The client's side as the SDK wants it; the flood calls nothing else."""

    def __init__(self) -> None:
        self.seen = 0

    async def session_update(self, **_: Any) -> None:
        self.seen += 1

    def on_connect(self, conn: object) -> None: ...


async def measure(events: int, scratch: Path) -> Sample:
    counter = Counter()
    with place(scratch) as (folder, env):
        async with (
            asyncio.timeout(LIMIT),
            spawn_agent_process(cast(Client, counter), *ARGV, env=env, cwd=folder) as (agent, _),
        ):
            await agent.initialize(PROTOCOL_VERSION)
            session_id = (await agent.new_session(cwd=str(folder), mcp_servers=[])).session_id

            async def flood(count: int) -> None:
                await agent.prompt(session_id=session_id, prompt=[text_block(f"{count} {SMALL_LINE}")])

            await flood(WARM_UP)
            stopwatch = Stopwatch()
            await flood(events)
            spent = stopwatch.stop()
    if counter.seen != WARM_UP + events:
        raise RuntimeError(f"the SDK delivered {counter.seen} of {WARM_UP + events} updates")
    return spent.per_event(events)


if __name__ == "__main__":
    emit(asyncio.run(measure(int(sys.argv[1]), Path(sys.argv[2]))))
