"""Subscriptions by callback. One that fails is reported and goes on; it disturbs nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from legation.host.stream import HostStream
from legation.store.stream import Stream
from legation.wire import codec
from legation.wire.diagnostic import Diagnostic, DiagnosticCode
from legation.wire.events import Event

Listener = Callable[[Event], None]


class Listeners:
    def __init__(self, host: HostStream) -> None:
        self._host = host
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, stream: Stream, after: int, listener: Listener) -> Callable[[], None]:
        """Every event above `after`, then those to come, in order (INV-2); returns what ends it."""
        task = asyncio.create_task(self._run(stream, after, listener))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

        def unsubscribe() -> None:
            task.cancel()

        return unsubscribe

    async def finish(self, limit: float) -> None:
        """Their streams have ended: let them take what is left."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=limit)
        for task in self._tasks:
            task.cancel()

    async def _run(self, stream: Stream, after: int, listener: Listener) -> None:
        async for event in stream.subscribe(after):
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001 - a subscriber's own fault, isolated and told
                if not _is_subscriber_error(event):  # else it would go round for ever
                    what = (
                        f"a subscriber of {stream.name} failed on event {event.seq}: {type(error).__name__}"
                    )
                    self._host.diagnose(DiagnosticCode.SUBSCRIBER_ERROR, what)


def _is_subscriber_error(event: Event) -> bool:
    if event.type != Diagnostic.event_type():
        return False
    payload = codec.decode(event)
    return isinstance(payload, Diagnostic) and payload.code == DiagnosticCode.SUBSCRIBER_ERROR
