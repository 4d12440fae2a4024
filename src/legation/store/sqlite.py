"""Events in SQLite: WAL, `synchronous=FULL`, one page of many events per row.

What waits for a commit goes into as few rows as possible, so that a flood costs one insert per hundreds of
events, and a quiet session one per event; the lines inside a page are those of `codec`. A stream's row holds
its head: an event at or below it is already stored, which makes a repeated commit harmless.

A commit of appends alone is one statement: whenever SQLite has worked, its thread must wait for Python's lock, which
the event loop may hold for milliseconds.
"""

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from legation.errors import StorageFailed
from legation.store import codec
from legation.store.codec import (
    Append,
    Create,
    Op,
    Part,
    Replace,
    Report,
    SetMeta,
    SetState,
    StorageTrouble,
    StoreSize,
    StreamInfo,
    Sweep,
    merge_appends,
)
from legation.store.database.sqlite import BUSY_LIMIT, connect, size_of
from legation.store.files import FolderLock
from legation.wire.events import Event

VERSION = 4
DISK_PAGE = 32 * 1024  # SQLite's own unit: bodies are long, and small units cost a system call each
AT_ONCE = 100  # pages in one statement
KNOWN_STREAMS = 10_000  # whose heads are remembered
# Milliseconds that a deletion waits for readers, so that it leaves nothing in the write-ahead log.
SCRUB_LIMIT = 200
# Of a deleted stream that go in one commit, some megabytes each: others' commits come in between.
SWEEP_PAGES = 32
SWEEP_PARTS = 8
GIVE_BACK = 128  # of SQLite's units that a commit gives back to the disk
PAGE_BYTES = 128 * 1024  # a reader that starts in the middle of a page decodes at most this much in vain

_SCHEMA = """
create table stream (
  id integer primary key,
  name text not null unique,
  workspace text not null,
  state text not null check (state in ('open', 'closed', 'deleted')),
  first_seq integer not null,
  head integer not null,
  meta blob not null,
  earlier text not null default ''
) strict;
create table page (
  id integer primary key,
  stream integer not null references stream (id),
  last_seq integer not null,
  body blob not null
) strict;
create unique index page_by_seq on page (stream, last_seq);
create table part (
  stream integer not null references stream (id),
  blob text not null,
  number integer not null,
  body blob not null,
  primary key (stream, blob, number)
) strict;
"""

# 2: where the generations before the newest begin, with spaces between. Until then a load deleted them.
# 3: long texts, in parts of their own: in the row of its event such a text is `null`.
# 4: a line may be several references. Nothing else is new; who reads it as one event must not open it.
_MIGRATIONS = {
    2: "alter table stream add column earlier text not null default '';",
    3: """create table if not exists part (
      stream integer not null references stream (id),
      blob text not null,
      number integer not null,
      body blob not null,
      primary key (stream, blob, number)
    ) strict;""",
    4: "",
}

_INFOS = "select name, workspace, state, first_seq, head, meta, earlier from stream"
_LOOKUP = f"{_INFOS} where name = ?"
_STREAMS = f"{_INFOS} where state <> 'deleted' order by id"
_DELETED = f"{_INFOS} where state = 'deleted' order by id"
_CREATE = """insert into stream (name, workspace, state, first_seq, head, meta) values (?, ?, 'open', 1, 0, x'7b7d')
  on conflict (name) do nothing"""
_HEAD = "select id, head from stream where name = ?"
_INSERT_PAGES = "insert into page (stream, last_seq, body) values "
_ADVANCE = """create temp trigger page_advances_stream after insert on main.page
  begin update stream set head = new.last_seq where id = new.stream; end"""
_RESTART = """update stream set state = 'open', head = ?2, meta = coalesce(?3, meta), first_seq = ?1,
  earlier = case when first_seq < ?1 then ltrim(earlier || ' ' || first_seq) else earlier end where id = ?4"""
_REOPEN = "update stream set state = 'open', meta = coalesce(?, meta) where id = ?"
_DROP_PAGES = "delete from page where id in (select id from page where stream = ? limit ?)"
_INSERT_PART = """insert into part (stream, blob, number, body)
  select id, ?, ?, ? from stream where id = ? and state <> 'deleted' on conflict do nothing"""
_DROP_PARTS = "delete from part where rowid in (select rowid from part where stream = ? limit ?)"
# Streams of which a deletion left something. A release that does not know of it leaves that where it is.
_UNSWEPT_TABLE = (
    "create table if not exists unswept (stream integer primary key references stream (id)) strict"
)
_UNSWEPT = f"{_INFOS} where stream.id in (select stream from unswept) order by id"  # noqa: S608 - nobody's words
_LEAVE = """insert into unswept (stream) select ?1 where exists (select 1 from page where stream = ?1)
  or exists (select 1 from part where stream = ?1) on conflict do nothing"""
_SWEPT = """delete from unswept where stream = ?1 and not exists (select 1 from page where stream = ?1)
  and not exists (select 1 from part where stream = ?1)"""
_IS_DELETED = "select 1 from stream where id = ? and state = 'deleted'"
_STREAM_SIZE = """select (select coalesce(sum(length(body)), 0) from page where stream = stream.id)
  + (select coalesce(sum(length(body)), 0) from part where stream = stream.id) from stream where name = ?"""
_READ_PARTS = """select part.body from part join stream on stream.id = part.stream
  where stream.name = ? and part.blob = ? order by part.number"""
_SET_STATE = "update stream set state = ? where id = ?"
_BURY = "update stream set state = 'deleted', meta = x'7b7d', earlier = '' where id = ?"
_SET_META = "update stream set meta = ? where id = ? and state <> 'deleted'"
_READ = """select page.body from page join stream on stream.id = page.stream
  where stream.name = ? and page.last_seq > ? order by page.last_seq"""


Page = tuple[int, int, bytes]


class SqliteBackend:
    durable = True
    keeps_parts = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = FolderLock(path.with_name(path.name + ".lock"))
        self._report: Report = lambda _: None
        self._reader_guard = threading.Lock()
        self._connections: list[sqlite3.Connection] = []
        self._heads: dict[str, tuple[int, int]] = {}  # of streams: their ids and last numbers, as committed

    def open(self, report: Report) -> None:
        self._report = report
        try:
            self._lock.acquire()
            self._writer = self._connect()
            self._migrate()
            self._writer.execute(_UNSWEPT_TABLE)
            self._writer.execute(_ADVANCE)
            self._reader = self._connect()
            self._reader.execute("pragma query_only = on")
        except (sqlite3.Error, OSError) as error:
            self.close()
            raise StorageFailed(
                f"cannot open {self._path}: {error}; check the file and its folder"
            ) from error
        except StorageFailed:
            self.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        connection = connect(self._path, DISK_PAGE)
        self._connections.append(connection)
        return connection

    def _migrate(self) -> None:
        (version,) = self._writer.execute("pragma user_version").fetchone()
        if version > VERSION:
            raise StorageFailed(
                f"cannot open {self._path}: it is of format {version}, newer than {VERSION}; update Legation"
            )
        if version == 0:
            self._writer.executescript(f"begin immediate; {_SCHEMA} pragma user_version = {VERSION}; commit;")
            return
        for number in range(version + 1, VERSION + 1):
            self._writer.executescript(
                f"begin immediate; {_MIGRATIONS[number]} pragma user_version = {number}; commit;"
            )

    def commit(self, ops: Sequence[Op]) -> None:
        try:
            self._commit(merge_appends(ops))
        except BaseException as error:
            self._heads.clear()
            with suppress(sqlite3.Error):  # SQLite has rolled back by itself, or will before the next commit
                self._writer.execute("rollback")
            if isinstance(error, sqlite3.Error):
                raise StorageFailed(f"cannot write to {self._path}: {error}; free some space") from error
            raise
        if len(self._heads) > KNOWN_STREAMS:
            self._heads.clear()

    def _commit(self, ops: Sequence[Op]) -> None:
        run = self._writer.execute
        appends = [op for op in ops if isinstance(op, Append)]
        if len(appends) == len(ops):
            pages = [page for op in appends for page in self._pages(op)]
            if len(pages) <= AT_ONCE:
                self._insert(pages)
                return
            self._heads.clear()  # nothing of them is stored yet
        run("begin immediate")
        for op in ops:
            self._apply(op)
        run("commit")
        if any(isinstance(op, Sweep) or (isinstance(op, SetState) and op.state == "deleted") for op in ops):
            self._scrub()

    def _scrub(self) -> None:
        """The write-ahead log has all that was deleted. Best effort: whoever reads at this moment is not waited for long,
        and what is left then goes with the next that is deleted, or when the log is merged."""
        with suppress(sqlite3.Error):
            self._writer.execute(f"pragma busy_timeout = {SCRUB_LIMIT}")
            self._writer.execute("pragma wal_checkpoint(truncate)").fetchone()
        with suppress(sqlite3.Error):
            self._writer.execute(f"pragma busy_timeout = {int(BUSY_LIMIT * 1000)}")

    def _apply(self, op: Op) -> None:
        run = self._writer.execute
        if isinstance(op, Create):
            run(_CREATE, (op.stream, op.workspace))
            return
        stream_id, head = self._heads.get(op.stream) or self._head(op.stream)
        match op:
            case Append():
                self._insert(self._pages(op))
            case Replace(events=[]):
                run(_REOPEN, (op.meta, stream_id))
            case Replace():
                if op.events[-1].seq <= head:
                    return
                self._insert(self._pages(op))
                run(_RESTART, (op.events[0].seq, op.events[-1].seq, op.meta, stream_id))
            case SetState():
                if op.state == "deleted":  # of a stream that is gone its name is left, and no word of it
                    run(_BURY, (stream_id,))
                    self._drop_some(stream_id)
                    run(_LEAVE, (stream_id,))
                else:
                    run(_SET_STATE, (op.state, stream_id))
            case SetMeta():
                run(_SET_META, (op.meta, stream_id))
            case Sweep():
                if run(_IS_DELETED, (stream_id,)).fetchone():
                    self._drop_some(stream_id)
                    run(_SWEPT, (stream_id,))
                run(f"pragma incremental_vacuum({GIVE_BACK})").fetchall()
            case Part():
                run(_INSERT_PART, (op.blob, op.number, op.body, stream_id))

    def _drop_some(self, stream_id: int) -> None:
        self._writer.execute(_DROP_PAGES, (stream_id, SWEEP_PAGES))
        self._writer.execute(_DROP_PARTS, (stream_id, SWEEP_PARTS))

    def _pages(self, op: Append | Replace) -> list[Page]:
        """Pages of the events that are not stored. From now on the stream's head is what it will be then."""
        stream_id, head = self._heads.get(op.stream) or self._head(op.stream)
        fresh = [event for event in op.events if event.seq > head]
        if fresh:
            self._heads[op.stream] = stream_id, fresh[-1].seq
        encode = codec.encode if len(fresh) == 1 else codec.encode_page  # one is no run
        return [(stream_id, page[-1].seq, encode(page)) for page in codec.pages(fresh, PAGE_BYTES)]

    def _head(self, stream: str) -> tuple[int, int]:
        found = self._writer.execute(_HEAD, (stream,)).fetchone()
        if found is None:
            raise StorageFailed(f"cannot write to stream {stream}: it was never created")
        stream_id, head = self._heads[stream] = found
        return stream_id, head

    def _insert(self, pages: Sequence[Page]) -> None:
        for start in range(0, len(pages), AT_ONCE):
            some = pages[start : start + AT_ONCE]
            values = ",".join(["(?, ?, ?)"] * len(some))
            self._writer.execute(_INSERT_PAGES + values, [field for page in some for field in page])

    def lookup(self, stream: str) -> StreamInfo | None:
        with self._reading():
            row = self._reader.execute(_LOOKUP, (stream,)).fetchone()
        return _info(row) if row else None

    def streams(self) -> list[StreamInfo]:
        return self._infos(_STREAMS)

    def deleted(self) -> list[StreamInfo]:
        return self._infos(_DELETED)

    def _infos(self, query: str) -> list[StreamInfo]:
        with self._reading():
            rows = self._reader.execute(query).fetchall()
        return [_info(row) for row in rows]

    def read(self, stream: str, after: int, up_to_bytes: int) -> list[Event]:
        events: list[Event] = []
        size = 0
        with self._reading():
            for (body,) in self._reader.execute(_READ, (stream, after)):
                found = codec.decode(body, after, lambda line: self._malformed(stream, line))
                events += [self._whole(stream, event) if event.blob else event for event in found]
                size += max(
                    len(body), sum([len(event.raw) for event in events[-len(found) :]]) if found else 0
                )
                if events and size >= up_to_bytes:
                    break
        return events

    def _whole(self, stream: str, event: Event) -> Event:
        parts = self._reader.execute(_READ_PARTS, (stream, event.blob)).fetchall()
        if not parts:
            self._malformed(stream, event.digest)
        return replace(event, raw=b"".join([body for (body,) in parts]) or event.raw)

    def unswept(self) -> list[StreamInfo]:
        return self._infos(_UNSWEPT)

    def size(self, stream: str | None = None) -> StoreSize:
        with self._reading():
            if stream is not None:
                found = self._reader.execute(_STREAM_SIZE, (stream,)).fetchone()
                return StoreSize(found[0] if found else 0)
            return StoreSize(*size_of(self._reader))

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            with self._reader_guard:
                yield
        except sqlite3.Error as error:
            raise StorageFailed(f"cannot read {self._path}: {error}; check the file") from error

    def _malformed(self, stream: str, line: bytes) -> None:
        self._report(StorageTrouble("storage/malformed-line", f"skipped a line of {len(line)} bytes", stream))

    def close(self) -> None:
        while self._connections:
            self._connections.pop().close()
        self._lock.release()


def _info(row: tuple[Any, ...]) -> StreamInfo:
    name, workspace, state, first_seq, head, meta, earlier = row
    return StreamInfo(name, workspace, state, first_seq, head, meta, tuple(map(int, earlier.split())))
