"""Permissions pushed outwards: what the agents of a host wait for, told to whoever may answer.

Read from the host's stream alone. A handler is told of each permission once: when it is asked, or when the
handler is added if it waits already; and once more when it needs no answer any longer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from legation.errors import LegationError
from legation.host.host import AcpHost
from legation.host.methods import plain
from legation.host.stream import HOST_STREAM
from legation.wire import codec
from legation.wire.diagnostic import Diagnostic, DiagnosticCode
from legation.wire.events import Event
from legation.wire.hoststream import PermissionUpdated

InboundHandler = Callable[[dict[str, object]], None]

CLOSE_LIMIT = 5.0  # seconds that a reader of the host's stream has to stop: the loop's time

_log = logging.getLogger(__name__)


class Inbound:
    """Made in the loop of a host that is entered."""

    def __init__(self, host: AcpHost) -> None:
        self._host = host
        self._events = host.events()
        self._outstanding: dict[str, PermissionUpdated] = {}
        self._handlers: dict[object, InboundHandler] = {}
        self._caught_up = False  # until then what was settled long ago is not told
        self._watching = asyncio.create_task(self._watch(), name="legation-inbound")

    @property
    def outstanding(self) -> list[dict[str, object]]:
        """What waits for an answer, in the order in which it was asked."""
        return [_message(each) for each in self._outstanding.values()] if self._caught_up else []

    def add(self, handler: InboundHandler) -> Callable[[], None]:
        """Before this returns, `handler` has been told of what waits already."""
        token = object()
        self._handlers[token] = handler
        if self._caught_up:
            for asked in list(self._outstanding.values()):
                self._tell(token, asked)

        def unsubscribe() -> None:
            self._handlers.pop(token, None)

        return unsubscribe

    async def close(self) -> None:
        self._handlers.clear()
        self._outstanding.clear()
        self._watching.cancel()
        await asyncio.wait({self._watching}, timeout=CLOSE_LIMIT)

    async def _watch(self) -> None:
        try:
            stream = await self._host.log.stream(HOST_STREAM, self._host.options.workspace)
            head = stream.info().head
            if head == 0:
                self._catch_up()
            async for event in self._events:
                self._take(event)
                if not self._caught_up and event.seq >= head:
                    self._catch_up()
        except LegationError as error:  # the log is closed, or cannot be read
            _log.warning("cannot push permissions any more: %s", error.message)

    def _take(self, event: Event) -> None:
        payload = codec.decode(event) if event.type == PermissionUpdated.event_type() else None
        if not isinstance(payload, PermissionUpdated):
            return
        if payload.state == "pending":
            self._outstanding[payload.id] = payload
        elif self._outstanding.pop(payload.id, None) is None:
            return
        if self._caught_up:
            self._tell_all(payload)

    def _catch_up(self) -> None:
        self._caught_up = True
        self._outstanding = {name: each for name, each in self._outstanding.items() if self._waits(each)}
        for asked in list(self._outstanding.values()):
            self._tell_all(asked)

    def _waits(self, asked: PermissionUpdated) -> bool:
        """A host that was killed left its questions in the log, and nobody waits for the answers."""
        session = self._host.get_session(asked.session_id)
        if session is None or session.status != "active":
            return False
        outside_a_turn = asked.ask is None or asked.ask.turn is None
        return outside_a_turn or self._host.session(asked.session_id).busy

    def _tell_all(self, projection: PermissionUpdated) -> None:
        for token in list(self._handlers):
            self._tell(token, projection)

    def _tell(self, token: object, projection: PermissionUpdated) -> None:
        handler = self._handlers.get(token)  # an earlier one may have removed it
        if handler is None:
            return
        try:
            handler(_message(projection))
        except Exception as error:  # noqa: BLE001 - a handler's own fault, isolated and told
            what = f"an inbound handler failed on permission {projection.id}: {type(error).__name__}"
            self._host.publish(Diagnostic(code=DiagnosticCode.SUBSCRIBER_ERROR, message=what))


def _message(projection: PermissionUpdated) -> dict[str, object]:
    """Made anew for each handler: what one does to it is not seen by another."""
    word = "payload" if projection.state == "pending" else "settled"
    return {"id": projection.id, "kind": "permission", word: plain(projection)}
