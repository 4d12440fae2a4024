"""A small server with the routes of sessions, made of the real `Routes`, `Hub` and streams, and no agent behind them.

What an agent does is a list of payloads that a message, or an answer, puts into the session's stream. The real sessions
are tested where they are; here the commands are."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from starlette.responses import Response
from tests.client.canned_door import AT, LIMIT, CannedServer, Door, authenticate, said, view
from tests.client.canned_door import routes as door_routes

from legation.clock import SystemClock
from legation.errors import AlreadyAnswered, Conflict, NotFound, PromptInFlight
from legation.server.address import listen
from legation.server.http.app import AppOptions, make_app
from legation.server.http.routes import Call, Routes, needs
from legation.server.http.server import UvicornServer
from legation.server.routes import streams
from legation.server.streaming.hub import Hub
from legation.store.codec import MemoryBackend
from legation.store.log import EventLog
from legation.store.stream import Stream
from legation.wire.acp.updates import Text
from legation.wire.api.sessions import (
    NewMessage,
    NewSession,
    PermissionAnswer,
    QuestionAnswers,
    SessionCreated,
    SessionInfo,
    SessionList,
)
from legation.wire.event_types import Known, PromptStarted, draft

Steps = list[Known]


def info(session_id: str, **changes: Any) -> SessionInfo:
    values: dict[str, Any] = {
        "session_id": session_id,
        "agent": "rehearsal",
        "agent_mode": "build",
        "permission_mode": "default",
        "model": None,
        "variant": None,
        "native_session_id": "native",
        "ended": False,
        "event_count": 0,
        "created_at": AT,
        "updated_at": AT,
        "directory": "/w",
        "title": None,
        "status": "active",
    }
    return SessionInfo(**values | changes)


@dataclass
class Desk:
    """`on_message` and `on_answer`: what happens in the session then."""

    log: EventLog
    door: Door
    sessions: dict[str, SessionInfo] = field(default_factory=dict)
    streams: dict[str, Stream] = field(default_factory=dict)
    on_message: Steps = field(default_factory=list)
    on_answer: Steps = field(default_factory=list)
    on_cancel: Steps = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    page: int = 2  # sessions in an answer, at most

    async def add(self, made: SessionInfo) -> None:
        self.sessions[made.session_id] = made
        self.streams[made.session_id] = await self.log.stream(made.session_id)

    def found(self, id_: str) -> SessionInfo:
        if id_ not in self.sessions:
            raise NotFound(f"cannot find session {id_}; check its id")
        return self.sessions[id_]

    def happen(self, id_: str, steps: Steps) -> None:
        self.found(id_)
        self.streams[id_].append([draft(each) for each in steps])


routes = Routes(tag="sessions")


def desk(call: Call) -> Desk:
    return cast(Desk, cast(Any, call.services).desk)


@routes.get("/v1/sessions", access=needs("read"), listed=False)
async def list_sessions(call: Call, limit: int = 0, cursor: int = 0) -> Response:
    """Sessions."""
    found = [*desk(call).sessions.values()]
    if not limit:
        return said(SessionList(sessions=found))
    behind = cursor + min(limit, desk(call).page)
    more = str(behind) if behind < len(found) else None
    return said(SessionList(sessions=found[cursor:behind], next=more))


@routes.post("/v1/sessions/{known}", access=needs("operate"), errors=(Conflict,), listed=False)
async def create(call: Call, known: str) -> Response:
    """Create."""
    body = msgspec.json.decode(await call.request.body(), type=NewSession)
    desk(call).bodies.append(body)
    if known in desk(call).sessions:
        raise Conflict(f"cannot create session {known}: there is one of that name; give another")
    await desk(call).add(info(known, agent=body.agent, title=body.title, model=body.model))
    return said(SessionCreated(healthy=True))


@routes.get("/v1/sessions/{known}", access=needs("read"), errors=(NotFound,), listed=False)
async def read(call: Call, known: str) -> Response:
    """One."""
    return said(desk(call).found(known))


@routes.post("/v1/sessions/{known}/messages", access=needs("operate"), errors=(NotFound,), listed=False)
async def send(call: Call, known: str, body: NewMessage) -> None:
    """Send."""
    desk(call).bodies.append(body.message)
    desk(call).happen(known, [_named(each, body) for each in desk(call).on_message])


def _named(step: Known, body: NewMessage) -> Known:
    """The prompt that the message becomes has its id."""
    said = isinstance(step, PromptStarted) and Text(text=body.message) in step.prompt
    return msgspec.structs.replace(step, message=body.message_id) if said else step


@routes.post("/v1/sessions/{known}/cancel", access=needs("operate"), errors=(NotFound,), listed=False)
async def cancel(call: Call, known: str) -> None:
    """Cancel."""
    desk(call).bodies.append("cancel")
    desk(call).happen(known, desk(call).on_cancel)


@routes.post("/v1/sessions/{known}/terminate", access=needs("operate"), errors=(NotFound,), listed=False)
async def terminate(call: Call, known: str) -> None:
    """Terminate."""
    desk(call).found(known)
    desk(call).bodies.append("terminate")


@routes.delete(
    "/v1/sessions/{known}", access=needs("operate"), errors=(NotFound, PromptInFlight), listed=False
)
async def delete(call: Call, known: str) -> None:
    """Delete."""
    if desk(call).found(known).busy:
        raise PromptInFlight(f"cannot delete session {known}: a turn runs; cancel it")
    del desk(call).sessions[known]
    desk(call).bodies.append(f"delete {known}")


@routes.post(
    "/v1/sessions/{known}/permissions/{asked}/reply",
    access=needs("approve"),
    errors=(NotFound, AlreadyAnswered),
    listed=False,
)
async def answer(call: Call, known: str, asked: str, body: PermissionAnswer) -> None:
    """Answer."""
    desk(call).bodies.append((asked, body.reply))
    desk(call).door.answer(call, asked, "denied" if body.reply == "reject" else "approved")
    desk(call).happen(known, desk(call).on_answer)


@routes.post("/v1/sessions/{known}/questions/{asked}/reply", access=needs("operate"), listed=False)
async def reply(call: Call, known: str, asked: str, body: QuestionAnswers) -> None:
    """Reply."""
    desk(call).bodies.append((asked, body.answers))
    desk(call).happen(known, desk(call).on_answer)


@routes.post("/v1/sessions/{known}/questions/{asked}/reject", access=needs("operate"), listed=False)
async def reject(call: Call, known: str, asked: str) -> None:
    """Reject."""
    desk(call).bodies.append((asked, None))
    desk(call).happen(known, desk(call).on_answer)


@dataclass
class CannedSessions(CannedServer):
    desk: Desk

    def ask(self, approval: str) -> None:
        """As if the door left it to somebody."""
        self.propose(view(approval))

    def answered_elsewhere(self, approval: str, session: str, steps: Steps) -> None:
        self.resolve(approval, "approved")
        self.run(lambda: self.desk.happen(session, steps))


@contextmanager
def canned_sessions(*there: SessionInfo) -> Iterator[CannedSessions]:
    started: Future[CannedSessions] = Future()
    over = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_main(there, started, over)))
    thread.start()
    try:
        yield started.result(LIMIT)
    finally:
        over.set()
        thread.join(LIMIT)
        assert not thread.is_alive()


async def _main(
    there: tuple[SessionInfo, ...], started: Future[CannedSessions], over: threading.Event
) -> None:
    async with EventLog(MemoryBackend()) as log:
        desk = Desk(log, Door())
        for each in there:
            await desk.add(each)
        async with _serving(desk) as url:
            started.set_result(CannedSessions(desk.door, url, asyncio.get_running_loop(), desk))
            await asyncio.to_thread(over.wait)


@asynccontextmanager
async def _serving(desk: Desk) -> AsyncIterator[str]:
    desk.door.stream = await desk.log.stream("approvals")
    hub = Hub(desk.log, SystemClock())
    services = cast(Any, SimpleNamespace(log=desk.log, hub=hub, door=desk.door, desk=desk))
    surfaces = [routes, door_routes, streams.routes]
    app = make_app(surfaces, services=services, authenticate=authenticate, options=AppOptions())
    sock, ready = listen("127.0.0.1", 0), asyncio.Event()
    server = UvicornServer(app, ready.set, hub.close)
    task = asyncio.create_task(server.serve_on([sock]))
    async with asyncio.timeout(LIMIT):
        await ready.wait()
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.stop()
        await task
