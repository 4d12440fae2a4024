"""One numbered stream of an event log: append, read from any number, close, delete, replace.

What is replaced stays, as an earlier generation: numbers go on through all of them, and readers begin with the newest.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from legation.clock import Clock
from legation.errors import Conflict, InvalidParams, NotFound, SessionClosed, StorageFailed
from legation.store import codec
from legation.store.codec import (
    Append,
    KeepCheckpoint,
    Op,
    Replace,
    SetMeta,
    SetState,
    State,
    StreamInfo,
    WantedCheckpoint,
    named,
)
from legation.store.entries import Entry, entry_of
from legation.wire.events import Draft, Event

if TYPE_CHECKING:

    class Log(Protocol):
        clock: Clock
        deletions: int
        writable: bool
        on_growth: Callable[[Stream, int], None] | None

        def submit(self, stream: Stream, op: Op) -> None: ...
        def commit(self, stream: Stream, op: Op) -> Awaitable[None]: ...
        async def read(self, stream: str, after: int, room: int = ...) -> list[Event]: ...
        async def keep(self, stream: Stream, text: bytes) -> str: ...
        async def checkpoint(self, stream: str, wanted: WantedCheckpoint) -> KeepCheckpoint | None: ...
        async def sweep(self, stream: Stream) -> None: ...


TAIL_EVENTS = 16_384  # recent events kept for subscribers that keep up; the others read from the store
TAIL_BYTES = 8 * 1024 * 1024
GROWTH_EVENTS, GROWTH_BYTES = 1000, 4 * 1024 * 1024  # after which it is told that a stream has grown
SLICE_EVENTS, SLICE_BYTES = 2_000, 4 * 1024 * 1024  # that are numbered before others have their turn


NO_META = b"{}"  # of a stream of which nothing was noted, or nothing is left


class Receipt(msgspec.Struct, eq=False):
    """The numbers that `append` gave. Await it to know that the events are durable."""

    stream: Stream
    first_seq: int
    last_seq: int

    def __await__(self) -> Generator[object, None, None]:
        return self.stream.durable(self.last_seq).__await__()


class ReservedEvent:
    """The number of one event whose last word is still being found; made by `Stream.reserve`. What is appended behind it
    has its number too, and waits: nobody sees it, and it is on no disk, before this one is filled."""

    def __init__(self, stream: Stream, event: Event) -> None:
        self._stream = stream
        self.event = event
        self.filled = asyncio.Event()

    def fill(self, draft: Draft | None = None) -> None:
        """With what it was reserved with, unless there is better. What is filled stays as it is."""
        if self.filled.is_set():
            return
        if draft is not None:
            [self.event] = _numbered([draft], self.event.seq, self.event.at)
        self.filled.set()
        self._stream.advance()


class Numbered(NamedTuple):
    """Events that are to take the place of what a stream shows, with their numbers; made by `Stream.number`."""

    events: list[Event]


class Stream:
    """Made by `EventLog.stream`. The numbers: floor <= ... <= saved <= visible <= head, which is the last one given.

    `news` is set when there may be something new, and then another takes its place: whoever waits has looked before.
    `news_ahead` is there for those who also want what is on the way to the disk, if somebody does."""

    def __init__(self, log: Log, info: StreamInfo, *, keep_all: bool) -> None:
        self.key = info.name  # what it is stored under
        self.name = named(info).name
        self._keep_all = keep_all  # there is no store to read old events from
        self._log = log
        self._workspace, self._state, self._meta = info.workspace, info.state, info.meta
        self._metas_given: list[bytes] = []  # on the way to the disk, the newest last
        self._entry: tuple[bytes, Entry | None] = NO_META, None  # with the metadata that it was read from
        self.floor, self._earlier = info.first_seq, info.earlier
        self.head = self.visible = self._saved = info.head
        self._tail: list[Event] = []
        self._tail_bytes = 0
        self._before_tail = info.head  # the number just below the first event of the tail
        self._acks: list[tuple[int, asyncio.Future[None]]] = []
        self._ahead: list[Event] = []  # on the way to the disk: those above `visible`
        self.pending_bytes = 0  # of these
        self._line: deque[ReservedEvent | Op] = deque()  # from the first place that is not filled on
        self.news = asyncio.Event()
        self.news_ahead: asyncio.Event | None = None
        self._changing = False
        self._trimming = False
        self._lost: StorageFailed | None = None
        self.ended = info.state == "deleted"
        self._told = _whole_growth(info.head)  # up to here it has been told that it has grown
        self._grown_bytes = 0

    def info(self) -> StreamInfo:
        return StreamInfo(
            self.name, self._workspace, self._state, self.floor, self.head, self.meta, self._earlier
        )

    @property
    def meta(self) -> bytes:
        """As it was last given: on the disk, or on the way there. Whoever changes a part of it begins with this."""
        return self._metas_given[-1] if self._metas_given else self._meta

    @property
    def entry(self) -> Entry | None:
        """Entry that lists know it by; None where it is no session."""
        meta = self.meta
        if self._entry[0] is not meta:
            self._entry = meta, entry_of(meta)
        return self._entry[1]

    def append(self, drafts: Sequence[Draft]) -> Receipt:
        """Number the drafts and queue them; they are durable when the receipt has been awaited."""
        self._must_be_open()
        events = _numbered(drafts, self.head + 1, self._log.clock.now_ms())
        receipt = Receipt(self, self.head + 1, self.head + len(events))
        if events:
            self.head = receipt.last_seq
            self.advance(Append(self.key, events, size_of(events)))
        return receipt

    async def keep(self, draft: Draft) -> Draft:
        """Store a long text ahead of its event, in parts that hold up nobody; where that cannot be, it comes with it."""
        self._must_be_open()
        return msgspec.structs.replace(draft, blob=await self._log.keep(self, draft.raw))

    def reserve(self, draft: Draft) -> ReservedEvent:
        """Number the draft, which may still be changed: it has its place among the others at once. Whoever reserves one
        fills it soon: all that comes behind waits."""
        self._must_be_open()
        [event] = _numbered([draft], self.head + 1, self._log.clock.now_ms())
        self.head = event.seq
        place = ReservedEvent(self, event)
        self._line.append(place)
        return place

    async def filled(self) -> None:
        """Returns when nothing waits behind a place."""
        while self._line:
            first = self._line[0]
            assert isinstance(first, ReservedEvent)
            await first.filled.wait()

    def fill(self) -> None:
        """Take what is reserved as it is: nobody will find out more."""
        for each in list(self._line):
            if isinstance(each, ReservedEvent):
                each.fill()

    def advance(self, *more: Op) -> None:
        """Send what stands in line on its way to the disk, in order, up to the first reserved event that is not filled."""
        self._line += more
        while self._line:
            first = self._line[0]
            if isinstance(first, ReservedEvent):
                if not first.filled.is_set():
                    return
                first = Append(self.key, [first.event], size_of([first.event]))
            self._line.popleft()
            if isinstance(first, Append):
                self._ahead += first.events
                if self.news_ahead is not None:
                    self.news_ahead.set()
                    self.news_ahead = None
            self._log.submit(self, first)

    def _must_be_open(self) -> None:
        if not self._log.writable:
            raise log_closed(self.name)
        if self._changing:
            raise Conflict(f"cannot write to stream {self.name} while it is being changed; wait for that")
        if self._state != "open":
            raise SessionClosed(f"cannot write to stream {self.name}: it is {self._state}")

    def subscribe(self, after: int = 0, *, follow: bool = True, ahead: bool = False) -> Subscription:
        """Every event above `after`, then (with `follow`) those to come. With `ahead` also those that are on the way to
        the disk: for who stores what it makes of them in the same log, behind them."""
        _must_be_position(after)
        return Subscription(self, after, None if follow else self.visible, self if ahead else None)

    def generation(self, number: int) -> GenerationRange:
        """One generation, counted from 1; the newest is also what the stream itself gives."""
        count = len(self._earlier) + 1
        if not 0 < number <= count:
            there_are = f"there are {count}, counted from 1" if count > 1 else "there is one, number 1"
            raise NotFound(
                f"cannot find generation {number} of stream {self.name}: {there_are}; give one of these",
                {"stream": self.name, "generations": count},
            )
        return GenerationRange(self, number, number)

    def whole(self) -> GenerationRange:
        """Every generation, one after the other."""
        return GenerationRange(self, 1, None)

    def starts(self) -> tuple[int, ...]:
        """The first number of each generation."""
        return (*self._earlier, self.floor)

    async def number(self, drafts: Sequence[Draft]) -> Numbered:
        """For `replace`, which is to follow at once: of a long history it takes turns with others. Meanwhile nothing is
        written to the stream."""
        if not drafts:
            raise InvalidParams(f"cannot replace stream {self.name} by nothing; give at least one event")
        self._must_be_changeable()
        self._changing = True
        events: list[Event] = []
        try:
            for some in _in_slices(drafts):
                events += _numbered(some, self.head + len(events) + 1, self._log.clock.now_ms())
                await asyncio.sleep(0)
            if not self._log.writable:
                raise log_closed(self.name)
        except BaseException:
            self._changing = False
            raise
        return Numbered(events)

    async def replace(
        self,
        drafts: Sequence[Draft] | Numbered,
        *,
        meta: bytes | None = None,
        replaces: bytes | None = None,
    ) -> Receipt:
        """Strict: what readers see becomes these events, with fresh numbers; a closed stream reopens. What there was is
        an earlier generation. `meta`, as for `set_meta`, is in the same commit."""
        numbered = drafts if isinstance(drafts, Numbered) else await self.number(drafts)
        events = numbered.events
        self._changing = False  # as it was for its numbers: nothing has come between
        await self._change(Replace(self.key, events, meta), meta, replaces)
        return Receipt(self, events[0].seq, events[-1].seq)

    async def reopen(self, *, meta: bytes | None = None, replaces: bytes | None = None) -> None:
        """Strict: a closed stream takes events again, behind those it has."""
        await self._change(Replace(self.key, (), meta), meta, replaces)

    async def close(self) -> None:
        """Strict: no more events, unless the history is replaced."""
        await self._change(SetState(self.key, "closed"))

    async def delete(self) -> None:
        """Strict: the events are gone; the name and its numbers are never used again."""
        if self._state != "deleted":
            await self._change(SetState(self.key, "deleted"))
        await self._log.sweep(self)

    def set_meta(self, meta: bytes, *, replaces: bytes | None = None) -> Awaitable[None]:
        """Strict: what to know of the stream besides its events, as one line of JSON. It is the stream's `meta` at once,
        and on the disk when the answer has been awaited. Several parties write parts of it: one that names what it
        `replaces` is refused where another was first, so that nobody puts back what he read before."""
        if not self._log.writable:
            raise log_closed(self.name)
        self._give_meta(meta, replaces)
        return self._log.commit(self, SetMeta(self.key, meta))

    def keep_checkpoint(
        self,
        kind: str,
        format_: int,
        first_seq: int,
        seq: int,
        body: bytes,
        numbers: tuple[int, int] = (0, 0),
        *,
        only: bool = False,
    ) -> None:
        """Have it stored behind what was appended before; see `KeepCheckpoint`. Nobody waits for it: where that fails,
        there is none."""
        if self._log.writable and self._state != "deleted":
            self.advance(KeepCheckpoint(self.key, kind, format_, first_seq, seq, body, *numbers, only=only))

    async def checkpoint(self, wanted: WantedCheckpoint) -> KeepCheckpoint | None:
        """One that was kept, if it was."""
        return None if self._state == "deleted" else await self._log.checkpoint(self.key, wanted)

    def _give_meta(self, meta: bytes, replaces: bytes | None) -> None:
        if not _is_one_json_line(meta):
            raise InvalidParams(f"cannot note that of stream {self.name}: give one line of JSON")
        if self._state == "deleted":
            raise SessionClosed(f"cannot note that of stream {self.name}: it is deleted; use another name")
        if replaces is not None and replaces != self.meta:
            raise Conflict(f"cannot note that of stream {self.name}: it was changed meanwhile; read it again")
        self._metas_given.append(meta)

    def _must_be_changeable(self) -> None:
        if not self._log.writable:
            raise log_closed(self.name)
        if self._state == "deleted":
            raise SessionClosed(f"cannot change stream {self.name}: it is deleted; use another name")
        if self._changing:
            raise Conflict(f"cannot change stream {self.name}: another change is under way; wait for that")

    async def _change(self, op: Op, meta: bytes | None = None, replaces: bytes | None = None) -> None:
        self._must_be_changeable()
        if meta is not None:
            self._give_meta(meta, replaces)
        self._changing = True
        await self._log.commit(self, op)

    @property
    def saved(self) -> int:
        """The last number that is on the disk."""
        return self._saved

    async def durable(self, seq: int) -> None:
        """Returns when every event up to that number is on the disk."""
        if self._lost:
            raise self._lost
        if self._saved < seq:
            saved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._acks.append((seq, saved))
            await saved

    # What the log tells.

    def apply(self, op: Op) -> None:
        """The op is committed: publish it."""
        match op:
            case Append():
                self._saved = op.events[-1].seq
                self.show(op.events, op.size)
                if self._acks:
                    self._acknowledge()
            case Replace():
                self._restart(op.events)
            case SetState():
                self._set_state(op.state)
        if isinstance(op, Replace | SetMeta) and op.meta is not None:
            self._metas_given.remove(op.meta)
            if self._state != "deleted":  # given when that was under way
                self._meta = op.meta
        if isinstance(op, Replace | SetState):
            self._changing = False

    def refuse(self, op: Op, error: StorageFailed) -> None:
        if isinstance(op, Append):
            self._lost = error
            acks, self._acks = self._acks, []
            for _, saved in acks:
                if not saved.done():
                    saved.set_exception(error)
        if isinstance(op, Replace | SetMeta) and op.meta is not None:
            self._metas_given.remove(op.meta)  # what was given on top of it stays: it is on its way
        if isinstance(op, Replace | SetState):
            self._changing = False

    def show(self, events: Sequence[Event], size: int) -> None:
        if events[-1].seq <= self.visible:
            return  # shown from memory while the disk failed
        self.visible = events[-1].seq
        del self._ahead[: len(events)]
        self._tail += events
        self._tail_bytes += size
        self._wake()
        if len(self._tail) > TAIL_EVENTS or self._tail_bytes > TAIL_BYTES:
            self._trim_soon()
        self._grown_bytes += size
        if self.visible - self._told >= GROWTH_EVENTS or self._grown_bytes >= GROWTH_BYTES:
            self._tell_growth()

    def _tell_growth(self) -> None:
        """Tell up to where it had grown the last time: whoever reads it live is beyond that by now."""
        before, self._told = self._told, max(self._told, _whole_growth(self.visible))
        if self._grown_bytes >= GROWTH_BYTES:
            self._told, self._grown_bytes = self.visible, 0
        if self._log.on_growth is not None and before:
            self._log.on_growth(self, before)

    def end(self) -> None:
        """Subscribers get what is left and then stop."""
        self.ended = True
        self._wake()

    def _acknowledge(self) -> None:
        ready = [saved for wanted, saved in self._acks if wanted <= self._saved]
        self._acks = [ack for ack in self._acks if ack[0] > self._saved]
        for saved in ready:
            if not saved.done():
                saved.set_result(None)

    def _restart(self, events: Sequence[Event]) -> None:
        self._state = "open"
        if not events:
            self._wake()
            return
        self._earlier = self.info().begun_at(events[0].seq)
        self.floor, self.head, self._saved = events[0].seq, events[-1].seq, events[-1].seq
        self._acknowledge()
        self.show(events, size_of(events))

    def _set_state(self, state: State) -> None:
        self._state = state
        if state == "deleted":
            self._tail, self._tail_bytes, self._before_tail = [], 0, self.visible
            self.floor, self._earlier, self._meta = self.head + 1, (), NO_META
            self._log.deletions += 1
            self.end()
        else:
            self._wake()  # whoever reads until it is closed has nothing else to be woken by

    def _trim_soon(self) -> None:
        """After those who were just woken have taken theirs: else they would read it from the disk again."""
        if not self._keep_all and not self._trimming:
            self._trimming = True
            asyncio.get_running_loop().call_soon(self._trim)

    def _trim(self) -> None:
        """Drop old events, down to half of what may be kept, but nothing that only memory holds."""
        self._trimming = False
        tail, saved = self._tail, self._saved - self._before_tail
        count, left = 0, self._tail_bytes
        for event in islice(tail, max(saved, 0)):  # only what goes is looked at
            if len(tail) - count <= TAIL_EVENTS // 2 and left <= TAIL_BYTES // 2:
                break
            count += 1
            left -= len(event.raw)
        if count > 0:
            self._before_tail, self._tail_bytes = tail[count - 1].seq, left
            del tail[:count]

    def _wake(self) -> None:
        self.news.set()
        self.news = asyncio.Event()
        if self.news_ahead is not None:
            self.news_ahead.set()
            self.news_ahead = None

    # What a subscription asks.

    @property
    def closed(self) -> bool:
        """Until it is reopened."""
        return self._state == "closed"

    @property
    def deleted(self) -> bool:
        """Deletion is why it ended; else the log was closed, and the stream goes on when that is open again."""
        return self._state == "deleted"

    @property
    def finished(self) -> bool:
        """Nothing more comes of it though it is there: of an earlier generation. See `Span`."""
        return False

    def since(self, seq: int, floor: int | None = None) -> list[Event] | None:
        """The visible events above `seq`, or None where they must be read from the store. Who stands in an earlier
        generation goes on with the newest, unless he gives the `floor` of that."""
        start = max(seq, (self.floor if floor is None else floor) - 1) - self._before_tail
        return self._tail[start:] if start >= 0 else None

    def is_behind_tail(self, seq: int) -> bool:
        """Whether what follows that number must be read from the store."""
        return seq < self._before_tail

    def since_ahead(self, seq: int) -> list[Event] | None:
        """The same as `since`, with those that are on the way to the disk."""
        found = self.since(seq)
        return None if found is None else found + self._ahead[max(0, seq - self.visible) :]

    async def read_older(self, after: int, floor: int | None = None) -> list[Event]:
        """From the store, as `since`, for a subscriber that is behind the tail. Always gets it further."""
        after = max(after, (self.floor if floor is None else floor) - 1)
        if self._state == "deleted":
            return []
        older = await self._log.read(self.key, after)
        if older and older[-1].seq > self.visible:  # a store of files may show a commit before it is one
            older = [event for event in older if event.seq <= self.visible]
        if older or after >= self._before_tail:
            return older
        return self._tail[:]  # what lay between was deleted, or was malformed and has been reported

    async def event(self, seq: int) -> Event | None:
        """One event of what it shows."""
        found = self.since(seq - 1)
        if found is None:
            found = await self._log.read(self.key, seq - 1, 1)
        return found[0] if found and found[0].seq == seq else None


class GenerationRange:
    """Generations of a stream, to be read like one: the `last` one given, or up to the newest without one."""

    def __init__(self, stream: Stream, first: int, last: int | None) -> None:
        self._stream = stream
        self._first, self._last = first, last
        self.key = f"{stream.key}\n{first}-{last or ''}"
        self.name = stream.name

    @property
    def _until(self) -> int | None:
        """The last number of it; None while more may come."""
        starts = self._stream.starts()
        if self._last is None or self._last >= len(starts):
            return None
        return starts[self._last] - 1

    @property
    def floor(self) -> int:
        return self._stream.starts()[self._first - 1] if not self._stream.deleted else self._stream.floor

    @property
    def head(self) -> int:
        return self._stream.head if self._until is None else self._until

    @property
    def visible(self) -> int:
        return self._stream.visible if self._until is None else self._until

    @property
    def ended(self) -> bool:
        return self._stream.ended or self.finished

    @property
    def deleted(self) -> bool:
        return self._stream.deleted

    @property
    def closed(self) -> bool:
        return self._stream.closed

    @property
    def finished(self) -> bool:
        """Another generation follows, so nothing is added to it."""
        return self._until is not None

    @property
    def stream(self) -> Stream:
        return self._stream

    def subscribe(self, after: int = 0, *, follow: bool = True) -> Subscription:
        _must_be_position(after)
        return Subscription(self, after, None if follow else self.visible)

    def since(self, seq: int) -> list[Event] | None:
        found = self._stream.since(seq, self.floor)
        return None if found is None else self._cut(found)

    async def read_older(self, after: int) -> list[Event]:
        if max(after, self.floor - 1) >= self.visible:
            return []
        return self._cut(await self._stream.read_older(after, self.floor))

    def _cut(self, found: list[Event]) -> list[Event]:
        until = self._until
        if until is None or not found or found[-1].seq <= until:
            return found
        return [event for event in found if event.seq <= until]

    @property
    def news(self) -> asyncio.Event:
        return self._stream.news


class Subscription:
    """A reader of one stream: a cursor, and nothing else. A slow one costs no memory; it reads from the store.

    Iterate it for events, or `batches()` for all that is there at once. `seq` is the last number taken."""

    def __init__(
        self, stream: Stream | GenerationRange, after: int, until: int | None, ahead: Stream | None = None
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


def _numbered(drafts: Sequence[Draft], first: int, at: int) -> list[Event]:
    codec.check(drafts)
    return [
        Event(seq, at, draft.type, draft.raw, draft.native, draft.span, draft.digest, draft.blob)
        for seq, draft in enumerate(drafts, first)
    ]


def _in_slices(drafts: Sequence[Draft]) -> Iterator[Sequence[Draft]]:
    begin = size = 0
    for end, draft in enumerate(drafts):
        if end - begin >= SLICE_EVENTS or size >= SLICE_BYTES:
            yield drafts[begin:end]
            begin, size = end, 0
        size += len(draft.raw)
    yield drafts[begin:]


def _whole_growth(seq: int) -> int:
    return seq - seq % GROWTH_EVENTS


def log_closed(stream: str) -> Conflict:
    return Conflict(f"cannot use stream {stream}: its log is closed; open the log again")


def _must_be_position(after: int) -> None:
    if after < 0:
        raise InvalidParams(f"cannot subscribe after {after}; give a number from 0")


def size_of(events: Sequence[Event]) -> int:
    return sum([len(event.raw) + len(event.native) for event in events])


def _is_one_json_line(text: bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return False
    return b"\n" not in text
