"""The hub: every open body reads the log through a cursor, and readers at the same place share their frames.

INV-H1  A reader is sent exactly the events above the number it gave, in order: no gap, no duplicate.
INV-H2  What the hub holds does not grow with what is published: frames up to `CACHE_BYTES` for all streams,
        and one chunk for every reader. A slow reader is left behind and reads from the store.
INV-H3  A stream that nobody reads costs nothing here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, Self, runtime_checkable

from legation.clock import Clock
from legation.errors import Conflict, LegationError, NotFound
from legation.server.streaming import sse
from legation.server.streaming.channel import Cache, Channel, Farewell, Framing, Source
from legation.server.streaming.projected_checkpoints import Checkpoints
from legation.server.streaming.sse import CHUNK_BYTES
from legation.store.log import EventLog
from legation.store.stream import Span, Stream

KEEP_ALIVE: Final = 15.0  # seconds of silence before a comment: proxies give up on idle bodies after 30 to 60
RECHECK: Final = 15.0  # seconds for which a body may outlive its credential, at most
MOST_AT_ONCE: Final = (
    100  # events that a reader is sent before others have a turn: sending need not wait for anything
)
CACHE_BYTES: Final = 8 * 1024 * 1024
ALL: Final = "all"  # generations

logger = logging.getLogger("legation.streams")

Find = Callable[[str, str], Awaitable[Source | None]]  # name, workspace


@runtime_checkable
class Generations(Source, Protocol):
    """A source that may have begun anew: a `Stream`, or what is made of one."""

    def generation(self, number: int) -> Source: ...
    def whole(self) -> Source: ...


@dataclass(frozen=True, slots=True)
class Credential:
    """What a body was opened with. Bodies with the same `key` are asked about once."""

    key: Hashable
    holds: Callable[[], Awaitable[bool]]


class Reader:
    """One open body: something to ring, and the reason why it is over. Subclasses say what it sends."""

    def __init__(self, hub: Hub, credential: Credential | None) -> None:
        self.credential = credential
        self._hub = hub
        self.bell = asyncio.Event()  # rung when there may be something to send
        self._over: bytes | None = None  # the last bytes, once it is over
        self._ping = False

    def __enter__(self) -> Self:
        self._hub.enter(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._hub.exit(self)

    async def next(self) -> bytes:
        try:
            while self._over is None:
                chunk = await self._ready()
                if chunk:
                    return chunk
                if not self.bell.is_set():
                    self._hub.resting[self] = self._hub.clock.monotonic()
                    try:
                        await self.bell.wait()
                    finally:
                        self._hub.resting.pop(self, None)
                self.bell.clear()
                if self._ping:
                    self._ping = False
                    return sse.PING
        except LegationError as error:
            # The body has begun, so it can be no problem document; the reader asks again and is told then.
            logger.warning("a stream's body ended early: %s", error.code)
            self._over = sse.bye("unavailable")
        last, self._over = self._over, b""
        return last or b""

    async def _ready(self) -> bytes:
        """What there is to send now, or nothing."""
        raise NotImplementedError

    def ping(self) -> None:
        """It was silent for long."""
        self._ping = True
        self.bell.set()

    def dismiss(self, reason: Farewell) -> None:
        self._finish(sse.bye(reason))

    def leave(self) -> None:
        self._finish(b"")

    def _finish(self, last: bytes) -> None:
        if self._over is None:
            self._over = last
        self.bell.set()


class StreamReader(Reader):
    """One stream from `after` on."""

    def __init__(
        self,
        hub: Hub,
        source: Source,
        after: int,
        credential: Credential | None = None,
        framing: Framing = sse.frames,
    ) -> None:
        super().__init__(hub, credential)
        self._source = source
        self._framing = framing
        self._at_once = 0  # events since others had a turn
        self.seq = after

    def __enter__(self) -> Self:
        self._channel = self._hub.join(self._source, self, self._framing)
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._hub.part(self._channel, self)

    async def _ready(self) -> bytes:
        found = self._channel.frames(self.seq)
        if found is None:
            found = await self._channel.older(self.seq)
        if found.events:
            self.seq = found.upto
            self._hub.delivered += found.events
            self._at_once += found.events
            if len(found.data) >= CHUNK_BYTES // 2 or self._at_once >= MOST_AT_ONCE:
                self._at_once = 0
                await asyncio.sleep(0)  # one that catches up takes turns with the others
        elif self._channel.source.ended:
            self._finish(farewell(self._channel.source))
        return found.data


def farewell(source: Source) -> bytes:
    """Of one that has ended."""
    if source.deleted:
        return sse.end("deleted")
    return sse.end("replaced") if source.finished else sse.bye("shutdown")


class Hub:
    """Belongs to one event loop. `readers` and `delivered` are for the metrics."""

    def __init__(
        self, log: EventLog, clock: Clock, *, finders: Sequence[Find] = (), cache_bytes: int = CACHE_BYTES
    ) -> None:
        self.delivered = 0
        self.checkpoints = Checkpoints()  # of the projections of sessions
        self.clock = clock
        self.resting: dict[Reader, float] = {}  # since when; the longest first
        self._log = log
        self._finders = (*finders, log.find)
        self._cache = Cache(cache_bytes)
        self._channels: dict[str, Channel] = {}
        self._readers: set[Reader] = set()
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False
        self._checking: asyncio.Task[None] | None = None
        self._doubtful = False

    @property
    def readers(self) -> int:
        return len(self._readers)

    @property
    def cached_bytes(self) -> int:
        return self._cache.size

    async def source(self, name: str, workspace: str, generation: str | None = None) -> Source:
        """The stream of that name. An absent one, a deleted one and another workspace's look the same."""
        for find in self._finders:
            found = await find(name, workspace)
            if found is not None and not found.deleted:
                return _in_generation(found, generation)
        raise NotFound(f"cannot find stream {name[:200]}; check its name")

    async def reader(
        self,
        name: str,
        workspace: str,
        after: int,
        credential: Credential | None = None,
        generation: str | None = None,
    ) -> StreamReader:
        source = await self.source(name, workspace, generation)
        check_position(source, after)
        return StreamReader(self, source, after, credential)

    def recheck(self) -> None:
        """Somebody was shut out, perhaps: bodies whose credential does not hold any more end. The same is done
        every `RECHECK` seconds, for what another server did, and for what just expires."""
        self._doubtful = True
        if self._checking is None and self._readers:
            self._checking = asyncio.create_task(self._check_credentials())

    def close(self) -> None:
        """Every body ends with `bye`, those that are opened later too."""
        self._closed = True
        for reader in self._readers:
            reader.dismiss("shutdown")

    # For readers.

    def join(self, source: Source, reader: Reader, framing: Framing = sse.frames) -> Channel:
        channel = self._channels.get(source.key)
        if channel is None:
            channel = self._channels[source.key] = Channel(source, self._cache, framing)
        channel.readers.add(reader)
        return channel

    def part(self, channel: Channel, reader: Reader) -> None:
        channel.readers.discard(reader)
        if not channel.readers:
            channel.close()
            del self._channels[channel.source.key]

    def enter(self, reader: Reader) -> None:
        self._readers.add(reader)
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep_alive())
        if self._closed:
            reader.dismiss("shutdown")

    def exit(self, reader: Reader) -> None:
        self._readers.discard(reader)
        if not self._readers and self._keeper:
            self._keeper.cancel()
            self._keeper = None
            if self._checking is not None:
                self._checking.cancel()
                self._checking = None

    async def _keep_alive(self) -> None:
        checked = self.clock.monotonic()
        while True:
            now = self.clock.monotonic()
            for reader in [each for each, since in self.resting.items() if now - since >= KEEP_ALIVE]:
                del self.resting[reader]
                reader.ping()
            if now - checked >= RECHECK:
                checked = now
                self.recheck()
            longest = next(iter(self.resting.values()), now)
            await self.clock.sleep(min(longest + KEEP_ALIVE, checked + RECHECK) - now)

    async def _check_credentials(self) -> None:
        try:
            while self._doubtful:
                self._doubtful = False
                verdicts: dict[Hashable, bool] = {}
                for reader in list(self._readers):
                    credential = reader.credential
                    if credential is None:
                        continue
                    if credential.key not in verdicts:
                        verdicts[credential.key] = await credential.holds()
                    if not verdicts[credential.key]:
                        reader.dismiss("credential")
        finally:
            self._checking = None


def of_generation(stream: Stream, generation: str | None) -> Stream | Span:
    """The one of that number, or `all`; without either the newest, and whatever takes its place."""
    if generation is None:
        return stream
    return stream.whole() if generation == ALL else stream.generation(int(generation))


def _in_generation(source: Source, generation: str | None) -> Source:
    if generation is None or not isinstance(source, Generations):
        return source
    return source.whole() if generation == ALL else source.generation(int(generation))


def check_position(source: Source, after: int) -> None:
    if after > source.head:
        raise Conflict(
            f"cannot go on after {after} in stream {source.name}: it ends at {source.head}, so it is not the log"
            " that this number is from, or was restored; read it again from 0",
            {"stream": source.name, "head": source.head},
        )
