"""The host's own stream: projections of agents, sessions and permissions, and diagnostics; and whoever listens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

from legation.agents.rpc import UNWRITABLE
from legation.errors import Conflict, LegationError
from legation.store.codec import StorageTrouble
from legation.store.stream import Receipt, Stream, Subscription
from legation.wire import codec
from legation.wire.event_types import Diagnostic, DiagnosticCode
from legation.wire.events import Event, Payload

HOST_STREAM = "host"

_log = logging.getLogger(__name__)


class HostStream:
    def __init__(self) -> None:
        self._stream: Stream | None = None  # until the log is open, and for what its opening found
        self._waiting: list[Payload] = []

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

    def publish(self, payload: Payload) -> Receipt | None:
        """Append it; None where it could not be taken, which is reported, but never twice over."""
        if self._stream is None:
            self._waiting.append(payload)
            return None
        try:
            return self._stream.append([codec.draft(payload)])
        except UNWRITABLE as error:
            self.reject(payload, error)
        except LegationError as error:
            _log.warning("cannot publish %s: %s", payload.event_type(), error.message)
        return None

    def diagnose(
        self,
        code: DiagnosticCode,
        message: str,
        *,
        agent_id: str | None = None,
        session_id: str | None = None,
        data: Mapping[str, object] | None = None,
    ) -> None:
        diagnostic = Diagnostic(
            code=code, message=message, agent_id=agent_id, session_id=session_id, data=data
        )
        self.publish(diagnostic)

    def trouble(self, trouble: StorageTrouble) -> None:
        """The store's word; kept out of the store's way where it is the store that fails (INV-5)."""
        self.diagnose(DiagnosticCode(trouble.code), trouble.message, session_id=trouble.stream)

    def reject(self, payload: Payload, error: Exception, *, session_id: str | None = None) -> None:
        """Report what cannot be written as JSON, without the payload."""
        if isinstance(payload, Diagnostic) and payload.code == DiagnosticCode.EVENT_UNSERIALIZABLE:
            return
        agent_id = getattr(payload, "agent_id", None)
        self.diagnose(
            DiagnosticCode.EVENT_UNSERIALIZABLE,
            f"an event of type {payload.event_type()} was rejected: {type(error).__name__}",
            agent_id=agent_id if isinstance(agent_id, str) else None,
            session_id=session_id,
        )


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
        task.add_done_callback(self._tasks.pop)

        def unsubscribe() -> None:
            task.cancel()

        return unsubscribe

    async def finish(self, limit: float) -> None:
        """Let them take what has been published so far, and end them."""
        reading = [asyncio.create_task(_caught_up(task, *of)) for task, of in self._tasks.items()]
        if reading:
            await asyncio.wait(reading, timeout=limit)
        for task in (*reading, *self._tasks):
            task.cancel()

    async def _run(self, name: str, events: Subscription, listener: Listener) -> None:
        try:
            async for event in events:
                self._tell(name, event, listener)
        except LegationError as error:
            _log.warning("cannot go on reading %s for a subscriber: %s", name, error.message)

    def _tell(self, name: str, event: Event, listener: Listener) -> None:
        try:
            listener(event)
        except Exception as error:  # noqa: BLE001 - a subscriber's own fault, isolated and told
            if not _is_subscriber_error(event):  # else it would go round for ever
                what = f"a subscriber of {name} failed on event {event.seq}: {type(error).__name__}"
                self._host.diagnose(DiagnosticCode.SUBSCRIBER_ERROR, what)


async def _caught_up(task: asyncio.Task[None], stream: Stream, events: Subscription) -> None:
    """A batch is told in one go, so that whoever has taken it has told it by the next step."""
    with suppress(LegationError):  # what could not be stored was shown from memory
        await stream.durable(stream.info().head)
    while not task.done() and events.seq < stream.visible:  # noqa: ASYNC110 - the reader tells nobody
        await asyncio.sleep(0)
    await asyncio.sleep(0)


def _is_subscriber_error(event: Event) -> bool:
    if event.type != Diagnostic.event_type():
        return False
    payload = codec.decode(event)
    return isinstance(payload, Diagnostic) and payload.code == DiagnosticCode.SUBSCRIBER_ERROR
