"""Appends for ever and prints what was acknowledged, until it is killed. argv: kind folder batch."""

import asyncio
import sys
from pathlib import Path

from tests.store.backends import make_backend

from legation.store.log import EventLog
from legation.store.stream import Stream
from legation.wire.events import Draft

STREAMS = 3


async def produce(stream: Stream, batch: int) -> None:
    while True:
        head = stream.info().head
        await stream.append([Draft("x", b"%d" % (head + offset)) for offset in range(1, batch + 1)])
        sys.stdout.write(f"{stream.name} {head + batch}\n")
        sys.stdout.flush()


async def main() -> None:
    kind, folder, batch = sys.argv[1:]
    async with EventLog(make_backend(kind, Path(folder))) as log:
        streams = [await log.stream(f"ses_{number}") for number in range(STREAMS)]
        await asyncio.gather(*[produce(stream, int(batch)) for stream in streams])


asyncio.run(main())
