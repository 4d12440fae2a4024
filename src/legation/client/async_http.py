"""The async side of the HTTP core. It brings asyncio, which whoever calls without it need not load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

import httpx2

from legation.client.decode import Lines
from legation.client.follow import Follow
from legation.client.group import AsyncPages
from legation.client.http import (
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
from legation.client.part_file import Filter, PartFile, Unchanged
from legation.client.request import Failure, Operation, Outages, Tries, received, refused
from legation.client.target import BACKUP_READ, Located, Target, Timeouts
from legation.errors import LegationError
from legation.wire.api.shape import Page

# The async side of the HTTP core, line for line as caller.py has it.

T = TypeVar("T")
R = TypeVar("R")


class AsyncCaller:
    def __init__(
        self, target: Target, timeouts: Timeouts, repeats: int, outages: Outages | None = None
    ) -> None:
        self.located = Located(target)
        self._timeouts = timeouts
        self._repeats = repeats
        self._http: dict[object, httpx2.AsyncClient] = {}  # by what is trusted
        self._outages = outages
        self._away = False
        self._client(target)
        self._closed = asyncio.Event()

    async def close(self) -> None:
        self._closed.set()
        for client in self._http.values():
            await client.aclose()

    def _client(self, at: Target) -> httpx2.AsyncClient:
        """Made anew only where the server has another certificate: whoever reads from the former one goes on."""
        trust = at.is_plain, at.is_local, at.certificate
        found = self._http.get(trust)
        if found is None:
            found = self._http[trust] = httpx2.AsyncClient(**options(at, self._timeouts))
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

    async def pause(self, seconds: float) -> None:
        """Ends early, and with an error, when another task closes the client."""
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            return
        raise closed()

    def _refuse_if_closed(self) -> None:
        if self._closed.is_set():
            raise closed()

    async def send(self, operation: Operation[T]) -> T:
        tries = Tries(operation.method, self._repeats)
        while True:
            self._refuse_if_closed()
            at = self.located.now
            outcome = await self._try(operation, at)
            if not isinstance(outcome, Failure):
                return outcome
            if (failed := self.located.after(outcome, at)) is not None:
                await self.pause(tries.pause_after(failed))

    async def _try(self, operation: Operation[T], at: Target) -> T | Failure:
        what = name(at, operation.method, operation.path)
        try:
            response = await self._client(at).request(
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

    async def download(
        self, operation: Operation[None], to: Path, through: Callable[[], Filter] = Unchanged
    ) -> None:
        """The whole body as a file that is there completely or not at all."""
        tries = Tries(operation.method, self._repeats)
        while True:
            self._refuse_if_closed()
            at = self.located.now
            with PartFile(to) as part:
                failed = await self._try_download(operation, at, part, through())
                if failed is None:
                    return await asyncio.to_thread(part.finish)
            if (failed := self.located.after(failed, at)) is not None:
                await self.pause(tries.pause_after(failed))

    async def _try_download(
        self, operation: Operation[None], at: Target, part: PartFile, through: Filter
    ) -> Failure | None:
        what = name(at, operation.method, operation.path)
        timeout = read_timeout(self._timeouts, max(BACKUP_READ, self._timeouts.read))
        url = at.url(operation.path, operation.query)
        try:
            async with self._client(at).stream("GET", url, auth=at.sign, timeout=timeout) as response:
                if response.status_code != 200:
                    return refused(what, response.status_code, response.headers, await response.aread())
                async for chunk in response.aiter_bytes(CHUNK):
                    await asyncio.to_thread(lambda chunk: part.write(through.update(chunk)), chunk)
                await asyncio.to_thread(lambda: part.write(through.finish()))
        except TRANSPORT_ERRORS as error:
            return failure(what, error)
        return None

    async def send_for(self, operation: Operation[T], make: Callable[[T], R]) -> R:
        """What is made of the answer."""
        return make(await self.send(operation))

    def pages(self, first: Operation[Page[T]]) -> AsyncPages[T]:
        return AsyncPages(first, self.send)

    def lines(self, operation: Operation[None]) -> AsyncLineByLine:
        return AsyncLineByLine(self._lines(operation))

    async def _lines(self, operation: Operation[None]) -> AsyncGenerator[bytes, None]:
        """Repeated until the first chunk has come; what breaks off after that is an error."""
        tries = Tries(operation.method, self._repeats)
        while True:
            self._refuse_if_closed()
            failed: list[Failure] = []
            at = self.located.now
            async with aclosing(self._try_lines(operation, at, failed)) as lines:
                async for line in lines:
                    yield line
            self._refuse_if_closed()  # what another task closed looks like an end
            if not failed:
                return
            if (left := self.located.after(failed[0], at)) is not None:
                await self.pause(tries.pause_after(left))

    async def _try_lines(
        self, operation: Operation[None], at: Target, failed: list[Failure]
    ) -> AsyncGenerator[bytes, None]:
        """An async generator returns nothing: how it failed is put into `failed`."""
        what, lines, began = name(at, operation.method, operation.path), Lines(), False
        timeout = read_timeout(self._timeouts, operation.wait or self._timeouts.read)
        url = at.url(operation.path, operation.query)
        try:
            async with self._client(at).stream("GET", url, auth=at.sign, timeout=timeout) as response:
                body = b"" if response.status_code == 200 else await response.aread()
                if refusal := no_lines(what, response.status_code, response.headers, body):
                    failed.append(refusal)
                    return
                async for chunk in response.aiter_bytes():
                    began = True
                    for line in lines.feed(chunk):
                        yield line
        except TRANSPORT_ERRORS as error:
            lost = failure(what, error)
            failed.append(lost._replace(passing=lost.passing and not began))
            return
        if lines.torn:
            failed.append(broke_off(what))

    def follow(self, machine: Follow[T]) -> AsyncFollowing[T]:
        return AsyncFollowing(self, machine)

    async def chunks(self, machine: Follow[T]) -> AsyncGenerator[bytes, None]:
        """The body of one connection of a followed stream; the machine is told how it went."""
        request = machine.request()
        timeout = read_timeout(self._timeouts, self._timeouts.stream)
        headers = {**request.headers, **content_headers(request.body)}
        while True:
            self._refuse_if_closed()
            at = self.located.now
            what, url = name(at, request.method, request.path), at.url(request.path, request.query)
            try:
                async with self._client(at).stream(
                    request.method,
                    url,
                    auth=at.sign,
                    content=request.body,
                    headers=headers,
                    timeout=timeout,
                ) as response:
                    body = b"" if response.status_code == 200 else await response.aread()
                    if response.status_code != 401:
                        machine.opened(what, response.status_code, response.headers, body)
                        if machine.is_open:
                            self.tell_back()
                        if not machine.hung_up:
                            async for chunk in response.aiter_bytes():
                                yield chunk
                        return
                    outcome = refused(what, response.status_code, response.headers, body)
            except TRANSPORT_ERRORS as error:
                outcome = failure(what, error)
            if (failed := self.located.after(outcome, at)) is not None:
                machine.failed(failed)
                return


class AsyncLineByLine:
    """The lines of an answer; `close` it, or leave its `async with`, to stop before its end."""

    def __init__(self, lines: AsyncGenerator[bytes, None]) -> None:
        self._lines = lines

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._lines)

    async def close(self) -> None:
        await self._lines.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncFollowing(Generic[T]):
    """A followed stream: iterate it; `close` it, or leave its `async with`, to stop before its end."""

    def __init__(self, caller: AsyncCaller, machine: Follow[T]) -> None:
        self._items = _items(caller, machine)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        return await anext(self._items)

    async def close(self) -> None:
        await self._items.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def _items(caller: AsyncCaller, machine: Follow[T]) -> AsyncGenerator[T, None]:
    while not machine.ended:
        async with aclosing(caller.chunks(machine)) as chunks:
            async for chunk in chunks:
                for item in machine.take(chunk):
                    yield item
                if machine.hung_up:
                    break
        if not machine.ended:
            seconds = machine.pause()
            if (why := machine.unreached) is not None:
                caller.tell_away(why)
            await caller.pause(seconds)
