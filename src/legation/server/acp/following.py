"""One session, as one client sees it: the updates of its log in their order, and what is asked in it.

INV-F1  A client is told every update of a session once, in the order of the log, with the bytes of the log: the update,
        and what its agent put beside it. Only the session has the name here that it has with us. What is stored for
        it is a reference, in one commit with the update or behind it.
INV-F2  An answer to a prompt comes after every update of its turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from legation.errors import LegationError
from legation.server.acp.messages import ACP_TYPES, EXTENSION, Updates
from legation.server.acp.outlet import MESSAGE, Outlet
from legation.server.acp.state import History, Setup, Told, facts_told, past
from legation.store.codec import REFERENCE, reference
from legation.store.stream import Stream
from legation.store.subscription import Subscription
from legation.wire import codec
from legation.wire.events import Draft, Event
from legation.wire.lifecycle import (
    AgentExited,
    PermissionAnswered,
    PermissionAsked,
    QuestionAnswered,
    QuestionAsked,
    SessionReset,
    SessionStatus,
    SetupFacts,
)

CATCH_UP: Final = 30.0  # seconds that an answer waits for the updates before it: the disk's time

_INQUIRIES: Final = frozenset(
    kind.event_type() for kind in (PermissionAsked, PermissionAnswered, QuestionAsked, QuestionAnswered)
)
# Events that somebody has to look at; the others are updates, or nothing for a client.
_NOTED: Final = _INQUIRIES | {kind.event_type() for kind in (AgentExited, SessionReset, SessionStatus)}
_RESET: Final = SessionReset.event_type()
_STATUS: Final = SessionStatus.event_type()
_FACTS: Final = SetupFacts.event_type()

Note = Callable[[str, object], None]  # the session's id, and the event's payload

logger = logging.getLogger("legation.acp")


class Follower:
    """`noted` is called with what is no update, in its place among them; `over` when the session was closed or
    deleted, and all of it was told."""

    def __init__(
        self, session_id: str, stream: Stream, outlet: Outlet, noted: Note, over: Callable[[Follower], None]
    ) -> None:
        self.session_id = session_id
        self.stream = stream
        self.seq = 0
        self._outlet = outlet
        self._noted = noted
        self._over = over
        self._updates = Updates(session_id)
        self._reference = reference(session_id)
        self._muted = False  # an agent replays what the client has seen already
        self._open: dict[str, PermissionAsked | QuestionAsked] = {}
        self._events: Subscription | None = None
        self._task: asyncio.Task[None] | None = None
        self._moved: asyncio.Future[None] | None = None

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
        """What was asked before this client came, and waits for an answer still."""
        for event in events:
            if event.type in _INQUIRIES:
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
        """Until every event up to that number was told. What cannot be read holds up no answer for ever."""
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
        lines: list[Told] = []
        for event in batch:
            if event.type in _NOTED:
                self._tell(lines)
                lines = []
                self._note(event)
            elif event.type in ACP_TYPES and not self._muted:
                lines.append(event)
            elif event.type == _FACTS and not self._muted:
                lines += facts_told(event)
            elif event.type == EXTENSION and self._updates.of(event) is not None:
                lines.append(event)
        self._tell(lines)
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
        self._outlet.append([self._entry(update) for update in updates])

    def _entry(self, update: Told) -> Draft:
        if isinstance(update, Event):  # the session has it
            return Draft(REFERENCE, b"%b,%d]" % (self._reference, update.seq))
        return Draft(MESSAGE, self._updates.line(update))
