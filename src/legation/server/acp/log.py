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
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec

from legation.errors import Conflict, LegationError
from legation.server.acp.messages import ACP_TYPES, EXTENSION, Updates
from legation.store.codec import REFERENCE, reference
from legation.store.log import EventLog
from legation.store.stream import Receipt, Stream, Subscription
from legation.wire import codec, jsontext
from legation.wire.event_types import (
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

PREFIX: Final = "acp:"  # no session's name has a colon
MESSAGE: Final = "acp-message"
OPENED: Final = "acp-opened"
CATCH_UP: Final = 30.0  # seconds that an answer waits for the updates before it: the disk's time

_QUESTIONS: Final = frozenset(
    kind.event_type() for kind in (PermissionAsked, PermissionAnswered, QuestionAsked, QuestionAnswered)
)
# Events that somebody has to look at; the others are updates, or nothing for a client.
_NOTED: Final = _QUESTIONS | {kind.event_type() for kind in (AgentExited, SessionReset, SessionStatus)}
_RESET: Final = SessionReset.event_type()
_STATUS: Final = SessionStatus.event_type()
_FACTS: Final = SetupFacts.event_type()
_MODE: Final = "current-mode-update"
_OPTIONS: Final = "config-option-update"
_SAID: Final = "user-message-chunk"

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


def stream_name(server_id: str) -> str:
    return f"{PREFIX}{server_id}"


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


@dataclass(eq=False)
class SessionFollower:
    """Reader of a session for a client. `noted` is called with what is no update, in its place among them; `over` when
    the session was closed or deleted, and all of it was told."""

    session_id: str
    stream: Stream
    _outlet: ConnectionLog
    _noted: Note
    _over: Callable[[SessionFollower], None]
    seq: int = 0
    _muted: bool = False  # an agent replays what the client has seen already
    _open: dict[str, PermissionAsked | QuestionAsked] = field(default_factory=dict)
    _events: Subscription | None = None
    _task: asyncio.Task[None] | None = None
    _moved: asyncio.Future[None] | None = None

    def __post_init__(self) -> None:
        self._updates = Updates(self.session_id)
        self._reference = reference(self.session_id)

    async def replay(self) -> Setup:
        """Tell all there is; the rest follows with `start`."""
        history, setup = History(), Setup()
        async for events in past(self.stream, self.stream.visible):
            setup.take(events)
            self._keep_open(events)
            self._tell(history.updates(events))
            self.seq = events[-1].seq if events else self.seq
            await self._outlet.room()
        self._tell(history.rest())
        return setup

    async def skip(self, *, to_active: bool = False) -> Setup:
        """Tell nothing of what there is; with `to_active`, of what there is before the session became active."""
        setup = Setup()
        async for events in past(self.stream, self.stream.visible):
            self._keep_open(events)
            for event in events:
                setup.take([event])
                self.seq = event.seq
                if to_active and event.type == _STATUS:
                    return setup
        return setup

    def _keep_open(self, events: list[Event]) -> None:
        """Keep what was asked before this client came, and waits for an answer still."""
        for event in events:
            if event.type in _QUESTIONS:
                payload = codec.decode(event)
                if isinstance(payload, PermissionAsked | QuestionAsked):
                    self._open[payload.id] = payload
                elif isinstance(payload, PermissionAnswered | QuestionAnswered):
                    self._open.pop(payload.id, None)

    def start(self) -> None:
        for payload in self._open.values():
            self._noted(self.session_id, payload)
        self._open.clear()
        if self._task is None:
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
        begin = self._reference
        entries: list[Draft] = []
        for event in batch:
            if event.type in _NOTED:
                self._outlet.append(entries)
                entries = []
                self._note(event)
            elif (event.type in ACP_TYPES and not self._muted) or (
                event.type == EXTENSION and self._updates.notification(event) is not None
            ):
                entries.append(Draft(REFERENCE, b"%b,%d]" % (begin, event.seq)))
            elif event.type == _FACTS and not self._muted:
                entries += [Draft(MESSAGE, self._updates.line(told)) for told in facts_told(event)]
        self._outlet.append(entries)
        self.seq = batch[-1].seq
        if self._moved is not None:
            self._moved.set_result(None)
            self._moved = None

    def _note(self, event: Event) -> None:
        if event.type == _RESET:
            self._muted = True
        elif event.type == _STATUS:
            self._muted = False
        payload = codec.decode(event)
        if isinstance(payload, SessionStatus) and self._events is not None:
            self._events.until_closed = payload.status == "closed"
        self._noted(self.session_id, payload)

    def _tell(self, updates: list[Told]) -> None:
        begin, line = self._reference, self._updates.line
        self._outlet.append(
            [
                Draft(REFERENCE, b"%b,%d]" % (begin, update.seq))
                if isinstance(update, Event)
                else Draft(MESSAGE, line(update))
                for update in updates
            ]
        )


class Setup:
    """The modes and options that an agent named, as a client is told of them when it opens the session."""

    def __init__(self) -> None:
        self._modes: dict[str, object] = {}
        self._options: object = None

    def take(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.type in (_MODE, _OPTIONS):
                self._note(_members(event.brief))
            elif event.type == _FACTS:
                facts = _members(event.brief)
                modes = facts.get("modes")
                self._note({**facts, **modes} if isinstance(modes, dict) else facts)

    def _note(self, update: Mapping[str, object]) -> None:
        for name in ("currentModeId", "availableModes"):
            if name in update:
                self._modes[name] = update[name]
        self._options = update.get("configOptions", self._options)

    def members(self) -> dict[str, object]:
        told: dict[str, object] = {}
        if "availableModes" in self._modes:
            told["modes"] = self._modes
        if self._options is not None:
            told["configOptions"] = self._options
        return told


def _members(raw: bytes) -> Mapping[str, object]:
    try:
        value = jsontext.read(raw)
    except jsontext.READ_ERRORS:
        return {}
    return value if isinstance(value, dict) else {}


async def past(stream: Stream, upto: int) -> AsyncIterator[list[Event]]:
    """Everything that is readable, up to that number."""
    async for batch in stream.subscribe(0).batches():
        yield [event for event in batch if event.seq <= upto]
        if batch[-1].seq >= upto:
            return


class History:
    """The updates of a log in order, with what the user said where the agent does not tell it itself."""

    def __init__(self) -> None:
        self._prompt: list[Told] = []  # of the turn whose agent has said nothing yet

    def updates(self, events: Sequence[Event]) -> list[Told]:
        told: list[Told] = []
        for event in events:
            if event.type == PromptStarted.event_type():
                told += self.rest()
                self._prompt = _said_by_user(event)
            elif event.type in ACP_TYPES:
                if event.type == _SAID:
                    self._prompt = []  # an agent that repeats the prompt
                told += [*self.rest(), event]
            elif event.type == _FACTS:
                told += [*self.rest(), *facts_told(event)]
        return told

    def rest(self) -> list[Told]:
        """A prompt that nothing has followed yet."""
        prompt, self._prompt = self._prompt, []
        return prompt


def facts_told(event: Event) -> list[Told]:
    """Return them as the updates that an agent would send. ACP names only the mode that is chosen; those to choose from
    are added."""
    facts = _members(event.payload)
    modes, options = facts.get("modes"), facts.get("configOptions")
    told: list[Told] = []
    if isinstance(modes, dict):
        told.append(Draft(_MODE, jsontext.write({"sessionUpdate": "current_mode_update", **modes})))
    if options is not None:
        update = {"sessionUpdate": "config_option_update", "configOptions": options}
        told.append(Draft(_OPTIONS, jsontext.write(update)))
    return told


def _said_by_user(event: Event) -> list[Told]:
    blocks = _members(event.raw).get("prompt")
    if not isinstance(codec.decode(event), PromptStarted) or not isinstance(blocks, list):
        return []
    updates = [{"sessionUpdate": "user_message_chunk", "content": block} for block in blocks]
    return [Draft(_SAID, jsontext.write(update)) for update in updates]
