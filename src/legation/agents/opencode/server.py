"""A server, `opencode serve`: its process, its event stream, and who listens to which session.

INV-O3  Events are handed on in the order in which they came, each to the one listener of its session; what happens in
        a sub-agent's session goes to the listener of the session that it works for.
INV-O4  A stream that broke is taken up again, and what was missed meanwhile is fetched before anything later is read.
INV-O5  A server that cannot be reached any more is stopped; whoever listens is told how it ended, once.

Errors of its HTTP side are `AgentRefused`, a server that does not answer in time is `TimedOut`, one that is gone
`TransportClosed`.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar

import httpx2
import msgspec

from legation.agents import outlines
from legation.agents.native import Trouble, brief_of
from legation.agents.opencode.launch import mcp_config, serve
from legation.agents.opencode.messages import (
    Idle,
    InstanceDisposed,
    McpStatus,
    OpenCodeEvent,
    OpenCodeSessionInfo,
    PermissionRequest,
    QuestionRequest,
    ServerHealth,
    SessionChanged,
    Status,
    Told,
    read_event,
)
from legation.agents.rpc import SHOWN_BYTES, SLICE_LINES, AgentRefused, Stray, exited, last_words
from legation.errors import AgentError, LegationError, TimedOut, TransportClosed
from legation.proc import Child, Command, Exit, Launcher, Pipes
from legation.proc.lines import LineSplitter, Redact
from legation.wire import jsontext
from legation.wire.acp.methods import McpServer
from legation.wire.acp.rpc import ErrorCode, RpcError
from legation.wire.event_types import DiagnosticCode

EVENTS: Final = "/global/event"  # of all folders
SILENCE_LIMIT: Final = (
    45.0  # seconds without a byte on the stream; a heartbeat comes every ten: the server's time
)
RECONNECT_LIMIT: Final = 15.0  # seconds to get the stream back from a process that lives: the server's time
RECONNECT_PAUSE: Final = 0.2  # seconds between two tries
MCP_LIMIT: Final = 60.0  # seconds for an MCP server to start and tell its tools: its time
REST_LIMIT: Final = 5.0  # seconds for the last events to be taken: the store's time

_log = logging.getLogger(__name__)


class ServerListener(Protocol):
    """`take`, `trouble` and `lost` are called while reading and must not wait."""

    def take(self, event: OpenCodeEvent) -> None: ...
    def trouble(self, code: DiagnosticCode, message: str) -> None: ...
    def lost(self, found: Exit) -> None: ...
    async def catch_up(self) -> None: ...
    async def forgotten(self, directory: str) -> None: ...
    async def room(self) -> None: ...


class OpenCodeServer:
    """A running server, made by `start`, and shared; the last one to use it stops it."""

    def __init__(self, child: Child, api: ServerApi, pipes: Pipes, version: str) -> None:
        self.child = child
        self.api = api
        self.version = version
        self.ended = False
        self._pipes = pipes
        self._listeners: set[ServerListener] = set()
        self._of_session: dict[str, ServerListener] = {}
        self._connected = asyncio.Event()
        self._prepared: set[str] = set()
        self._preparing = asyncio.Lock()
        self._exit: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._draining = asyncio.create_task(
            read_to_the_end(child), name=f"legation-opencode-out-{child.pid}"
        )
        self._reading = asyncio.create_task(self._read(), name=f"legation-opencode-{child.pid}")
        self._living = asyncio.create_task(self._live(), name=f"legation-opencode-life-{child.pid}")

    @classmethod
    async def start(
        cls, launcher: Launcher, pipes: Pipes, timeout: float, command: Command, *, trusted: bool
    ) -> OpenCodeServer:
        password = secrets.token_urlsafe(32)
        child = await launcher.spawn(serve(command, trusted=trusted, password=password), pipes)
        api: ServerApi | None = None
        stray = Stray()
        try:
            async with asyncio.timeout(timeout):
                url = await address(child, stray)
                api = ServerApi(url, password, redact=pipes.redact, max_answer=pipes.max_line)
                version = (await api.get("/global/health", ServerHealth, timeout=timeout)).version
                server = cls(child, api, pipes, version)
        except BaseException as error:
            if api is not None:
                await api.close()
            await asyncio.shield(child.stop(grace=0))
            if isinstance(error, TimeoutError):
                raise TimedOut(
                    f"cannot start OpenCode's server: it did not listen within {timeout:g} s{last_words(child, stray)}"
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

    def join(self, listener: ServerListener) -> None:
        self._listeners.add(listener)

    def leave(self, listener: ServerListener) -> None:
        self._listeners.discard(listener)
        self._of_session = {name: each for name, each in self._of_session.items() if each is not listener}

    def listen(self, session_id: str, listener: ServerListener) -> None:
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
        """Return when it has ended and everything that it said was handed on."""
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
                await self.api.get("/global/health", ServerHealth, timeout=RECONNECT_LIMIT)
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
        told: set[ServerListener] = set()
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

    def _hand_on(self, event: OpenCodeEvent) -> set[ServerListener]:
        if isinstance(event.body, SessionChanged) and event.body.info.parent_id in self._of_session:
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
        """Tell that of what it held for the folder nothing is left, its MCP servers above all."""
        self._prepared.discard(directory)
        for listener in tuple(self._listeners):
            with suppress(LegationError):  # told by the listener to whom it matters
                await listener.forgotten(directory)

    def _too_long(self, size: int) -> None:
        self._tell_all(DiagnosticCode.AGENT_LINE_TOO_LONG, f"skipped an event of {size} bytes")

    def _tell_all(self, code: DiagnosticCode, message: str) -> None:
        for listener in tuple(self._listeners):
            listener.trouble(code, message)


async def event_of(line: bytes, trouble: Trouble) -> OpenCodeEvent | None:
    """Read an event; of one that is too much for the loop what its digest says (INV-N1)."""
    if not outlines.is_heavy(line):
        return read_event(line)
    line, brief = await brief_of(line, trouble)
    event = read_event(brief)
    return None if event is None else replace(event, line=line, is_cut=True)


def _shown(line: bytes) -> str:
    return line[:SHOWN_BYTES].decode(errors="replace")


USER: Final = "opencode"
CALL_LIMIT: Final = 30.0  # seconds for one call where the caller has no limit of its own: the server's time
_OK: Final = range(200, 300)
_CODES: Final[Mapping[int, int]] = {
    400: ErrorCode.INVALID_PARAMS,
    401: ErrorCode.AUTH_REQUIRED,
    404: ErrorCode.RESOURCE_NOT_FOUND,
}

_T = TypeVar("_T")


class ServerApi:
    """`max_answer` bounds one answer, in bytes."""

    def __init__(self, url: str, password: str, *, redact: Redact, max_answer: int) -> None:
        self._client = httpx2.AsyncClient(
            base_url=url, auth=(USER, password), trust_env=False, timeout=CALL_LIMIT
        )
        self._redact = redact
        self._max_answer = max_answer
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        await self._client.aclose()

    async def get(
        self,
        path: str,
        into: type[_T],
        *,
        directory: str | None = None,
        timeout: float = CALL_LIMIT,
        **query: str | int,
    ) -> _T:
        raw = await self._send("GET", path, None, directory, timeout, query)
        return _read_answer(path, raw, into)

    async def post(
        self,
        path: str,
        body: Mapping[str, Any],
        into: type[_T],
        *,
        directory: str | None = None,
        timeout: float = CALL_LIMIT,
    ) -> _T:
        return _read_answer(path, await self._send("POST", path, body, directory, timeout), into)

    async def do(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, directory: str, timeout: float
    ) -> None:
        """Call without a use for the answer."""
        await self._send(method, path, body, directory, timeout)

    def stream(self, path: str, silence: float) -> Any:
        """A context manager whose answer is read in pieces; `silence` seconds without one end it."""
        timeout = httpx2.Timeout(CALL_LIMIT, read=silence)
        return self._client.stream("GET", path, timeout=timeout)

    async def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        directory: str | None,
        timeout: float,
        query: Mapping[str, str | int] | None = None,
    ) -> bytes:
        if self._closed:
            raise TransportClosed(f"cannot send {method} {path}: OpenCode's server has ended; start it again")
        params = {**({} if directory is None else {"directory": directory}), **(query or {})}
        content = None if body is None else jsontext.write(body)
        headers = {} if body is None else {"content-type": "application/json"}
        try:
            async with self._client.stream(
                method, path, params=params, content=content, headers=headers, timeout=timeout
            ) as answer:
                raw = self._redact(await self._bounded(path, answer))
        except httpx2.TimeoutException:
            raise TimedOut(
                f"cannot complete {method} {path}: OpenCode did not answer within {timeout:g} s"
            ) from None
        except httpx2.HTTPError as error:
            raise TransportClosed(
                f"cannot complete {method} {path}: the connection to OpenCode broke ({type(error).__name__});"
                " look at its exit"
            ) from None
        if answer.status_code not in _OK:
            raise _refused(f"{method} {path}", answer.status_code, raw)
        return raw

    async def _bounded(self, path: str, answer: httpx2.Response) -> bytes:
        pieces, size = [], 0
        async for piece in answer.aiter_bytes():
            size += len(piece)
            if size > self._max_answer:
                raise AgentError(
                    f"cannot read {path}: OpenCode's answer is longer than {self._max_answer} bytes; raise max_line"
                )
            pieces.append(piece)
        return b"".join(pieces)


def _read_answer(path: str, raw: bytes, into: type[_T]) -> _T:
    try:
        return msgspec.convert(jsontext.read(raw), into)
    except jsontext.READ_ERRORS:
        raise AgentError(
            f"cannot read {path}: OpenCode answered with something else; use a version that Legation knows"
        ) from None


class _Complaint(msgspec.Struct, frozen=True):
    message: str | None = None
    data: Mapping[str, Any] | None = None


def _refused(what: str, status: int, raw: bytes) -> AgentRefused:
    try:
        said = msgspec.json.decode(raw, type=_Complaint)
    except jsontext.READ_ERRORS:
        said = _Complaint()
    message = said.message or (said.data or {}).get("message") or f"status {status}"
    return AgentRefused(what, RpcError(_CODES.get(status, ErrorCode.INTERNAL_ERROR), str(message)))


PROMPT_LIMIT: Final = 60.0  # seconds to take a prompt, the folder's start included: the server's time
ABORT_LIMIT: Final = 5.0  # seconds for one abort: the server's time
REPLY_LIMIT: Final = 10.0  # seconds to take an answer: the server's time


class RemoteSession:
    """A session as its server keeps it: each call within its time."""

    def __init__(self, api: ServerApi, session_id: str, directory: str) -> None:
        self._api = api
        self._session_id = session_id
        self._directory = directory

    # What is done.

    async def prompt(self, body: dict[str, object]) -> None:
        await self._do(f"/session/{self._session_id}/prompt_async", body, PROMPT_LIMIT)

    async def abort(self) -> None:
        await self._do(f"/session/{self._session_id}/abort", {}, ABORT_LIMIT)

    async def answer(self, path: str, body: dict[str, object]) -> None:
        """Answer one of its requests."""
        await self._do(path, body, REPLY_LIMIT)

    async def forget_folder(self) -> None:
        """Have OpenCode make anew what it holds for the folder."""
        await self._do("/instance/dispose", {}, PROMPT_LIMIT)

    # What is asked.

    async def is_busy(self) -> bool:
        try:
            found = await self._api.get("/session/status", dict[str, Status], directory=self._directory)
        except LegationError:
            return True  # the next sign of life will tell
        return not isinstance(found.get(self._session_id, Idle()), Idle)

    async def history(self, session_id: str) -> tuple[Told, ...]:
        """Its own, or that of a sub-agent."""
        path = f"/session/{session_id}/message"
        return await self._api.get(path, tuple[Told, ...], directory=self._directory)

    async def children(self) -> tuple[OpenCodeSessionInfo, ...]:
        path = f"/session/{self._session_id}/children"
        return await self._api.get(path, tuple[OpenCodeSessionInfo, ...], directory=self._directory)

    async def permissions(self) -> tuple[PermissionRequest, ...]:
        """Permissions that are open in the folder, of whichever session."""
        return await self._api.get("/permission", tuple[PermissionRequest, ...], directory=self._directory)

    async def questions(self) -> tuple[QuestionRequest, ...]:
        """Questions that are open in the folder, of whichever session."""
        return await self._api.get("/question", tuple[QuestionRequest, ...], directory=self._directory)

    async def _do(self, path: str, body: dict[str, object], limit: float) -> None:
        await self._api.do("POST", path, body, directory=self._directory, timeout=limit)


# What the process writes: where it listens, and nothing else that counts but its last words.


_LISTENING: Final = re.compile(rb"listening on (http://[\w.:\[\]]+)")


async def address(child: Child, stray: Stray) -> str:
    async for lines in child.lines():
        found = _LISTENING.search(b"\n".join(lines))
        if found:
            return found[1].decode()
        for line in lines:
            stray.add(line)
    found_exit = await child.wait()
    raise exited("start OpenCode's server", child.name, found_exit, last_words(child, stray))


async def read_to_the_end(child: Child) -> None:
    """Its output has nothing to say; it must not fill up."""
    async for _ in child.lines():
        pass


_FIELD: Final = b"data:"


class EventSplitter:
    """Cut an event stream into events, a `data:` line each. What is longer than `max_event` is skipped, and reported by its
    size."""

    def __init__(self, *, max_event: int, redact: Redact, on_too_long: Callable[[int], None]) -> None:
        self._lines = LineSplitter(max_line=max_event, redact=redact, on_line_too_long=on_too_long)

    def feed(self, data: bytes) -> list[bytes]:
        self._lines.feed(data)
        return [line[len(_FIELD) :].strip() for line in self._lines.take() if line.startswith(_FIELD)]
