"""The sync side of the HTTP core, and what it shares with async_http.py. Importing it is slow: it brings httpx2."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypedDict, TypeVar

import httpx2

from legation import __version__
from legation.client.decode import Lines
from legation.client.follow import Follow, StreamRequest
from legation.client.group import Pages
from legation.client.part_file import Filter, PartFile, Unchanged
from legation.client.request import Failure, Operation, Outages, Tries, received, refused, unreachable
from legation.client.target import BACKUP_READ, Located, Target, Timeouts
from legation.errors import ConfigInvalid, Conflict, Unavailable
from legation.wire.api.shape import Page

# Below what servers and proxies give an idle connection (5 to 75): a POST must not meet the moment they close it.
KEEP_ALIVE: Final = 3.0
CHUNK: Final = 64 * 1024

# What httpx2 raises for the network, the peer and a body that cannot be decompressed.
TRANSPORT_ERRORS: Final = (httpx2.RequestError,)


class Options(TypedDict):
    auth: Callable[[httpx2.Request], httpx2.Request]
    headers: dict[str, str]
    timeout: httpx2.Timeout
    limits: httpx2.Limits
    follow_redirects: bool
    trust_env: bool
    verify: ssl.SSLContext | bool


def options(target: Target, timeouts: Timeouts) -> Options:
    headers = {"User-Agent": f"legation/{__version__}", "Accept-Encoding": "identity"}
    if target.workspace is not None:
        headers["Legation-Workspace"] = target.workspace
    return Options(
        auth=target.sign,
        headers=headers,
        timeout=read_timeout(timeouts, timeouts.read),
        # One connection for each stream that is followed, however many: no wait for a free one.
        limits=httpx2.Limits(max_connections=None, keepalive_expiry=KEEP_ALIVE),
        follow_redirects=False,  # the token goes to the address it was given for and nowhere else
        trust_env=not target.is_local,
        verify=_trust(target),
    )


def read_timeout(timeouts: Timeouts, read: float) -> httpx2.Timeout:
    return httpx2.Timeout(connect=timeouts.connect, read=read, write=timeouts.read, pool=timeouts.connect)


def failure(what: str, error: httpx2.RequestError) -> Failure:
    timed_out = isinstance(error, httpx2.TimeoutException)
    # A request that was sent and not answered in time may still be at work: that is the caller's to repeat.
    passing = (
        isinstance(error, httpx2.ConnectTimeout) if timed_out else isinstance(error, httpx2.TransportError)
    )
    unsent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
    return unreachable(what, error, timed_out=timed_out, passing=passing)._replace(unsent=unsent)


def broke_off(what: str) -> Failure:
    return Failure(Unavailable(f"cannot {what}: the answer broke off in a line; ask for it again"), False)


def no_lines(what: str, status: int, headers: Mapping[str, str], body: bytes) -> Failure | None:
    """A refusal, or a page of somebody else's, say, where lines of JSON should come."""
    if status != 200:
        return refused(what, status, headers, body)
    if headers.get("content-type", "").lower().startswith("application/x-ndjson"):
        return None
    message = f"cannot {what}: what answered is not Legation; see what stands at that address"
    return Failure(Unavailable(message), passing=False)


def content_headers(body: bytes | None) -> dict[str, str]:
    return {} if body is None else {"Content-Type": "application/json"}


def name(target: Target, method: str, path: str) -> str:
    """How messages call a request; its query stays out."""
    return f"{method} {target.url(path)}"


def closed() -> Conflict:
    return Conflict("cannot use a client after it was closed: connect again")


def _trust(target: Target) -> ssl.SSLContext | bool:
    """One certificate and no other: whatever name it is for, it was given to us for this server."""
    if target.is_plain:  # loading the certificates that are never asked for would cost most of the start
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if target.certificate is None:
        return True
    try:
        context = ssl.create_default_context(cadata=target.certificate)
    except ssl.SSLError:
        raise ConfigInvalid(
            "cannot use the certificate: it is not one in PEM; give the server's own"
        ) from None
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # it need not be an authority's
    return context


T = TypeVar("T")
R = TypeVar("R")
H = TypeVar("H", httpx2.Client, httpx2.AsyncClient)


class Flag(Protocol):
    def is_set(self) -> bool: ...


class RequestArguments(TypedDict):
    """A request as httpx2 takes it."""

    method: str
    url: str
    auth: Callable[[httpx2.Request], httpx2.Request]
    content: bytes | None
    headers: dict[str, str]
    timeout: httpx2.Timeout


class CallerCore(Generic[H]):
    """The part of a caller that never waits: where the server is, what is sent there, what an answer means."""

    _closed: Flag

    def __init__(
        self, http: type[H], target: Target, timeouts: Timeouts, repeats: int, outages: Outages | None
    ) -> None:
        self.located = Located(target)
        self._timeouts = timeouts
        self._repeats = repeats
        self._make_http: type[H] = http
        self._http: dict[object, H] = {}  # by what is trusted
        self._outages = outages
        self._away = False
        self._client(target)

    def _client(self, at: Target) -> H:
        """Made anew only where the server has another certificate: whoever reads from the former one goes on."""
        trust = at.is_plain, at.is_local, at.certificate
        found = self._http.get(trust)
        if found is None:
            found = self._http[trust] = self._make_http(**options(at, self._timeouts))
        return found

    def _refuse_if_closed(self) -> None:
        if self._closed.is_set():
            raise closed()

    def _tries(self, operation: Operation[Any]) -> Tries:
        return Tries(operation.method, self._repeats)

    def _pause_after(self, tries: Tries, failure: Failure, at: Target) -> float:
        """Seconds until the next try; none where there is another server to ask. Raises the error when all are used up."""
        left = self.located.after(failure, at)
        return 0.0 if left is None else tries.pause_after(left)

    def _request(
        self, operation: Operation[Any], at: Target, least: float = 0.0
    ) -> tuple[str, RequestArguments]:
        """How messages call it, and what is sent. `least`: seconds that the answer is given at any rate."""
        return self._sent(operation, at, max(least, operation.wait or self._timeouts.read), {})

    def _stream_request(self, asked: StreamRequest, at: Target) -> tuple[str, RequestArguments]:
        return self._sent(asked, at, self._timeouts.stream, asked.headers)

    def _sent(
        self, asked: Operation[Any] | StreamRequest, at: Target, read: float, headers: Mapping[str, str]
    ) -> tuple[str, RequestArguments]:
        sent = RequestArguments(
            method=asked.method,
            url=at.url(asked.path, asked.query),
            auth=at.sign,
            content=asked.body,
            headers={**headers, **content_headers(asked.body)},
            timeout=read_timeout(self._timeouts, read),
        )
        return name(at, asked.method, asked.path), sent

    def _opened(
        self, machine: Follow[Any], what: str, response: httpx2.Response, body: bytes
    ) -> Failure | None:
        """Tell the machine what answered; or give the refusal of a token, which the next server may know."""
        if response.status_code == 401:
            return refused(what, response.status_code, response.headers, body)
        machine.opened(what, response.status_code, response.headers, body)
        if machine.is_open and self._outages is not None and self._away:
            self._away = False
            self._outages(None)
        return None

    def _pause_of(self, machine: Follow[Any]) -> float:
        """Seconds until the next connection. An outage is told once, however many streams try and however often."""
        seconds = machine.pause()
        if (why := machine.unreached) is not None and self._outages is not None and not self._away:
            self._away = True
            self._outages(why)
        return seconds


class Caller(CallerCore[httpx2.Client]):
    """Sends operations, follows streams and downloads, and blocks meanwhile. Its twin is in async_http.py."""

    def __init__(
        self, target: Target, timeouts: Timeouts, repeats: int, outages: Outages | None = None
    ) -> None:
        super().__init__(httpx2.Client, target, timeouts, repeats, outages)
        self._closed: threading.Event = threading.Event()
        self._reading: set[socket.socket] = set()  # by followers, who block there

    def close(self) -> None:
        """Also ends what other threads are reading or waiting for."""
        self._closed.set()
        for sock in tuple(self._reading):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # closing alone would not wake its reader
        for client in tuple(self._http.values()):
            client.close()

    def pause(self, seconds: float) -> None:
        """Ends early, and with an error, when another thread closes the client."""
        if self._closed.wait(seconds):
            raise closed()

    def send(self, operation: Operation[T]) -> T:
        tries = self._tries(operation)
        while True:
            self._refuse_if_closed()
            at = self.located.now
            outcome = self._try(operation, at)
            if not isinstance(outcome, Failure):
                return outcome
            self.pause(self._pause_after(tries, outcome, at))

    def _try(self, operation: Operation[T], at: Target) -> T | Failure:
        what, sent = self._request(operation, at)
        try:
            response = self._client(at).request(**sent)
        except TRANSPORT_ERRORS as error:
            return failure(what, error)
        return received(operation, what, response.status_code, response.headers, response.content)

    def download(
        self, operation: Operation[None], to: Path, through: Callable[[], Filter] = Unchanged
    ) -> None:
        """The whole body as a file that is there completely or not at all."""
        tries = self._tries(operation)
        while True:
            self._refuse_if_closed()
            at = self.located.now
            with PartFile(to) as part:
                failed = self._try_download(operation, at, part, through())
                if failed is None:
                    return part.finish()
            self.pause(self._pause_after(tries, failed, at))

    def _try_download(
        self, operation: Operation[None], at: Target, part: PartFile, through: Filter
    ) -> Failure | None:
        what, sent = self._request(operation, at, BACKUP_READ)
        try:
            with self._client(at).stream(**sent) as response:
                if response.status_code != 200:
                    return refused(what, response.status_code, response.headers, response.read())
                for chunk in response.iter_bytes(CHUNK):
                    part.write(through.update(chunk))
                part.write(through.finish())
        except TRANSPORT_ERRORS as error:
            return failure(what, error)
        return None

    def send_for(self, operation: Operation[T], make: Callable[[T], R]) -> R:
        """What is made of the answer."""
        return make(self.send(operation))

    def pages(self, first: Operation[Page[T]]) -> Pages[T]:
        return Pages(first, self.send)

    def lines(self, operation: Operation[None]) -> ItemStream[bytes]:
        """The lines of an answer, each with its newline."""
        return ItemStream(self._lines(operation))

    def _lines(self, operation: Operation[None]) -> Generator[bytes, None, None]:
        """Repeated until the first chunk has come; what breaks off after that is an error."""
        tries = self._tries(operation)
        while True:
            self._refuse_if_closed()
            at = self.located.now
            outcome = yield from self._try_lines(operation, at)
            self._refuse_if_closed()  # what another thread closed looks like an end
            if outcome is None:
                return
            self.pause(self._pause_after(tries, outcome, at))

    def _try_lines(self, operation: Operation[None], at: Target) -> Generator[bytes, None, Failure | None]:
        (what, sent), lines, began = self._request(operation, at), Lines(), False
        try:
            with self._client(at).stream(**sent) as response:
                body = b"" if response.status_code == 200 else response.read()
                if failed := no_lines(what, response.status_code, response.headers, body):
                    return failed
                with self._wakeable(response):
                    for chunk in response.iter_bytes():
                        began = True
                        yield from lines.feed(chunk)
        except TRANSPORT_ERRORS as error:
            lost = failure(what, error)
            return lost._replace(passing=lost.passing and not began)
        return broke_off(what) if lines.torn else None

    def follow(self, machine: Follow[T]) -> ItemStream[T]:
        return ItemStream(self._items(machine))

    def _items(self, machine: Follow[T]) -> Generator[T, None, None]:
        while not machine.ended:
            with closing(self._chunks(machine)) as chunks:
                for chunk in chunks:
                    yield from machine.take(chunk)
                    if machine.hung_up:
                        break
            if not machine.ended:
                self.pause(self._pause_of(machine))

    def _chunks(self, machine: Follow[T]) -> Generator[bytes, None, None]:
        """The body of one connection of a followed stream; the machine is told how it went."""
        asked = machine.request()
        while True:
            self._refuse_if_closed()
            at = self.located.now
            what, sent = self._stream_request(asked, at)
            try:
                with self._client(at).stream(**sent) as response:
                    body = b"" if response.status_code == 200 else response.read()
                    outcome = self._opened(machine, what, response, body)
                    if outcome is None:
                        if not machine.hung_up:
                            with self._wakeable(response):
                                yield from response.iter_bytes()
                        return
            except TRANSPORT_ERRORS as error:
                outcome = failure(what, error)
            if (failed := self.located.after(outcome, at)) is not None:
                return machine.failed(failed)

    @contextmanager
    def _wakeable(self, response: httpx2.Response) -> Iterator[None]:
        sock: socket.socket = response.extensions["network_stream"].get_extra_info("socket")
        self._reading.add(sock)
        try:
            self._refuse_if_closed()
            yield
        finally:
            self._reading.discard(sock)


class ItemStream(Generic[T]):
    """A long answer, or a followed stream: iterate it; `close` it, or leave its `with`, to stop before its end."""

    def __init__(self, items: Generator[T, None, None]) -> None:
        self._items = items

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        return next(self._items)

    def close(self) -> None:
        self._items.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
