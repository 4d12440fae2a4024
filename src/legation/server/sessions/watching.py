"""What becomes of sessions without us: an agent that ended by itself, a client of ACP that closed or deleted one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final, TypeAlias

from msgspec.structs import replace

from legation.errors import LegationError
from legation.host.host import AcpHost
from legation.host.session import Session
from legation.host.stream import HOST_STREAM
from legation.server.sessions.details import Exit
from legation.server.sessions.record import Record
from legation.server.sessions.records import Records
from legation.wire import codec
from legation.wire.events import Event
from legation.wire.hoststream import SessionUpdated

STDERR_KEPT: Final = 4_000  # characters of the end of an agent's stderr, in the session's details
# Ends of an agent that were not our doing.
_BY_ITSELF: Final = ("crashed", "ended", "stopped")

Ended: TypeAlias = Callable[[Record, str | None], Awaitable[None]]
LetGo: TypeAlias = Callable[[Record, Session], Awaitable[None]]

logger = logging.getLogger("legation.sessions")


class Watch:
    """`let_go` is called with a session whose agent is gone, `ended` with one that a client of ACP has ended,
    and the agent that had it."""

    def __init__(self, records: Records, let_go: LetGo, ended: Ended) -> None:
        self._records = records
        self._let_go = let_go
        self._ended = ended
        self._kept: set[str] = set()  # workspaces
        self._noting: set[asyncio.Task[None]] = set()
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        for task in self._noting:
            task.cancel()
        await asyncio.gather(*self._noting, return_exceptions=True)

    async def keep(self, workspace: str, host: AcpHost) -> None:
        """Idempotent. It lasts as long as the host."""
        if workspace in self._kept:
            return
        stream = await host.log.stream(HOST_STREAM, workspace)
        if workspace not in self._kept:  # by another meanwhile; and whoever was cut off above has not kept it
            self._kept.add(workspace)
            host.subscribe(None, stream.head, lambda event: self._on_event(workspace, event))

    def _on_event(self, workspace: str, event: Event) -> None:
        if self._closed or event.type != SessionUpdated.event_type():
            return
        payload = codec.decode(event)
        if not isinstance(payload, SessionUpdated):
            return
        record = self._records.known(workspace, payload.session_id)
        if record is None or record.session is None:
            return
        if payload.status == "disconnected" and payload.agent_id is not None:  # else it never had one here
            self._begin(self._note_exit(record, record.session))
        elif payload.status in ("closed", "deleted"):
            self._begin(self._note_end(record, payload.agent_id))

    def _begin(self, noting: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(noting)
        self._noting.add(task)
        task.add_done_callback(self._noting.discard)

    async def _note_end(self, record: Record, agent_id: str | None) -> None:
        """Whoever ends it for us has let it go by then; whoever takes it up has found that it is over, or has opened it
        again: what it had ends all the same."""
        try:
            async with record.lock:
                elsewhere = record.session is not None
            if elsewhere:
                await self._ended(record, agent_id)
        except LegationError as error:
            logger.warning("cannot note the end of session %s: %s", record.id, error.message)

    async def _note_exit(self, record: Record, session: Session) -> None:
        try:
            if session.status != "disconnected" or record.session is not session:
                return
            if (found := _exit_of(session)) is not None:
                await self._records.save(record, replace(record.details, exit=found))
            if record.working is None and not record.lock.locked():
                await self._let_go(record, session)
        except LegationError as error:
            logger.warning("cannot note how the agent of session %s ended: %s", record.id, error.message)


def _exit_of(session: Session) -> Exit | None:
    reason, _, _ = (session.reason or "").partition(":")
    if reason not in _BY_ITSELF or session.exit is None:
        return None
    tail = session.exit.stderr_tail
    return Exit(
        reason=reason,
        code=session.exit.code,
        signal=session.exit.signal,
        stderr=None if tail is None else tail[-STDERR_KEPT:],
    )
