"""A server of sessions' events and nothing else, a desk that is played by hand, and a lean client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from starlette.requests import Request
from tests.server.stream_client import LIMIT, frames, get
from tests.wire.universal.logs import ACTIVE, Entry, call, change, chunk, output, turn
from tests.wire.universal.logs import log as log_of

from legation.clock import Clock, SystemClock
from legation.errors import NotFound, Unauthenticated
from legation.server.address import listen
from legation.server.http.app import App, AppOptions, make_app
from legation.server.http.server import UvicornServer
from legation.server.routes.sessions import event_routes
from legation.server.streaming.checkpoints import FOLDS
from legation.server.streaming.hub import Hub
from legation.store.log import EventLog
from legation.store.stream import Stream
from legation.wire.api.sessions import NewMessage
from legation.wire.events import Draft
from legation.wire.principal import Principal
from legation.wire.universal.shapes import Metadata, Schema, SessionFacts

SCHEMAS: list[Schema] = ["sandbox-agent", "universal"]
A_TURN = turn(
    chunk("Let me "),
    chunk("look."),
    call("c1", kind="execute", rawInput={"command": "make"}),
    change("c1", status="in_progress", content=output("a")),
    change("c1", status="completed", content=output("a", "b")),
    chunk("Done."),
)

SESSION = "demo"
FACTS = SessionFacts(SESSION, "rehearsal", "native-1", Metadata("rehearsal", "build", None, "default"))


@dataclass
class Desk:
    """Knows one session; `on_send` plays its agent."""

    sessions: dict[tuple[str, str], SessionFacts] = field(default_factory=lambda: {("local", SESSION): FACTS})
    on_send: Callable[[NewMessage], Awaitable[asyncio.Future[int] | None]] | None = None

    @property
    def records(self) -> Desk:
        return self

    async def get(self, workspace: str, session_id: str) -> SimpleNamespace:
        """Its record, as far as it is asked."""
        try:
            facts = self.sessions[workspace, session_id]
        except KeyError:
            raise NotFound(f"cannot find session {session_id}; check its id") from None
        return SimpleNamespace(facts=lambda: facts)

    async def send(self, _record: object, message: NewMessage) -> asyncio.Future[int] | None:
        assert self.on_send is not None
        return await self.on_send(message)


@dataclass
class Doors:
    """The token is the name of the workspace; one that is shut is no credential any more."""

    shut: set[str] = field(default_factory=set)

    async def authenticate(self, request: Request) -> Principal:
        workspace = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not workspace or workspace in self.shut:
            raise Unauthenticated("cannot tell who asks; send a token")
        return Principal(
            kind="token", id="tok", workspace=workspace, scopes=frozenset({"read", "operate"}), level=0
        )


@dataclass
class Server:
    log: EventLog
    hub: Hub
    desk: Desk
    doors: Doors
    port: int

    async def page(self, query: str = "", **headers: str) -> tuple[int, Any]:
        return await ask(self.port, f"/v1/sessions/{SESSION}/events{query}", headers)

    async def follow(self, query: str = "", **headers: str) -> AsyncGenerator[dict[str, str]]:
        """The frames of a live body; comments are left out."""
        reader, writer, status, _ = await get(self.port, f"/v1/sessions/{SESSION}/events/sse{query}", headers)
        assert status == 200, await reader.read(2000)
        try:
            async for frame in frames(reader):
                if "data" in frame:
                    yield frame
        finally:
            writer.close()


def app_of(log: EventLog, hub: Hub, desk: Desk, doors: Doors) -> App:
    services = cast(Any, SimpleNamespace(log=log, hub=hub, sessions=desk))
    return make_app([event_routes], services=services, authenticate=doors.authenticate, options=AppOptions())


@asynccontextmanager
async def serving(log: EventLog, hub: Hub | None = None, clock: Clock | None = None) -> AsyncIterator[Server]:
    hub = hub or Hub(log, clock or SystemClock())
    desk, doors, ready = Desk(), Doors(), asyncio.Event()
    sock = listen("127.0.0.1", 0)
    server = UvicornServer(app_of(log, hub, desk, doors), ready.set, hub.close)
    task = asyncio.create_task(server.serve_on([sock]))
    try:
        async with asyncio.timeout(LIMIT):
            await ready.wait()
        yield Server(log, hub, desk, doors, sock.getsockname()[1])
    finally:
        server.stop()
        await task


async def ask(port: int, target: str, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
    """The status and the JSON of an answer, in one piece or in chunks."""
    async with asyncio.timeout(LIMIT):
        reader, writer, status, fields = await get(port, target, headers)
        if "content-length" in fields:
            body = await reader.readexactly(int(fields["content-length"]))
        else:
            body = b""
            while size := int(await reader.readuntil(b"\r\n"), 16):
                body += (await reader.readexactly(size + 2))[:-2]
        writer.close()
    return status, json.loads(body)


async def post(
    port: int, target: str, body: object
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, int, str]:
    """The connection after the head of the answer, its status and its type."""
    data = json.dumps(body)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        f"POST {target} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer local\r\n"
        f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n{data}".encode()
    )
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    media = next(line.partition(": ")[2] for line in head.split("\r\n") if line.startswith("content-type"))
    return reader, writer, int(head.split()[1]), media


def drafts(*entries: Entry) -> list[Draft]:
    return [Draft(each.type, each.raw, each.native, each.span, each.digest) for each in log_of(*entries)]


async def events_of(stream: Stream) -> list[Any]:
    found: list[Any] = []
    async for batch in stream.subscribe(stream.floor - 1, follow=False).batches():
        found += batch
    return found


async def whole_fold(stream: Stream, schema: Schema, *, include_raw: bool) -> list[tuple[int, bytes]]:
    """Every number with its bytes, from a reading of all there is."""
    fold = FOLDS[schema](FACTS)
    return [
        (each.sequence, each.encode(include_raw))
        for event in await events_of(stream)
        for each in fold.feed(event)
    ]


def number_of(event: Mapping[str, Any]) -> int:
    return int(event["sequence"] if "sequence" in event else event["id"])


def numbers(events: Sequence[Mapping[str, Any]]) -> list[int]:
    return [number_of(event) for event in events]


def turns(count: int) -> list[Draft]:
    return [*drafts(ACTIVE), *(each for _ in range(count) for each in drafts(*A_TURN))]
