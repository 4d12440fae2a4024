"""A disk that is full for a while, for real: the kernel refuses writes beyond a file size limit.

argv: kind folder. Prints one JSON object that says what was seen.
"""

import asyncio
import json
import resource
import sys
from pathlib import Path

from tests.store.backends import make_backend

from legation.errors import LegationError
from legation.store.codec import StorageTrouble
from legation.store.log import EventLog
from legation.wire.events import Draft

LIMIT = 200_000  # bytes a file may have
PENDING = 300_000
BATCH = [Draft("x", b'"%s"' % (b"y" * 1000)) for _ in range(20)]


async def main() -> None:
    kind, folder = sys.argv[1:]
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    seen: list[int] = []
    troubles: list[StorageTrouble] = []
    async with EventLog(
        make_backend(kind, Path(folder)), report=troubles.append, pending_limit=PENDING
    ) as log:
        stream = await log.stream("ses_a")
        await stream.append(BATCH)

        async def watch() -> None:
            async for event in stream.subscribe():
                seen.append(event.seq)

        watching = asyncio.create_task(watch())
        resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))
        paused = False
        while not paused:
            receipt = stream.append(BATCH)
            try:
                await asyncio.wait_for(log.room(), 1.0)
            except TimeoutError:
                paused = bool(troubles)  # else the disk is only slow
        while len(seen) < receipt.last_seq:
            await asyncio.sleep(0.01)
        strict = "no error"
        try:
            await stream.close()
        except LegationError as error:
            strict = str(error.code)
        state = stream.info().state
        seen_while_full = list(seen)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        await asyncio.wait_for(log.room(), 60)
        last = stream.append(BATCH)
        await asyncio.wait_for(asyncio.ensure_future(last), 60)
        while len(seen) < last.last_seq:
            await asyncio.sleep(0.01)
        watching.cancel()
    json.dump(
        {
            "paused": paused,
            "appended_while_full": receipt.last_seq,
            "seen_while_full": seen_while_full,
            "strict": strict,
            "state": state,
            "seen": seen,
            "codes": [trouble.code for trouble in troubles],
            "last": last.last_seq,
        },
        sys.stdout,
    )


asyncio.run(main())
