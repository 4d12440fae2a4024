"""Stream of a host, on which it tells what becomes of agents, sessions and permissions, to whoever listens; and what is
refused of its sessions before an agent is asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from legation.agents.rpc import UNWRITABLE
from legation.errors import Conflict, InvalidParams, LegationError, SessionClosed
from legation.host.session import Session
from legation.store.codec import StorageTrouble
from legation.store.stream import Stream, Subscription
from legation.wire import event_types
from legation.wire.event_types import Diagnostic, DiagnosticCode, PermissionUpdated
from legation.wire.events import Event, Payload

HOST_STREAM = "host"
REMEMBERED = 10_000  # answered permissions, so that a second answer is told from an unknown id

_log = logging.getLogger(__name__)


class HostStream:
    def __init__(self) -> None:
        self._stream: Stream | None = None  # until the log is open, and for what its opening found
        self._waiting: list[Payload] = []
        self.pending: dict[str, PermissionUpdated] = {}  # permissions without an answer
        self.answered: dict[str, None] = {}  # the last ones that have one

    @property
    def stream(self) -> Stream:
        if self._stream is None:
            raise Conflict("cannot use the host before it is entered; use `async with`")
        return self._stream

    def open(self, stream: Stream) -> None:
        self._stream = stream
        waiting, self._waiting = self._waiting, []
        for payload in waiting:
            self.publish(payload)

    def publish(self, payload: Payload) -> None:
        """Append it; that it could not be taken is reported, but never twice over."""
        if isinstance(payload, PermissionUpdated):
            if payload.state == "pending":
                self.pending[payload.id] = payload
            elif self.pending.pop(payload.id, None) is not None:
                self.answered[payload.id] = None
                if len(self.answered) > REMEMBERED:
                    del self.answered[next(iter(self.answered))]
        if self._stream is None:
            self._waiting.append(payload)
            return
        try:
            self._stream.append([event_types.draft(payload)])
        except UNWRITABLE as error:
            self.reject(payload, error)
        except LegationError as error:
            _log.warning("cannot publish %s: %s", payload.event_type(), error.message)

    def trouble(self, trouble: StorageTrouble) -> None:
        """The store's word; kept out of the store's way where it is the store that fails (INV-5)."""
        code = DiagnosticCode(trouble.code)
        self.publish(Diagnostic(code=code, message=trouble.message, session_id=trouble.stream))

    def reject(self, payload: Payload, error: Exception, *, session_id: str | None = None) -> None:
        """Report what cannot be written as JSON, without the payload."""
        if isinstance(payload, Diagnostic) and payload.code == DiagnosticCode.EVENT_UNSERIALIZABLE:
            return
        agent_id = getattr(payload, "agent_id", None)
        told = Diagnostic(
            code=DiagnosticCode.EVENT_UNSERIALIZABLE,
            message=f"an event of type {payload.event_type()} was rejected: {type(error).__name__}",
            agent_id=agent_id if isinstance(agent_id, str) else None,
            session_id=session_id,
        )
        self.publish(told)


Listener = Callable[[Event], None]


class Listeners:
    """Subscriptions by callback. One that fails is reported and goes on; it disturbs nobody else."""

    def __init__(self, host: HostStream) -> None:
        self._host = host
        self._tasks: dict[asyncio.Task[None], tuple[Stream, Subscription]] = {}

    def add(self, stream: Stream, after: int, listener: Listener) -> Callable[[], None]:
        """Every event above `after`, then those to come, in order (INV-2); returns what ends it."""
        events = stream.subscribe(after)
        task = asyncio.create_task(self._run(stream.name, events, listener))
        self._tasks[task] = stream, events
        task.add_done_callback(lambda ended: self._tasks.pop(ended, None))

        def unsubscribe() -> None:
            task.cancel()
            self._tasks.pop(task, None)  # nothing is told from here on

        return unsubscribe

    async def finish(self, limit: float) -> None:
        """Let them take what has been published so far, and end them."""
        reading = [asyncio.create_task(_caught_up(task, *of)) for task, of in self._tasks.items()]
        if reading:
            await asyncio.wait(reading, timeout=limit)
        for task in (*reading, *self._tasks):
            task.cancel()

    async def _run(self, name: str, events: Subscription, listener: Listener) -> None:
        task = asyncio.current_task()
        try:
            async for event in events:
                if task in self._tasks:
                    self._tell(name, event, listener)
        except LegationError as error:
            _log.warning("cannot go on reading %s for a subscriber: %s", name, error.message)

    def _tell(self, name: str, event: Event, listener: Listener) -> None:
        try:
            listener(event)
        except Exception as error:  # noqa: BLE001 - a subscriber's own fault, isolated and told
            told, code = event_types.decode(event), DiagnosticCode.SUBSCRIBER_ERROR
            if not isinstance(told, Diagnostic) or told.code != code:  # else it would go round for ever
                what = f"a subscriber of {name} failed on event {event.seq}: {type(error).__name__}"
                self._host.publish(Diagnostic(code=code, message=what))


async def _caught_up(task: asyncio.Task[None], stream: Stream, events: Subscription) -> None:
    """A batch is told in one go, so that whoever has taken it has told it by the next step."""
    with suppress(LegationError):  # what could not be stored was shown from memory
        await stream.durable(stream.info().head)
    while not task.done() and events.seq < stream.visible:  # noqa: ASYNC110 - the reader tells nobody
        await asyncio.sleep(0)
    await asyncio.sleep(0)


def must_be_unused(stream: Stream) -> None:
    info = stream.info()
    if info.state == "deleted":
        raise Conflict(
            f"cannot create session {stream.name}: one of that name was deleted, and no name is used again; give another"
        )
    if info.head or info.state != "open":
        raise Conflict(
            f"cannot create session {stream.name}: there is a record of that name; load or resume it"
        )


def must_not_have_ended(session_id: str, status: str, *, to_load: bool) -> None:
    """Refuse what this host, or an earlier one, has ended. A closed session is reopened by a load; a deleted one by
    nothing."""
    if status == "deleted":
        raise SessionClosed(f"cannot take up session {session_id}: it was deleted; start another")
    if status == "closed" and not to_load:
        raise SessionClosed(f"cannot take up session {session_id}: it is closed; load it to reopen it")


def must_be_free(agent_id: str, session: Session, *, to_load: bool) -> None:
    """Refuse what cannot be taken up."""
    must_not_have_ended(session.id, session.status, to_load=to_load)
    if session.ending:
        raise SessionClosed(f"cannot take up session {session.id}: it is being ended; wait for that")
    if session.status == "resuming":
        raise Conflict(f"cannot take up session {session.id}: it is being taken up already; wait for that")
    if session.busy:
        raise Conflict(f"cannot take up session {session.id}: a turn is running; wait or cancel it")
    must_not_be_anothers(agent_id, session)


def must_not_be_anothers(agent_id: str, session: Session) -> None:
    """An agent that is gone owns nothing any more."""
    if session.status == "active" and session.agent_id != agent_id:
        raise InvalidParams(f"cannot use session {session.id} with {agent_id}: it is another agent's")
