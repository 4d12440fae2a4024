"""A log that grows, with its checkpoints kept up, until somebody kills it; a line for each thousand events."""

import asyncio
import sys
from pathlib import Path

from tests.server.streaming.events_server import drafts
from tests.wire.universal.logs import ACTIVE, chunk, turn

from legation.clock import SystemClock
from legation.server.streaming.hub import CheckpointKeeper, Hub
from legation.store.log import EventLog
from legation.store.sqlite import SqliteBackend


async def main(folder: Path) -> None:
    log = EventLog(SqliteBackend(folder / "log.db"))
    async with log, CheckpointKeeper(log, Hub(log, SystemClock()), lambda _, __: True):
        stream, count = await log.stream("demo"), 0
        while True:
            await stream.append(drafts(ACTIVE, *turn(*[chunk(f"word {number} ") for number in range(97)])))
            count += 1
            if not count % 10:
                sys.stdout.write(f"{stream.head}\n")
                sys.stdout.flush()


asyncio.run(main(Path(sys.argv[1])))
