"""A server of streams and nothing else, with a producer in it, until a signal. argv: a Plan as JSON.

Prints `ready` when it listens. Every stream is filled up to its head, from wherever an earlier one stopped; the
number of an event is also in its JSON, so that a reader can tell that the two still belong together.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from starlette.requests import Request

from legation.clock import SystemClock
from legation.errors import Unauthenticated
from legation.server.address import listen
from legation.server.http.app import App, AppOptions, make_app
from legation.server.http.server import UvicornServer, run
from legation.server.routes import streams
from legation.server.streaming.hub import Hub
from legation.store.log import EventLog
from legation.store.sqlite import SqliteBackend
from legation.store.stream import Stream
from legation.wire.events import Draft
from legation.wire.principal import Principal


class Filling(msgspec.Struct, frozen=True):
    head: int
    burst: int = 20
    size: int = 400
    pause: float = 0.0  # seconds between bursts


class Plan(msgspec.Struct, frozen=True):
    port: int
    folder: str
    streams: dict[str, Filling]


async def authenticate(request: Request) -> Principal:
    """The token is the name of the workspace."""
    workspace = request.headers.get("authorization", "").removeprefix("Bearer ")
    if not workspace:
        raise Unauthenticated("cannot tell who asks; send a token")
    return Principal(kind="token", id="tok_test", workspace=workspace, scopes=frozenset({"read"}), level=0)


def app_of(log: EventLog, hub: Hub) -> App:
    services = cast(Any, SimpleNamespace(log=log, hub=hub))
    return make_app([streams.routes], services=services, authenticate=authenticate, options=AppOptions())


@asynccontextmanager
async def serving(log: EventLog, hub: Hub) -> AsyncIterator[int]:
    """In this process, on the port given back."""
    sock = listen("127.0.0.1", 0)
    ready = asyncio.Event()
    server = UvicornServer(app_of(log, hub), ready.set, hub.close)
    port: int = sock.getsockname()[1]
    task = asyncio.create_task(server.serve_on([sock]))
    try:
        async with asyncio.timeout(10):
            await ready.wait()
        yield port
    finally:
        server.stop()
        await task


async def fill(log: EventLog, stream: Stream, filling: Filling) -> None:
    pad = b"x" * filling.size
    while (head := stream.info().head) < filling.head:
        numbers = range(head + 1, min(head + filling.burst, filling.head) + 1)
        receipt = stream.append([Draft("x", b'{"n":%d,"pad":"%b"}' % (number, pad)) for number in numbers])
        await asyncio.sleep(filling.pause)
        await log.room()
        if stream.info().head >= filling.head:
            await receipt


async def fill_all(log: EventLog, fillings: Mapping[str, Filling]) -> None:
    async with asyncio.TaskGroup() as group:
        for name, filling in fillings.items():
            group.create_task(fill(log, await log.stream(name), filling))


def say_ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


async def main(plan: Plan) -> None:
    sock = listen("127.0.0.1", plan.port)
    async with EventLog(SqliteBackend(Path(plan.folder) / "log.db")) as log:
        hub = Hub(log, SystemClock())
        held = [await log.stream(name) for name in plan.streams]
        producer = asyncio.create_task(fill_all(log, plan.streams))
        await UvicornServer(app_of(log, hub), say_ready, hub.close).serve_on([sock])
        producer.cancel()
        await asyncio.wait({producer})
        del held


if __name__ == "__main__":
    run(main(msgspec.json.decode(sys.argv[1], type=Plan)))
