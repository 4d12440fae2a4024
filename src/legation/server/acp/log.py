"""Log of what a client is told: one ordered stream of the log for each server id, so that nothing is lost on the way.

An entry is a line of ours, or a reference to an event of a session. That is stored once, there: the line is made of it
whenever it is read (see `source`).

INV-O1  A message has its number for ever: whoever comes back with the last one it saw gets exactly what follows,
        also after a restart of the server.
INV-O2  After the end of a connection nothing of it is said any more, whoever has the name by then.
INV-F1  A client is told every update of a session once, in the order of the log, with the bytes of the log: the update,
        and what its agent put beside it. Only the session has the name here that it has with us. What is stored for
        it is a reference, in one commit with the update or behind it.
INV-F2  An answer to a prompt comes after every update of its turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Final, NamedTuple, Self, TypeAlias

import msgspec

from legation.errors import Conflict, LegationError
from legation.server.acp.messages import EXTENSION, Updates
from legation.server.sessions.record import ACP
from legation.server.streaming.hub import Credential, DerivedSource, Hub, LiveStreamReader, StreamSource
from legation.server.streaming.sse import CHUNK_BYTES, Frames, as_utf8, first_chunk
from legation.store.codec import REFERENCE, reference, referred_stream, split_reference
from legation.store.digest import digest
from legation.store.log import READ_BYTES, EventLog
from legation.store.stream import GenerationRange, Receipt, Stream, Subscription, size_of
from legation.wire import event_types, jsontext
from legation.wire.event_types import (
    ACP_TYPES,
    AgentExited,
    PermissionAnswered,
    PermissionAsked,
    PromptStarted,
    QuestionAnswered,
    QuestionAsked,
    SessionReset,
    SessionStatus,
    SetupFacts,
)
from legation.wire.events import Draft, Event

MESSAGE: Final = "acp-message"
OPENED: Final = "acp-opened"
CATCH_UP: Final = 30.0  # seconds that an answer waits for the updates before it: the disk's time

_QUESTIONS: Final = (PermissionAsked, PermissionAnswered, QuestionAsked, QuestionAnswered)
# Events that somebody has to look at; the others are updates, or nothing for a client.
_NOTED: Final = frozenset(
    kind.event_type() for kind in (*_QUESTIONS, AgentExited, SessionReset, SessionStatus)
)
_STATUS: Final = SessionStatus.event_type()
_FACTS: Final = SetupFacts.event_type()

Note = Callable[[str, object], None]  # the session's id, and the event's payload
Told: TypeAlias = Event | Draft
"""An update: of the log, or one that stands for what the user said, or for how the agent is set up."""

logger = logging.getLogger("legation.acp")


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """A request of the client's: its id as it was written, and the number after which its answer stands."""

    id: str
    after: int


class KeptConnection(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """State of a connection, to take it up after a restart. No secret is in it."""

    acp: int = 1  # of this shape; what has no such member is another's
    agent: str
    created_at_ms: int
    since: int = 0  # the number before its client's first message: what came earlier is of another client
    client_capabilities: dict[str, object] = {}
    taken: tuple[Taken, ...] = ()  # requests that have no answer yet, or had none when the last one came
    # Where no request of its own runs: what it was asked last, in turns that others began, stands above that number.
    asks: int | None = None
    streamable: bool = False  # its client got the id from us, and the answer to `initialize` with it


def stream_name(server_id: str) -> str:
    return f"{ACP}{server_id}"


def read_kept(meta: bytes) -> KeptConnection | None:
    try:
        return msgspec.json.decode(meta, type=KeptConnection)
    except msgspec.MsgspecError:
        return None


class ConnectionLog:
    def __init__(self, log: EventLog, stream: Stream) -> None:
        self.stream = stream
        self.room = log.room  # returns when the disk has caught up
        self._closed = False

    def say(self, *lines: bytes) -> Receipt | None:
        """Append them; None where nothing is said any more."""
        return self.append([Draft(MESSAGE, line) for line in lines])

    def append(self, entries: Sequence[Draft]) -> Receipt | None:
        """Lines, and references."""
        if self._closed or not entries:
            return None
        with suppress(Conflict):  # the log is closing, and with it the server
            return self.stream.append(entries)
        return None

    async def keep(self, kept: KeptConnection) -> None:
        if not self._closed:
            await self.stream.set_meta(msgspec.json.encode(kept))

    def shut(self) -> None:
        self._closed = True


class SessionFollower(msgspec.Struct, eq=False, dict=True):
    """Reader of a session for a client. `noted` is called with what is no update, in its place among them; `over` when
    the session was closed or deleted, and all of it was told."""

    session_id: str
    stream: Stream
    _outlet: ConnectionLog
    _noted: Note
    _over: Callable[[SessionFollower], None]
    seq: int = 0
    _muted: bool = False  # an agent replays what the client has seen already
    _open: list[object] = msgspec.field(default_factory=list)
    _events: Subscription | None = None
    _task: asyncio.Task[None] | None = None
    _moved: asyncio.Future[None] | None = None

    def __post_init__(self) -> None:
        self._updates = Updates(self.session_id)
        self._reference = reference(self.session_id)

    async def replay(self) -> None:
        """Tell all there is, with what the user said where the agent does not tell it itself; the rest follows with
        `start`."""
        prompt: list[Told] = []  # of the turn whose agent has said nothing yet
        async for events in self.stream.subscribe(follow=False).batches():
            told: list[Told] = []
            for event in events:
                if event.type == PromptStarted.event_type():
                    told += prompt
                    prompt = _said_by_user(event)
                elif event.type in ACP_TYPES or event.type == _FACTS:
                    if event.type != "user-message-chunk":  # else the agent tells the prompt itself
                        told += prompt
                    told += facts_told(event) if event.type == _FACTS else [event]
                    prompt = []
            self._outlet.append(list(map(self._entry, told)))
            self.seq = events[-1].seq
            await self._outlet.room()
        self._outlet.append(list(map(self._entry, prompt)))
        await self._keep_open()

    async def skip(self) -> None:
        """Tell nothing of what there is, but what waits for an answer."""
        floor = -1
        while self.stream.floor != floor:
            floor, self.seq = self.stream.floor, self.stream.visible
            await self._keep_open()

    async def skip_to_active(self) -> None:
        """Tell nothing of what there is before the session became active."""
        async for event in self.stream.subscribe(follow=False):
            self.seq = event.seq
            if event.type == _STATUS:
                break
        await self._keep_open()

    async def _keep_open(self) -> None:
        """Keep what was asked before this client came, and waits for an answer still."""
        still_open = (await digest(self.stream)).open.values()
        asked = [each.seq for each in still_open if each.kind != "turn" and each.seq <= self.seq]
        events = [await self.stream.event(seq) for seq in asked]
        self._open = [event_types.decode(event) for event in events if event is not None]

    def start(self) -> None:
        for payload in self._open:
            self._noted(self.session_id, payload)
        self._task = asyncio.create_task(self._run(), name=f"legation-acp-{self.session_id}")

    async def reached(self, seq: int) -> None:
        """Wait until every event up to that number was told, but not for ever: some cannot be read."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP):
                while self.seq < seq and self._task is not None and not self._task.done():
                    self._moved = self._moved or asyncio.get_running_loop().create_future()
                    await asyncio.wait({self._moved, self._task}, return_when=asyncio.FIRST_COMPLETED)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            # What it says of them stands behind them on the disk: one commit has both.
            self._events = self.stream.subscribe(self.seq, ahead=True)
            async for batch in self._events.batches():
                self._take(batch)
                await self._outlet.room()
        except LegationError as error:
            logger.warning("cannot go on telling a client of session %s: %s", self.session_id, error.message)
        self._over(self)

    def _take(self, batch: list[Event]) -> None:
        entries: list[Draft] = []
        for event in batch:
            if event.type in _NOTED:
                self._outlet.append(entries)
                entries = []
                self._note(event)
            elif (event.type in ACP_TYPES and not self._muted) or (
                event.type == EXTENSION and self._updates.notification(event) is not None
            ):
                entries.append(self._entry(event))
            elif event.type == _FACTS and not self._muted:
                entries += map(self._entry, facts_told(event))
        self._outlet.append(entries)
        self.seq = batch[-1].seq
        if self._moved is not None:
            self._moved.set_result(None)
            self._moved = None

    def _note(self, event: Event) -> None:
        payload = event_types.decode(event)
        if isinstance(payload, SessionReset):
            self._muted = True
        elif isinstance(payload, SessionStatus):
            self._muted = False
            if self._events is not None:
                self._events.until_closed = payload.status == "closed"
        self._noted(self.session_id, payload)

    def _entry(self, update: Told) -> Draft:
        if isinstance(update, Event):
            return Draft(REFERENCE, b"%b,%d]" % (self._reference, update.seq))
        return Draft(MESSAGE, self._updates.line(update))


def facts_told(event: Event) -> list[Told]:
    """Return them as the updates that an agent would send. ACP names only the mode that is chosen; those to choose from
    are added."""
    facts = jsontext.read_object(event.payload)
    modes, options = facts.get("modes"), facts.get("configOptions")
    told: list[Told] = []
    if isinstance(modes, dict):
        told.append(
            Draft("current-mode-update", jsontext.write({"sessionUpdate": "current_mode_update", **modes}))
        )
    if options is not None:
        update = {"sessionUpdate": "config_option_update", "configOptions": options}
        told.append(Draft("config-option-update", jsontext.write(update)))
    return told


def _said_by_user(event: Event) -> list[Told]:
    blocks = jsontext.read_object(event.raw).get("prompt")
    if not isinstance(event_types.decode(event), PromptStarted) or not isinstance(blocks, list):
        return []
    updates = [{"sessionUpdate": "user_message_chunk", "content": block} for block in blocks]
    return [Draft("user-message-chunk", jsontext.write(update)) for update in updates]


# Source of what a client is told, as it is read: each reference becomes the line that it stands for.
#
# INV-R1  Nobody sees a reference before the event that it stands for: they are committed together, or the event is first.
# INV-R2  A line is made of its event alone, so that it is the same whenever and by whomever it is read.
# INV-R3  Of a session that was deleted no line is shown any more, not even out of a cache; the numbers of its references
#         stay theirs. An event of an earlier generation is there until then.

MOST_SESSIONS: Final = 16  # of which it is kept how their lines are made
KEPT_ENTRIES: Final = 4096  # that were read from the store and not needed yet
KEPT_BYTES: Final = 2 * READ_BYTES  # of sessions' events, for whoever reads from the store


class _Block(NamedTuple):
    """Events of a session, from a number on; None stands for one that could not be read."""

    first: int
    events: Sequence[Event | None]


Blocks: TypeAlias = dict[Updates, _Block]

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
        self._sessions: dict[bytes, Updates] = {}  # by how references to them begin
        self._gone: set[Updates] = set()  # of them, those that were deleted: no other will have its name
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
                if self._deletions != deletions:
                    self._deletions = deletions
                    self._blocks.clear()
            entries = await self._entries(after)
            lines, taken = await self._resolved(entries)
            if self._log.deletions == deletions:
                self._keep(entries[taken - 1].seq if entries else after, entries[taken:])
                if lines or not entries:
                    return lines
                after = entries[taken - 1].seq

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
        sizes = {name: size_of([*filter(None, block.events)]) for name, block in self._blocks.items()}
        while sum(sizes.values()) > KEPT_BYTES:
            oldest = next(iter(self._blocks))
            del self._blocks[oldest], sizes[oldest]

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
                    stream = self._log.held(session.session_id, self._workspace)
                    found = None if stream is None else stream.since(number - 1, 1)
                    if found is None and not (
                        session in self._gone or (stream is not None and stream.deleted)
                    ):
                        return lines, count
                    first, events = blocks[session] = _Block(number, found or (None,))
                event = events[number - first]
                if event is None:
                    continue
                text = session.line(event) if event.type in ACP_TYPES else session.notification(event)
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

    def _meet(self, begin: bytes) -> Updates:
        if len(self._sessions) >= MOST_SESSIONS:
            self._sessions.clear()
            self._gone.clear()
            self._blocks.clear()
        session = self._sessions[begin] = Updates(referred_stream(begin))
        return session

    async def _read_block(self, entry: Event) -> None:
        """Read what the entry stands for, and what follows that."""
        begin, number = split_reference(entry.raw)
        session = self._sessions.get(begin) or self._meet(begin)
        stream = await self._log.find(session.session_id, self._workspace)
        found: Sequence[Event] = ()
        if stream is not None:
            recent = stream.since(number - 1, 1)  # somebody may have it by now
            found = await stream.read_older(number - 1, 1) if recent is None else recent
        if stream is None or stream.deleted:  # perhaps while it was read
            self._gone.add(session)
            return
        by_number = {event.seq: event for event in first_chunk(found, READ_BYTES)}
        last = max(by_number, default=number)
        self._blocks.pop(session, None)
        self._blocks[session] = _Block(number, [by_number.get(each) for each in range(number, last + 1)])


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


class SilentReader(MessageReader):
    """Reader that is told nothing: what is said of a session is told in the body of its connection. It ends with that."""

    async def _ready(self) -> bytes:
        if self._channel.source.ended:
            self._finish(b"")
        return b""


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
