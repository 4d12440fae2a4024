"""Source of what a client is told, as it is read: each reference becomes the line that it stands for.

INV-R1  Nobody sees a reference before the event that it stands for: they are committed together, or the event is first.
INV-R2  A line is made of its event alone, so that it is the same whenever and by whomever it is read.
INV-R3  Of a session that was deleted no line is shown any more, not even out of a cache; the numbers of its references
        stay theirs. An event of an earlier generation is there until then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, Self, TypeAlias
from weakref import ref

from legation.server.acp.log import MESSAGE, OPENED
from legation.server.acp.messages import ACP_TYPES, Updates
from legation.server.streaming.hub import Credential, DerivedSource, Hub, LiveStreamReader, StreamSource
from legation.server.streaming.sse import CHUNK_BYTES, Frames, as_utf8, first_chunk
from legation.store.codec import REFERENCE, referred_stream, split_reference
from legation.store.log import READ_BYTES, EventLog
from legation.store.stream import GenerationRange, Stream, size_of
from legation.wire.events import Event

MOST_SESSIONS: Final = 16  # of which it is kept how their lines are made
KEPT_ENTRIES: Final = 4096  # that were read from the store and not needed yet
KEPT_BYTES: Final = 2 * READ_BYTES  # of sessions' events, for whoever reads from the store


class ReferredSession:
    """Session that is referred to: how its lines are made, and its stream for as long as anybody else has it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.updates = Updates(name)
        self.held: Callable[[], Stream | None] = _nobody
        self.gone = False  # for ever: no other will have its name


def _nobody() -> None:
    return None


class _Block(NamedTuple):
    """Events of a session, from a number on; None stands for one that could not be read."""

    first: int
    events: Sequence[Event | None]


Blocks: TypeAlias = dict[ReferredSession, _Block]

_NO_BLOCK: Final = _Block(0, ())


class ConnectionSource(DerivedSource):
    """Stream of a connection, or generations of it. With `messages` as its client reads it: messages alone, until the
    connection is closed."""

    def __init__(
        self, log: EventLog, stream: Stream, span: GenerationRange | None = None, *, messages: bool = False
    ) -> None:
        read = span or stream
        # A key of its own: a channel has one framing.
        super().__init__(f"{read.key}\n{'messages' if messages else 'lines'}", read)
        self._log = log
        self._all = stream
        self._messages = messages
        self._workspace = stream.info().workspace
        self._sessions: dict[bytes, ReferredSession] = {}  # by how references to them begin
        self._unread: list[Event] = []  # entries of the store, above those that somebody was given last
        self._before_unread = 0
        self._blocks: Blocks = {}  # the one that was found last is the last
        self._deletions = log.deletions  # when they were found, at the latest

    @property
    def floor(self) -> int:
        """It rises with each stream that is deleted, too: what was made of its events must not be shown again."""
        return self._stream.floor + self._log.deletions

    @property
    def ended(self) -> bool:
        return self._stream.ended or (self._messages and self._stream.closed)

    def generation(self, number: int) -> ConnectionSource:
        return ConnectionSource(self._log, self._all, self._all.generation(number))

    def whole(self) -> ConnectionSource:
        return ConnectionSource(self._log, self._all, self._all.whole())

    def since(self, seq: int) -> list[Event] | None:
        """Return as many as go out at once."""
        entries = self._stream.since(seq)
        if not entries:
            return entries
        lines, taken = self._lines(entries, CHUNK_BYTES, {})
        return lines if lines or taken == len(entries) else None

    async def read_older(self, after: int) -> list[Event]:
        before, deletions = after, -1
        while True:
            if self._log.deletions != deletions:  # perhaps of what was just read
                after, deletions = before, self._log.deletions
                self._forget_deleted()
            entries = await self._entries(after)
            lines, taken = await self._resolved(entries)
            if self._log.deletions == deletions:
                self._keep(entries[taken - 1].seq if entries else after, entries[taken:])
                if lines or not entries:
                    return lines
                after = entries[taken - 1].seq

    def _forget_deleted(self) -> None:
        if self._deletions != self._log.deletions:
            self._deletions = self._log.deletions
            self._blocks.clear()

    async def _entries(self, after: int) -> list[Event]:
        unread = self._unread
        if unread and self._before_unread == after and unread[0].seq >= self._stream.floor:
            return unread
        found = self._stream.since(after)
        return await self._stream.read_older(after) if found is None else found

    def _keep(self, after: int, unread: list[Event]) -> None:
        """Keep what one that reads on needs next. Who has reached the end needs nothing of it any more."""
        self._before_unread, self._unread = after, unread[:KEPT_ENTRIES]
        if not unread and after >= self.visible:
            self._blocks.clear()
        while sum([_size(block) for block in self._blocks.values()]) > KEPT_BYTES:
            del self._blocks[next(iter(self._blocks))]

    async def _resolved(self, entries: Sequence[Event]) -> tuple[list[Event], int]:
        """Return the lines of about as many as one read of the store is, and of how many entries they are."""
        lines, taken = self._lines(entries, READ_BYTES, {**self._blocks})
        while not lines and taken < len(entries):
            await self._read_block(entries[taken])
            lines, more = self._lines(entries[taken:], READ_BYTES, {**self._blocks})
            taken += more
        return lines, taken

    def _lines(self, entries: Sequence[Event], room: int, blocks: Blocks) -> tuple[list[Event], int]:
        """Return the lines of the first entries, and of how many: up to one that must be read first, or as there is
        room."""
        lines: list[Event] = []
        for count, entry in enumerate(entries):
            line = entry
            if entry.type == REFERENCE:
                begin, _, end = entry.raw.rpartition(b",")
                number = int(end[:-1])
                session = self._sessions.get(begin) or self._meet(begin)
                first, events = blocks.get(session, _NO_BLOCK)
                if not first <= number < first + len(events):
                    stream = session.held() or self._hold(session)
                    found = None if stream is None else stream.since(number - 1, 1)
                    if found is None and not (session.gone or (stream is not None and stream.deleted)):
                        return lines, count
                    first, events = blocks[session] = _Block(number, found or (None,))
                event = events[number - first]
                if event is None:
                    continue
                updates = session.updates
                text = updates.line(event) if event.type in ACP_TYPES else updates.notification(event)
                if text is None:
                    continue
                # What is so long that it has a digest is known to be text.
                line = Event(entry.seq, entry.at, MESSAGE, text, digest=event.digest)
            elif self._messages and entry.type == OPENED:
                continue
            lines.append(line)
            room -= len(line.raw)
            if room <= 0:
                return lines, count + 1
        return lines, len(entries)

    def _meet(self, begin: bytes) -> ReferredSession:
        if len(self._sessions) >= MOST_SESSIONS:
            self._sessions.clear()
            self._blocks.clear()
        session = self._sessions[begin] = ReferredSession(referred_stream(begin))
        return session

    def _hold(self, session: ReferredSession) -> Stream | None:
        stream = self._log.held(session.name, self._workspace)
        session.held = _nobody if stream is None else ref(stream)
        return stream

    async def _read_block(self, entry: Event) -> None:
        """Read what the entry stands for, and what follows that."""
        begin, number = split_reference(entry.raw)
        session = self._sessions.get(begin) or self._meet(begin)
        stream = await self._log.find(session.name, self._workspace)
        found: Sequence[Event] = ()
        if stream is not None:
            recent = stream.since(number - 1, 1)  # somebody may have it by now
            found = await stream.read_older(number - 1, 1) if recent is None else recent
        if stream is None or stream.deleted:  # perhaps while it was read
            session.gone = True
            return
        by_number = {event.seq: event for event in first_chunk(found, READ_BYTES)}
        last = max(by_number, default=number)
        self._blocks.pop(session, None)
        self._blocks[session] = _Block(number, [by_number.get(each) for each in range(number, last + 1)])


def _size(block: _Block) -> int:
    return size_of([event for event in block.events if event is not None])


async def find(log: EventLog, name: str, workspace: str) -> ConnectionSource | None:
    stream = await log.find(name, workspace)
    return None if stream is None else ConnectionSource(log, stream)


class MessageReader(LiveStreamReader):
    """Reader for a client, as sandbox-agent has it. It ends plainly: such clients come back with the last number they
    saw."""

    def __init__(
        self,
        hub: Hub,
        source: StreamSource,
        after: int,
        credential: Credential | None,
        reading: AbstractContextManager[None],
    ) -> None:
        """`reading` is entered for as long as there is somebody who reads."""
        super().__init__(hub, source, after, credential, frames)
        self._reading = reading

    def __enter__(self) -> Self:
        self._reading.__enter__()
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._reading.__exit__(None, None, None)

    def _finish(self, last: bytes) -> None:  # noqa: ARG002
        super()._finish(b"")


def frames(events: Sequence[Event]) -> Frames:
    """`event: message`, `id`, the message as one line of data."""
    parts = [b"\n\n"] * (3 * len(events))
    parts[::3] = [b"event: message\nid: %d\ndata: " % event.seq for event in events]
    parts[1::3] = [event.raw for event in events]
    data = b"".join(parts)
    if b"\r" in data:
        data = data.replace(b"\r", b" ")
    if not data.isascii() and not (len(events) == 1 and events[0].digest):
        data = as_utf8(data)
    return Frames(data, events[-1].seq, len(events))
