"""The way to a caller: POSTs on connections that are kept, and what their answers mean."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, Self, TypeAlias
from urllib.parse import quote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

import httptools

from legation import __version__
from legation.errors import ConfigInvalid, LegationError, Unauthenticated, Unavailable

if TYPE_CHECKING:
    import httpx2

UNAUTHORIZED: Final = 401
MOST_ANSWER: Final = (
    1024 * 1024
)  # bytes of an answer that are read; of a report its status is all that counts
# What may pass: the caller is busy, restarting, or behind something that is.
_PASSING: Final = frozenset((408, 429))


Headers: TypeAlias = Callable[[], Mapping[str, str]]


class CallbackRefused(Unavailable):
    """The caller takes no report of this runner; to send it again would change nothing."""


@dataclass(frozen=True, slots=True)
class CallbackAnswer:
    """`status` is 0 where none came: `trouble` says what kind of error that was."""

    status: int
    trouble: str = ""
    retry_after: float = 0.0
    body: bytes = b""

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_passing(self) -> bool:
        """Whether the same report may be accepted later."""
        return self.status == 0 or self.status >= 500 or self.status in _PASSING

    def refusal(self, what: str) -> LegationError:
        if self.status == UNAUTHORIZED:
            return Unauthenticated(
                f"cannot send {what}: the caller answered 401; give the token that it knows, and check the clocks of both"
            )
        way = "a redirect, and none is followed" if 300 <= self.status < 400 else "it refuses it"
        return CallbackRefused(
            f"cannot send {what}: the caller answered {self.status}: {way}; look at its log, and check callbackUrl"
        )

    def __str__(self) -> str:
        return self.trouble or f"answer {self.status}"


class _Connection(asyncio.Protocol):
    """One connection that is kept: a request is written whole. Of an answer the status is read, and the body where that is
    `wanted`."""

    def __init__(self, wanted: int = 0) -> None:
        self._wanted = wanted  # bytes of a body, at most
        self._body = bytearray()
        self.lost = False
        self.uses = 0
        self._answer: asyncio.Future[CallbackAnswer] | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._retry_after = 0.0
        self._received = 0  # bytes of this answer
        self._has_head = False
        self._drained = asyncio.Event()
        self._drained.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._drained.set()
        if exc is None and self._has_head and self._parser is not None:
            self._succeed(self._parser.get_status_code())  # one whose end is that of the connection
        self._fail(type(exc).__name__ if exc is not None else "closed")

    def pause_writing(self) -> None:
        self._drained.clear()

    def resume_writing(self) -> None:
        self._drained.set()

    def data_received(self, data: bytes) -> None:
        parser, answer = self._parser, self._answer
        if parser is None or answer is None:  # nobody has asked for anything
            self.close()
            return
        try:
            parser.feed_data(data)
        except httptools.HttpParserError:
            self._fail("no HTTP")
            self.close()
            return
        self._received += len(data)
        if self._received > max(MOST_ANSWER, self._wanted) and not answer.done():
            if self._has_head and not self._wanted:
                self._succeed(parser.get_status_code())
            self._fail("an endless answer")
            self.close()

    def on_headers_complete(self) -> None:
        self._has_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after":
            self._retry_after = _seconds(value.decode("latin-1"))

    def on_body(self, data: bytes) -> None:
        if self._wanted:
            self._body += data

    def on_message_complete(self) -> None:
        parser = self._parser
        assert parser is not None
        if parser.get_status_code() < 200:
            self._has_head = False  # the same parser goes on: the answer may be in the same piece
            return
        self._parser = None
        if not parser.should_keep_alive():
            self.close()
        self._succeed(parser.get_status_code())

    async def exchange(self, head: bytes, body: bytes) -> CallbackAnswer:
        self.uses += 1
        self._answer = asyncio.get_running_loop().create_future()
        self._parser, self._retry_after = httptools.HttpResponseParser(self), 0.0
        self._received, self._has_head = 0, False
        self._body.clear()
        # Not an empty piece: since Python 3.12 asyncio keeps one as unsent for ever, and never closes.
        self._transport.writelines((head, body) if body else (head,))
        await self._drained.wait()
        return await self._answer

    def _succeed(self, status: int) -> None:
        if self._answer is not None and not self._answer.done():
            answer = CallbackAnswer(status, retry_after=self._retry_after, body=bytes(self._body))
            self._answer.set_result(answer)

    def _fail(self, why: str) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(CallbackAnswer(0, f"the connection failed ({why})"))

    def close(self) -> None:
        self.lost = True
        self._transport.abort()


class Callback:
    """`async with Callback(url)`. The address is not logged: it may hold a secret. `wanted`: bytes of an answer's body that
    are read, where it counts.

    A report is written to its connection as it is: for 50 notifications a general client costs ten times what all the rest of
    a report costs. Where a proxy stands between, which few sandboxes have, it is that client."""

    def __init__(self, url: str, wanted: int = 0) -> None:
        self._wanted = wanted
        parts = self._parts = urlsplit(url)
        self._host, self._secure = parts.hostname or "", parts.scheme == "https"
        self._port = parts.port or (443 if self._secure else 80)
        name = f"[{self._host}]" if ":" in self._host else self._host
        shown = name if parts.port is None else f"{name}:{parts.port}"
        lines = [
            f"host: {shown}",
            f"user-agent: legation/{__version__}",
            "accept: */*",
        ]
        if parts.username is not None:
            raise ConfigInvalid("cannot use callbackUrl: it has a user in it; the token says who reports")
        self._head = "\r\n".join(lines).encode("latin-1", "replace")
        self._own_target = self._target()
        self._idle: list[_Connection] = []
        self._tls: ssl.SSLContext | None = None
        self._proxied: httpx2.AsyncClient | None = None

    async def __aenter__(self) -> Self:
        if self._secure:
            self._tls = await asyncio.to_thread(ssl.create_default_context)  # reads some hundred certificates
        scheme = "https" if self._secure else "http"
        proxies = getproxies_environment()
        named = proxies.get(scheme) or proxies.get("all")
        if named and not _is_loopback(self._host) and not proxy_bypass(self._host):
            import httpx2  # slow, and seldom needed

            self._proxied = httpx2.AsyncClient(verify=self._tls or True, follow_redirects=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        for each in self._idle:
            each.close()
        if self._proxied is not None:
            await self._proxied.aclose()

    async def post(
        self, body: bytes, headers: Headers, limit: float, *, below: str = "", query: str = ""
    ) -> CallbackAnswer:
        """Send it. `headers` makes those of one attempt; `limit` is the caller's time for an answer; `below` and `query`
        lead on from the address."""
        target = self._target(below, query) if below or query else self._own_target
        return await self._request("POST", target, body, headers, limit)

    async def get(self, query: str, headers: Headers, limit: float) -> CallbackAnswer:
        return await self._request("GET", self._target(query=query), b"", headers, limit)

    def _target(self, below: str = "", query: str = "") -> str:
        path = self._parts.path.rstrip("/") + below if below else self._parts.path or "/"
        asked = "&".join(filter(None, (self._parts.query, query)))
        return quote(path, safe="/%:@!$&'()*+,;=~-._") + (f"?{asked}" if asked else "")

    async def _request(
        self, method: str, target: str, body: bytes, headers: Headers, limit: float
    ) -> CallbackAnswer:
        try:
            async with asyncio.timeout(limit):
                if self._proxied is not None:
                    url = f"{self._parts.scheme}://{self._parts.netloc}{target}"
                    return await _send_by(self._proxied, method, url, body, headers(), self._wanted)
                line = f"{method} {target} HTTP/1.1".encode("latin-1", "replace")
                return await self._send(line, body, headers)
        except TimeoutError:
            return CallbackAnswer(0, f"no answer within {limit:g} s")
        except (OSError, ssl.SSLError) as error:
            # Only the kind of the error: its text may quote what it was given.
            return CallbackAnswer(0, f"the connection failed ({type(error).__name__})")

    async def _send(self, line: bytes, body: bytes, headers: Headers) -> CallbackAnswer:
        while True:
            connection = self._take_idle() or await self._connect()
            was_used = connection.uses > 0
            lines = [line, self._head, b"content-length: %d" % len(body)]
            lines += [f"{name}: {value}".encode("latin-1", "replace") for name, value in headers().items()]
            try:
                answer = await connection.exchange(b"\r\n".join((*lines, b"", b"")), body)
            except BaseException:
                connection.close()  # its answer would be taken for that of the next
                raise
            if not connection.lost:
                self._idle.append(connection)
            elif answer.status == 0 and was_used:
                continue  # the caller had closed it meanwhile: no trouble of this report, but another attempt
            return answer

    def _take_idle(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.lost:
                return connection
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        make = partial(_Connection, self._wanted)
        _, connection = await loop.create_connection(make, self._host, self._port, ssl=self._tls)
        return connection


async def _send_by(
    client: httpx2.AsyncClient, method: str, url: str, body: bytes, headers: Mapping[str, str], wanted: int
) -> CallbackAnswer:
    import httpx2

    received, kept = 0, bytearray()
    try:
        async with client.stream(method, url, content=body, headers=dict(headers), timeout=None) as answer:
            async for part in answer.aiter_raw():  # to its end, so that the connection is kept
                received += len(part)
                if wanted:
                    kept += part
                if received > max(MOST_ANSWER, wanted):
                    if wanted:
                        return CallbackAnswer(0, "the connection failed (an endless answer)")
                    break
    except (httpx2.RequestError, httpx2.StreamError) as error:
        return CallbackAnswer(0, f"the connection failed ({type(error).__name__})")
    retry_after = _seconds(answer.headers.get("retry-after"))
    return CallbackAnswer(answer.status_code, retry_after=retry_after, body=bytes(kept))


def _seconds(text: str | None) -> float:
    return float(text) if text is not None and text.isascii() and text.isdigit() else 0.0


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
