"""The sessions of a host, by name, and who may make or take up which."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from legation.errors import Conflict, InvalidParams, NotFound, SessionClosed
from legation.host.meta import SessionMeta
from legation.host.session import Session, Surroundings
from legation.host.stream import HOST_STREAM
from legation.store.stream import Stream
from legation.wire.hoststream import SessionUpdated


class Sessions:
    def __init__(self) -> None:
        self._known: dict[str, Session] = {}
        self._claimed: set[str] = set()

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._known.values()))

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._known

    def of(self, agent_id: str) -> list[Session]:
        return [session for session in self if session.agent_id == agent_id]

    def find(self, session_id: str) -> Session | None:
        return self._known.get(session_id)

    def get(self, session_id: str) -> Session:
        session = self._known.get(session_id)
        if session is None:
            raise NotFound(f"cannot find session {session_id}; check its id")
        return session

    def snapshots(self) -> list[SessionUpdated]:
        return [session.snapshot() for session in self]

    def add(self, session: Session) -> None:
        self._known[session.id] = session

    def remove(self, session: Session) -> None:
        if self._known.get(session.id) is session:
            del self._known[session.id]

    @contextmanager
    def claim(self, session_id: str) -> Iterator[None]:
        """While a session of that name is being made, nobody else makes one."""
        if session_id in self._known or session_id in self._claimed or session_id == HOST_STREAM:
            raise Conflict(f"cannot create session {session_id}: there is one of that name; give another")
        self._claimed.add(session_id)
        try:
            yield
        finally:
            self._claimed.discard(session_id)


async def new_session(stream: Stream, meta: SessionMeta, around: Surroundings) -> Session:
    """Strict: its metadata are stored, or it is not there."""
    must_be_unused(stream)
    session = Session(stream, meta, around)
    await session.keep(meta)
    return session


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


def must_not_have_ended(stream: Stream, *, to_load: bool) -> None:
    """To be taken up by a host that does not know it: what an earlier one ended is refused before an agent is asked."""
    state = stream.info().state
    if state == "deleted":
        raise SessionClosed(f"cannot take up session {stream.name}: it was deleted; start another")
    if state == "closed" and not to_load:
        raise SessionClosed(f"cannot take up session {stream.name}: it is closed; load it to reopen it")


def must_be_free(agent_id: str, session: Session, *, to_load: bool) -> None:
    """To be taken up. A closed session is reopened by a load; a deleted one by nothing."""
    if session.status == "deleted" or (session.status == "closed" and not to_load):
        advice = "load it to reopen it" if session.status == "closed" else "start another"
        raise SessionClosed(f"cannot take up session {session.id}: it is {session.status}; {advice}")
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
