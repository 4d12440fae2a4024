"""WebSockets: opened through the same door as any request, and a client at the terminal of a process.

`WebSocketUpgrades` stands around the application. An opening handshake becomes a GET of its address; if the route
answers with a `WebSocketUpgrade`, the WebSocket is accepted and that has it; any other answer, a problem for example, is
what the client gets instead of it. So a route is a WebSocket's by what it returns, and the layer of routes need not know.

INV-U1  Nothing is upgraded that the address, the Host, the credential, its scope and the Origin do not allow.
INV-U2  `?access_token=`, for browsers, which can send no header here, is read of a WebSocket's handshake at these
        addresses only, and never reaches the query that a route sees, or a log.
INV-U5  The client's slowness costs the client: what it does not take waits in the process's log, which is bounded, and
        what the log drops meanwhile is told. The process is never held up, and our memory does not grow.
INV-U6  It ends when what opened it would not open it again.
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64decode
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Literal, cast
from urllib.parse import parse_qsl, urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from legation.clock import Clock
from legation.errors import InvalidParams, LegationError, NotFound, TooLarge
from legation.server.http.app import request_id, write_problem
from legation.server.http.request import OwnOrigins
from legation.server.processes.output import Holds
from legation.server.processes.processes import OperatorProcess
from legation.server.streaming.hub import KEEP_ALIVE, RECHECK
from legation.wire.api.processes import Cells

ACCESS_TOKEN: Final = "access_token"  # noqa: S105 - a name
REPLAY_BYTES: Final = 256 * 1024  # of what was written before, for who comes later
FRAME_BYTES: Final = 64 * 1024  # of one binary frame, about
STALL_LIMIT: Final = 60.0  # seconds: a client's time to take one frame
NORMAL: Final = 1000
POLICY: Final = 1008  # not allowed, or not any more
_KEY: Final = "legation.websocket"
_MOST_PIECES: Final = 256

Serve = Callable[[Receive, Send], Awaitable[None]]
"""Has the WebSocket, accepted, until it returns; it closes it."""


class WebSocketUpgrades:
    """Have handshakes routed, authenticated and refused as requests. `addresses` are those of routes that upgrade."""

    def __init__(self, app: ASGIApp, addresses: re.Pattern[bytes], clock: Clock) -> None:
        self._app = app
        self._addresses = addresses
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        opening = _Handshake(receive, send)
        if self._addresses.fullmatch(scope.get("raw_path") or scope["path"].encode()):
            await self._app(_as_request(scope), _no_body, opening.send)
        else:  # not as a GET: its answer may be a stream without an end, and would be collected for ever
            number = request_id(dict(scope["headers"]), self._clock)
            await write_problem(_nothing_here(), number).send(opening.send, number, (), head=False)


class _Handshake:
    """Turn what the application answers into the answer of the handshake."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._accepted = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == 101:
            self._accepted = True
            headers = [pair for pair in message["headers"] if pair[0] == b"request-id"]
            await self._receive()  # websocket.connect
            await self._send({"type": "websocket.accept", "headers": headers})
            await cast(Serve, message[_KEY])(self._receive, self._send)
        elif not self._accepted:
            await self._send({**message, "type": message["type"].replace("http.", "websocket.http.", 1)})


class WebSocketUpgrade(Response):
    """Answer of a GET whose `serve` gets the WebSocket. Any other request is refused in `check_handshake`."""

    def __init__(self, serve: Serve) -> None:
        self.status_code = 101
        self.background = None
        self.init_headers({})
        self._serve = serve

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": 101, "headers": self.raw_headers, _KEY: self._serve}
        )
        await send({"type": "http.response.body", "body": b""})


def check_handshake(request: Request, own: OwnOrigins) -> None:
    """Refuse what is no handshake, or none of our pages': called by the route before it upgrades.

    A browser says which page opens a WebSocket, sends the cookie with it whatever page that is, and does not ask us
    first: so the page must be ours, or one that the owner listed, whatever vouches for the call."""
    if _KEY not in request.scope:
        raise InvalidParams("cannot answer this without a WebSocket; open one at this address")
    by_page = "origin" in request.headers or "sec-fetch-site" in request.headers
    if by_page or ("cookie" in request.headers and "authorization" not in request.headers):
        own.check(Request({**request.scope, "method": "POST"}))  # it is no reading: who has it types


def _as_request(scope: Scope) -> Scope:
    headers = list(scope["headers"])
    token, query = _without_token(scope["query_string"])
    if token is not None and all(name != b"authorization" for name, _ in headers):
        headers.append((b"authorization", b"Bearer " + token))
    scheme = "https" if scope["scheme"] == "wss" else "http"
    changed = {"type": "http", "method": "GET", "scheme": scheme, "headers": headers, "query_string": query}
    return {**scope, **changed, _KEY: True}


def _without_token(query: bytes) -> tuple[bytes | None, bytes]:
    if ACCESS_TOKEN.encode() not in query:
        return None, query
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError:
        return None, query  # the route says what is wrong with it
    tokens = [value for name, value in pairs if name == ACCESS_TOKEN]
    rest = [(name, value) for name, value in pairs if name != ACCESS_TOKEN]
    left = urlencode(rest).encode("ascii")
    if tokens == [""]:
        return None, left  # so sandbox-agent's SDK says that it has none
    # Several are a wrong credential, as with the header.
    return (tokens[0] if len(tokens) == 1 else "").encode("utf-8"), left


def _nothing_here() -> NotFound:
    return NotFound("cannot open a WebSocket at this address; call it without an upgrade")


async def _no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


Encoding = Literal["base64", "utf8", "text"]


class InputFrame(msgspec.Struct, tag="input"):
    data: str
    encoding: Encoding = "utf8"


class ResizeFrame(msgspec.Struct, tag="resize"):
    cols: Cells
    rows: Cells


class CloseFrame(msgspec.Struct, tag="close"):
    pass


_decoder: Final = msgspec.json.Decoder(InputFrame | ResizeFrame | CloseFrame)


def input_bytes(data: str, encoding: Encoding, most: int) -> bytes:
    try:
        raw = b64decode(data, validate=True) if encoding == "base64" else data.encode()
    except ValueError:  # also what is no UTF-8
        raise InvalidParams(
            f"cannot read the input as {encoding}; correct it, or name another encoding"
        ) from None
    if len(raw) > most:
        raise TooLarge(f"cannot take input of more than {most} bytes at once; send less", {"limit": most})
    return raw


class TerminalAttachment:
    """A client at the terminal of a process: binary frames out, JSON frames in, over an accepted WebSocket."""

    def __init__(self, process: OperatorProcess, most_input: int, holds: Holds, clock: Clock) -> None:
        self._process = process
        self._most_input = most_input
        self._holds = holds
        self._clock = clock

    async def serve(self, receive: Receive, send: Send) -> None:
        client = _TerminalClient(send)
        work = {"out": self._show(client), "in": self._listen(receive, client), "watch": self._watch()}
        tasks = {
            asyncio.create_task(each, name=f"legation-terminal-{name}-{self._process.id}")
            for name, each in work.items()
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            code = next(iter(done)).result()
        except OSError:  # it has gone, or takes nothing: the connection is closed when we return
            code = None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if code is not None:
            with suppress(OSError):
                await client.close(code)

    async def _show(self, client: _TerminalClient) -> int | None:
        """Show what it writes until the process has ended and all of it was shown."""
        log = self._process.log
        await client.send_json({"type": "ready", "processId": self._process.id})
        after = log.tail_start(REPLAY_BYTES)
        while True:
            if after + 1 < log.first:
                words = f"cannot show all output: it came faster than it was taken; {log.dropped_bytes} bytes are gone"
                await client.send_json({"type": "error", "message": words})
                after = log.first - 1
            data, after = self._piece(after)
            if data:
                await client.send_bytes(data)
            elif log.closed and after >= log.head:
                ended = self._process.ended
                await client.send_json({"type": "exit", "exitCode": ended.exit.code if ended else None})
                return NORMAL
            else:
                await log.changed(after, KEEP_ALIVE)

    def _piece(self, after: int) -> tuple[bytes, int]:
        parts, size = [], 0
        for piece in self._process.log.since(after, _MOST_PIECES):
            if size and size + len(piece.data) > FRAME_BYTES:
                break
            parts.append(piece.data)
            size += len(piece.data)
            after = piece.sequence
        return b"".join(parts), after

    async def _listen(self, receive: Receive, client: _TerminalClient) -> int | None:
        """Obey the client until it closes; None when it has gone."""
        while (message := await receive())["type"] != "websocket.disconnect":
            text = message.get("text")
            try:
                if text is None:
                    raise InvalidParams(
                        'cannot read a binary frame; send {"type":"input","data":"…"} as text'
                    )
                frame = _decoder.decode(text)
                if isinstance(frame, CloseFrame):
                    return NORMAL
                self._handle(frame)
            except LegationError as error:
                await client.send_json({"type": "error", "message": error.message})
            except msgspec.MsgspecError:  # its text may quote what was typed
                words = (
                    "cannot read this frame; send input, resize or close as docs/processes-api.md has them"
                )
                await client.send_json({"type": "error", "message": words})
        return None

    def _handle(self, frame: InputFrame | ResizeFrame) -> None:
        if isinstance(frame, InputFrame):
            self._process.write(input_bytes(frame.data, frame.encoding, self._most_input))
        else:
            self._process.resize(frame.cols, frame.rows)

    async def _watch(self) -> int:
        while True:
            await self._clock.sleep(RECHECK)
            if not await self._holds():
                return POLICY


class _TerminalClient:
    """Send one frame at a time, and wait for none for ever."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._turn = asyncio.Lock()

    async def send_json(self, frame: dict[str, object]) -> None:
        await self._send_one({"type": "websocket.send", "text": msgspec.json.encode(frame).decode()})

    async def send_bytes(self, data: bytes) -> None:
        await self._send_one({"type": "websocket.send", "bytes": data})

    async def close(self, code: int) -> None:
        await self._send_one({"type": "websocket.close", "code": code})

    async def _send_one(self, message: dict[str, object]) -> None:
        async with asyncio.timeout(STALL_LIMIT), self._turn:
            try:
                await self._send(message)
            except RuntimeError as error:
                # So uvicorn says that it has given it up meanwhile: no ping was answered.
                raise ConnectionAbortedError("the connection is closed") from error
