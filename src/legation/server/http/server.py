"""The HTTP server: uvicorn with bounds, until a signal, and an end that does not wait for readers.

INV-V1  After the first signal everybody is told, requests in flight have `GRACE`, and then it is over, whatever
        a client does or does not read. After the second signal it is over at once.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import uvicorn
import uvloop
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from legation.server.address import BACKLOG

GRACE: Final = 0.4  # seconds: the time of requests in flight, and of readers to take their last bytes
CANCEL_GRACE: Final = 0.2  # seconds: of what is cancelled after that
HEAD_LIMIT: Final = 128 * 1024  # bytes of a request's line and headers
HEAD_TIMEOUT: Final = 20.0  # seconds: a client's time to send them
READER_TIMEOUT: Final = 60.0  # seconds: a client's time to take the least of what waits for it
LEAST_TAKEN: Final = 16 * 1024  # bytes of it in that time; one by one they would hold a file for days
KEEP_ALIVE: Final = 75  # seconds: how long a connection may wait for its next request
TICK: Final = 1.0  # seconds: how often uvicorn's Date header is renewed
# Requests of one connection that wait behind its first; nobody pipelines more in earnest.
MOST_WAITING: Final = 16
WS_MESSAGE_BYTES: Final = 512 * 1024  # of what a client sends at once: the longest input, and JSON around it
WS_PING_INTERVAL: Final = 20.0  # seconds between two questions whether the client of a WebSocket is there
WS_PING_TIMEOUT: Final = 20.0  # seconds: the client's time to answer
POLL: Final = 0.02  # seconds between looks at who is still connected, at the end only

_R = TypeVar("_R")


class Tls(msgspec.Struct, frozen=True):
    certificate: Path  # with its chain
    key: Path


def run(main: Coroutine[Any, Any, _R]) -> _R:
    """Run it as `asyncio.run` does, on uvloop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


class UvicornServer(uvicorn.Server):
    """Server of an application. `stop()` is what the signals call; `before_exit` ends the bodies that would never end by
    themselves.

    A `mesh` application has sockets beside: one state, so that one bounded end closes both. It never has TLS: it does not
    leave the machine, and its programs call `http://localhost`."""

    def __init__(
        self,
        app: ASGIApp,
        on_ready: Callable[[], None] = lambda: None,
        before_exit: Callable[[], None] = lambda: None,
        *,
        grace: float = GRACE,
        tls: Tls | None = None,
        trusted_proxies: Sequence[str] = (),
        websockets: bool = False,
        reader_timeout: float = READER_TIMEOUT,
        mesh: ASGIApp | None = None,
        mesh_sockets: Sequence[socket.socket] = (),
    ) -> None:
        http = type(BoundedHttp.__name__, (BoundedHttp,), {"reader_timeout": reader_timeout})
        super().__init__(_config(app, http, tls, trusted_proxies, websockets=websockets))
        self._mesh = None if mesh is None else _config(mesh, http, None, (), websockets=False)
        self._mesh_sockets = mesh_sockets
        self._on_ready = on_ready
        self._before_exit = before_exit
        self._grace = grace
        self._stopping = asyncio.Event()

    async def serve_on(self, sockets: Sequence[socket.socket], *, signals: bool = True) -> None:
        """Serve until SIGTERM or SIGINT (in the main thread; without `signals` they are another's), or until cancelled; the
        sockets are closed then."""
        with self._signals() if signals else nullcontext():
            await self._serve(list(sockets))

    def stop(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
        self._stopping.set()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        # Through the loop, and swallowed: uvicorn would raise them again, and nothing of ours be closed.
        loop = asyncio.get_running_loop()
        caught = (
            (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
        )
        for number in caught:
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in caught:
                loop.remove_signal_handler(number)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._mesh is not None:
            self._mesh.load()
            kind: Callable[..., asyncio.Protocol] = self._mesh.http_protocol_class
            connection = partial(kind, config=self._mesh, server_state=self.server_state, app_state={})
            loop = asyncio.get_running_loop()
            for sock in self._mesh_sockets:
                self.servers.append(await loop.create_server(connection, sock=sock))
        self._on_ready()

    async def main_loop(self) -> None:
        try:
            while not await self.on_tick(0):
                with suppress(TimeoutError):
                    async with asyncio.timeout(TICK):
                        await self._stopping.wait()
        except asyncio.CancelledError:
            await self.shutdown()
            raise

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for sock in sockets or ():
            sock.close()
        self._before_exit()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await self._all_gone(self._grace)
        await self._end_the_rest()
        if not self.force_exit:
            await self.lifespan.shutdown()

    async def _end_the_rest(self) -> None:
        # Cut off, rather than cancelled, where that is enough: an SSE body then ends by itself, quietly.
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)
        tasks = set(self.server_state.tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=POLL)
        tasks = {task for task in tasks if not task.done()}
        with _without_tracebacks_of_the_cancelled():
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=CANCEL_GRACE)

    async def _all_gone(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._busy() and not self.force_exit:  # noqa: ASYNC110 - uvicorn does not tell
                    await asyncio.sleep(POLL)

    def _busy(self) -> bool:
        return bool(self.server_state.connections or self.server_state.tasks)


def _config(
    app: ASGIApp,
    http: type[BoundedHttp],
    tls: Tls | None,
    trusted_proxies: Sequence[str],
    *,
    websockets: bool,
) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=http,
        # Without them a handshake is a request like any other. Loaded by name: most servers have no use for it.
        ws="legation.server.processes.websocket_protocol:BoundedWebSocket" if websockets else "none",
        ws_max_size=WS_MESSAGE_BYTES,
        ws_ping_interval=WS_PING_INTERVAL,
        ws_ping_timeout=WS_PING_TIMEOUT,
        ws_per_message_deflate=False,  # a small frame could become a large one
        interface="asgi3",
        lifespan="off",  # nothing begins or ends with the application; a forced end would leave its task behind
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=list(trusted_proxies),
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE,
        ssl_certfile=tls.certificate if tls else None,
        ssl_keyfile=tls.key if tls else None,
    )


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's protocol, with bounds that it leaves out: on the size of a request's head and its time to arrive, and on
    the time in which nothing of an answer is taken."""

    reader_timeout = READER_TIMEOUT
    _unread = 0  # bytes that waited for the reader when it was last looked at
    _patience: asyncio.TimerHandle | None = None
    _in_head = True
    _loose = 0  # bytes that nothing whole has come of yet: of a head, a chunk's extension, a trailer
    _fields = 0  # bytes of the header fields that are complete
    _deadline: asyncio.TimerHandle | None = None
    _upgraded = False  # the connection is a WebSocket's by now, and its bounds are others

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline = self.loop.call_later(HEAD_TIMEOUT, self._overdue)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._deadline, self._patience):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._be_patient()

    def resume_writing(self) -> None:
        self._end_patience()
        super().resume_writing()

    def _be_patient(self) -> None:
        self._end_patience()
        self._unread = self.transport.get_write_buffer_size()
        self._patience = self.loop.call_later(self.reader_timeout, self._look_at_reader)

    def _look_at_reader(self) -> None:
        # Whatever an answer holds, a file, a place, a backup, it holds until its reader has it.
        if self._unread - self.transport.get_write_buffer_size() < LEAST_TAKEN:
            self.transport.abort()  # to close would wait for it
        else:
            self._be_patient()

    def _end_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def data_received(self, data: bytes) -> None:
        self._loose += len(data)
        super().data_received(data)
        if self._upgraded:
            return
        # Before its first request there is none, whatever uvicorn's types say.
        cycle: RequestResponseCycle | None = self.cycle
        if self._loose > HEAD_LIMIT:
            self._refuse()
        elif not (self._in_head or cycle is None or cycle.response_complete):
            self._meet_deadline()
        elif self._deadline is None and not self.transport.is_closing():
            # uvicorn has just ended its own wait: an empty line, or a body that nobody reads, must not last for ever.
            self._deadline = self.loop.call_later(HEAD_TIMEOUT, self._overdue)

    def handle_websocket_upgrade(self) -> None:
        self._upgraded = True
        self._meet_deadline()
        super().handle_websocket_upgrade()

    def on_message_begin(self) -> None:
        self._in_head, self._fields = True, 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._fields += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += len(name) + len(value)
        if self._fields > HEAD_LIMIT:
            raise ValueError("too large")  # the parser gives up, and uvicorn answers 400
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._loose = False, 0
        if len(self.pipeline) >= MOST_WAITING:
            raise ValueError("too many at once")  # as above
        if not self.url.startswith(b"/") and not self._names_us_twice():
            raise ValueError("another host")  # as above
        super().on_headers_complete()

    def _names_us_twice(self) -> bool:
        # `GET http://host/path`: its host stands before that of the header (RFC 9112), which alone is looked at later.
        # So the two must be one.
        hosts = [value.lower() for name, value in self.headers if name == b"host"]
        scheme = (self.scheme or "http").encode("ascii")
        return len(hosts) == 1 and self.url.lower().startswith(b"%b://%b/" % (scheme, hosts[0]))

    def on_body(self, body: bytes) -> None:
        self._loose = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._loose = 0
        super().on_message_complete()

    def _refuse(self) -> None:
        if not self.transport.is_closing():
            self.send_400_response("Request head too large.")

    def _overdue(self) -> None:
        self._deadline = None
        self.transport.close()

    def _meet_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


@contextmanager
def _without_tracebacks_of_the_cancelled() -> Iterator[None]:
    # uvicorn logs each as an error of the application; it is we who stop them.
    def is_error(record: logging.LogRecord) -> bool:
        return not (record.exc_info and record.exc_info[0] is asyncio.CancelledError)

    logger = logging.getLogger("uvicorn.error")
    logger.addFilter(is_error)
    try:
        yield
    finally:
        logger.removeFilter(is_error)
