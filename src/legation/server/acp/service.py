"""Legation as an ACP agent, for a server: made by whoever first needs it, so that others do not pay for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from legation.errors import Unavailable

if TYPE_CHECKING:
    from legation.server.acp.connections import Connections

Open = Callable[[], Awaitable["Connections"]]


class AcpService:
    """`async with AcpService(open)`: at its end every connection is closed, and no agent of one is left."""

    def __init__(self, open_: Open) -> None:
        self._open = open_
        self._opening = asyncio.Lock()
        self._connections: Connections | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._closed = True
        async with self._opening:
            if self._connections is not None:
                await self._connections.__aexit__(None, None, None)

    async def connections(self) -> Connections:
        async with self._opening:
            if self._closed:
                raise Unavailable("cannot connect: the server stops; try again when it is back")
            if self._connections is None:
                self._connections = await (await self._open()).__aenter__()
            return self._connections

    def shut(self) -> None:
        """Whoever waits for an answer hears that the server stops."""
        if self._connections is not None:
            self._connections.shut()
