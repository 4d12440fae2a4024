"""One request to another server of the installation, and its answer: both as they come, at the pace of the slower side.

The caller's request is not copied but written anew from what our own parser made of it, and the other's answer likewise:
each message has one framing, which is ours, and what describes a connection (RFC 9110, 7.6.1) ends at its end.

INV-R1  A connection that carried a body is used for no other request. So nothing that a body holds can be taken for one.
INV-R2  What was not sent whole never looks so: where the caller or the other server breaks off, so does the other side.
INV-R3  Nobody holds more than `HIGH_WATER` bytes for a side that does not take them.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeAlias, cast
from urllib.parse import urlsplit

import httptools
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from legation.errors import Cancelled, InvalidParams, Unavailable
from legation.server.http.app import StampedSend
from legation.server.peers.claims import Peer

CONNECT_LIMIT: Final = 5.0  # seconds until the other server must have taken the connection: its time
PATIENCE: Final = 5.0  # seconds without an answer, after which it is asked whether it is there at all: its time to say so, too
QUESTIONS: Final = 3  # of those in a row without an answer: a machine may be busy for a while
RETRY_AFTER: Final = 2  # seconds, for a caller whose session's server is not there
IDLE_LIMIT: Final = (
    15.0  # seconds that a connection is kept for the next request; the other side's bound is longer
)
MOST_IDLE: Final = 16  # connections to one server that are kept
HIGH_WATER: Final = 256 * 1024  # bytes that wait for a side before the other is paused
READ: Final = 256 * 1024  # bytes that are taken from a connection at once
MOST_BETWEEN: Final = (
    256 * 1024
)  # bytes of heads, trailers and framing without any of the body; ours have some hundred
LONG_PART: Final = 16 * 1024  # bytes that are rather sent by themselves than copied to others
# Seconds of silence until the kernel asks whether the machine is there, between two questions, and how many. An answer may
# take hours, so silence alone is no end.
ALIVE_AFTER, ALIVE_EVERY, ALIVE_TRIES = 15, 5, 3

PairList: TypeAlias = Sequence[tuple[bytes, bytes]]

# Of a connection, not of the message; and what this server says of the caller's end of it.
_HOP_BY_HOP: Final = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_NOT_PASSED: Final = _HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"expect",  # answered here
    b"forwarded",  # whoever is believed there must not be believed for what a caller wrote
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-port",
    b"x-forwarded-proto",
}
_NOT_RETURNED: Final = _HOP_BY_HOP | {b"date"}  # which our own server adds
_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NO_VALUE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_TARGET: Final = re.compile(rb"/[\x21-\x22\x24-\x7e\x80-\xff]*")
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")
_LAST: Final = {"type": "http.response.body", "body": b"", "more_body": False}

logger = logging.getLogger("legation.server")


class AnswerBroken(Exception):
    """The connection ended before the answer did."""


class PeerConnection(asyncio.BufferedProtocol):
    """One connection to a peer: one request at a time, and its answer as it arrives."""

    _buffer = memoryview(bytearray(READ))  # one for all: it is read out before the next one comes

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.reused = False
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False  # the answer is here, all of it
        self._parser = httptools.HttpResponseParser(self)
        self._bodiless = False
        self._has_head = False
        self._keeps = False  # its server waits for the next request
        self._once = False  # its request may have a body (INV-R1)
        self._between = 0  # bytes since the last of a body
        self._closed = False
        self._parts: list[bytes] = []
        self._size = 0
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None  # while the other side does not take more

    def begin(self, method: str, *, once: bool) -> None:
        """Expect the answer to one request more; `once`: the last."""
        self._parser = httptools.HttpResponseParser(self)
        self._bodiless, self._once, self._between = method == "HEAD", once, 0
        self.status, self.headers, self._parts, self._size = 0, [], [], 0
        self.complete = self._has_head = False

    async def write(self, data: bytes) -> None:
        if self._closed or self.transport is None:
            raise AnswerBroken
        self.transport.write(data)
        if self._room is not None:
            await self._room

    async def head(self) -> None:
        """Wait for the status and the headers."""
        while not self._has_head:
            await self._more()

    async def read(self) -> bytes:
        """Wait for the next of the body; empty at its end."""
        while not self._parts:
            if self.complete:
                return b""
            await self._more()
        if len(self._parts) == 1 or len(self._parts[0]) >= LONG_PART:
            data = self._parts.pop(0)
        else:
            data = b"".join(self._parts)
            self._parts = []
        self._size -= len(data)
        if self._paused and self._size <= HIGH_WATER and self.transport is not None:
            self._paused = False
            self.transport.resume_reading()
        return data

    async def _more(self) -> None:
        if self._closed:
            raise AnswerBroken
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def abort(self) -> None:
        """End it at once, as something that broke off."""
        self._closed = True
        if self.transport is not None:
            self.transport.abort()
        self._wake()

    @property
    def is_reusable(self) -> bool:
        whole = self.complete and not self._parts and not self._bodiless
        return whole and not self._closed and self._keeps

    def _wake(self) -> None:
        for waiter in (self._waiter, self._room):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    # For the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(HIGH_WATER)
        sock: socket.socket | None = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, ALIVE_AFTER)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, ALIVE_EVERY)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, ALIVE_TRIES)

    def connection_lost(self, _error: Exception | None) -> None:
        self._closed = True
        self._wake()

    def pause_writing(self) -> None:
        self._room = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, size: int) -> None:
        if self.complete:  # nothing was asked for
            self.abort()
            return
        self._between += size
        try:
            self._parser.feed_data(self._buffer[:size])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):  # nobody asked for another protocol
            self.abort()
            return
        if self._between > MOST_BETWEEN and not self.complete:  # the parser would keep all of it
            self.abort()
            return
        if self._size > HIGH_WATER and not self._paused and self.transport is not None:
            self._paused = True
            self.transport.pause_reading()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # For the parser.

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:  # else a trailer: what was not announced is not given on
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # an interim answer; the one that counts follows
            self.headers = []
            return
        self.status, self._has_head = status, True
        self._keeps = not self._once and bool(self._parser.should_keep_alive())
        if self._bodiless:
            self.complete = True

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)
        self._size += len(body)
        self._between = 0

    def on_message_complete(self) -> None:
        self.complete = self.complete or self._has_head


class PeerClient:
    """Speaks HTTP to the other servers of the installation; keeps some connections for the next request."""

    def __init__(self) -> None:
        self._idle: dict[str, list[tuple[PeerConnection, asyncio.TimerHandle]]] = {}
        self._trust: dict[str | None, ssl.SSLContext] = {}

    def close(self) -> None:
        for kept in self._idle.values():
            for connection, timer in kept:
                timer.cancel()
                connection.abort()
        self._idle.clear()

    async def get(self, peer: Peer, target: str, headers: PairList, limit: int) -> tuple[int, bytes]:
        """Ask for something small, and return the status and the whole body."""
        head = _head(peer, "GET", target.encode("ascii"), headers)

        async def send(connection: PeerConnection) -> bool:
            await connection.write(head)
            return False

        connection, _ = await self._begin(peer, "GET", send, reuse=True)
        body = bytearray()
        try:
            while data := await connection.read():
                body += data
                if len(body) > limit:
                    raise AnswerBroken
        except AnswerBroken:
            raise unreachable(peer) from None
        finally:
            self.done(peer, connection)
        return connection.status, bytes(body)

    async def pass_on(
        self, peer: Peer, scope: Scope, receive: Receive, added: PairList, content: bytes | None = None
    ) -> Response:
        """Pass a request on. Headers that are `added` stand in the place of those of the same name. `content` is the body
        where it has been read already."""
        method, given = scope["method"], scope["headers"]
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        length = _length(given) if content is None else len(content)
        headers = [*_kept(given, {name for name, _ in added}), *added]
        if bare := method in ("GET", "HEAD") and length == 0:
            content = b""
        elif length is None:
            headers += [(b"transfer-encoding", b"chunked"), (b"connection", b"close")]
        else:
            headers += [(b"content-length", b"%d" % length), (b"connection", b"close")]
        head = _head(peer, method, target, headers)

        def send(connection: PeerConnection) -> Coroutine[Any, Any, bool]:
            return _send(receive, connection, head, length, content)

        connection, sender = await self._begin(peer, method, send, reuse=bare)
        answer = PassedResponse(self, peer, connection, sender)
        if method == "HEAD":  # nobody asks for what follows
            await answer.end()
        return answer

    async def _begin(
        self,
        peer: Peer,
        method: str,
        send: Callable[[PeerConnection], Coroutine[Any, Any, bool]],
        *,
        reuse: bool,
    ) -> tuple[PeerConnection, asyncio.Task[bool]]:
        """Have the request sent, and wait for the head of the answer. `send` returns whether the caller has gone. Only what
        has neither a body nor an effect is sent over a kept connection, and again if that has ended meanwhile."""
        while True:
            connection = (self._take(peer) if reuse else None) or await self._connect(peer)
            connection.begin(method, once=not reuse)
            sender = asyncio.create_task(send(connection))
            try:
                await self._answered(peer, connection)
            except BaseException as error:
                gone = _has_left(sender)
                connection.abort()
                await _ended(sender)
                if not isinstance(error, AnswerBroken):
                    raise
                if gone:
                    raise Cancelled("cannot pass the request on: the caller closed the connection") from None
                if not reuse:  # it may have an effect, which may have been begun
                    raise _unknown_outcome(peer) from None
                if not connection.reused:
                    raise unreachable(peer) from None
            else:
                return connection, sender

    async def _answered(self, peer: Peer, connection: PeerConnection) -> None:
        """Wait for the head of an answer, for as long as its server is there: an agent may take minutes to start."""
        waiting, unanswered = asyncio.ensure_future(connection.head()), 0
        try:
            while not (await asyncio.wait({waiting}, timeout=PATIENCE))[0]:
                unanswered = 0 if await self._lives(peer) else unanswered + 1
                if unanswered == QUESTIONS:
                    connection.abort()
            await waiting
        finally:
            waiting.cancel()

    async def _lives(self, peer: Peer) -> bool:
        """Ask a server, on a connection of its own, whether it is there."""
        connection: PeerConnection | None = None
        try:
            async with asyncio.timeout(PATIENCE):
                connection = await self._connect(peer)
                connection.begin("GET", once=True)
                await connection.write(_head(peer, "GET", b"/v1/health", ()))
                await connection.head()
        except (AnswerBroken, TimeoutError, Unavailable):
            return False
        finally:
            if connection is not None:
                connection.abort()
        return True

    async def _connect(self, peer: Peer) -> PeerConnection:
        parts = urlsplit(peer.url)
        secure = parts.scheme == "https"
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_LIMIT):
                _, connection = await loop.create_connection(
                    PeerConnection,
                    parts.hostname or "",
                    parts.port or (443 if secure else 80),
                    ssl=self._context(peer.certificate) if secure else None,
                )
        except (OSError, TimeoutError):
            raise unreachable(peer) from None
        return connection

    def _context(self, certificate: str | None) -> ssl.SSLContext:
        found = self._trust.get(certificate)
        if found is None:
            found = self._trust[certificate] = ssl.create_default_context(cadata=certificate)
            if (
                certificate is not None
            ):  # that one and no other, whatever name it is for: the peer itself has named it
                found.check_hostname = False
                found.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
                # Python 3.13 asks for members that an owner's own certificate need not have.
                found.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return found

    def _take(self, peer: Peer) -> PeerConnection | None:
        kept = self._idle.get(peer.url, [])
        while kept:
            connection, timer = kept.pop()
            timer.cancel()
            if connection.is_reusable:
                connection.reused = True
                return connection
            connection.abort()
        return None

    def done(self, peer: Peer, connection: PeerConnection) -> None:
        """Keep a connection whose answer was read to its end, if it may be used again; else end it."""
        kept = self._idle.setdefault(peer.url, [])
        if not connection.is_reusable or len(kept) >= MOST_IDLE:
            connection.abort()
            return
        timer = asyncio.get_running_loop().call_later(IDLE_LIMIT, self._end_idle, peer, connection)
        kept.append((connection, timer))

    def _end_idle(self, peer: Peer, connection: PeerConnection) -> None:
        self._idle[peer.url] = [each for each in self._idle[peer.url] if each[0] is not connection]
        connection.abort()


class PassedResponse(Response):
    """The other server's answer, whose head is here: its status, its headers, its bytes."""

    def __init__(
        self, client: PeerClient, peer: Peer, connection: PeerConnection, sender: asyncio.Task[bool]
    ) -> None:
        self.status_code = connection.status
        self.raw_headers = [pair for pair in connection.headers if pair[0] not in _NOT_RETURNED]
        self.background = None
        self._client, self._peer = client, peer
        self._connection, self._sender = connection, sender

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        try:
            await send(start)
            if isinstance(send, StampedSend):
                send = send.send  # the headers are out: what follows is nobody's to look at
            # In a task of its own: chunks wake that alone, and nobody through whom the request came.
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._copy(send))
        finally:
            await self.end()

    async def _copy(self, send: Send) -> None:
        read = self._connection.read
        try:
            while data := await read():
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except AnswerBroken:  # it stays unfinished, and our server closes the caller's connection
            if not _has_left(self._sender):
                logger.warning("the answer of %s broke off", self._peer.url)
            return
        await send(_LAST)

    async def end(self) -> None:
        await _ended(self._sender)
        self._client.done(self._peer, self._connection)


def unreachable(peer: Peer) -> Unavailable:
    return Unavailable(
        f"cannot reach the server that has it, {peer.url}; try again when it is back",
        {"server": peer.url, "retryAfter": RETRY_AFTER},
    )


def _unknown_outcome(peer: Peer) -> Unavailable:
    return Unavailable(
        f"cannot tell whether this was done: the server that has it, {peer.url}, did not answer; look before you try again",
        {"server": peer.url, "outcome": "unknown"},
    )


async def _watch(receive: Receive, connection: PeerConnection) -> bool:
    """Break the answer off when the caller has gone. Return that it has."""
    while (await receive())["type"] != "http.disconnect":
        pass
    if not connection.complete:
        connection.abort()
    return True


async def _send(
    receive: Receive, connection: PeerConnection, head: bytes, length: int | None, content: bytes | None
) -> bool:
    """Send the body as it comes; then as above."""
    await connection.write(head)
    if content is not None:
        if content:
            await connection.write(content)
        return await _watch(receive, connection)
    left, more = length, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            connection.abort()
            return True
        body, more = message.get("body", b""), message.get("more_body", False)
        if left is None:
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            body += b"" if more else b"0\r\n\r\n"
        else:
            left -= len(body)
            if left < 0 or (left and not more):  # no server of ours lets that come so far
                connection.abort()
                return True
        if body:
            await connection.write(body)
    return await _watch(receive, connection)


def _has_left(sender: asyncio.Task[bool]) -> bool:
    return sender.done() and not sender.cancelled() and sender.exception() is None and sender.result()


async def _ended(task: asyncio.Task[bool]) -> None:
    if not task.done():
        task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _length(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """Return the length of the body that follows; None where only its end will tell."""
    lengths = [value for name, value in headers if name == b"content-length"]
    chunked = any(name == b"transfer-encoding" for name, _ in headers)
    if len(lengths) > 1 or (lengths and (chunked or not _LENGTH.fullmatch(lengths[0]))):
        raise InvalidParams("cannot pass the request on: it says in two ways how long it is; say it once")
    if chunked:
        return None
    return int(lengths[0]) if lengths else 0


def _kept(headers: Iterable[tuple[bytes, bytes]], replaced: set[bytes]) -> list[tuple[bytes, bytes]]:
    """Return those that are the caller's word to whoever answers."""
    named = b",".join(value for name, value in headers if name == b"connection").lower().split(b",")
    left_out = _NOT_PASSED | replaced | {each.strip() for each in named}
    return [pair for pair in headers if pair[0] not in left_out]


def _head(peer: Peer, method: str, target: bytes, headers: PairList) -> bytes:
    """Write the head of a request. What could end it early is refused, wherever it comes from."""
    lines = [b"%b %b HTTP/1.1" % (method.encode("ascii"), target)]
    lines.append(b"host: %b" % urlsplit(peer.url).netloc.encode("ascii"))
    good = bool(_TOKEN.fullmatch(method.encode("ascii")) and _TARGET.fullmatch(target))
    for name, value in headers:
        good = good and bool(_TOKEN.fullmatch(name)) and not _NO_VALUE.search(value)
        lines.append(b"%b: %b" % (name, value))
    if not good:
        raise InvalidParams("cannot pass the request on: its head has characters that none may have")
    return b"\r\n".join([*lines, b"", b""])
