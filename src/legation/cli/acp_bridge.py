"""The bridge of `legation acp`: each line of the client to the server, everything that the server tells to the client.

INV-B1  What the client reads has one order: that of the server's stream. Answers come from there and nowhere else.
INV-B2  Every request is answered: where the server cannot, by an error from here.
INV-B3  A server that was found and goes away is waited for, `RESTART` long: it is being restarted, and one of our own would
        take its place. What it worked on is answered with an error at once; what comes meanwhile waits for it.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

import httpx2
import msgspec

from legation.agents.messages import RpcMessage, id_key, read_message
from legation.cli.command import outage, token_of
from legation.client.connection import find
from legation.client.decode import Parser
from legation.client.http import TRANSPORT_ERRORS, options
from legation.client.request import DEFAULT_TIMEOUTS, ServerTarget, target, zero_to_one
from legation.errors import LegationError, Unavailable
from legation.settings import Settings
from legation.wire import jsontext
from legation.wire.acp.rpc import ErrorCode, RpcError

if TYPE_CHECKING:
    from legation.client.child import ServerChild


END_GRACE: Final = 2.0  # seconds for answers that are on their way when the client has closed its end
DELETE_LIMIT: Final = 5.0  # seconds: the server's time to end the connection
SILENCE: Final = 45.0  # seconds without a sign of life on the stream: three keep-alives missed
PAUSE: Final = 0.2  # seconds before the stream is asked for again
RESTART: Final = 30.0  # seconds: its owner's time to start a server again
LOOK: Final = 0.25  # seconds between two looks whether it is back, and up to twice that
LONGEST_PAUSE: Final = 5.0  # seconds, where the server refuses it again and again
TRIES: Final = 3  # of two that start at once, one finds the other's server
START_PAUSE: Final = 0.5  # seconds before another try: the other server's time to be found
START: Final = 60.0  # seconds for a server of our own to become healthy: its time
CHUNK: Final = 64 * 1024
LONGEST: Final = 64 * 1024 * 1024  # bytes of one message, as the server has it
BY_SIGNAL: Final = 128  # and its number: as shells have it

_ID_FIRST: Final = re.compile(
    rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(-?\d{1,18}|"[^"\\]{1,200}")\s*,'
)
_PLACED: Final = frozenset(("session/new", "session/load", "session/resume"))


class Bridge:
    """`reach` says where the server is, each time it is asked; it may start one, and blocks."""

    def __init__(self, reach: Reach, agent: str, cwd: str | None, out: int) -> None:
        self._reach = reach
        self._connecting = asyncio.Lock()
        self._agent = agent
        self._cwd = cwd
        self._out = out
        self._path = f"/v1/acp/stdio-{uuid4()}"
        self._target: ServerTarget | None = None
        self._http: httpx2.AsyncClient | None = None
        # Requests without an answer: the id in one spelling, and as it came; more than once if a client has reused it.
        self._waiting: dict[bytes, list[bytes]] = {}
        self._sending: bytes | None = None  # the one of them that `_post` answers for: no server has it yet
        self._answered = asyncio.Event()
        self._last = ""
        self._opened = asyncio.Event()  # the server has taken a message

    async def run(self) -> int:
        """Return the exit code. The client has gone when its end of either pipe is closed."""
        loop = asyncio.get_running_loop()
        stopped: asyncio.Future[signal.Signals] = loop.create_future()

        def stop(by: signal.Signals) -> None:
            if not stopped.done():
                stopped.set_result(by)

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop, number)
        await self._connect()
        tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._hear())]
        try:
            ends: list[asyncio.Future[Any]] = [*tasks, stopped]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done() and not stopped.done():
                await self._last_answers()
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            await self._leave()
        for outcome in outcomes:
            if isinstance(outcome, Exception) and not isinstance(outcome, BrokenPipeError):
                raise outcome
        return BY_SIGNAL + stopped.result() if stopped.done() else 0

    # The client speaks.

    async def _send(self) -> None:
        lines = InputLines()
        while (line := await lines.next()) is not None:
            if isinstance(line, OverlongLine):
                why = f"this line has more than {LONGEST:,} bytes; send less at once"
                self._say_error(_first_id(line.beginning), ErrorCode.INVALID_REQUEST, why)
                continue
            message = read_message(line)
            if message is None or not (message.method or message.id):
                self._say_error(b"null", _no_message(line), "this line is no message of JSON-RPC")
                continue
            if message.method and message.id:
                self._sending = id_key(bytes(message.id))
                self._waiting.setdefault(self._sending, []).append(bytes(message.id))
            await self._post(message, self._placed(message, line))
            self._sending = None

    async def _post(self, message: RpcMessage, body: bytes) -> None:
        headers = {
            "content-type": "application/json",
            "accept": "application/json",
            "prefer": "respond-async",
        }

        async def send(http: httpx2.AsyncClient) -> httpx2.Response:
            query = {} if self._opened.is_set() else {"agent": self._agent}
            return await http.post(self._path, content=body, params=query, headers=headers)

        try:
            answer = await self._again(send)
        except LegationError as error:
            self._refuse(message, error.message)
            return
        if answer.is_success:
            self._opened.set()
        else:
            self._refuse(message, _detail(answer))

    async def _again(
        self, send: Callable[[httpx2.AsyncClient], Awaitable[httpx2.Response]]
    ) -> httpx2.Response:
        """Send; once more where the server was not reached at all, or is another than before."""
        for attempt in (1, 2):
            assert self._http is not None
            try:
                answer = await send(self._http)
            except TRANSPORT_ERRORS as error:
                if attempt == 2 or not isinstance(error, httpx2.ConnectError):
                    raise Unavailable(
                        f"cannot reach the server at {self._base}: {type(error).__name__}; start it again"
                    ) from None
            else:
                if answer.status_code != httpx2.codes.UNAUTHORIZED or attempt == 2:
                    return answer
            self._fail_all("the server that worked on this is gone; ask again")
            await self._connect()
        raise AssertionError

    def _placed(self, message: RpcMessage, line: bytes) -> bytes:
        """Put the folder of --cwd where the client names none."""
        if self._cwd is None or message.method not in _PLACED:
            return line
        try:
            whole = jsontext.read(line)
        except jsontext.READ_ERRORS:
            return line
        params = whole.get("params") if isinstance(whole, dict) else None
        if not isinstance(whole, dict) or not isinstance(params, dict) or params.get("cwd"):
            return line
        return jsontext.write({**whole, "params": {**params, "cwd": self._cwd}})

    # The server speaks.

    async def _hear(self) -> None:
        await self._opened.wait()
        pause = PAUSE
        while True:
            try:
                await self._stream()
                pause = PAUSE
            except TRANSPORT_ERRORS:
                await self._find_again()
            except LegationError as error:
                _note(error.message)
                pause = min(pause * 2, LONGEST_PAUSE)
            await asyncio.sleep(pause)

    async def _stream(self) -> None:
        assert self._http is not None
        headers = {"accept": "text/event-stream"}
        if self._last:
            headers["last-event-id"] = self._last
        timeout = httpx2.Timeout(DEFAULT_TIMEOUTS.connect, read=SILENCE)
        async with self._http.stream("GET", self._path, headers=headers, timeout=timeout) as response:
            if response.status_code == httpx2.codes.UNAUTHORIZED:
                await self._find_again()
                return
            if not response.is_success:
                await response.aread()
                raise Unavailable(_detail(response))
            parser = Parser()
            async for chunk in response.aiter_raw():
                for frame in parser.feed(chunk):
                    if frame.event == "message":
                        self._tell(frame.data)
                        self._last = frame.id

    def _tell(self, line: bytes) -> None:
        message = read_message(line)
        if message is not None and not message.method and message.id:
            if self._settled(id_key(bytes(message.id))) is None:
                return  # answered from here, when the server could not be reached
            self._answered.set()
        write_line(self._out, line)

    async def _find_again(self) -> None:
        """Connect again. What a server that is gone was working on is lost; sessions and the rest of the stream are not."""
        before = self._target
        try:
            await self._connect()
        except LegationError as error:
            self._fail_all(error.message)
            _note(error.message)
        else:
            if self._target != before:
                self._fail_all("the server that worked on this is gone; ask again")

    # The server itself.

    async def _connect(self) -> None:
        async with self._connecting:
            found = await self._found()
            if found == self._target:
                return
            former, self._target = self._http, found
            self._http = httpx2.AsyncClient(base_url=found.base, **options(found, DEFAULT_TIMEOUTS))
            if former is not None:  # not before: whoever sends meanwhile would meet one that is closed
                await former.aclose()

    async def _found(self) -> ServerTarget:
        if self._target is None or self._reach.is_own:
            return await asyncio.to_thread(self._reach)
        away: LegationError | None = None
        with suppress(TimeoutError):
            async with asyncio.timeout(RESTART):
                while True:
                    try:
                        found = await asyncio.to_thread(self._reach.look)
                    except Unavailable as error:
                        if away is None:
                            away = error
                            self._fail_all("the server that worked on this is gone; ask again")
                            _note(outage(error))
                        await asyncio.sleep(LOOK * (1 + zero_to_one()))
                    else:
                        if away is not None:
                            _note(outage(None))
                        return found
        return await asyncio.to_thread(self._reach)

    @property
    def _base(self) -> str:
        return self._target.base if self._target else "?"

    async def _last_answers(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(END_GRACE):
                while self._waiting:
                    self._answered.clear()
                    await self._answered.wait()

    async def _leave(self) -> None:
        if self._http is None:
            return
        if self._opened.is_set():
            with suppress(*TRANSPORT_ERRORS, TimeoutError):
                async with asyncio.timeout(DELETE_LIMIT):
                    await self._http.delete(self._path)
        await self._http.aclose()

    # Errors of our own.

    def _refuse(self, message: RpcMessage, why: str) -> None:
        if message.method and message.id:
            if self._settled(id_key(bytes(message.id))) is not None:
                self._say_error(bytes(message.id), ErrorCode.INTERNAL_ERROR, why)
        else:
            _note(why)

    def _fail_all(self, why: str) -> None:
        """Fail all but the one that is being sent: told to ask again, the client would have it done twice."""
        for key in list(self._waiting):
            spared = 1 if key == self._sending else 0
            while len(self._waiting.get(key, ())) > spared and (raw := self._settled(key)) is not None:
                self._say_error(raw, ErrorCode.INTERNAL_ERROR, why)
        self._answered.set()

    def _settled(self, key: bytes) -> bytes | None:
        """Take the oldest request of that id from those that wait; gives its id as it came."""
        waiting = self._waiting.get(key)
        if not waiting:
            return None
        raw = waiting.pop(0)
        if not waiting:
            del self._waiting[key]
        return raw

    def _say_error(self, raw_id: bytes, code: int, message: str) -> None:
        error = jsontext.write(RpcError(code, message))
        write_line(self._out, b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (raw_id, error))


def _no_message(line: bytes) -> ErrorCode:
    """Choose the error for a line that is no message: what is JSON, such as a batch, can be read and is refused."""
    try:
        jsontext.read(line)
    except jsontext.READ_ERRORS:
        return ErrorCode.PARSE_ERROR
    return ErrorCode.INVALID_REQUEST


def _first_id(beginning: bytes) -> bytes:
    """Read the id of a message of which only the beginning is known; clients write it before what may be long."""
    found = _ID_FIRST.match(beginning)
    return found[1] if found else b"null"


def _detail(answer: httpx2.Response) -> str:
    """Read what a problem says; something is said whatever came."""
    with suppress(msgspec.MsgspecError):
        found = msgspec.json.decode(answer.content, type=dict[str, object]).get("detail")
        if isinstance(found, str):
            return found
    return f"cannot use the server: it answered with status {answer.status_code}; see its log"


def _note(what: str) -> None:
    print(f"legation: {what}", file=sys.stderr)


class Reach:
    """The server behind `legation acp`: the one that is named, the one of this machine, or one of our own.

    `with Reach(...)`: at its end a server of our own is stopped. Blocks."""

    def __init__(self, settings: Settings, workspace: str | None) -> None:
        self._settings = settings
        self._workspace = workspace
        self._child: ServerChild | None = None

    def __enter__(self) -> Reach:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    @property
    def is_own(self) -> bool:
        """Whether the last one was started here."""
        return self._child is not None

    def look(self) -> ServerTarget:
        """Find the server as it is now; Unavailable where there is none. Starts none."""
        settings = self._settings
        if settings.url is not None:
            return target(settings.url, token_of(settings), self._workspace)
        found = find(settings.data_dir)
        return target(found.url, found.token, self._workspace, found.certificate)

    def __call__(self) -> ServerTarget:
        """Find the server; where there is none, one is started."""
        for attempt in range(TRIES):
            try:
                return self.look()
            except Unavailable:
                pass
            try:
                return self._start()
            except LegationError as error:
                if attempt == TRIES - 1:
                    raise
                print(f"legation: {error.message}; trying again", file=sys.stderr)
                time.sleep(START_PAUSE)
        raise Unavailable("cannot reach a Legation here; start one with `legation up`")

    def _start(self) -> ServerTarget:
        from legation.client.child import ServerChild
        from legation.client.request import Spawn

        self._stop()
        print("legation: no Legation runs here; one is started, and ends with this", file=sys.stderr)
        child = ServerChild(Spawn(data_dir=self._settings.data_dir, wait=START))
        child.start()
        self._child = child
        return target(child.url, child.token, self._workspace)

    def _stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.stop()


class OverlongLine(NamedTuple):
    """A line of more than that, which nobody keeps."""

    beginning: bytes


class InputLines:
    """Standard input as lines; neither the loop nor the end of the process waits for it.

    It is read in a thread of its own, from the descriptor itself: a buffer's lock would outlive the process's will."""

    def __init__(self, fd: int = 0) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[bytes | OverlongLine | None] = asyncio.Queue()
        self._room = threading.Semaphore(1_000)  # lines that wait; then the client does
        threading.Thread(target=self._read, name="legation-stdin", daemon=True).start()

    async def next(self) -> bytes | OverlongLine | None:
        """None at the end."""
        line = await self._lines.get()
        self._room.release()
        return line

    def _read(self) -> None:
        rest: list[bytes] = []
        size = 0
        while chunk := self._chunk():
            *lines, last = chunk.split(b"\n")
            for line in lines:
                self._put(_whole([*rest, line], size + len(line)))
                rest, size = [], 0
            if last:
                rest.append(last)
                size += len(last)
            if size > LONGEST:
                del rest[1:]  # no end of it is in sight
        if rest:
            self._put(_whole(rest, size))
        self._put(None)

    def _chunk(self) -> bytes:
        try:
            return os.read(self._fd, CHUNK)
        except OSError:
            return b""

    def _put(self, line: bytes | OverlongLine | None) -> None:
        if not isinstance(line, bytes) or line.strip():
            self._room.acquire()
            try:
                self._loop.call_soon_threadsafe(self._lines.put_nowait, line)
            except RuntimeError:  # the loop is closed: nobody reads any more
                return


def _whole(pieces: list[bytes], size: int) -> bytes | OverlongLine:
    return OverlongLine(pieces[0]) if size > LONGEST else b"".join(pieces)


def write_line(fd: int, line: bytes) -> None:
    """Raises BrokenPipeError where nobody reads any more."""
    data = memoryview(line + b"\n")
    while data:
        data = data[os.write(fd, data) :]
