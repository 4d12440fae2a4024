"""A stream that is being read: its frames, made once for all readers, and the task that rings them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol

from legation.server.streaming import sse
from legation.server.streaming.sse import CHUNK_BYTES, NOTHING, Frames
from legation.wire.events import Event

WRITE_TIME: Final = 20e-6  # seconds of the loop that waking one reader and writing to it takes
LEAST_REST: Final = 1e-3  # seconds: below that a timer costs more than it saves
MOST_REST: Final = 10e-3  # seconds: what an event may wait because there was another just before it

logger = logging.getLogger("legation.streams")

Farewell = Literal["shutdown", "credential", "unavailable"]
Framing = Callable[[Sequence[Event]], Frames]  # how the events of a source look


class Source(Protocol):
    """A stream to read: `store.stream.Stream` is one."""

    @property
    def key(self) -> str:
        """The one that no other has, in whatever workspace."""

    @property
    def name(self) -> str: ...
    @property
    def head(self) -> int: ...
    @property
    def visible(self) -> int: ...
    @property
    def floor(self) -> int:
        """It rises when the history is replaced: what was read before must not be shown again."""

    @property
    def ended(self) -> bool: ...
    @property
    def deleted(self) -> bool: ...
    @property
    def finished(self) -> bool:
        """It is there, but no more will come of it: an earlier generation."""

    def since(self, seq: int) -> list[Event] | None:
        """The visible events above `seq`, or None where they must be read with `read_older`."""

    async def read_older(self, after: int) -> list[Event]: ...
    @property
    def news(self) -> asyncio.Event:
        """Set when there may be something new; then another takes its place."""


class Listener(Protocol):
    """A reader, as its channel sees it."""

    bell: asyncio.Event

    def dismiss(self, reason: Farewell) -> None: ...


class Channel:
    """A stream that is being read: its frames, made once, and one task that rings its readers."""

    def __init__(self, source: Source, cache: Cache, framing: Framing = sse.frames) -> None:
        self.source = source
        self._framing = framing
        self.readers: set[Listener] = set()
        self._cache = cache
        self._floor = source.floor
        self._reads: dict[int, asyncio.Task[Frames]] = {}
        self._watcher = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        try:
            while True:
                news = self.source.news
                for reader in self.readers:  # first of all: somebody may have missed what came before this
                    reader.bell.set()
                # In a flood, many readers get more at a time and less often: they leave half the loop to others.
                rest = min(len(self.readers) * WRITE_TIME, MOST_REST)
                if rest >= LEAST_REST:
                    await asyncio.sleep(rest)
                await news.wait()
        except Exception:
            logger.exception("cannot watch a stream any longer; its readers are asked to come again")
            for reader in self.readers:
                reader.dismiss("unavailable")

    def close(self) -> None:
        self._watcher.cancel()
        for read in self._reads.values():
            read.cancel()
        self._cache.drop(self)

    def frames(self, after: int) -> Frames | None:
        """The next chunk above that number, empty at the end; None: it must be read from the store."""
        source = self.source
        if source.floor != self._floor:
            self._floor = source.floor
            self._cache.drop(self)
        found = self._cache.get(self, after)
        if found is None:
            events = source.since(after)
            if not events:
                return None if events is None else NOTHING
            return self._cache.put(self, after, self._framing(sse.first_chunk(events)))
        if found.upto < source.visible and len(found.data) < CHUNK_BYTES // 2:
            longer = self._lengthened(found)
            return found if longer is found else self._cache.put(self, after, longer)
        return found

    def _lengthened(self, first: Frames) -> Frames:
        """With those behind it, which are mostly made already: who is behind catches up in long strides."""
        parts, room, upto = [first], CHUNK_BYTES - len(first.data), first.upto
        while room > 0:
            more = self._cache.get(self, upto)
            if more is None:
                events = self.source.since(upto)
                if not events:
                    break
                more = self._framing(sse.first_chunk(events, room))
            room -= len(more.data)
            if room < 0:
                break
            parts.append(more)
            upto = more.upto
        if len(parts) == 1:
            return first
        return Frames(b"".join([part.data for part in parts]), upto, sum([part.events for part in parts]))

    async def older(self, after: int) -> Frames:
        """From the store; readers who want the same wait for one read."""
        read = self._reads.get(after)
        if read is None:
            read = self._reads[after] = asyncio.create_task(self._read(after))
            read.add_done_callback(lambda done: self._has_read(after, done))
        return await asyncio.shield(read)

    async def _read(self, after: int) -> Frames:
        first = NOTHING
        events = await self.source.read_older(after)
        floor = self.source.floor
        if events and len(events[-1].raw) > sse.LONG_CHUNK:
            await asyncio.sleep(0)
        for chunk in sse.chunks(events, self._framing):
            if self.source.floor == floor:
                self._cache.put(self, after, chunk)
            first, after = first if first.events else chunk, chunk.upto
            if len(chunk.data) > sse.LONG_CHUNK:
                await asyncio.sleep(0)  # every copy of a long one takes a while
        return first

    def _has_read(self, after: int, done: asyncio.Task[Frames]) -> None:
        self._reads.pop(after, None)
        if not done.cancelled():
            done.exception()  # those who waited have it; if all of them have left, nobody wants it


class Cache:
    """Frames of all channels by the number before them; the oldest give way."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._frames: dict[tuple[Channel, int], Frames] = {}
        self.size = 0

    def get(self, channel: Channel, after: int) -> Frames | None:
        return self._frames.get((channel, after))

    def put(self, channel: Channel, after: int, frames: Frames) -> Frames:
        if (channel, after) in self._frames:
            self._pop((channel, after))
        self._frames[channel, after] = frames
        self.size += len(frames.data)
        while self.size > self._limit:
            self._pop(next(iter(self._frames)))
        return frames

    def drop(self, channel: Channel) -> None:
        for key in [key for key in self._frames if key[0] is channel]:
            self._pop(key)

    def _pop(self, key: tuple[Channel, int]) -> None:
        self.size -= len(self._frames.pop(key).data)
