"""The sync side of the HTTP core, and what it shares with async_http.py. Importing it is slow: it brings httpx2."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Generic, Self, TypedDict, TypeVar

import httpx2

from legation import __version__
from legation.client.decode import Lines
from legation.client.follow import Follow
from legation.client.group import Pages
from legation.client.part_file import Filter, PartFile, Unchanged
from legation.client.request import Failure, Operation, Outages, Tries, received, refused, unreachable
from legation.client.target import BACKUP_READ, Located, Target, Timeouts
from legation.errors import ConfigInvalid, Conflict, LegationError, Unavailable
from legation.wire.api.shape import Page

# What sync and async share of httpx2: the settings of a client, its errors as ours. Importing it is slow.

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


# The sync side of the HTTP core: sends operations, follows streams, downloads. Its twin is async_caller.py.

T = TypeVar("T")
R = TypeVar("R")


class Caller:
    def __init__(
        self, target: Target, timeouts: Timeouts, repeats: int, outages: Outages | None = None
    ) -> None:
        self.located = Located(target)
        self._timeouts = timeouts
        self._repeats = repeats
        self._http: dict[object, httpx2.Client] = {}  # by what is trusted
        self._outages = outages
        self._away = False
        self._client(target)
        self._closed = threading.Event()
        self._reading: set[socket.socket] = set()  # by followers, who block there

    def close(self) -> None:
        """Also ends what other threads are reading or waiting for."""
        self._closed.set()
        for sock in tuple(self._reading):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # closing alone would not wake its reader
        for client in tuple(self._http.values()):
            client.close()

    def _client(self, at: Target) -> httpx2.Client:
        """Made anew only where the server has another certificate: whoever reads from the former one goes on."""
        trust = at.is_plain, at.is_local, at.certificate
        found = self._http.get(trust)
        if found is None:
            found = self._http[trust] = httpx2.Client(**options(at, self._timeouts))
        return found

    def tell_away(self, error: LegationError) -> None:
        """Once, however many streams are followed and however often they try."""
        if self._outages is not None and not self._away:
            self._away = True
            self._outages(error)

    def tell_back(self) -> None:
        if self._outages is not None and self._away:
            self._away = False
            self._outages(None)

    def pause(self, seconds: float) -> None:
        """Ends early, and with an error, when another thread closes the client."""
        if self._closed.wait(seconds):
            raise closed()

    def _refuse_if_closed(self) -> None:
        if self._closed.is_set():
            raise closed()

    def send(self, operation: Operation[T]) -> T:
        tries = Tries(operation.method, self._repeats)
        while True:
            self._refuse_if_closed()
            at = self.located.now
            outcome = self._try(operation, at)
            if not isinstance(outcome, Failure):
                return outcome
            if (failed := self.located.after(outcome, at)) is not None:
                self.pause(tries.pause_after(failed))

    def _try(self, operation: Operation[T], at: Target) -> T | Failure:
        what = name(at, operation.method, operation.path)
        try:
            response = self._client(at).request(
                operation.method,
                at.url(operation.path, operation.query),
                auth=at.sign,
                content=operation.body,
                headers=content_headers(operation.body),
                timeout=read_timeout(self._timeouts, operation.wait or self._timeouts.read),
            )
        except TRANSPORT_ERRORS as error:
            return failure(what, error)
        return received(operation, what, response.status_code, response.headers, response.content)

    def download(
        self, operation: Operation[None], to: Path, through: Callable[[], Filter] = Unchanged
    ) -> None:
        """The whole body as a file that is there completely or not at all."""
        tries = Tries(operation.method, self._repeats)
        while True:
            self._refuse_if_closed()
            at = self.located.now
            with PartFile(to) as part:
                failed = self._try_download(operation, at, part, through())
                if failed is None:
                    return part.finish()
            if (failed := self.located.after(failed, at)) is not None:
                self.pause(tries.pause_after(failed))

    def _try_download(
        self, operation: Operation[None], at: Target, part: PartFile, through: Filter
    ) -> Failure | None:
        what = name(at, operation.method, operation.path)
        timeout = read_timeout(self._timeouts, max(BACKUP_READ, self._timeouts.read))
        url = at.url(operation.path, operation.query)
        try:
            with self._client(at).stream("GET", url, auth=at.sign, timeout=timeout) as response:
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

    def lines(self, operation: Operation[None]) -> LineByLine:
        return LineByLine(self._lines(operation))

    def _lines(self, operation: Operation[None]) -> Generator[bytes, None, None]:
        """Repeated until the first chunk has come; what breaks off after that is an error."""
        tries = Tries(operation.method, self._repeats)
        while True:
            self._refuse_if_closed()
            at = self.located.now
            outcome = yield from self._try_lines(operation, at)
            self._refuse_if_closed()  # what another thread closed looks like an end
            if outcome is None:
                return
            if (failed := self.located.after(outcome, at)) is not None:
                self.pause(tries.pause_after(failed))

    def _try_lines(self, operation: Operation[None], at: Target) -> Generator[bytes, None, Failure | None]:
        what, lines, began = name(at, operation.method, operation.path), Lines(), False
        timeout = read_timeout(self._timeouts, operation.wait or self._timeouts.read)
        url = at.url(operation.path, operation.query)
        try:
            with self._client(at).stream("GET", url, auth=at.sign, timeout=timeout) as response:
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

    def follow(self, machine: Follow[T]) -> Following[T]:
        return Following(self, machine)

    def chunks(self, machine: Follow[T]) -> Generator[bytes, None, None]:
        """The body of one connection of a followed stream; the machine is told how it went."""
        request = machine.request()
        timeout = read_timeout(self._timeouts, self._timeouts.stream)
        headers = {**request.headers, **content_headers(request.body)}
        while True:
            self._refuse_if_closed()
            at = self.located.now
            what, url = name(at, request.method, request.path), at.url(request.path, request.query)
            try:
                with self._client(at).stream(
                    request.method,
                    url,
                    auth=at.sign,
                    content=request.body,
                    headers=headers,
                    timeout=timeout,
                ) as response:
                    body = b"" if response.status_code == 200 else response.read()
                    if response.status_code != 401:
                        machine.opened(what, response.status_code, response.headers, body)
                        if machine.is_open:
                            self.tell_back()
                        if not machine.hung_up:
                            with self._wakeable(response):
                                yield from response.iter_bytes()
                        return
                    outcome = refused(what, response.status_code, response.headers, body)
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


class LineByLine:
    """The lines of an answer, each with its newline; `close` it, or leave its `with`, to stop before its end."""

    def __init__(self, lines: Generator[bytes, None, None]) -> None:
        self._lines = lines

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        return next(self._lines)

    def close(self) -> None:
        self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Following(Generic[T]):
    """A followed stream: iterate it; `close` it, or leave its `with`, to stop before its end."""

    def __init__(self, caller: Caller, machine: Follow[T]) -> None:
        self._items = _items(caller, machine)

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


def _items(caller: Caller, machine: Follow[T]) -> Generator[T, None, None]:
    while not machine.ended:
        with closing(caller.chunks(machine)) as chunks:
            for chunk in chunks:
                yield from machine.take(chunk)
                if machine.hung_up:
                    break
        if not machine.ended:
            seconds = machine.pause()
            if (why := machine.unreached) is not None:
                caller.tell_away(why)
            caller.pause(seconds)
