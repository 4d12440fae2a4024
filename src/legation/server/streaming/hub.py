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
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal, Protocol, Self, runtime_checkable

import msgspec

from legation.clock import Clock
from legation.errors import Conflict, LegationError, NotFound
from legation.server.streaming import sse
from legation.server.streaming.sse import CHUNK_BYTES, NOTHING, Frames
from legation.store.digest import digest
from legation.store.log import EventLog
from legation.store.stream import GenerationRange, Stream
from legation.tasks import TaskSet
from legation.wire.events import Event
from legation.wire.universal.shapes import NOBODY

if TYPE_CHECKING:
    from legation.server.streaming.checkpoints import Checkpoints

WRITE_TIME: Final = 20e-6  # seconds of the loop that waking one reader and writing to it takes
LEAST_REST: Final = 1e-3  # seconds: below that a timer costs more than it saves
MOST_REST: Final = 10e-3  # seconds: what an event may wait because there was another just before it
KEEP_ALIVE: Final = 15.0  # seconds of silence before a comment: proxies give up on idle bodies after 30 to 60
RECHECK: Final = 15.0  # seconds for which a body may outlive its credential, at most
# Events that a reader is sent before others have a turn: sending need not wait for anything.
MOST_AT_ONCE: Final = 100
CACHE_BYTES: Final = 8 * 1024 * 1024
ALL: Final = "all"  # generations

logger = logging.getLogger("legation.streams")

Farewell = Literal["shutdown", "credential", "unavailable"]
Framing = Callable[[Sequence[Event]], Frames]  # how the events of a source look


class StreamSource(Protocol):
    """A stream to read: `store.stream.Stream` is one."""

    @property
    def key(self) -> str:
        """Name that no other has, in whatever workspace."""

    @property
    def name(self) -> str: ...
    @property
    def head(self) -> int: ...
    @property
    def visible(self) -> int: ...
    @property
    def floor(self) -> int:
        """First number of its history. It rises when that is replaced: what was read before must not be shown again."""

    @property
    def ended(self) -> bool: ...
    @property
    def deleted(self) -> bool: ...
    @property
    def finished(self) -> bool:
        """True of an earlier generation: it is there, but no more will come of it."""

    def since(self, seq: int) -> list[Event] | None:
        """The visible events above `seq`, or None where they must be read with `read_older`."""

    async def read_older(self, after: int) -> list[Event]: ...
    @property
    def news(self) -> asyncio.Event:
        """Set when there may be something new; then another takes its place."""


class DerivedSource:
    """A source made of a stream of the log: a key of its own, and the state of the stream."""

    def __init__(self, key: str, stream: Stream | GenerationRange) -> None:
        self.key = key
        self.name = stream.name
        self._stream = stream

    @property
    def head(self) -> int:
        return self._stream.head

    @property
    def visible(self) -> int:
        return self._stream.visible

    @property
    def floor(self) -> int:
        return self._stream.floor

    @property
    def ended(self) -> bool:
        return self._stream.ended

    @property
    def deleted(self) -> bool:
        return self._stream.deleted

    @property
    def finished(self) -> bool:
        return self._stream.finished

    @property
    def news(self) -> asyncio.Event:
        return self._stream.news


class ChannelReader(Protocol):
    """A reader, as its channel sees it."""

    wakeup: asyncio.Event

    def dismiss(self, reason: Farewell) -> None: ...


class StreamChannel:
    """A stream that is being read: its frames, made once, and one task that wakes its readers."""

    def __init__(self, source: StreamSource, cache: FrameCache, framing: Framing = sse.frames) -> None:
        self.source = source
        self._framing = framing
        self.readers: set[ChannelReader] = set()
        self._cache = cache
        self._floor = source.floor
        self._reads: dict[int, asyncio.Task[Frames]] = {}
        self._watcher = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        try:
            while True:
                news = self.source.news
                for reader in self.readers:  # first of all: somebody may have missed what came before this
                    reader.wakeup.set()
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
        """Find the next chunk above that number, empty at the end; None: it must be read from the store."""
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
        """Add those behind it, which are mostly made already: who is behind catches up in long strides."""
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
        """Read from the store; readers who want the same wait for one read."""
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


class FrameCache:
    """Frames of all channels by the number before them; the oldest give way."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._frames: dict[tuple[StreamChannel, int], Frames] = {}
        self.size = 0

    def get(self, channel: StreamChannel, after: int) -> Frames | None:
        return self._frames.get((channel, after))

    def put(self, channel: StreamChannel, after: int, frames: Frames) -> Frames:
        if (channel, after) in self._frames:
            self._pop((channel, after))
        self._frames[channel, after] = frames
        self.size += len(frames.data)
        while self.size > self._limit:
            self._pop(next(iter(self._frames)))
        return frames

    def drop(self, channel: StreamChannel) -> None:
        for key in [key for key in self._frames if key[0] is channel]:
            self._pop(key)

    def _pop(self, key: tuple[StreamChannel, int]) -> None:
        self.size -= len(self._frames.pop(key).data)


Find = Callable[[str, str], Awaitable[StreamSource | None]]  # name, workspace


@runtime_checkable
class GenerationSource(StreamSource, Protocol):
    """A source that may have begun anew: a `Stream`, or what is made of one."""

    def generation(self, number: int) -> StreamSource: ...
    def whole(self) -> StreamSource: ...


class Credential(msgspec.Struct, frozen=True):
    """Credential that a body was opened with. Bodies with the same `key` are asked about once."""

    key: Hashable
    holds: Callable[[], Awaitable[bool]]


class LiveReader:
    """One open body: something to wake, and the reason why it is over. Subclasses say what it sends."""

    def __init__(self, hub: Hub, credential: Credential | None) -> None:
        self.credential = credential
        self._hub = hub
        self.wakeup = asyncio.Event()  # set when there may be something to send
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
                if not self.wakeup.is_set():
                    self._hub.idle_since[self] = self._hub.clock.monotonic()
                    try:
                        await self.wakeup.wait()
                    finally:
                        self._hub.idle_since.pop(self, None)
                self.wakeup.clear()
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
        """Take what there is to send now, or nothing."""
        raise NotImplementedError

    def ping(self) -> None:
        """Have it send a comment, because it was silent for long."""
        self._ping = True
        self.wakeup.set()

    def dismiss(self, reason: Farewell) -> None:
        self._finish(sse.bye(reason))

    def leave(self) -> None:
        self._finish(b"")

    def _finish(self, last: bytes) -> None:
        if self._over is None:
            self._over = last
        self.wakeup.set()


class LiveStreamReader(LiveReader):
    """One stream from `after` on."""

    def __init__(
        self,
        hub: Hub,
        source: StreamSource,
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
        self._channel = self._hub.subscribe(self._source, self, self._framing)
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._hub.unsubscribe(self._channel, self)

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


@runtime_checkable
class EndingSource(StreamSource, Protocol):
    """A source that comes to an end of its own: what it tells of ends, and is not deleted."""

    @property
    def end_reason(self) -> str: ...


def farewell(source: StreamSource) -> bytes:
    """Make the last bytes of a source that has ended."""
    if isinstance(source, EndingSource):
        return sse.end(source.end_reason)
    if source.deleted:
        return sse.end("deleted")
    return sse.end("replaced") if source.finished else sse.bye("shutdown")


class Hub:
    """Belongs to one event loop. `readers` and `delivered` are for the metrics."""

    def __init__(
        self, log: EventLog, clock: Clock, *, finders: Sequence[Find] = (), cache_bytes: int = CACHE_BYTES
    ) -> None:
        self.delivered = 0
        self.clock = clock
        self.idle_since: dict[LiveReader, float] = {}  # since when; the longest first
        self._log = log
        self._finders = (*finders, log.find)
        self._cache = FrameCache(cache_bytes)
        self._channels: dict[str, StreamChannel] = {}
        self._readers: set[LiveReader] = set()
        self._keep_alive_task: asyncio.Task[None] | None = None
        self._closed = False
        self._checking: asyncio.Task[None] | None = None
        self._doubtful = False

    @cached_property
    def checkpoints(self) -> Checkpoints:
        """Checkpoints of the projections of sessions, which load when somebody reads one."""
        from legation.server.streaming.checkpoints import Checkpoints

        return Checkpoints()

    @property
    def readers(self) -> int:
        return len(self._readers)

    @property
    def cached_bytes(self) -> int:
        return self._cache.size

    async def source(self, name: str, workspace: str, generation: str | None = None) -> StreamSource:
        """Find the stream of that name. An absent one, a deleted one and another workspace's look the same."""
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
    ) -> LiveStreamReader:
        source = await self.source(name, workspace, generation)
        check_position(source, after)
        return LiveStreamReader(self, source, after, credential)

    def recheck(self) -> None:
        """End the bodies whose credential does not hold any more. The same is done every `RECHECK` seconds, for what
        another server did, and for what just expires."""
        self._doubtful = True
        if self._checking is None and self._readers:
            self._checking = asyncio.create_task(self._check_credentials())

    def close(self) -> None:
        """End every body with `bye`, those that are opened later too."""
        self._closed = True
        for reader in self._readers:
            reader.dismiss("shutdown")

    # For readers.

    def subscribe(
        self, source: StreamSource, reader: LiveReader, framing: Framing = sse.frames
    ) -> StreamChannel:
        channel = self._channels.get(source.key)
        if channel is None:
            channel = self._channels[source.key] = StreamChannel(source, self._cache, framing)
        channel.readers.add(reader)
        return channel

    def unsubscribe(self, channel: StreamChannel, reader: LiveReader) -> None:
        channel.readers.discard(reader)
        if not channel.readers:
            channel.close()
            del self._channels[channel.source.key]

    def enter(self, reader: LiveReader) -> None:
        self._readers.add(reader)
        if self._keep_alive_task is None:
            self._keep_alive_task = asyncio.create_task(self._keep_alive())
        if self._closed:
            reader.dismiss("shutdown")

    def exit(self, reader: LiveReader) -> None:
        self._readers.discard(reader)
        if not self._readers and self._keep_alive_task:
            self._keep_alive_task.cancel()
            self._keep_alive_task = None
            if self._checking is not None:
                self._checking.cancel()
                self._checking = None

    async def _keep_alive(self) -> None:
        checked = self.clock.monotonic()
        while True:
            now = self.clock.monotonic()
            for reader in [each for each, since in self.idle_since.items() if now - since >= KEEP_ALIVE]:
                del self.idle_since[reader]
                reader.ping()
            if now - checked >= RECHECK:
                checked = now
                self.recheck()
            longest = next(iter(self.idle_since.values()), now)
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


def of_generation(stream: Stream, generation: str | None) -> Stream | GenerationRange:
    """Take the generation of that number, or `all`; without either the newest, and whatever takes its place."""
    if generation is None:
        return stream
    return stream.whole() if generation == ALL else stream.generation(int(generation))


def _in_generation(source: StreamSource, generation: str | None) -> StreamSource:
    if generation is None or not isinstance(source, GenerationSource):
        return source
    return source.whole() if generation == ALL else source.generation(int(generation))


def check_position(source: StreamSource, after: int) -> None:
    if after > source.head:
        raise Conflict(
            f"cannot go on after {after} in stream {source.name}: it ends at {source.head}, so it is not the log"
            " that this number is from, or was restored; read it again from 0",
            {"stream": source.name, "head": source.head},
        )


class CheckpointKeeper:
    """Keeps the checkpoints of sessions' logs up, also where nobody reads them (INV-P7 of `checkpoints`). `async with`, beside the log."""

    def __init__(self, log: EventLog, hub: Hub, is_session: Callable[[str, str], bool]) -> None:
        """`is_session` is asked with a workspace and the name of a stream."""
        self._log = log
        self._hub = hub
        self._is_session = is_session
        self._due: dict[Stream, int] = {}
        self._at_work = False  # until it has seen that nothing is due: its task ends a little later
        self._tasks = TaskSet("legation-checkpoints")

    async def __aenter__(self) -> Self:
        self._log.on_growth = self._grew
        return self

    async def __aexit__(self, *_: object) -> None:
        self._log.on_growth = None
        await self._tasks.close()

    def _grew(self, stream: Stream, upto: int) -> None:
        if self._is_session(stream.info().workspace, stream.name):
            self._due[stream] = upto
            if not self._at_work:
                self._at_work = True
                self._tasks.start(self._run())

    async def _run(self) -> None:
        from legation.server.streaming.checkpoints import Projection

        try:
            while self._due:
                stream, upto = self._due.popitem()
                projection = Projection(
                    stream, self._hub.checkpoints, NOBODY, "sandbox-agent", include_raw=False
                )
                try:
                    await projection.store(upto)
                    await digest(stream)  # which is kept, too
                except LegationError as error:  # whoever reads it folds a longer way
                    logger.warning("cannot store checkpoints of session %s: %s", stream.name, error.code)
        finally:
            self._at_work = False

    async def settle(self) -> None:
        """Wait until nothing is due."""
        await self._tasks.settle()
