"""Reports of one prompt to its caller: batches of notifications in order, heartbeats beside them, one terminal report.

The log of the session is all there is of what was said; a second stream of it, the journal, has which report holds which
events. A report is made when it is sent, of the log alone.

INV-O1  What a report holds is on the disk before it is sent for the first time: sent again, after a crash too, it has the
        same body. Timestamp and nonce are fresh for each attempt.
INV-O2  Reports are sent one after the other, each until it is accepted; nothing is dropped while the caller is down.
INV-O3  Memory does not grow with what waits: it is read from the log again when its turn comes.
INV-O4  Heartbeats take no part in that: they carry 0, are not repeated, and wait for nobody.
INV-O5  What is told besides notifications, such as a permission that the agent waits for, has its place among them: it is a
        report of its own, behind all that was said before it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

import msgspec

from legation.clock import Clock
from legation.errors import InternalError, LegationError, StorageFailed, TimedOut
from legation.runner.callback import UNAUTHORIZED, Callback
from legation.store.codec import Report
from legation.store.jsonl import JsonlBackend
from legation.store.log import EventLog
from legation.store.stream import Stream
from legation.tasks import TaskSet
from legation.wire import jsontext
from legation.wire.callbacks import (
    BATCH_BYTES,
    BATCH_COUNT,
    TERMINAL,
    PromptEnd,
    ReportIds,
    ReportKind,
    signed_headers,
)
from legation.wire.events import UNRECOGNIZED, UPDATE_TYPES, Draft, Event
from legation.wire.snapshot import SnapshotFold

JOURNAL: Final = "_reports"  # the stream
WINDOW: Final = 0.75  # seconds from the first notification of a batch: the caller's to wait
NOTED_AT_ONCE: Final = 20  # reports that were accepted, of a caller that comes back
HEARTBEAT: Final = 10.0  # seconds between two
AHEAD_LIMIT: Final = 4 * 1024 * 1024  # bytes of a report beside which the next one is made
ANSWER_LIMIT: Final = 30.0  # seconds for an answer to a report: the caller's time
DRAIN_LIMIT: Final = 60.0  # seconds for what was said to be in a report: the disk's time
PENDING_LIMIT: Final = 8 * 1024 * 1024  # bytes that may wait for a failing disk before the agent is paused
RETRY_FIRST, RETRY_MOST = 0.25, 15.0  # seconds to the next try: the caller's time to come back

# Events of the journal.
_LIVES, _BEGAN, _REPORT, _ACCEPTED, _COMMAND = "lives", "began", "report", "accepted", "command"
NOTIFICATIONS: Final = frozenset((*UPDATE_TYPES.values(), UNRECOGNIZED))
# What says something of the state besides notifications.
_FACTS: Final = "setup-facts"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReportTimes:
    window: float = WINDOW
    heartbeat: float = HEARTBEAT
    answer: float = ANSWER_LIMIT
    retry_first: float = RETRY_FIRST
    retry_most: float = RETRY_MOST


class Began(msgspec.Struct, frozen=True):
    """The session is there: what its log has above `after` is reported."""

    session: str  # its stream
    after: int
    named: str  # what the agent calls it


class JournalEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A report: the notifications among events `first` to `last` of the log, else none, and `end`, what is told besides."""

    sequence: int
    kind: ReportKind
    last: int
    first: int = 0
    end: msgspec.Raw = msgspec.Raw(b"")


TellEvent: TypeAlias = Callable[[Event], tuple[ReportKind, msgspec.Raw] | None]
"""The report of an event that is no notification; None where it is nobody's business."""

_read_entry = msgspec.json.Decoder(JournalEntry).decode


class Spool:
    """Size of what waits to be accepted, in bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.waits = 0
        self.has_room, self.is_full = asyncio.Event(), asyncio.Event()
        self.has_room.set()

    def add(self, size: int) -> None:
        self.waits = max(0, self.waits + size)
        full, other = (
            (self.is_full, self.has_room) if self.waits > self.limit else (self.has_room, self.is_full)
        )
        full.set()
        other.clear()


class SpoolLog(EventLog):
    """A log whose agents are paused while too much waits, as they are for a disk that does not keep up."""

    def __init__(self, folder: Path, spool: Spool, clock: Clock, report: Report) -> None:
        super().__init__(JsonlBackend(folder), clock=clock, report=report, pending_limit=PENDING_LIMIT)
        self._spool = spool

    async def room(self, stream: Stream | None = None) -> None:
        await super().room(stream)
        await self._spool.has_room.wait()


class LogCursor:
    """Walks over a session's log, once, folding its snapshot: what it gives is not read twice. Of what is no longer in memory
    it reads a page ahead."""

    def __init__(self, stream: Stream, began: Began, tasks: TaskSet) -> None:
        self.snapshot = SnapshotFold()
        self._stream, self._after, self._tasks = stream, began.after, tasks
        self._page: asyncio.Task[list[Event]] | None = None  # the one ahead
        self._ahead: list[Event] = []  # read and not passed yet
        self._next = 0  # of these
        self._read_to = 0

    async def pass_to(self, first: int, last: int) -> tuple[list[bytes], int]:
        """Go on to the event `last`; return the notifications from `first` on, and how long what was passed is."""
        found: list[bytes] = []
        passed, take = 0, self.snapshot.take
        while True:
            ahead, at = self._ahead, self._next
            while at < len(ahead) and ahead[at].seq <= last:
                event = ahead[at]
                at += 1
                if event.type in NOTIFICATIONS and event.seq > self._after:
                    passed += len(event.raw)
                    take(event)
                    if event.seq >= first:
                        found.append(event.raw)
                elif event.type == _FACTS:
                    take(event)
            self._next = at
            if at < len(ahead) or self._read_to >= last:
                return found, passed
            await self._read()

    async def _read(self) -> None:
        stream, page = self._stream, self._page
        self._page = None
        events = await page if page is not None else stream.since(self._read_to)
        if events is None:
            events = await stream.read_older(self._read_to)
        if not events:
            raise StorageFailed("cannot make a report: events of its log are gone; start again elsewhere")
        self._ahead, self._next, self._read_to = events, 0, events[-1].seq
        if stream.is_behind_tail(self._read_to):
            self._page = self._tasks.start(stream.read_older(self._read_to))


class Reporter:
    """`async with Reporter(...)`; `follow` a session, then `finish`. What goes wrong for good is in `broken`."""

    def __init__(
        self,
        callback: Callback,
        token: str,
        ids: ReportIds,
        log: EventLog,
        *,
        clock: Clock,
        spool: Spool | None = None,
        times: ReportTimes | None = None,
        tell: TellEvent | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._callback, self._token, self._ids, self._log = callback, token, ids, log
        self._clock, self._times, self._chance = clock, times or ReportTimes(), chance
        self._tell = tell
        self._spool = spool or Spool(2**62)
        self.broken: asyncio.Future[LegationError] = asyncio.get_running_loop().create_future()
        self.ended: PromptEnd | None = None  # a terminal report is on its way, or was accepted
        self.session_id: str | None = None
        self.heard_at = clock.monotonic()  # of the caller
        self.last_command = 0  # that was acted on
        self._began: Began | None = None
        self._cursor: LogCursor | None = None
        self._seen = 0  # of the session's log
        self._sequence = self.accepted = 0
        self._reported_to = 0  # up to that event of the session's log there are reports
        self._count = self._size = self._first = self._last = 0  # of the batch that is open
        self._opened_at = 0.0
        self._opened = asyncio.Event()
        self._progress = asyncio.Event()
        self._hasty = asyncio.Event()  # the disk takes no more: what is to be said is said without it
        self._tasks = TaskSet("legation-reports")
        self._batching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._journal = await self._log.stream(JOURNAL)
        await self._recover()
        for work in (self._send_all, self._beat, self._watch_window):
            self._tasks.start(self._guarded(work))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.close()

    async def _recover(self) -> None:
        """Find what was reported by an earlier life."""
        async for event in self._journal.subscribe(follow=False):
            match event.type:
                case "began":
                    await self._open(msgspec.json.decode(event.raw, type=Began))
                case "accepted":
                    self.accepted = max(self.accepted, int(event.raw))
                case "command":
                    self.last_command = int(event.raw)
                case "report":
                    entry = _read_entry(event.raw)
                    self._sequence, self._reported_to = entry.sequence, max(self._reported_to, entry.last)
                    if entry.kind in TERMINAL:
                        self.ended = msgspec.json.decode(entry.end, type=PromptEnd)

    async def _open(self, began: Began) -> None:
        self._began, self.session_id = began, began.named
        self._reported_to = max(self._reported_to, began.after)
        self._cursor = LogCursor(await self._log.stream(began.session), began, self._tasks)

    @property
    def has_lived(self) -> bool:
        """An earlier life has begun the prompt."""
        return self._journal.head > 0

    async def begin_life(self) -> None:
        await self._journal.append([Draft(_LIVES, b"{}")])

    # What is said is put into batches.

    async def follow(self, stream: Stream, after: int, named: str) -> None:
        """Report what the session's log has above `after`, and what is to come."""
        began = Began(stream.name, after, named)
        await self._journal.append([Draft(_BEGAN, msgspec.json.encode(began))])
        await self._open(began)
        self._batching = self._tasks.start(self._guarded(partial(self._batch, stream, after)))

    async def follow_rest(self) -> None:
        """Report what an earlier life has recorded and not reported; what its agent waited for is over."""
        self._tell = None
        if self._began is not None:
            stream = await self._log.stream(self._began.session)
            async for events in stream.subscribe(self._reported_to, follow=False).batches():
                self._take_all(events)

    async def _batch(self, stream: Stream, after: int) -> None:
        async for events in stream.subscribe(after).batches():
            self._take_all(events)
            self._seen = events[-1].seq
            self._progress.set()

    def _take_all(self, events: list[Event]) -> None:
        self._spool.add(sum([len(each.raw) for each in events if each.type in NOTIFICATIONS]))
        for event in events:
            self._take(event)

    def _take(self, event: Event) -> None:
        if event.type not in NOTIFICATIONS:
            if self._tell is not None and (told := self._tell(event)) is not None:
                self._flush()  # INV-O5
                kind, more = told
                self._note(JournalEntry(self._sequence + 1, kind, event.seq, 0, more))
                self._reported_to = event.seq
            return
        size = len(event.raw)
        if self._count and self._size + size > BATCH_BYTES:
            self._flush()
        if not self._count:
            self._first, self._opened_at = event.seq, self._clock.monotonic()
            self._opened.set()
        self._count += 1
        self._size += size + 1
        self._last = event.seq
        if self._count >= BATCH_COUNT or self._size >= BATCH_BYTES:
            self._flush()

    async def _watch_window(self) -> None:
        """Flush a batch whose time is up: counted from its first notification, whatever follows that."""
        while True:
            await self._opened.wait()
            self._opened.clear()
            while self._count:
                left = self._opened_at + self._times.window - self._clock.monotonic()
                if left <= 0:
                    self._flush()
                else:
                    await self._clock.sleep(left)

    def _flush(self) -> None:
        if self._count:
            self._note(JournalEntry(self._sequence + 1, "session_update", self._last, self._first))
            self._reported_to = self._last
        self._count = self._size = 0

    def _note(self, entry: JournalEntry) -> None:
        self._sequence = entry.sequence
        self._journal.append([Draft(_REPORT, msgspec.json.encode(entry))])

    async def note_command(self, number: int) -> None:
        """Keep that a command is acted on, before it is."""
        self.last_command = number
        await self._journal.append([Draft(_COMMAND, b"%d" % number)])

    # The end.

    async def finish(self, kind: ReportKind, end: PromptEnd, upto: int, limit: float) -> None:
        """Send the terminal report behind all that the session's log has up to that event; `TimedOut` where nothing was
        accepted for `limit` seconds. What is not sent stays in the spool."""
        await self._put_all_into_reports(upto)
        if self.ended is None:
            if self.last_command:
                end = msgspec.structs.replace(end, last_command=self.last_command)
            self.ended = end
            told = msgspec.Raw(jsontext.write(end))
            self._note(JournalEntry(self._sequence + 1, kind, self._reported_to, 0, told))
        await self._until_accepted(limit)

    async def destroy(self, upto: int, limit: float) -> None:
        """Flush, and wait until all is accepted, as `finish` does."""
        await self._put_all_into_reports(upto)
        await self._until_accepted(limit)

    async def _put_all_into_reports(self, upto: int) -> None:
        if self._batching is not None:
            deadline = self._clock.monotonic() + DRAIN_LIMIT
            if not await self._until(lambda: self._seen >= upto, deadline):
                raise StorageFailed(
                    "cannot end: what the agent said cannot be read from the log; check the disk"
                )
        self._flush()

    async def _until_accepted(self, limit: float) -> None:
        last = self._sequence
        # A caller that takes one after the other is there, however much it has to catch up on.
        while (reached := self.accepted) < last:
            deadline = self._clock.monotonic() + limit
            if not await self._until(partial(self._is_beyond, reached), deadline):
                raise TimedOut(
                    f"cannot end: the caller did not accept report {reached + 1} of {last} within {limit:g} s;"
                    " start the runner again on the same folder when it is back"
                )

    def _is_beyond(self, sequence: int) -> bool:
        return self.accepted > sequence

    def give_up_on_disk(self) -> None:
        """Send what is in memory, durable or not: nothing more will be stored."""
        self._hasty.set()

    async def _until(self, holds: Callable[[], bool], deadline: float) -> bool:
        timer = asyncio.ensure_future(self._clock.sleep(max(0.0, deadline - self._clock.monotonic())))
        try:
            while not holds():
                if self.broken.done():
                    raise self.broken.result()
                if timer.done():
                    return False
                self._progress.clear()
                news = asyncio.ensure_future(self._progress.wait())
                first: set[asyncio.Future[Any]] = {news, timer, self.broken}
                await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
            return True
        finally:
            timer.cancel()

    # Reports are sent.

    async def _send_all(self) -> None:
        """Send one after the other; of a caller that comes back, the next is made while one is on its way."""
        ahead: asyncio.Task[None] | None = None
        async for events in self._journal.subscribe(0).batches():
            reports = [event for event in events if event.type == _REPORT]
            for event in reports:
                entry = _read_entry(event.raw)
                if entry.sequence <= self.accepted:
                    continue
                body, passed = await self._body(entry)
                if ahead is not None:
                    await ahead
                    ahead = None
                is_last = event is reports[-1]
                sending = self._send(entry.sequence, event.seq, body, passed, is_noted=is_last)
                if is_last or len(body) > AHEAD_LIMIT:
                    await sending
                else:
                    ahead = self._tasks.start(sending)
                    await asyncio.sleep(0)  # it is written by then

    async def _send(self, sequence: int, seq: int, body: bytes, passed: int, *, is_noted: bool) -> None:
        if self._journal.saved < seq:
            await self._durable(seq)
        await self._deliver(sequence, body)
        self.accepted = sequence
        self._spool.add(-passed)
        # Not each of many: a report that was accepted and is not noted is sent once more after a crash.
        if is_noted or not sequence % NOTED_AT_ONCE:
            with suppress(LegationError):  # the log is closed
                self._journal.append([Draft(_ACCEPTED, b"%d" % sequence)])
        self._progress.set()

    async def _durable(self, seq: int) -> None:
        """INV-O1."""
        saved = asyncio.ensure_future(self._journal.durable(seq))
        hasty = asyncio.ensure_future(self._hasty.wait())
        try:
            first: set[asyncio.Future[Any]] = {saved, hasty}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        finally:
            saved.cancel()
            hasty.cancel()

    async def _body(self, entry: JournalEntry) -> tuple[bytes, int]:
        cursor, found, passed = self._cursor, list[bytes](), 0
        if cursor is not None:
            found, passed = await cursor.pass_to(entry.first or entry.last + 1, entry.last)
        snapshot = (cursor.snapshot if cursor is not None else SnapshotFold()).parts()
        head = self._ids.head(entry.kind, entry.sequence, self.session_id)
        more = bytes(entry.end)[1:-1]
        tail = b",%b}" % more if more else b"}"
        notifications = b",".join(found)
        return (
            b"".join((head, b',"notifications":[', notifications, b'],"snapshot":', *snapshot, tail)),
            passed,
        )

    async def _deliver(self, sequence: int, body: bytes) -> None:
        """INV-O2."""
        pause = self._times.retry_first
        while True:
            answer = await self._callback.post(body, partial(self.headers, body), self._times.answer)
            if answer.is_good:
                self.heard()
                return
            if not answer.is_passing:
                raise answer.refusal(f"report {sequence}")
            _log.warning("report %d was not accepted (%s): it is sent again", sequence, answer)
            # Not all at once, where many runners have lost the same caller.
            wait = max(pause * (0.5 + self._chance() / 2), min(answer.retry_after, self._times.retry_most))
            await self._clock.sleep(wait)
            pause = min(pause * 2, self._times.retry_most)

    def heard(self) -> None:
        self.heard_at = self._clock.monotonic()

    def headers(self, body: bytes = b"") -> dict[str, str]:
        """Sign it, for one attempt."""
        return signed_headers(self._token, body, self._clock.now_ms(), str(uuid.uuid4()))

    async def _beat(self) -> None:
        """INV-O4. From the first moment, before there is a session."""
        while True:
            body = self._ids.head("heartbeat", 0, self.session_id) + b"}"
            self._tasks.start(self._guarded(partial(self._beat_once, body)))
            await self._clock.sleep(self._times.heartbeat)

    async def _beat_once(self, body: bytes) -> None:
        answer = await self._callback.post(body, partial(self.headers, body), self._times.heartbeat)
        if answer.is_good:
            self.heard()
        if answer.status == UNAUTHORIZED:
            raise answer.refusal("a heartbeat")

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()  # made here: a task that is cancelled before its first step would leave it unawaited
        except LegationError as error:
            self._break(error)
        except Exception:  # noqa: BLE001 - a task boundary
            _log.exception("cannot report any more")
            self._break(InternalError("cannot report any more, which is a defect; see the log"))

    def _break(self, error: LegationError) -> None:
        if not self.broken.done():
            self.broken.set_result(error)
        self._progress.set()
