"""An HTTP/1.1 server, as far as a model endpoint needs one: one request after the other, whole answers or streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus

HOST = "127.0.0.1"  # loopback and nothing else: this is for tests
STOP_LIMIT = 10.0  # seconds until every connection has ended after it was aborted: our own time
MAX_LINE = 1024 * 1024
MAX_BODY = 64 * 1024 * 1024


class HungUp(Exception):
    """The client went away."""


class MalformedRequest(Exception):
    """The client sent no HTTP/1.1 request."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """Names of headers are in lower case."""

    method: str
    target: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    body: Mapping[str, object]
    headers: Mapping[str, str] = field(default_factory=dict)


class HttpConnection:
    """One client. While an answer is under way, `hung_up` is done as soon as the client is gone."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._ahead: asyncio.Future[bytes] | None = None

    @property
    def hung_up(self) -> asyncio.Future[bytes]:
        """Reads one byte ahead; clients do not send the next request before they have the answer."""
        if self._ahead is None:
            self._ahead = asyncio.ensure_future(self._reader.read(1))
        return self._ahead

    async def read(self) -> HttpRequest | None:
        """The next request; None when there is none left."""
        first = await self._first_line()
        if not first:
            return None
        words = first.decode("latin-1").split()
        if len(words) != 3:
            raise MalformedRequest("the request line is not `METHOD target HTTP/1.1`")
        headers = await self._headers()
        if "100-continue" in headers.get("expect", ""):
            await self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return HttpRequest(words[0], words[1], headers, await self._body(headers))

    async def send(self, answer: HttpAnswer, *, head_only: bool = False) -> None:
        body = json.dumps(answer.body).encode()
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            **answer.headers,
        }
        await self._write(_head(answer.status, headers) + (b"" if head_only else body))

    async def start_stream(self) -> None:
        """Chunked, so that a cut stream is known from one that has ended."""
        headers = {
            "content-type": "text/event-stream",
            "cache-control": "no-cache",
            "transfer-encoding": "chunked",
        }
        await self._write(_head(200, headers))

    async def send_piece(self, piece: bytes) -> None:
        if self.hung_up.done():
            raise HungUp
        await self._write(b"%x\r\n%b\r\n" % (len(piece), piece))

    async def end_stream(self) -> None:
        await self._write(b"0\r\n\r\n")

    def cut(self) -> None:
        """Break off: what was sent still arrives, the end that HTTP asks for does not."""
        self._writer.close()

    def abort(self) -> None:
        self._writer.transport.abort()

    async def close(self) -> None:
        if self._ahead is not None:
            self._ahead.cancel()
            await asyncio.gather(self._ahead, return_exceptions=True)
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()

    async def _write(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except ConnectionError:
            raise HungUp from None

    async def _first_line(self) -> bytes:
        ahead, self._ahead = (await self._ahead if self._ahead else b""), None
        return ahead + await self._line()

    async def _line(self) -> bytes:
        try:
            return await self._reader.readline()
        except ValueError:
            raise MalformedRequest(f"a line is longer than {MAX_LINE} bytes") from None

    async def _headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        while (line := (await self._line()).decode("latin-1").strip()) != "":
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        return headers

    async def _body(self, headers: Mapping[str, str]) -> bytes:
        if "chunked" in headers.get("transfer-encoding", ""):
            return await self._chunks()
        return await self._exactly(headers.get("content-length", "0"), 10)

    async def _chunks(self) -> bytes:
        body = b""
        while chunk := await self._exactly((await self._line()).partition(b";")[0].decode(), 16):
            body += chunk
            await self._line()
            if len(body) > MAX_BODY:
                raise MalformedRequest(f"the body is larger than {MAX_BODY} bytes")
        await self._line()
        return body

    async def _exactly(self, size: str, base: int) -> bytes:
        try:
            wanted = int(size, base)
        except ValueError:
            raise MalformedRequest("the length of the body is no number") from None
        if not 0 <= wanted <= MAX_BODY:
            raise MalformedRequest(f"the body is larger than {MAX_BODY} bytes")
        return await self._reader.readexactly(wanted)


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    known = {each.value: each.phrase for each in HTTPStatus}
    lines = [f"HTTP/1.1 {status} {known.get(status, 'Status')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class HttpServer:
    """Listens on a free port of the loopback; hands every request of every connection to `answer`."""

    def __init__(self, answer: Callable[[HttpRequest, HttpConnection], Awaitable[None]]) -> None:
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._serving: dict[asyncio.Task[None], HttpConnection] = {}
        self._stopped = False

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._accept, HOST, 0, limit=MAX_LINE)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        if self._server is None:
            return
        self._server.close()
        self._stopped = True
        for connection in self._serving.values():
            connection.abort()  # whatever is under way sees that its client is gone
        async with asyncio.timeout(STOP_LIMIT):
            await asyncio.gather(*self._serving)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = HttpConnection(reader, writer)
        if self._stopped:  # it was on its way in when the door was shut
            connection.abort()
            return
        task = asyncio.create_task(self._serve(connection))
        self._serving[task] = connection
        task.add_done_callback(lambda done: self._serving.pop(done, None))

    async def _serve(self, connection: HttpConnection) -> None:
        gone = (HungUp, ConnectionError, asyncio.IncompleteReadError)
        try:
            while request := await connection.read():
                await self._answer(request, connection)
                if request.headers.get("connection", "").lower() == "close":
                    break
        except gone:
            pass
        except MalformedRequest as error:
            with suppress(*gone):
                await connection.send(HttpAnswer(400, {"error": {"message": str(error)}}))
        finally:
            await connection.close()
