"""A host in the middle of a turn, until it is killed. argv: kind of store, place, where to write what it has seen.

Says one line on its stdout when the first turn runs. A line `session seq crc` in the file is written when a
viewer sees that event: by then it is on the disk, for nothing is shown before.
"""

import asyncio
import os
import sys
import zlib
from itertools import cycle
from pathlib import Path

from tests.host.rig import YES, play, rig
from tests.store.backends import make_backend

from legation.host.session import Session
from legation.wire.action import Ask, Decision

DEAF = ("ignore-signals", "ignore-stdin-eof", "spawn-tree ignore-signals")  # so that all stay behind
TURNS = (
    ("flood 2000", "say after the flood"),
    ("ask something", "ask write b.txt two", "say asked"),
    ("write a.txt one", "run true", "fs-write c.txt three", "fs-read c.txt"),
    ("flood 200", "ask something", "flood 200"),
)
THINKING = 0.005  # seconds that the approver takes, so that a kill can come in between


class Thinker:
    async def decide(self, _ask: Ask) -> Decision:
        await asyncio.sleep(THINKING)
        return YES


async def view(session: Session, seen: int) -> None:
    async for batch in session.stream.subscribe().batches():
        lines = [f"{session.id} {event.seq} {zlib.crc32(event.raw)}\n" for event in batch]
        os.write(seen, "".join(lines).encode())


async def main(kind: str, place: Path, seen: int) -> None:
    async with rig(place, backend=make_backend(kind, place), approver=Thinker()) as made:
        session = await made.rehearse()
        viewing = asyncio.create_task(view(session, seen))
        print("up", flush=True)  # noqa: T201 - to the test
        await play(session, *DEAF)
        for steps in cycle(TURNS):
            await play(session, *steps)
            assert not viewing.done()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), os.open(sys.argv[3], os.O_WRONLY | os.O_CREAT)))
