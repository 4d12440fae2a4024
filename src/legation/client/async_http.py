"""The caller that is awaited. It brings asyncio, which whoever calls without it need not load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Generic, ParamSpec, Self, TypeVar

import httpx2

from legation.client.follow import Follow
from legation.client.http import CallerCore, RequestArguments, closed
from legation.client.request import ApiRequest, Outages, ServerTarget, Timeouts, next_page
from legation.wire.api.shape import Page

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


class AsyncCaller(CallerCore[httpx2.AsyncClient]):
    """Sends operations, follows streams and downloads, awaited. Its twin is in http.py."""

    def __init__(
        self, target: ServerTarget, timeouts: Timeouts, repeats: int, outages: Outages | None = None
    ) -> None:
        super().__init__(httpx2.AsyncClient, target, timeouts, repeats, outages)
        self._closed: asyncio.Event = asyncio.Event()

    async def close(self) -> None:
        self._closed.set()
        for client in self._http.values():
            await client.aclose()

    async def send_for(self, operation: ApiRequest[T], make: Callable[[T], R]) -> R:
        """Make something of the answer."""
        return make(await self.send(operation))

    def pages(self, first: ApiRequest[Page[T]]) -> AsyncPages[T]:
        return AsyncPages(first, self.send)

    def lines(self, operation: ApiRequest[None]) -> AsyncItemStream[bytes]:
        return AsyncItemStream(self.read_lines(operation))

    def follow(self, machine: Follow[T]) -> AsyncItemStream[T]:
        return AsyncItemStream(self.read_stream(machine))

    async def _ask(self, at: ServerTarget, sent: RequestArguments) -> httpx2.Response:
        return await self._client(at).request(**sent)

    def _stream(
        self, at: ServerTarget, sent: RequestArguments
    ) -> AbstractAsyncContextManager[httpx2.Response]:
        return self._client(at).stream(**sent)

    async def _body(self, response: httpx2.Response) -> bytes:
        return await response.aread()

    async def _chunks(
        self, response: httpx2.Response, size: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        async for chunk in response.aiter_bytes(size):
            yield chunk

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            return
        raise closed()

    async def work(self, do: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        await asyncio.to_thread(do, *args, **kwargs)


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


class AsyncPages(Generic[T]):
    """A list that the server gives in pages, awaited."""

    def __init__(
        self, first: ApiRequest[Page[T]], send: Callable[[ApiRequest[Page[T]]], Awaitable[Page[T]]]
    ) -> None:
        self._first = first
        self._send = send

    async def page(self) -> Page[T]:
        return await self._send(self._first)

    async def all(self) -> list[T]:
        return [item async for item in self]

    async def __aiter__(self) -> AsyncIterator[T]:
        operation: ApiRequest[Page[T]] | None = self._first
        while operation is not None:
            page = await self._send(operation)
            for item in page.items:
                yield item
            operation = next_page(operation, page)
