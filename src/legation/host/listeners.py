"""Subscriptions by callback. One that fails is reported and goes on; it disturbs nobody else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from legation.errors import LegationError
from legation.host.stream import HostStream
from legation.store.stream import Stream
from legation.store.subscription import Subscription
from legation.wire import codec
from legation.wire.diagnostic import Diagnostic, DiagnosticCode
from legation.wire.events import Event

Listener = Callable[[Event], None]

_log = logging.getLogger(__name__)


class Listeners:
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
