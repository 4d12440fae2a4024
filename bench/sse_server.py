"""The server of `sse.py`: reads "EVENTS PAUSE" from stdin and publishes them; 0 of them asks for its processor time.

`hub` is the product: the event log in memory, the hub, the routes, the SSE body. `queue` is how it is mostly
done: a queue for every reader and a write for every event, on the same server and in the same response.
"""

from __future__ import annotations

import asyncio
import sys
import time
from types import SimpleNamespace
from typing import Any, Self, cast

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from legation.clock import SystemClock
from legation.server.address import listen
from legation.server.http.app import App, AppOptions, make_app
from legation.server.http.server import UvicornServer, run
from legation.server.routes import streams
from legation.server.streaming import sse
from legation.server.streaming.hub import Hub
from legation.store.codec import MemoryBackend
from legation.store.log import EventLog
from legation.wire.events import Draft, Event
from legation.wire.principal import Principal

STREAM = "bench"
BURST = 20  # events at once, about what one read of a busy agent's pipe brings
TYPE = "agent-message-chunk"
RAW = b'{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"%b"}}' % (b"x" * 275)
ANYBODY = Principal(kind="token", id="tok_bench", workspace="local", scopes=frozenset({"read"}), level=0)


class Queued:
    """A body that waits for its own queue."""

    def __init__(self, queues: set[asyncio.Queue[bytes]]) -> None:
        self._queues = queues
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()

    def __enter__(self) -> Self:
        self._queues.add(self._queue)
        return self

    def __exit__(self, *_: object) -> None:
        self._queues.discard(self._queue)

    async def next(self) -> bytes:
        return await self._queue.get()

    def leave(self) -> None:
        self._queue.put_nowait(b"")


class Queues:
    def __init__(self) -> None:
        self._all: set[asyncio.Queue[bytes]] = set()
        self._seq = 0

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await sse.EventStream(Queued(self._all))(scope, receive, send)

    def publish(self) -> None:
        for _ in range(BURST):
            self._seq += 1
            frame = sse.frames([Event(self._seq, time.time_ns() // 1_000_000, TYPE, RAW)]).data
            for queue in self._all:
                queue.put_nowait(frame)

    def close(self) -> None:
        for queue in self._all:
            queue.put_nowait(b"")


class Hubbed:
    def __init__(self, log: EventLog) -> None:
        self._hub = Hub(log, SystemClock())
        self._log = log
        self.close = self._hub.close

    async def open(self) -> Self:
        self._stream = await self._log.stream(STREAM)
        return self

    def app(self) -> App:
        async def anybody(_: Request) -> Principal:
            return ANYBODY

        services = cast(Any, SimpleNamespace(log=self._log, hub=self._hub))
        return make_app([streams.routes], services=services, authenticate=anybody, options=AppOptions())

    def publish(self) -> None:
        self._stream.append([Draft(TYPE, RAW)] * BURST)


async def obey(publisher: Queues | Hubbed) -> None:
    orders = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while order := await orders.readline():
        events, pause = int(order.split()[0]), float(order.split()[1])
        if events == 0:
            print(time.process_time(), flush=True)
        due = time.perf_counter()
        for _ in range(events // BURST):
            publisher.publish()
            due += pause
            await asyncio.sleep(max(0, due - time.perf_counter()) if pause else 0)


async def main(variant: str) -> None:
    async with EventLog(MemoryBackend()) as log:
        publisher = await Hubbed(log).open() if variant == "hub" else Queues()
        app = publisher.app() if isinstance(publisher, Hubbed) else publisher.app
        sock = listen("127.0.0.1", 0)
        obeying = asyncio.create_task(obey(publisher))
        port = sock.getsockname()[1]
        await UvicornServer(app, lambda: print(port, flush=True), publisher.close).serve_on([sock])
        obeying.cancel()
        await asyncio.wait({obeying})


if __name__ == "__main__":
    run(main(sys.argv[1]))
