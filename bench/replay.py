"""A subscriber that starts in the middle of a million events, on a log that was closed and opened again."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from bench.flood_log import backend
from bench.measure import Sample, Stopwatch, emit
from legation.store.log import EventLog
from legation.wire.events import Draft

EVENTS = 1_000_000
AT_ONCE = 500  # about what one read of a pipe brings
STREAM = "ses_replay"
UPDATE = b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"%07d of a million"}}'


async def fill(kind: str, folder: Path) -> None:
    async with EventLog(backend(kind, folder)) as log:
        stream = await log.stream(STREAM)
        for start in range(0, EVENTS, AT_ONCE):
            numbers = range(start, start + AT_ONCE)
            receipt = stream.append([Draft("agent-message-chunk", UPDATE % number) for number in numbers])
            await log.room()
        await receipt


async def measure(kind: str, folder: Path) -> Sample:
    middle = EVENTS // 2
    async with EventLog(backend(kind, folder)) as log:
        stream = await log.stream(STREAM)
        stopwatch = Stopwatch()
        seen = 0
        async for batch in stream.subscribe(middle, follow=False).batches():
            seen += len(batch)
        spent = stopwatch.stop()
    if seen != EVENTS - middle:
        raise RuntimeError(f"replayed {seen} events of {EVENTS - middle}")
    return spent.per_event(seen)


def main(kind: str, scratch: Path) -> None:
    """The first round fills the store, the later ones find it."""
    folder = scratch / f"replay-{kind}"
    if not folder.exists():
        folder.mkdir()
        asyncio.run(fill(kind, folder))
    emit(asyncio.run(measure(kind, folder)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
