"""All sessions of this server, in memory; what is kept of each is in the log."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from legation.errors import Conflict, NotFound
from legation.server.sessions.details import Details, read_details
from legation.server.sessions.record import Record, was_deleted
from legation.store.backend import StreamInfo
from legation.store.log import EventLog

Key = tuple[str, str]
CURSOR: Final = r"^[0-9]{1,15}\.[A-Za-z0-9_.-]{1,128}$"
_DETAILS: Final = b'"details"'  # of no other stream: a server without sessions does not load the host


class Place(NamedTuple):
    """In the list: the newest first, then by id. Neither changes, so the last of a page says where the next begins."""

    age: int  # when it began, in ms, below zero: later ones come before
    session_id: str

    @classmethod
    def of(cls, record: Record) -> Place:
        return cls(-record.details.created_at, record.id)

    def cursor(self) -> str:
        return f"{-self.age}.{self.session_id}"

    @classmethod
    def read(cls, cursor: str) -> Place:
        began, session_id = cursor.split(".", 1)  # as `CURSOR` has it
        return cls(-int(began), session_id)


class Records:
    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._known: dict[Key, Record] = {}
        self._deleted: set[Key] = set()  # names that are not used again
        self._claimed: set[Key] = set()
        self._order: dict[str, list[Place]] = {}  # of the known ones of each workspace, sorted

    async def load(self, workspaces: Iterable[str]) -> None:
        """Those of earlier servers on the same folder."""
        for workspace in workspaces:
            self._deleted.update((workspace, name) for name in await self._log.deleted(workspace))
            for info in await self._log.streams(workspace):
                if _DETAILS in info.meta and (workspace, info.name) not in self._known:
                    self._read(workspace, info)

    def _read(self, workspace: str, info: StreamInfo) -> None:
        from legation.host.meta import read_meta

        meta = read_meta(info.meta)
        details = read_details(meta.details) if meta else None
        if meta is not None and details is not None:
            closed = info.state != "open"
            self.add(Record(workspace, info.name, meta, details, head=info.head, closed=closed))

    def __iter__(self) -> Iterator[Record]:
        return iter(list(self._known.values()))

    def known(self, workspace: str, session_id: str) -> Record | None:
        """Also one that is being deleted."""
        return self._known.get((workspace, session_id))

    def find(self, workspace: str, session_id: str) -> Record | None:
        record = self.known(workspace, session_id)
        return None if record is None or record.status == "deleted" else record

    def get(self, workspace: str, session_id: str) -> Record:
        record = self.find(workspace, session_id)
        if record is None and self.was_deleted(workspace, session_id):
            raise was_deleted(session_id)
        if record is None:
            raise NotFound(
                "cannot find the session; list the sessions that there are", {"type": "session_not_found"}
            )
        return record

    def was_deleted(self, workspace: str, session_id: str) -> bool:
        record = self.known(workspace, session_id)
        return (workspace, session_id) in self._deleted if record is None else record.status == "deleted"

    def of(self, workspace: str) -> list[Record]:
        """The newest first."""
        return list(self._behind(workspace, None))

    def page(self, workspace: str, limit: int | None, cursor: str | None) -> tuple[list[Record], str | None]:
        """The newest first: as many, and the cursor of the page behind them, if there is one. Nothing that is there all
        the time is left out, or on two pages: a session has its place from its beginning."""
        rest = self._behind(workspace, None if cursor is None else Place.read(cursor))
        found = list(islice(rest, limit))
        more = next(rest, None) is not None
        return found, Place.of(found[-1]).cursor() if found and more else None

    def _behind(self, workspace: str, place: Place | None) -> Iterator[Record]:
        order = self._order.get(workspace, [])
        for index in range(0 if place is None else bisect_right(order, place), len(order)):
            record = self._known[workspace, order[index].session_id]
            if record.status != "deleted":
                yield record

    def add(self, record: Record) -> None:
        key = record.workspace, record.id
        if (former := self._known.get(key)) is not None:
            self._order[record.workspace].remove(Place.of(former))
        self._known[key] = record
        insort(self._order.setdefault(record.workspace, []), Place.of(record))

    def bury(self, record: Record) -> None:
        """Its record is gone, and its name stays taken."""
        if self._known.pop((record.workspace, record.id), None) is not None:
            self._order[record.workspace].remove(Place.of(record))
        self._deleted.add((record.workspace, record.id))

    @contextmanager
    def claim(self, workspace: str, session_id: str) -> Iterator[None]:
        """While a session of that name is being made, nobody else makes one."""
        key = workspace, session_id
        if self.was_deleted(workspace, session_id):
            raise Conflict(
                f"cannot create session {session_id}: one of that name was deleted, and no name is used again; choose another",
                {"type": "session_already_exists"},
            )
        if key in self._known or key in self._claimed:
            raise Conflict(
                f"cannot create session {session_id}: there is one of that name; choose another",
                {"type": "session_already_exists"},
            )
        self._claimed.add(key)
        try:
            yield
        finally:
            self._claimed.discard(key)

    async def save(self, record: Record, details: Details, title: str | UnsetType | None = UNSET) -> None:
        """Strict. What is saved later is on the disk later."""
        record.details = details
        stream = None if record.session else await self._log.stream(record.id, record.workspace)
        # Looked at again: an agent may have been given to it meanwhile, and others have saved what is newer.
        newest = record.details.plain()
        if stream is None or record.session is not None:
            assert record.session is not None
            await record.session.keep_details(newest, title)
            return
        kept = record.meta.title if title is UNSET else title
        record.meta = msgspec.structs.replace(record.meta, details=newest, title=kept)
        await stream.set_meta(record.meta.encode(), replaces=stream.meta)
