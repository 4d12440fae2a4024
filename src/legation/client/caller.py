"""The sync side of the HTTP core: sends operations, follows streams, downloads. Its twin is async_caller.py."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

import httpx2

from legation.client.failure import Failure, received, refused
from legation.client.follow import Follow
from legation.client.lines import Lines
from legation.client.operation import Operation
from legation.client.pages import Pages
from legation.client.part_file import Filter, PartFile, Unchanged
from legation.client.repeat import Outages, Tries
from legation.client.target import Located, Target
from legation.client.timeouts import BACKUP_READ, Timeouts
from legation.client.transport import (
    CHUNK,
    TRANSPORT_ERRORS,
    broke_off,
    closed,
    content_headers,
    failure,
    name,
    no_lines,
    options,
    read_timeout,
)
from legation.errors import LegationError
from legation.wire.api.shape import Page

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
