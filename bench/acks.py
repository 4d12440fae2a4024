"""How long an event waits for the disk: sessions that each append the next one when the last is durable."""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path

from bench.flood_log import backend
from bench.measure import Sample, Stopwatch, emit
from legation.store.log import EventLog
from legation.store.stream import Stream
from legation.wire.events import Draft

SECONDS = 2.0
DRAFT = Draft(
    "agent-message-chunk",
    b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"waiting for the disk"}}',
)


async def produce(stream: Stream, until: float) -> list[float]:
    """The seconds that each append waited."""
    waits: list[float] = []
    while (asked := time.perf_counter()) < until:
        await stream.append([DRAFT])
        waits.append(time.perf_counter() - asked)
    return waits


async def measure(producers: int, folder: Path) -> Sample:
    async with EventLog(backend("sqlite", folder)) as log:
        streams = [await log.stream(f"ses_{number}") for number in range(producers)]
        stopwatch, until = Stopwatch(), time.perf_counter() + SECONDS
        waits = list(chain.from_iterable(await asyncio.gather(*[produce(each, until) for each in streams])))
        spent = stopwatch.stop()
    percentiles = statistics.quantiles(waits, n=100)
    return {
        "acks/s": len(waits) / spent.wall,
        "p50 ms": percentiles[49] * 1000,
        "p99 ms": percentiles[98] * 1000,
        "CPU µs/ack": spent.cpu / len(waits) * 1e6,
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[2]) as name:
        emit(asyncio.run(measure(int(sys.argv[1]), Path(name))))
