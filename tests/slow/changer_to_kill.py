"""Appends, closes and replaces for ever, and prints floor and head once acknowledged. argv: kind folder."""

import asyncio
import sys
from pathlib import Path

from tests.store.backends import make_backend

from legation.store.log import EventLog
from legation.wire.events import Draft

BATCH = [Draft("x", b"%d" % number) for number in range(50)]


async def main() -> None:
    kind, folder = sys.argv[1:]
    async with EventLog(make_backend(kind, Path(folder))) as log:
        stream = await log.stream("ses_a")
        if stream.info().state == "closed":  # killed between closing and replacing
            await stream.replace(BATCH)
        while True:
            await stream.append(BATCH)
            if stream.info().head % 3 == 0:
                await stream.close()
            await stream.replace(BATCH)
            info = stream.info()
            sys.stdout.write(f"{info.first_seq} {info.head}\n")
            sys.stdout.flush()


asyncio.run(main())
