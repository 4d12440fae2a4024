"""The server of `session_events.py`: the log on the disk, the hub, the routes of a session's events. argv: FOLDER.

Orders come by stdin, one a line: "flood EVENTS SIZE" publishes in bursts as fast as the disk takes them, "burst EVENTS
SIZE" all at once, "paced EVENTS PAUSE" one by one with the time in each, "cpu" asks for its processor time, "commit" for
the median of the times that paced events took to the disk, in milliseconds.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from starlette.requests import Request

from legation.clock import SystemClock
from legation.server.address import listen
from legation.server.http.app import AppOptions, make_app
from legation.server.http.server import UvicornServer, run
from legation.server.routes.sessions import event_routes
from legation.server.streaming.hub import Hub
from legation.store.log import EventLog
from legation.store.sqlite import SqliteBackend
from legation.store.stream import Stream
from legation.wire.events import Draft
from legation.wire.principal import Principal
from legation.wire.universal.shapes import Metadata, SessionFacts

SESSION = "bench"
BURST = 20  # events at once, about what one read of a busy agent's pipe brings
TYPE = "agent-message-chunk"
RAW = b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"%b"}}'
ANYBODY = Principal(kind="token", id="tok_bench", workspace="local", scopes=frozenset({"read"}), level=0)
FACTS = SessionFacts(SESSION, "rehearsal", "native", Metadata("rehearsal"))


class Records:
    """Of one session, and of what is asked of it here."""

    async def get(self, _workspace: str, _session_id: str) -> Records:
        return self

    def facts(self) -> SessionFacts:
        return FACTS


async def anybody(_: Request) -> Principal:
    return ANYBODY


class Publisher:
    def __init__(self, log: EventLog, stream: Stream) -> None:
        self._log, self._stream = log, stream
        self._commits: list[float] = []

    async def obey(self) -> None:
        orders = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
        while order := (await orders.readline()).decode().split():
            match order:
                case ["flood", events, size]:
                    await self._flood(int(events), int(size), BURST)
                case ["burst", events, size]:
                    await self._flood(int(events), int(size), int(events))
                case ["paced", events, pause]:
                    await self._paced(int(events), float(pause))
                case ["cpu"]:
                    print(time.process_time(), flush=True)
                case ["commit"]:
                    print(statistics.median(self._commits) * 1000, flush=True)

    async def _flood(self, events: int, size: int, burst: int) -> None:
        drafts = [Draft(TYPE, RAW % (b"x" * size))] * burst
        for _ in range(events // burst):
            self._stream.append(drafts)
            await self._log.room()
            await asyncio.sleep(0)

    async def _paced(self, events: int, pause: float) -> None:
        for _ in range(events):
            began = time.perf_counter()
            await self._stream.append([Draft(TYPE, RAW % (b"at %d" % time.monotonic_ns()))])
            self._commits.append(time.perf_counter() - began)
            await asyncio.sleep(pause)


async def main(folder: Path) -> None:
    async with EventLog(SqliteBackend(folder / "log.db")) as log:
        stream, hub = await log.stream(SESSION), Hub(log, SystemClock())
        services = cast(Any, SimpleNamespace(log=log, hub=hub, sessions=SimpleNamespace(records=Records())))
        app = make_app([event_routes], services=services, authenticate=anybody, options=AppOptions())
        sock = listen("127.0.0.1", 0)
        obeying = asyncio.create_task(Publisher(log, stream).obey())
        port = sock.getsockname()[1]
        await UvicornServer(app, lambda: print(port, flush=True), hub.close).serve_on([sock])
        obeying.cancel()
        await asyncio.wait({obeying})


if __name__ == "__main__":
    run(main(Path(sys.argv[1])))
