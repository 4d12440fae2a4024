"""A reader of one stream: a cursor, and nothing else. A slow one costs no memory; it reads from the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from legation.store.stream import Span, Stream
    from legation.wire.events import Event


class Subscription:
    """Iterate it for events, or `batches()` for all that is there at once. `seq` is the last number taken."""

    def __init__(
        self, stream: Stream | Span, after: int, until: int | None, ahead: Stream | None = None
    ) -> None:
        self._stream = stream
        self._ahead = ahead  # the stream itself, where what is on the way to the disk is wanted too
        self._until = until  # None: follow
        self.until_closed = False  # that the stream is closed ends it; else it may be opened again
        self.seq = after

    async def __aiter__(self) -> AsyncIterator[Event]:
        async for batch in self.batches():
            for event in batch:
                yield event

    async def batches(self) -> AsyncIterator[list[Event]]:
        stream = self._stream
        while self._until is None or self.seq < self._until:
            batch = self._ahead.since_ahead(self.seq) if self._ahead else stream.since(self.seq)
            if batch is None:
                batch = await stream.read_older(self.seq)
            if batch:
                self.seq = batch[-1].seq
                yield batch
            elif stream.ended or self._until is not None or (self.until_closed and stream.closed):
                return
            else:
                news = stream.news
                if self._ahead:
                    news = self._ahead.news_ahead = self._ahead.news_ahead or asyncio.Event()
                await news.wait()
