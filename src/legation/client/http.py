"""The HTTP core, written once for both clients, and the caller that blocks. Importing it is slow: it brings httpx2."""

from __future__ import annotations

import socket
import ssl
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from time import monotonic
from types import TracebackType
from typing import Any, Final, Generic, ParamSpec, Protocol, Self, TypedDict, TypeVar

import httpx2

from legation import __version__
from legation.client.decode import LineBuffer
from legation.client.follow import Follow, StreamRequest
from legation.client.part_file import PartFile
from legation.client.request import (
    BACKUP_READ,
    ApiRequest,
    BodyFilter,
    FileDownload,
    Located,
    Outages,
    PollRequest,
    RequestFailure,
    ServerTarget,
    Timeouts,
    Tries,
    next_page,
    received,
    refused,
    unreachable,
)
from legation.errors import ConfigInvalid, Conflict, TimedOut, Unavailable
from legation.wire.api.shape import Page

# Below what servers and proxies give an idle connection (5 to 75): a POST must not meet the moment they close it.
KEEP_ALIVE: Final = 3.0
CHUNK: Final = 64 * 1024
POLL_PAUSE: Final = 0.5  # seconds between two questions of a poll, at least: the server's time

# What httpx2 raises for the network, the peer and a body that cannot be decompressed.
TRANSPORT_ERRORS: Final = (httpx2.RequestError,)


class HttpOptions(TypedDict):
    auth: Callable[[httpx2.Request], httpx2.Request]
    headers: dict[str, str]
    timeout: httpx2.Timeout
    limits: httpx2.Limits
    follow_redirects: bool
    trust_env: bool
    verify: ssl.SSLContext | bool


def options(target: ServerTarget, timeouts: Timeouts) -> HttpOptions:
    headers = {"User-Agent": f"legation/{__version__}", "Accept-Encoding": "identity"}
    if target.workspace is not None:
        headers["Legation-Workspace"] = target.workspace
    return HttpOptions(
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


def failure(what: str, error: httpx2.RequestError) -> RequestFailure:
    timed_out = isinstance(error, httpx2.TimeoutException)
    # A request that was sent and not answered in time may still be at work: that is the caller's to repeat.
    passing = (
        isinstance(error, httpx2.ConnectTimeout) if timed_out else isinstance(error, httpx2.TransportError)
    )
    unsent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
    return unreachable(what, error, timed_out=timed_out, passing=passing)._replace(unsent=unsent)


def broke_off(what: str) -> RequestFailure:
    return RequestFailure(
        Unavailable(f"cannot {what}: the answer broke off in a line; ask for it again"), False
    )


def no_lines(what: str, status: int, headers: Mapping[str, str], body: bytes) -> RequestFailure | None:
    """A refusal, or a page of somebody else's, say, where lines of JSON should come."""
    if status != 200:
        return refused(what, status, headers, body)
    if headers.get("content-type", "").lower().startswith("application/x-ndjson"):
        return None
    message = f"cannot {what}: what answered is not Legation; see what stands at that address"
    return RequestFailure(Unavailable(message), passing=False)


def closed() -> Conflict:
    return Conflict("cannot use a client after it was closed: connect again")


def _trust(target: ServerTarget) -> ssl.SSLContext | bool:
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


P = ParamSpec("P")
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
    """All that a caller does, written once, as coroutines that wait by the six methods at its end and by nothing else.

    `AsyncCaller` brings those of a loop. `BlockingCore` brings such as never suspend: `Caller` runs it without a loop."""

    _closed: Flag

    def __init__(
        self, http: type[H], target: ServerTarget, timeouts: Timeouts, repeats: int, outages: Outages | None
    ) -> None:
        self.located = Located(target)
        self._timeouts = timeouts
        self._repeats = repeats
        self._make_http: type[H] = http
        self._http: dict[object, H] = {}  # by what is trusted
        self._outages = outages
        self._away = False
        self._client(target)

    async def send(self, operation: ApiRequest[T]) -> T:
        async def attempt(at: ServerTarget) -> T | RequestFailure:
            what, sent = self._request(operation, at)
            try:
                response = await self._ask(at, sent)
            except TRANSPORT_ERRORS as error:
                return failure(what, error)
            return received(operation, what, response.status_code, response.headers, response.content)

        return await self._repeated(operation, attempt)

    async def poll(self, wanted: PollRequest[T]) -> T:
        """Ask until it is so. The server keeps each question for a while; one that it answers at once is not asked again at once."""
        begun = asked = monotonic()
        while not wanted.is_over(answer := await self.send(wanted.operation)):
            now_ = monotonic()
            if wanted.limit is not None and now_ - begun >= wanted.limit:
                raise TimedOut(wanted.late)
            await self._pause(max(0.0, POLL_PAUSE - (now_ - asked)))
            asked = monotonic()
        return answer

    async def download(self, wanted: FileDownload) -> None:
        async def attempt(at: ServerTarget) -> RequestFailure | None:
            with PartFile(wanted.to) as part:
                failed = await self._try_download(wanted.operation, at, part, wanted.through())
                if failed is None:
                    await self.work(part.finish)
            return failed

        await self._repeated(wanted.operation, attempt)

    async def _try_download(
        self, operation: ApiRequest[None], at: ServerTarget, part: PartFile, through: BodyFilter
    ) -> RequestFailure | None:
        def write(chunk: bytes) -> None:
            part.write(through.update(chunk))

        what, sent = self._request(operation, at, BACKUP_READ)
        try:
            async with self._stream(at, sent) as response:
                if response.status_code != 200:
                    return refused(what, response.status_code, response.headers, await self._body(response))
                async with aclosing(self._chunks(response, CHUNK)) as chunks:
                    async for chunk in chunks:
                        await self.work(write, chunk)
                await self.work(lambda: part.write(through.finish()))
        except TRANSPORT_ERRORS as error:
            return failure(what, error)
        return None

    async def _repeated(
        self, operation: ApiRequest[Any], attempt: Callable[[ServerTarget], Awaitable[T | RequestFailure]]
    ) -> T:
        tries = Tries(operation.repeatable, self._repeats)
        while True:
            self._refuse_if_closed()
            at = self.located.now
            outcome = await attempt(at)
            if not isinstance(outcome, RequestFailure):
                return outcome
            await self._pause(self._pause_after(tries, outcome, at))

    async def read_lines(self, operation: ApiRequest[None]) -> AsyncGenerator[bytes, None]:
        """Give the lines of an answer, each with its newline. Repeated until the first chunk has come; what breaks off
        after that is an error."""
        tries = Tries(operation.repeatable, self._repeats)
        while True:
            self._refuse_if_closed()
            failed: list[RequestFailure] = []
            at = self.located.now
            async with aclosing(self._try_lines(operation, at, failed)) as lines:
                async for line in lines:
                    yield line
            self._refuse_if_closed()  # what was closed meanwhile looks like an end
            if not failed:
                return
            await self._pause(self._pause_after(tries, failed[0], at))

    async def _try_lines(
        self, operation: ApiRequest[None], at: ServerTarget, failed: list[RequestFailure]
    ) -> AsyncGenerator[bytes, None]:
        """Give the lines of one answer. An async generator returns nothing: how it failed is put into `failed`."""
        (what, sent), lines, began = self._request(operation, at), LineBuffer(), False
        try:
            async with self._stream(at, sent) as response:
                body = b"" if response.status_code == 200 else await self._body(response)
                if refusal := no_lines(what, response.status_code, response.headers, body):
                    failed.append(refusal)
                    return
                async with aclosing(self._chunks(response)) as chunks:
                    async for chunk in chunks:
                        began = True
                        for line in lines.feed(chunk):
                            yield line
        except TRANSPORT_ERRORS as error:
            lost = failure(what, error)
            failed.append(lost._replace(passing=lost.passing and not began))
            return
        if lines.torn:
            failed.append(broke_off(what))

    async def read_stream(self, machine: Follow[T]) -> AsyncGenerator[T, None]:
        """Give the items of a followed stream, over as many connections as it takes."""
        while not machine.ended:
            async with aclosing(self._connection(machine)) as chunks:
                async for chunk in chunks:
                    for item in machine.take(chunk):
                        yield item
                    if machine.hung_up:
                        break
            if not machine.ended:
                await self._pause(self._pause_of(machine))

    async def _connection(self, machine: Follow[Any]) -> AsyncGenerator[bytes, None]:
        """Give the body of one connection of a followed stream; the machine is told how it went."""
        asked = machine.request()
        while True:
            self._refuse_if_closed()
            at = self.located.now
            what, sent = self._stream_request(asked, at)
            try:
                async with self._stream(at, sent) as response:
                    body = b"" if response.status_code == 200 else await self._body(response)
                    outcome = self._opened(machine, what, response, body)
                    if outcome is None:
                        if not machine.hung_up:
                            async with aclosing(self._chunks(response)) as chunks:
                                async for chunk in chunks:
                                    yield chunk
                        return
            except TRANSPORT_ERRORS as error:
                outcome = failure(what, error)
            if (failed := self.located.after(outcome, at)) is not None:
                machine.failed(failed)
                return

    def _client(self, at: ServerTarget) -> H:
        """Make a client only where the server has another certificate: whoever reads from the former one goes on."""
        trust = at.is_plain, at.is_local, at.certificate
        found = self._http.get(trust)
        if found is None:
            found = self._http[trust] = self._make_http(**options(at, self._timeouts))
        return found

    def _refuse_if_closed(self) -> None:
        if self._closed.is_set():
            raise closed()

    def _pause_after(self, tries: Tries, failure: RequestFailure, at: ServerTarget) -> float:
        """Seconds until the next try; none where there is another server to ask. Raises the error when all are used up."""
        left = self.located.after(failure, at)
        return 0.0 if left is None else tries.pause_after(left)

    def _request(
        self, operation: ApiRequest[Any], at: ServerTarget, least: float = 0.0
    ) -> tuple[str, RequestArguments]:
        """Make what is sent, and the name that messages call it by. `least`: seconds that the answer is given at any rate."""
        headers = {} if operation.key is None else {"Idempotency-Key": operation.key}
        return self._sent(operation, at, max(least, operation.wait or self._timeouts.read), headers)

    def _stream_request(self, asked: StreamRequest, at: ServerTarget) -> tuple[str, RequestArguments]:
        return self._sent(asked, at, self._timeouts.stream, asked.headers)

    def _sent(
        self,
        asked: ApiRequest[Any] | StreamRequest,
        at: ServerTarget,
        read: float,
        headers: Mapping[str, str],
    ) -> tuple[str, RequestArguments]:
        if asked.body is not None:
            headers = {**headers, "Content-Type": "application/json"}
        sent = RequestArguments(
            method=asked.method,
            url=at.url(asked.path, asked.query),
            auth=at.sign,
            content=asked.body,
            headers={**headers},
            timeout=read_timeout(self._timeouts, read),
        )
        return f"{asked.method} {at.url(asked.path)}", sent  # in messages its query stays out

    def _opened(
        self, machine: Follow[Any], what: str, response: httpx2.Response, body: bytes
    ) -> RequestFailure | None:
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

    # The ways to wait.

    async def _ask(self, at: ServerTarget, sent: RequestArguments) -> httpx2.Response:
        raise NotImplementedError

    def _stream(
        self, at: ServerTarget, sent: RequestArguments
    ) -> AbstractAsyncContextManager[httpx2.Response]:
        raise NotImplementedError

    async def _body(self, response: httpx2.Response) -> bytes:
        raise NotImplementedError

    def _chunks(self, response: httpx2.Response, size: int | None = None) -> AsyncGenerator[bytes, None]:
        raise NotImplementedError

    async def _pause(self, seconds: float) -> None:
        """Ends early, and with an error, when the client is closed meanwhile."""
        raise NotImplementedError

    async def work(self, do: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Do what blocks, on the disk or with a process."""
        raise NotImplementedError


class BlockingCore(CallerCore[httpx2.Client]):
    """The core whose coroutines never suspend: what they wait for is done in place."""

    def __init__(
        self, target: ServerTarget, timeouts: Timeouts, repeats: int, outages: Outages | None = None
    ) -> None:
        super().__init__(httpx2.Client, target, timeouts, repeats, outages)
        self._closed: threading.Event = threading.Event()
        self._reading: set[socket.socket] = set()  # by followers, who block there

    def close(self) -> None:
        self._closed.set()
        for sock in tuple(self._reading):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # closing alone would not wake its reader
        for client in tuple(self._http.values()):
            client.close()

    async def _ask(self, at: ServerTarget, sent: RequestArguments) -> httpx2.Response:
        return self._client(at).request(**sent)

    @asynccontextmanager
    async def _stream(self, at: ServerTarget, sent: RequestArguments) -> AsyncIterator[httpx2.Response]:
        with self._client(at).stream(**sent) as response:
            yield response

    async def _body(self, response: httpx2.Response) -> bytes:
        return response.read()

    async def _chunks(
        self, response: httpx2.Response, size: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        sock: socket.socket = response.extensions["network_stream"].get_extra_info("socket")
        self._reading.add(sock)
        try:
            self._refuse_if_closed()
            for chunk in response.iter_bytes(size):
                yield chunk
        finally:
            self._reading.discard(sock)

    async def _pause(self, seconds: float) -> None:
        if self._closed.wait(seconds):
            raise closed()

    async def work(self, do: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        do(*args, **kwargs)


def now(begin: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a coroutine that never suspends. A loop that runs in this thread does not learn of its generators, or it would
    end a stream with itself."""
    hooks = sys.get_asyncgen_hooks()
    try:
        sys.set_asyncgen_hooks(None, None)
        begin(*args, **kwargs).send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        sys.set_asyncgen_hooks(*hooks)
    raise AssertionError("it waits for something, and there is no loop")


class Caller:
    """Sends operations, follows streams and downloads, and blocks meanwhile. Its twin is in async_http.py."""

    def __init__(
        self, target: ServerTarget, timeouts: Timeouts, repeats: int, outages: Outages | None = None
    ) -> None:
        self._core = BlockingCore(target, timeouts, repeats, outages)
        self.located = self._core.located
        self.close = self._core.close  # also ends what other threads are reading or waiting for

    def send(self, operation: ApiRequest[T]) -> T:
        return now(self._core.send, operation)

    def send_for(self, operation: ApiRequest[T], make: Callable[[T], R]) -> R:
        """Make something of the answer."""
        return make(self.send(operation))

    def poll(self, wanted: PollRequest[T]) -> T:
        return now(self._core.poll, wanted)

    def download(self, wanted: FileDownload) -> None:
        now(self._core.download, wanted)

    def pages(self, first: ApiRequest[Page[T]]) -> Pages[T]:
        return Pages(first, self.send)

    def lines(self, operation: ApiRequest[None]) -> ItemStream[bytes]:
        return ItemStream(self._core.read_lines(operation))

    def follow(self, machine: Follow[T]) -> ItemStream[T]:
        return ItemStream(self._core.read_stream(machine))


class ItemStream(Generic[T]):
    """A long answer, or a followed stream: iterate it; `close` it, or leave its `with`, to stop before its end."""

    def __init__(self, items: AsyncGenerator[T, None]) -> None:
        self._items = items

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        try:
            return now(self._items.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def close(self) -> None:
        now(self._items.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Pages(Generic[T]):
    """A list that the server gives in pages. Iterate it for every item, fetched as they are needed; each iteration starts
    anew."""

    def __init__(self, first: ApiRequest[Page[T]], send: Callable[[ApiRequest[Page[T]]], Page[T]]) -> None:
        self._first = first
        self._send = send

    def page(self) -> Page[T]:
        """The first page alone; its `next` is the `after` of the one behind it."""
        return self._send(self._first)

    def all(self) -> list[T]:
        return list(self)

    def __iter__(self) -> Iterator[T]:
        operation: ApiRequest[Page[T]] | None = self._first
        while operation is not None:
            page = self._send(operation)
            yield from page.items
            operation = next_page(operation, page)
