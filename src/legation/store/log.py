"""The event log: numbers events, has them committed, and only then shows them to subscribers.

INV-1  An event is seen by no subscriber before it is committed. The one exception is a failing disk: then it
       is shown from memory, the trouble is reported, and it is committed, in order, as soon as that works.
INV-2  `subscribe(after)` yields exactly the events above `after`, in order: no gap, no duplicate.
       Numbers are dense per stream and never given twice, over restarts and replaced histories.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, Self, TypeVar
from urllib.parse import quote

from legation.clock import Clock, SystemClock, new_id
from legation.errors import Conflict, InvalidParams, NotFound, StorageFailed
from legation.store.codec import (
    Append,
    Backend,
    Create,
    KeepCheckpoint,
    Op,
    Part,
    Report,
    StorageTrouble,
    StoreSize,
    StreamInfo,
    Sweep,
    WantedCheckpoint,
    is_name,
    key_of,
    named,
)
from legation.store.entries import PlacedStream, StreamQuery, entry_of
from legation.store.stream import Stream, log_closed
from legation.tasks import finish, in_thread
from legation.wire.events import Event

PENDING_LIMIT = 64 * 1024 * 1024  # bytes that may wait for a failing disk before agents are paused
FLIGHT_LIMIT = 2 * 1024 * 1024  # of one that works: what a commit shows at once, readers find in the tail
SHARE_LIMIT = (
    512 * 1024
)  # of these, of one stream: its agent waits then, and others' events are not behind more of it
PART_BYTES = 512 * 1024  # of a long text that are one commit: some milliseconds of the disk
READERS = 2  # threads: who looks a stream up does not wait for what another one reads
READ_BYTES = 512 * 1024  # what a subscriber that is behind reads at once
NAME_BYTES = 300  # of a stream's name: a client's id of 256 bytes, and a word before it
FILE_NAME_BYTES = 200  # of one that is a file's name too, percent-encoded
AT_ONCE = 500  # entries of a list that are read together, where all are asked for
GROUP_BYTES = 512 * 1024  # of its events: what would be more is a commit of its own, unless it is the first
# Of a flood, whose operations are this long on average, the next commit waits for this part of a group or this long: each writes some
# of SQLite's units anew, whatever it holds.
FLOOD_BYTES = 8 * 1024
FLOOD_SHARE = GROUP_BYTES * 3 // 4
FLOOD_PAUSE = 0.004  # seconds; its neighbours' time
MAX_GROUP = 512  # ops in one transaction
RETRY_FIRST = 0.05  # seconds to the next try after a failed commit: the disk's time, not the agent's
RETRY_MOST = 2.0
CLOSE_TRIES = 3  # how often a closing log tries to save what is left

_log = logging.getLogger(__name__)

_R = TypeVar("_R")


def _ignore(_: StorageTrouble) -> None: ...


def _check_name(name: str, *, is_file: bool) -> None:
    most = FILE_NAME_BYTES if is_file else NAME_BYTES
    try:
        size = len(quote(name, safe="") if is_file else name.encode())
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= most or not is_name(name):
        raise InvalidParams(f"cannot name a stream {name[:32]!r}: use 1 to {most} characters of text")


class EventLog:
    """`async with EventLog(backend) as log`. Belongs to one event loop; every method is called on it."""

    def __init__(
        self,
        backend: Backend,
        *,
        clock: Clock | None = None,
        report: Report = _ignore,
        pending_limit: int = PENDING_LIMIT,
    ) -> None:
        self.clock = clock or SystemClock()
        self.deletions = 0  # of streams, since it was opened
        # Told of a stream that has become longer, and up to which event it had been so before.
        self.on_growth: Callable[[Stream, int], None] | None = None
        self._backend = backend
        self._report = report
        self._pending_limit = pending_limit
        # A stream nobody holds is forgotten, unless memory is all there is of it.
        self._streams: weakref.WeakValueDictionary[str, Stream] | dict[str, Stream]
        self._streams = weakref.WeakValueDictionary() if backend.durable else {}
        self._opening = asyncio.Lock()
        self._pending: dict[Op, Stream] = {}
        self._outbox: list[Op] = []  # what the writer is given in the next turn of the loop
        self._pending_bytes = 0
        self._strict: dict[Op, asyncio.Future[None]] = {}
        self._progress = asyncio.Event()  # set when the disk has got further; then another takes its place
        self._failing = False
        self._room_limit = min(pending_limit, FLIGHT_LIMIT)
        self.writable = self._readable = False

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._readers = ThreadPoolExecutor(READERS, "legation-log-reader")
        opening = self._readers.submit(self._backend.open, partial(self.on_loop, self._report))
        try:
            await asyncio.wrap_future(opening)
        except BaseException:
            opening.add_done_callback(lambda _: self._backend.close())  # it cannot be stopped
            self._readers.shutdown(wait=False)
            raise
        self._writer = Writer(self._backend, self, self.on_loop) if self._backend.durable else None
        self.writable = self._readable = True
        return self

    async def __aexit__(self, *_: object) -> None:
        await finish(self._close())  # what waits is saved all the same, and the store is free then

    async def _close(self) -> None:
        for stream in list(self._streams.values()):
            stream.fill()
        self.writable = False
        if self._writer:
            self._hand_over(self._writer)
            await self._read(self._writer.close)
            await asyncio.sleep(0)  # what the writer handed over last
        for stream in list(self._streams.values()):
            stream.end()
        self._readable = False
        await in_thread(self._readers.shutdown)  # after the reads that are under way
        await in_thread(self._backend.close)

    async def stream(self, name: str, workspace: str = "local") -> Stream:
        """The stream of that name in the workspace, made if need be."""
        _check_name(name, is_file=self._backend.names_files)
        if not self.writable:
            raise log_closed(name)
        key = key_of(name, workspace)
        async with self._opening:
            stream = self._streams.get(key)
            if stream is None:
                found = await self._read(self._backend.lookup, key)
                info = found or StreamInfo(key, workspace)
                stream = self._streams[key] = Stream(self, info, keep_all=not self._backend.durable)
                if found is None:
                    self.submit(stream, Create(key, workspace))
        if stream.info().workspace != workspace:
            raise NotFound(f"cannot find stream {name}; check its id")
        return stream

    async def find(self, name: str, workspace: str = "local") -> Stream | None:
        """The stream of that name, if there is one; never makes it."""
        if await self.lookup(name, workspace) is None:
            return None
        try:
            return await self.stream(name, workspace)
        except (NotFound, InvalidParams):
            return None

    def held(self, name: str, workspace: str = "local") -> Stream | None:
        """The stream of that name, if somebody has it at this moment: nothing is read."""
        return self._streams.get(key_of(name, workspace))

    async def lookup(self, name: str, workspace: str = "local") -> StreamInfo | None:
        """Return what is known of the stream of that name, also of one that was deleted; nothing is opened for that."""
        self.must_be_readable(f"stream {name[:32]}")
        try:
            _check_name(
                name, is_file=self._backend.names_files
            )  # what is none may be the key of another workspace's
        except InvalidParams:
            return None
        key = key_of(name, workspace)
        held = self._streams.get(key)
        found = held.info() if held else await self._read(self._backend.lookup, key)
        return None if found is None else named(found)

    async def page(self, query: StreamQuery, limit: int) -> list[PlacedStream]:
        """The first of a list, as many; fewer only at its end. Whatever was given to the log by now counts."""
        self.must_be_readable("its streams")
        # Held until the end: one that is stored and forgotten while we read would be in neither.
        kept = list(self._streams.values())
        stored: dict[str, StreamInfo] = {}
        part = query
        while True:
            rows = await self._read(self._backend.page, part, limit)
            stored.update((info.name, info) for info in rows)
            live = dict(list(self._streams.items()))
            on_disk = [(info, entry_of(info.meta)) for key, info in stored.items() if key not in live]
            found = query.found([*on_disk, *((stream.info(), stream.entry) for stream in live.values())])
            if len(rows) == limit:
                # Those that are held may stand behind what was read, and between them what was not.
                last = query.place(rows[-1], entry_of(rows[-1].meta))
                assert last is not None
                part = query.behind(last)
                if len(found) - len(part.only_behind(found)) < limit:
                    continue
            del kept
            return [(place, named(info)) for place, info in found[:limit]]

    async def each(self, query: StreamQuery, first: int = AT_ONCE) -> AsyncIterator[PlacedStream]:
        """All of a list, read in pages, so that others have their turn in between: one of so many first, then larger ones."""
        size = min(first, AT_ONCE)
        while page := await self.page(query, size):
            for placed in page:
                yield placed
            if len(page) < size:
                return
            query, size = query.behind(page[-1][0]), min(2 * size, AT_ONCE)

    async def sweep(self, stream: Stream) -> None:
        """Have what is left of a deleted stream go, commit by commit, so that others' come between."""
        while stream.key in {info.name for info in await self._read(self._backend.unswept)}:
            await self.commit(stream, Sweep(stream.key))

    async def sweep_all(self) -> None:
        """Bring deletions to their end that the end of a process cut off."""
        for info in await self._read(self._backend.unswept):
            await self.sweep(await self.stream(named(info).name, info.workspace))

    async def give_back(self, stream: Stream) -> None:
        """Give free space back to the disk, some in each commit; `stream` is any, for their order."""
        free = (await self.size()).free
        while free:
            await self.commit(stream, Sweep(stream.key))
            before, free = free, (await self.size()).free
            if free >= before:  # it is in use by now
                return

    async def size(self, name: str | None = None, workspace: str = "local") -> StoreSize:
        """Count the bytes of one stream, or of all."""
        key = None if name is None else key_of(name, workspace)
        return await self._read(self._backend.size, key)

    async def streams(self, workspace: str = "local") -> list[StreamInfo]:
        infos = await self._infos(self._backend.streams, workspace)
        return [info for info in infos if info.state != "deleted"]

    async def deleted(self, workspace: str = "local") -> list[str]:
        """Names of streams that were deleted, and are not used again."""
        infos = await self._infos(self._backend.deleted, workspace)
        return [info.name for info in infos if info.state == "deleted"]

    async def _infos(self, stored: Callable[[], list[StreamInfo]], workspace: str) -> list[StreamInfo]:
        self.must_be_readable("its streams")
        before = self._live()  # one that is stored and forgotten while we read would be in neither
        read = {info.name: info for info in await self._read(stored)}
        infos = (before | read | self._live()).values()
        return [named(info) for info in infos if info.workspace == workspace]

    def _live(self) -> dict[str, StreamInfo]:
        return {key: stream.info() for key, stream in list(self._streams.items())}

    @property
    def healthy(self) -> bool:
        """It is open, and its store took what it was given last."""
        return self.writable and not self._failing

    @property
    def pending_bytes(self) -> int:
        """Bytes that were appended and are not on the disk yet."""
        return self._pending_bytes

    async def room(self, stream: Stream | None = None) -> None:
        """Wait until the disk has caught up enough to take more, or more of that stream: whoever reads an agent's pipe
        waits here."""
        while self._pending_bytes > self._room_limit or (
            stream is not None and stream.pending_bytes > SHARE_LIMIT and not self._failing
        ):
            await self._progress.wait()

    # For streams and subscriptions.

    def must_be_readable(self, what: str) -> None:
        if not self._readable:
            raise Conflict(f"cannot read {what}: the log is closed; open it again")

    async def keep(self, stream: Stream, text: bytes) -> str:
        """In parts, a commit each, so that others' come between: the name of it. Empty where it was not stored."""
        if not self._backend.keeps_parts:
            return ""
        name = new_id("blob")
        try:
            for number, start in enumerate(range(0, len(text), PART_BYTES)):
                await self.commit(stream, Part(stream.key, name, number, text[start : start + PART_BYTES]))
        except StorageFailed:  # an append waits for the disk, and for this too
            return ""
        return name

    async def read(self, stream: str, after: int, room: int = READ_BYTES) -> list[Event]:
        self.must_be_readable(f"stream {stream} after {after}")
        return await self._read(self._backend.read, stream, after, room)

    async def checkpoint(self, stream: str, wanted: WantedCheckpoint) -> KeepCheckpoint | None:
        if not self._backend.durable:
            return None
        self.must_be_readable(f"stream {stream}")
        return await self._read(self._backend.checkpoint, stream, wanted)

    def submit(self, stream: Stream, op: Op) -> None:
        """Have it committed, behind whatever was submitted before."""
        self._pending[op] = stream
        if isinstance(op, Append):
            self._pending_bytes += op.size
            stream.pending_bytes += op.size
        if self._writer is None:
            self.settled([op])
            return
        if not self._outbox:
            # Not at once: who reads ahead of the disk is woken already, and what it makes of this is in the same commit.
            self._loop.call_soon(self._hand_over, self._writer)
        self._outbox.append(op)

    def _hand_over(self, writer: Writer) -> None:
        outbox, self._outbox = self._outbox, []
        for op in outbox:
            writer.queue.put(op)

    def commit(self, stream: Stream, op: Op) -> Awaitable[None]:
        """A strict commit, submitted at once: what is returned is done when it is durable and published, and raises
        where it could not be."""
        if (
            not self.writable
        ):  # whoever goes on, commit by commit, when it is closed: nobody would take that, nor refuse it
            raise log_closed(stream.name)
        done = self._strict[op] = self._loop.create_future()
        stream.advance(op)
        return asyncio.shield(done)

    # What the writer thread says.

    def on_loop(self, call: Callable[..., None], *args: Any) -> None:
        with suppress(RuntimeError):  # the loop is gone, and with it everybody who would want to know
            self._loop.call_soon_threadsafe(call, *args)

    def settled(self, ops: Sequence[Op], error: StorageFailed | None = None) -> None:
        """They are committed; or, with an error, they never will be."""
        if self._failing and error is None:
            self._failing, self._room_limit = False, min(self._pending_limit, FLIGHT_LIMIT)
            self._report(StorageTrouble("storage/recovered", "the store takes events again; none was lost"))
        for op in ops:
            stream, done = self._pending.pop(op), self._strict.pop(op, None)
            if isinstance(op, Append):
                self._pending_bytes -= op.size
                stream.pending_bytes -= op.size
            if error is None:
                stream.apply(op)
            else:
                stream.refuse(op, error)
            if done is not None and not done.done():
                if error is None:
                    done.set_result(None)
                else:
                    done.set_exception(error)
        self._progress.set()
        self._progress = asyncio.Event()

    def postponed(self, ops: Sequence[Op], error: StorageFailed) -> None:
        """They will be committed as soon as that works."""
        if not self._failing:
            self._failing, self._room_limit = True, self._pending_limit
            self._report(StorageTrouble("storage/write-failed", error.message))
        for op in ops:
            if isinstance(op, Append):
                self._pending[op].show(op.events, op.size)
        self._progress.set()
        self._progress = asyncio.Event()

    async def _read(self, call: Callable[..., _R], *args: Any) -> _R:
        self.must_be_readable("its store")
        return await self._loop.run_in_executor(self._readers, call, *args)


class CommitListener(Protocol):
    def settled(self, ops: Sequence[Op], error: StorageFailed | None = None) -> None: ...
    def postponed(self, ops: Sequence[Op], error: StorageFailed) -> None: ...


class Writer:
    """Group commit: one thread that commits whatever waits in the `queue`, as one unit, again and again. `tell` takes what
    is said to the owner over to its thread.

    There is no linger but for a flood: the time a commit takes is the time in which the next group gathers. When a commit fails,
    a strict operation in it is refused and the appends are kept, in order, and tried again with what came since;
    each op is reported exactly once, as committed, postponed (and later committed), or refused.

    A group ends with its strict operation: a store that commits file by file cannot take it back when something
    behind it fails. It ends before `GROUP_BYTES` too, for everybody in it waits for all of it."""

    def __init__(
        self,
        backend: Backend,
        owner: CommitListener,
        tell: Callable[..., None],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._backend = backend
        self._owner = owner
        self._tell = tell
        self._sleep = sleep
        self.queue: queue.SimpleQueue[Op | None] = queue.SimpleQueue()
        self._is_flood = False  # what the last commit was of
        self._next: Op | None = None  # taken from the queue, and too much for the group before it
        self._unsaved: list[Op] = []
        self._retry = 0.0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="legation-log-writer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Save what waits, as far as the store lets us, and end. Blocks; call it off the loop."""
        self.queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while not self._closing:
            fresh = self._gather()
            if fresh or self._unsaved:
                self._save(fresh)
        self._save_the_rest()

    def _gather(self) -> list[Op]:
        """Take what waits, up to a strict one; sleep until there is something, or until it is time to try again."""
        fresh: list[Op] = []
        size = 0
        until = time.monotonic() + FLOOD_PAUSE if self._is_flood else 0.0
        try:
            op = self._next or self.queue.get(timeout=self._retry if self._unsaved else None)
            self._next = None
            while op is not None:
                size += op.size if isinstance(op, Append) else 0
                if fresh and size > GROUP_BYTES:
                    self._next = op
                    break
                fresh.append(op)
                if len(fresh) >= MAX_GROUP or not isinstance(op, Append | Create | KeepCheckpoint):
                    break
                left = until - time.monotonic() if until and size < FLOOD_SHARE else 0.0
                op = self.queue.get(timeout=left) if left > 0 else self.queue.get_nowait()
            else:
                self._closing = True
        except queue.Empty:
            pass
        self._is_flood = size > FLOOD_BYTES * len(fresh)
        return fresh

    def _save(self, fresh: list[Op]) -> None:
        group = self._unsaved + fresh
        try:
            self._backend.commit(group)
        except Exception as error:  # noqa: BLE001 - the thread's boundary: dead, it would leave everybody waiting
            self._keep(fresh, _failure(error))
            self._retry = min(RETRY_MOST, self._retry * 2) if self._retry else RETRY_FIRST
        else:
            self._unsaved, self._retry = [], 0.0
            self._tell(self._owner.settled, group)

    def _keep(self, fresh: list[Op], error: StorageFailed) -> None:
        patient = [op for op in fresh if isinstance(op, Append | Create)]
        strict = [op for op in fresh if not isinstance(op, Append | Create)]
        self._unsaved += patient
        if strict:
            self._tell(self._owner.settled, strict, error)
        if patient:
            self._tell(self._owner.postponed, patient, error)

    def _save_the_rest(self) -> None:
        for _ in range(CLOSE_TRIES):
            if not self._unsaved:
                return
            self._sleep(self._retry)
            self._save([])
        if self._unsaved:
            lost = StorageFailed("cannot save the last events: the store still fails; free some space")
            self._tell(self._owner.settled, self._unsaved, lost)


def _failure(error: Exception) -> StorageFailed:
    if isinstance(error, StorageFailed):
        return error
    _log.error("cannot commit to the store", exc_info=error)
    return StorageFailed(f"cannot commit to the store: {type(error).__name__}; see the log of Legation")
