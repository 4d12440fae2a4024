"""A session as the server knows it, whether or not an agent has it: small, for there may be many."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from legation.errors import NotFound, PromptInFlight, SessionClosed
from legation.server.sessions.details import Details
from legation.wire.api.sessions import SessionInfo
from legation.wire.lifecycle import Status
from legation.wire.universal.facts import SessionFacts

if TYPE_CHECKING:
    from legation.host.meta import SessionMeta
    from legation.host.session import Session


class Record:
    """`session` is the host's, for as long as there is something to keep in memory."""

    __slots__ = (
        "_changing",
        "_closed",
        "_folders",
        "_head",
        "_lock",
        "_meta",
        "cancelling",
        "details",
        "id",
        "played",
        "session",
        "working",
        "workspace",
    )

    def __init__(
        self, workspace: str, session_id: str, meta: SessionMeta, details: Details, *, head: int, closed: bool
    ) -> None:
        self.workspace, self.id, self.details = workspace, session_id, details
        self.session: Session | None = None
        self.working: asyncio.Task[None] | None = None
        self.cancelling = False  # the turn that is about to begin
        self.played = False  # the message of the worker is with the agent, or was: once the turn is over, only notes are left
        self._meta, self._head, self._closed = meta, head, closed
        self._lock: asyncio.Lock | None = None
        self._changing: asyncio.Lock | None = None
        self._folders = meta.folders()

    @property
    def meta(self) -> SessionMeta:
        return self.session.meta if self.session else self._meta

    @meta.setter
    def meta(self, meta: SessionMeta) -> None:
        self._meta = meta

    @property
    def lock(self) -> asyncio.Lock:
        """Held by whoever gives the session an agent, or takes it away."""
        if self._lock is None:
            self._lock = asyncio.Lock()
        return self._lock

    @property
    def changing(self) -> asyncio.Lock:
        """Held by whoever changes how the session is set: one after the other, or a grant of the first is lost."""
        if self._changing is None:
            self._changing = asyncio.Lock()
        return self._changing

    @property
    def status(self) -> Status:
        if self.details.deletion is not None:
            return "deleted"
        if self.session is not None:
            return self.session.status
        return "closed" if self._closed else "disconnected"

    @property
    def ended(self) -> bool:
        """Terminated, or deleted; or closed by a client of ACP, which may load it again."""
        return self.status in ("closed", "deleted")

    @property
    def folders(self) -> list[Path]:
        """As they were when the session was made, or the server started."""
        return self._folders

    @property
    def head(self) -> int:
        return self.session.stream.head if self.session else self._head

    def note_head(self, head: int) -> None:
        """Something was appended while there is no session of a host's."""
        self._head = head

    def let_go(self, *, closed: bool = False) -> None:
        """Of the host's session: what is to be known without it is kept."""
        self._meta, self._head = self.meta, self.head
        self._closed = closed
        self.session = None  # but the lock stays: others may wait for it

    def facts(self) -> SessionFacts:
        return SessionFacts(
            self.id, self.details.agent, self.meta.agent_session_id or None, self.details.given
        )

    def info(self) -> SessionInfo:
        details, meta = self.details, self.meta
        return SessionInfo(
            session_id=self.id,
            agent=details.agent,
            agent_mode=details.agent_mode,
            permission_mode=details.permission_mode,
            model=details.model,
            variant=details.variant,
            native_session_id=meta.agent_session_id or None,
            ended=self.ended,
            event_count=self.head,
            created_at=details.created_at,
            updated_at=details.updated_at,
            directory=meta.cwd,
            title=meta.title,
            status=self.status,
            busy=details.begun is not None or (self.session is not None and self.session.busy),
            queued=len(details.queue),
            exit=None if details.exit is None else details.exit.shown(),
            cut=None if details.cut is None else details.cut.shown(),
            mcp=list(details.mcp) or None,
            skills=list(details.skills) or None,
            continues=details.continues,
            continued_by=details.continued_by,
        )


def was_deleted(session_id: str) -> NotFound:
    return NotFound(
        f"cannot find session {session_id}: it was deleted; start another",
        {"type": "session_not_found", "deleted": True},
    )


def must_be_open(record: Record) -> None:
    if record.status == "deleted":
        raise was_deleted(record.id)
    if record.ended:
        how = "closed by a client of ACP, which may load it again" if record.meta.reopens else "terminated"
        raise SessionClosed(
            f"cannot use session {record.id}: it was {how}; start another", {"type": "invalid_request"}
        )


def must_be_idle(record: Record) -> None:
    """To be deleted: nobody's turn is cut off by that."""
    running = record.session is not None and record.session.busy
    to_come = record.working is not None and (not record.played or record.details.queue)
    if running or to_come:
        raise PromptInFlight(
            f"cannot delete session {record.id}: a turn runs, or is about to; cancel it or wait for its end, or terminate "
            "the session, and delete it then"
        )
