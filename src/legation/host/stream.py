"""The host's own stream: projections of agents, sessions and permissions, and diagnostics."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from legation.agents.rpc import UNWRITABLE
from legation.errors import Conflict, LegationError
from legation.store.backend import Trouble
from legation.store.stream import Receipt, Stream
from legation.wire import codec
from legation.wire.diagnostic import Diagnostic, DiagnosticCode
from legation.wire.payload import Payload

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
        """None where it could not be taken; that is reported, but never twice over."""
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

    def trouble(self, trouble: Trouble) -> None:
        """The store's word; kept out of the store's way where it is the store that fails (INV-5)."""
        self.diagnose(DiagnosticCode(trouble.code), trouble.message, session_id=trouble.stream)

    def reject(self, payload: Payload, error: Exception, *, session_id: str | None = None) -> None:
        """It cannot be written as JSON. Told without the payload, which may be what cannot be told."""
        if isinstance(payload, Diagnostic) and payload.code == DiagnosticCode.EVENT_UNSERIALIZABLE:
            return
        agent_id = getattr(payload, "agent_id", None)
        self.diagnose(
            DiagnosticCode.EVENT_UNSERIALIZABLE,
            f"an event of type {payload.event_type()} was rejected: {type(error).__name__}",
            agent_id=agent_id if isinstance(agent_id, str) else None,
            session_id=session_id,
        )
