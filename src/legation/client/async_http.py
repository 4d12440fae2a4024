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
    CallerCore,
    broke_off,
    closed,
    failure,
    no_lines,
)
from legation.client.part_file import Filter, PartFile, Unchanged
from legation.client.request import Failure, Operation, Outages, received, refused
from legation.client.target import BACKUP_READ, Target, Timeouts
from legation.wire.api.shape import Page

T = TypeVar("T")
R = TypeVar("R")


class AsyncCaller(CallerCore[httpx2.AsyncClient]):
    """Sends operations, follows streams and downloads, awaited. Its twin is in http.py."""

    def __init__(
        self, target: Target, timeouts: Timeouts, repeats: int, outages: Outages | None = None
    ) -> None:
        super().__init__(httpx2.AsyncClient, target, timeouts, repeats, outages)
        self._closed: asyncio.Event = asyncio.Event()

    async def close(self) -> None:
        self._closed.set()
        for client in self._http.values():
            await client.aclose()

    async def pause(self, seconds: float) -> None:
        """Ends early, and with an error, when another task closes the client."""
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            return
        raise closed()

    async def send(self, operation: Operation[T]) -> T:
        tries = self._tries(operation)
        while True:
            self._refuse_if_closed()
            at = self.located.now
            outcome = await self._try(operation, at)
            if not isinstance(outcome, Failure):
                return outcome
            await self.pause(self._pause_after(tries, outcome, at))

    async def _try(self, operation: Operation[T], at: Target) -> T | Failure:
        what, sent = self._request(operation, at)
        try:
            response = await self._client(at).request(**sent)
        except TRANSPORT_ERRORS as error:
            return failure(what, error)
        return received(operation, what, response.status_code, response.headers, response.content)

    async def download(
        self, operation: Operation[None], to: Path, through: Callable[[], Filter] = Unchanged
    ) -> None:
        """The whole body as a file that is there completely or not at all."""
        tries = self._tries(operation)
        while True:
            self._refuse_if_closed()
            at = self.located.now
            with PartFile(to) as part:
                failed = await self._try_download(operation, at, part, through())
                if failed is None:
                    return await asyncio.to_thread(part.finish)
            await self.pause(self._pause_after(tries, failed, at))

    async def _try_download(
        self, operation: Operation[None], at: Target, part: PartFile, through: Filter
    ) -> Failure | None:
        what, sent = self._request(operation, at, BACKUP_READ)
        try:
            async with self._client(at).stream(**sent) as response:
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

    def lines(self, operation: Operation[None]) -> AsyncItemStream[bytes]:
        """The lines of an answer, each with its newline."""
        return AsyncItemStream(self._lines(operation))

    async def _lines(self, operation: Operation[None]) -> AsyncGenerator[bytes, None]:
        """Repeated until the first chunk has come; what breaks off after that is an error."""
        tries = self._tries(operation)
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
            await self.pause(self._pause_after(tries, failed[0], at))

    async def _try_lines(
        self, operation: Operation[None], at: Target, failed: list[Failure]
    ) -> AsyncGenerator[bytes, None]:
        """An async generator returns nothing: how it failed is put into `failed`."""
        (what, sent), lines, began = self._request(operation, at), Lines(), False
        try:
            async with self._client(at).stream(**sent) as response:
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

    def follow(self, machine: Follow[T]) -> AsyncItemStream[T]:
        return AsyncItemStream(self._items(machine))

    async def _items(self, machine: Follow[T]) -> AsyncGenerator[T, None]:
        while not machine.ended:
            async with aclosing(self._chunks(machine)) as chunks:
                async for chunk in chunks:
                    for item in machine.take(chunk):
                        yield item
                    if machine.hung_up:
                        break
            if not machine.ended:
                await self.pause(self._pause_of(machine))

    async def _chunks(self, machine: Follow[T]) -> AsyncGenerator[bytes, None]:
        """The body of one connection of a followed stream; the machine is told how it went."""
        asked = machine.request()
        while True:
            self._refuse_if_closed()
            at = self.located.now
            what, sent = self._stream_request(asked, at)
            try:
                async with self._client(at).stream(**sent) as response:
                    body = b"" if response.status_code == 200 else await response.aread()
                    outcome = self._opened(machine, what, response, body)
                    if outcome is None:
                        if not machine.hung_up:
                            async for chunk in response.aiter_bytes():
                                yield chunk
                        return
            except TRANSPORT_ERRORS as error:
                outcome = failure(what, error)
            if (failed := self.located.after(outcome, at)) is not None:
                machine.failed(failed)
                return


class AsyncItemStream(Generic[T]):
    """A long answer, or a followed stream: iterate it; `close` it, or leave its `async with`, to stop before its end."""

    def __init__(self, items: AsyncGenerator[T, None]) -> None:
        self._items = items

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
