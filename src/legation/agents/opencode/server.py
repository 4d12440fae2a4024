"""One `opencode serve`: its process, its event stream, and who listens to which session.

INV-O3  Events are handed on in the order in which they came, each to the one listener of its session; what happens in
        a sub-agent's session goes to the listener of the session that it works for.
INV-O4  A stream that broke is taken up again, and what was missed meanwhile is fetched before anything later is read.
INV-O5  A server that cannot be reached any more is stopped; whoever listens is told how it ended, once.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from contextlib import suppress
from dataclasses import replace
from typing import Final, Protocol

import httpx2

from legation.agents import outlines
from legation.agents.native import Trouble, brief_of
from legation.agents.opencode.answers import Health
from legation.agents.opencode.api import Api
from legation.agents.opencode.events import Event, InstanceDisposed, SessionUpdated, read_event
from legation.agents.opencode.launch import serve
from legation.agents.opencode.mcp import McpStatus, mcp_config
from legation.agents.opencode.output import address, drain, said
from legation.agents.opencode.sse import EventSplitter
from legation.agents.output import Stray
from legation.agents.rpc import SLICE_LINES
from legation.errors import LegationError, TimedOut
from legation.proc import Child, Command, Exit, Launcher, Pipes
from legation.wire.acp.mcp import McpServer
from legation.wire.diagnostic import DiagnosticCode

EVENTS: Final = "/global/event"  # of all folders
SILENCE_LIMIT: Final = (
    45.0  # seconds without a byte on the stream; a heartbeat comes every ten: the server's time
)
RECONNECT_LIMIT: Final = 15.0  # seconds to get the stream back from a process that lives: the server's time
RECONNECT_PAUSE: Final = 0.2  # seconds between two tries
MCP_LIMIT: Final = 60.0  # seconds for an MCP server to start and tell its tools: its time
REST_LIMIT: Final = 5.0  # seconds for the last events to be taken: the store's time
SHOWN_BYTES: Final = 200  # of something unreadable, in a diagnostic

_log = logging.getLogger(__name__)


class Listener(Protocol):
    """`take`, `trouble` and `lost` are called while reading and must not wait."""

    def take(self, event: Event) -> None: ...
    def trouble(self, code: DiagnosticCode, message: str) -> None: ...
    def lost(self, found: Exit) -> None: ...
    async def catch_up(self) -> None: ...
    async def forgotten(self, directory: str) -> None: ...
    async def room(self) -> None: ...


class OpenCodeServer:
    """Made by `start`, and shared; the last one to use it stops it."""

    def __init__(self, child: Child, api: Api, pipes: Pipes, version: str) -> None:
        self.child = child
        self.api = api
        self.version = version
        self.ended = False
        self._pipes = pipes
        self._listeners: set[Listener] = set()
        self._of_session: dict[str, Listener] = {}
        self._connected = asyncio.Event()
        self._prepared: set[str] = set()
        self._preparing = asyncio.Lock()
        self._exit: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._draining = asyncio.create_task(drain(child), name=f"legation-opencode-out-{child.pid}")
        self._reading = asyncio.create_task(self._read(), name=f"legation-opencode-{child.pid}")
        self._living = asyncio.create_task(self._live(), name=f"legation-opencode-life-{child.pid}")

    @classmethod
    async def start(
        cls, launcher: Launcher, pipes: Pipes, timeout: float, command: Command, *, trusted: bool
    ) -> OpenCodeServer:
        password = secrets.token_urlsafe(32)
        child = await launcher.spawn(serve(command, trusted=trusted, password=password), pipes)
        api: Api | None = None
        stray = Stray()
        try:
            async with asyncio.timeout(timeout):
                url = await address(child, stray)
                api = Api(url, password, redact=pipes.redact, max_answer=pipes.max_line)
                version = (await api.get("/global/health", Health, timeout=timeout)).version
                server = cls(child, api, pipes, version)
        except BaseException as error:
            if api is not None:
                await api.close()
            await asyncio.shield(child.stop(grace=0))
            if isinstance(error, TimeoutError):
                raise TimedOut(
                    f"cannot start OpenCode's server: it did not listen within {timeout:g} s{said(child, stray)}"
                ) from None
            raise
        try:
            await server.until_connected(timeout)
        except BaseException:
            await asyncio.shield(server.stop(0))
            raise
        return server

    async def until_connected(self, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._connected.wait()
        except TimeoutError:
            raise TimedOut(
                f"cannot use OpenCode's server: its event stream did not begin within {timeout:g} s"
            ) from None

    def join(self, listener: Listener) -> None:
        self._listeners.add(listener)

    def part(self, listener: Listener) -> None:
        self._listeners.discard(listener)
        self._of_session = {name: each for name, each in self._of_session.items() if each is not listener}

    def listen(self, session_id: str, listener: Listener) -> None:
        self._of_session[session_id] = listener

    def forget(self, session_id: str) -> None:
        self._of_session.pop(session_id, None)

    async def prepare(self, directory: str, mcp: tuple[McpServer, ...]) -> dict[str, str]:
        """Give the folder its MCP servers, once; which of them do not work, and why. A folder's servers are those of
        every session in it, so that only sessions with the same ones share a server."""
        async with self._preparing:
            if directory in self._prepared:
                return {}
            failed: dict[str, str] = {}
            for each in mcp:
                body = {"name": each.name, "config": mcp_config(each)}
                told = await self.api.post(
                    "/mcp", body, dict[str, McpStatus], directory=directory, timeout=MCP_LIMIT
                )
                status = told.get(each.name) or McpStatus(status="failed")
                if status.status != "connected":
                    failed[each.name] = status.error or status.status
            self._prepared.add(directory)
            return failed

    async def wait(self) -> Exit:
        """Until it has ended and everything that it said was handed on."""
        return await asyncio.shield(self._exit)

    async def stop(self, grace: float) -> Exit:  # noqa: ARG002 - it waits for no end of input, only for a signal
        self.ended = True
        await self.child.stop(grace=0)
        return await self.wait()

    async def _live(self) -> None:
        found = await self.child.wait()
        self.ended = True
        await asyncio.wait({self._reading, self._draining}, timeout=REST_LIMIT)
        for task in (self._reading, self._draining):
            task.cancel()
        await asyncio.wait({self._reading, self._draining})
        await self.api.close()
        for listener in tuple(self._listeners):
            listener.lost(found)
        self._exit.set_result(found)

    # The stream.

    async def _read(self) -> None:
        try:
            with outlines.reader.in_use():
                while not self.ended:
                    await self._follow()
                    if not await self._alive():
                        break
        except Exception:  # noqa: BLE001 - a task boundary; whoever waits is told by the end of the process
            _log.exception("cannot go on reading the events of %r", self.child.name)
        if not self.ended:
            self.ended = True
            with suppress(LegationError):  # stuck in the kernel; whoever stops it is told
                await self.child.stop(grace=0)

    async def _follow(self) -> None:
        """One connection, until it breaks."""
        splitter = EventSplitter(
            max_event=self._pipes.max_line, redact=self._pipes.redact, on_too_long=self._too_long
        )
        try:
            async with self.api.stream(EVENTS, SILENCE_LIMIT) as answer:
                answer.raise_for_status()
                if self._connected.is_set():
                    await self._catch_up()
                async for piece in answer.aiter_bytes():
                    await self._take(splitter.feed(piece))
                    self._connected.set()
        except httpx2.HTTPError as error:
            _log.info("the event stream of %r broke: %s", self.child.name, type(error).__name__)

    async def _alive(self) -> bool:
        """Waits until the server answers again; False where it does not, though it runs, or has ended."""
        deadline = time.monotonic() + RECONNECT_LIMIT
        while not self.ended and time.monotonic() < deadline:
            try:
                await self.api.get("/global/health", Health, timeout=RECONNECT_LIMIT)
            except LegationError:
                await asyncio.sleep(RECONNECT_PAUSE)
            else:
                return True
        return False

    async def _catch_up(self) -> None:
        for listener in tuple(self._listeners):
            with suppress(LegationError):  # told by the listener to whom it matters
                await listener.catch_up()

    async def _take(self, lines: list[bytes]) -> None:
        told: set[Listener] = set()
        for handled, line in enumerate(lines, 1):
            event = await event_of(line, self._tell_all)
            if handled % SLICE_LINES == 0:
                await asyncio.sleep(0)
            if event is None:
                self._tell_all(
                    DiagnosticCode.AGENT_STRAY_LINE, f"skipped an event of {len(line)} bytes: {_shown(line)}"
                )
            elif isinstance(event.body, InstanceDisposed):
                await self._disposed(event.body.directory)
            elif not event.is_dropped:
                told |= self._hand_on(event)
        for listener in told:
            await listener.room()

    def _hand_on(self, event: Event) -> set[Listener]:
        if isinstance(event.body, SessionUpdated) and event.body.info.parent_id in self._of_session:
            self._of_session.setdefault(event.body.session_id, self._of_session[event.body.info.parent_id])
        listener = self._of_session.get(event.session_id or "")
        if listener is not None:
            try:
                listener.take(event)
            except Exception:  # noqa: BLE001 - nothing that an agent says may end the connection
                _log.exception("cannot take an event %r of %r", event.type, self.child.name)
                what = f"skipped an event {event.type!r}, which cannot be taken"
                listener.trouble(DiagnosticCode.AGENT_STRAY_LINE, what)
            return {listener}
        if event.session_id is None:
            what = f"skipped an event {event.type!r}, which belongs to no session: {_shown(event.line)}"
            self._tell_all(DiagnosticCode.AGENT_STRAY_LINE, what)
        return set()  # of a session that nobody here has opened

    async def _disposed(self, directory: str) -> None:
        """Of what it held for the folder nothing is left, its MCP servers above all."""
        self._prepared.discard(directory)
        for listener in tuple(self._listeners):
            with suppress(LegationError):  # told by the listener to whom it matters
                await listener.forgotten(directory)

    def _too_long(self, size: int) -> None:
        self._tell_all(DiagnosticCode.AGENT_LINE_TOO_LONG, f"skipped an event of {size} bytes")

    def _tell_all(self, code: DiagnosticCode, message: str) -> None:
        for listener in tuple(self._listeners):
            listener.trouble(code, message)


async def event_of(line: bytes, trouble: Trouble) -> Event | None:
    """As `read_event`; of one that is too much for the loop what its digest says (INV-N1)."""
    if not outlines.is_heavy(line):
        return read_event(line)
    line, brief = await brief_of(line, trouble)
    event = read_event(brief)
    return None if event is None else replace(event, line=line, is_cut=True)


def _shown(line: bytes) -> str:
    return line[:SHOWN_BYTES].decode(errors="replace")
