"""What a client is told, as it is read: each reference becomes the line that it stands for.

INV-R1  Nobody sees a reference before the event that it stands for: they are committed together, or the event is first.
INV-R2  A line is made of its event alone, so that it is the same whenever and by whomever it is read.
INV-R3  Of a session that was deleted no line is shown any more, not even out of a cache; the numbers of its references
        stay theirs. An event of an earlier generation is there until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, Self

from legation.server.acp.messages import Updates
from legation.server.acp.outlet import MESSAGE, OPENED
from legation.server.streaming.channel import Source
from legation.server.streaming.hub import Credential, Hub, StreamReader
from legation.server.streaming.sse import CHUNK_BYTES, Frames, as_text, first_chunk
from legation.store.codec import REFERENCE, referred_stream, split_reference
from legation.store.log import READ_BYTES, EventLog
from legation.store.stream import Span, Stream
from legation.wire.events import Event

MOST_SESSIONS: Final = 64  # of which it is kept how their lines are made
KEPT_ENTRIES: Final = 4096  # that were read from the store and not needed yet
KEPT_BYTES: Final = 2 * READ_BYTES  # of sessions' events, for whoever reads from the store


class _Session:
    """One that is referred to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.updates = Updates(name)


class _Block(NamedTuple):
    """Events of a session between two numbers, as they were read; one that is not among them is gone."""

    first: int
    last: int
    events: dict[int, Event]
    size: int


class ConnectionSource(Source):
    """The stream of a connection, or generations of it. With `messages` as its client reads it: messages alone, until
    the connection is closed."""

    def __init__(
        self, log: EventLog, stream: Stream, span: Span | None = None, *, messages: bool = False
    ) -> None:
        self._log = log
        self._all = stream
        self._stream = span or stream
        self._messages = messages
        self._workspace = stream.info().workspace
        self._sessions: dict[bytes, _Session] = {}
        self._unread: list[Event] = []  # entries of the store, above those that somebody was given last
        self._before_unread = 0
        self._blocks: dict[str, _Block] = {}  # by session; the one that was read last is the last
        self._deletions = log.deletions  # before they were read

    @property
    def key(self) -> str:
        return f"{self._stream.key}\n{'messages' if self._messages else 'lines'}"

    @property
    def name(self) -> str:
        return self._stream.name

    @property
    def head(self) -> int:
        return self._stream.head

    @property
    def visible(self) -> int:
        return self._stream.visible

    @property
    def floor(self) -> int:
        """It rises with each stream that is deleted, too: what was made of its events must not be shown again."""
        return self._stream.floor + self._log.deletions

    @property
    def ended(self) -> bool:
        return self._stream.ended or (self._messages and self._stream.closed)

    @property
    def deleted(self) -> bool:
        return self._stream.deleted

    @property
    def finished(self) -> bool:
        return self._stream.finished

    def generation(self, number: int) -> ConnectionSource:
        return ConnectionSource(self._log, self._all, self._all.generation(number))

    def whole(self) -> ConnectionSource:
        return ConnectionSource(self._log, self._all, self._all.whole())

    @property
    def news(self) -> asyncio.Event:
        return self._stream.news

    def since(self, seq: int) -> list[Event] | None:
        """As many as go out at once."""
        entries = self._stream.since(seq)
        if not entries:
            return entries
        held: dict[_Session, Stream | None] = {}
        lines: list[Event] = []
        room = CHUNK_BYTES
        for entry in entries:
            line: Event | None = entry
            if entry.type == REFERENCE:
                session, number = self._referred(entry)
                if session not in held:
                    held[session] = self._log.held(session.name, self._workspace)
                stream = held[session]
                event = stream.recent(number) if stream is not None else None
                if event is None and (stream is None or not stream.deleted):
                    return lines or None
                line = _line(entry, session, event)
            elif self._messages and entry.type == OPENED:
                continue
            if line is not None:
                lines.append(line)
                room -= len(line.raw)
                if room < 0:
                    break
        return lines

    async def read_older(self, after: int) -> list[Event]:
        before = after
        self._forget_deleted()
        while entries := await self._entries(after):
            lines, taken = await self._resolved(entries)
            after = entries[taken - 1].seq
            self._keep(after, entries[taken:])
            if self._forget_deleted():  # perhaps what was just read
                after = before
            elif lines:
                return lines
        return []

    def _forget_deleted(self) -> bool:
        before, self._deletions = self._deletions, self._log.deletions
        if before == self._deletions:
            return False
        self._blocks.clear()
        return True

    async def _entries(self, after: int) -> list[Event]:
        unread = self._unread
        if unread and self._before_unread == after and unread[0].seq >= self._stream.floor:
            return unread
        found = self._stream.since(after)
        return await self._stream.read_older(after) if found is None else found

    def _keep(self, after: int, unread: list[Event]) -> None:
        """Nothing is read twice by one that reads on. Who has reached the end needs nothing of it any more."""
        self._before_unread, self._unread = after, unread[:KEPT_ENTRIES]
        if not unread and after >= self.visible:
            self._blocks.clear()
        while sum([block.size for block in self._blocks.values()]) > KEPT_BYTES:
            del self._blocks[next(iter(self._blocks))]

    async def _resolved(self, entries: Sequence[Event]) -> tuple[list[Event], int]:
        """The lines of about as many as one read of the store is, and of how many entries they are."""
        lines: list[Event] = []
        room = READ_BYTES
        for count, entry in enumerate(entries, 1):
            line: Event | None = entry
            if entry.type == REFERENCE:
                session, number = self._referred(entry)
                line = _line(entry, session, await self._event(session, number))
            elif self._messages and entry.type == OPENED:
                continue
            if line is not None:
                lines.append(line)
                room -= len(line.raw)
                if room <= 0:
                    return lines, count
        return lines, len(entries)

    async def _event(self, session: _Session, number: int) -> Event | None:
        block = self._blocks.get(session.name)
        if block is None or not block.first <= number <= block.last:
            self._blocks.pop(session.name, None)
            block = self._blocks[session.name] = await self._block(session, number)
        return block.events.get(number)

    async def _block(self, session: _Session, number: int) -> _Block:
        stream = await self._log.find(session.name, self._workspace)
        found: Sequence[Event] | None = []
        if stream is not None and (found := stream.since(number - 1, 0)) is None:
            found = await stream.read_older(number - 1, 0)
        found = first_chunk(found or (), READ_BYTES)
        if not found:
            return _Block(number, number, {}, 0)
        size = sum([len(event.raw) + len(event.native) for event in found])
        return _Block(number, found[-1].seq, {event.seq: event for event in found}, size)

    def _referred(self, entry: Event) -> tuple[_Session, int]:
        begin, number = split_reference(entry.raw)
        session = self._sessions.get(begin)
        if session is None:
            if len(self._sessions) >= MOST_SESSIONS:
                self._sessions.clear()
            session = self._sessions[begin] = _Session(referred_stream(begin))
        return session, number


def _line(entry: Event, session: _Session, event: Event | None) -> Event | None:
    """Under the entry's number; of what is so long that it has a digest it is known to be text."""
    line = None if event is None else session.updates.of(event)
    if event is None or line is None:
        return None
    return Event(entry.seq, entry.at, MESSAGE, line, digest=event.digest)


async def find(log: EventLog, name: str, workspace: str) -> ConnectionSource | None:
    stream = await log.find(name, workspace)
    return None if stream is None else ConnectionSource(log, stream)


class MessageReader(StreamReader):
    """What a client reads, as sandbox-agent has it. Its end is a plain one: such clients know no farewells, and come back
    with the last number they saw."""

    def __init__(
        self,
        hub: Hub,
        source: Source,
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
    if len(events) == 1 and events[0].digest:
        data = data.replace(b"\r", b" ") if b"\r" in data else data
    else:
        data = as_text(data)
    return Frames(data, events[-1].seq, len(events))
