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
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from legation.errors import StorageFailed
from legation.store import codec
from legation.store.codec import (
    Append,
    Create,
    KeepCheckpoint,
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
    WantedCheckpoint,
    key_of,
    merge_appends,
)
from legation.store.database.sqlite import BUSY_LIMIT, connect, size_of
from legation.store.entries import (
    DUE_CLOSED,
    DUE_OPEN,
    FAILED,
    REOPENS,
    SEVERAL,
    ByName,
    Due,
    LastFailed,
    LastUsed,
    Newest,
    StreamQuery,
    WorkingIn,
    entry_of,
)
from legation.store.files import FolderLock
from legation.wire.events import Event

VERSION = 6
WITH_ENTRIES = 5  # the first version that has them
ENTERED_AT_ONCE = 1000  # streams of an older version whose metadata are in memory together
# SQLite's own unit, of a new file. A commit writes some of them anew, whatever it holds: of 32 KiB, bytes for an update are twice as many
# and its CPU is the same.
DISK_PAGE = 8 * 1024
AT_ONCE = 100  # pages in one statement
KNOWN_STREAMS = 10_000  # whose heads are remembered
# Milliseconds that a deletion waits for readers, so that it leaves nothing in the write-ahead log.
SCRUB_LIMIT = 200
# Of a deleted stream that go in one commit, some megabytes each: others' commits come in between.
SWEEP_PAGES = 32
SWEEP_PARTS = 8
GIVE_BACK = 4 * 1024 * 1024  # bytes that a commit gives back to the disk
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
  earlier text not null default '',
  agent text,
  cwd text,
  place integer,
  used integer not null default 0,
  flags integer not null default 0
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
create table checkpoint (
  id integer primary key,
  stream integer not null references stream (id),
  kind text not null,
  format integer not null,
  first_seq integer not null,
  seq integer not null,
  sequence integer not null,
  messages integer not null,
  body blob not null
) strict;
create unique index checkpoint_by_seq on checkpoint (stream, kind, first_seq, seq);
create index checkpoint_by_sequence on checkpoint (stream, kind, first_seq, sequence);
create index checkpoint_by_messages on checkpoint (stream, kind, first_seq, messages);
"""

# By what lists find their streams: each reads what it shows. The columns are those of an `Entry`; `place` is where it stands
# among the newest, and null where it is in no list. What a client of ACP can load is no generated column: SQLite cannot
# copy a table that has one (`vacuum into`) in every release.
_LISTED = "place is not null"
_LOADS = f"(state = 'open' or (state = 'closed' and flags & {REOPENS}))"
_FAILED = f"{_LISTED} and state = 'open' and flags & {FAILED}"
_SEVERAL = f"{_LISTED} and flags & {SEVERAL}"
_DUE = f"((state = 'open' and flags & {DUE_OPEN}) or (state = 'closed' and flags & {DUE_CLOSED}))"
_INDEXES = (
    "create index stream_by_name on stream (workspace, state, name)",
    f"create index stream_by_age on stream (workspace, place, name) where {_LISTED}",
    f"create index stream_by_use on stream (workspace, agent, used, name) where {_LISTED} and {_LOADS}",
    f"create index stream_by_folder on stream (workspace, cwd, agent, {_LOADS}, used, name) where {_LISTED}",
    f"create index stream_in_several on stream (workspace, name) where {_SEVERAL}",
    f"create index stream_failed on stream (workspace, agent, place, name) where {_FAILED}",
    f"create index stream_due on stream (workspace, name) where {_DUE}",
)

# 2: where the generations before the newest begin, with spaces between. Until then a load deleted them.
# 3: long texts, in parts of their own: in the row of its event such a text is `null`.
# 4: a line may be several references. Nothing else is new; who reads it as one event must not open it.
# 5: what lists find sessions by, beside the metadata that it is read from: who writes the one alone must not open it.
# 6: checkpoints of readings.
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
    5: """alter table stream add column agent text;
    alter table stream add column cwd text;
    alter table stream add column place integer;
    alter table stream add column used integer not null default 0;
    alter table stream add column flags integer not null default 0;""",
    6: """create table if not exists checkpoint (
      id integer primary key,
      stream integer not null references stream (id),
      kind text not null,
      format integer not null,
      first_seq integer not null,
      seq integer not null,
      sequence integer not null,
      messages integer not null,
      body blob not null
    ) strict;
    create unique index if not exists checkpoint_by_seq on checkpoint (stream, kind, first_seq, seq);
    create index if not exists checkpoint_by_sequence on checkpoint (stream, kind, first_seq, sequence);
    create index if not exists checkpoint_by_messages on checkpoint (stream, kind, first_seq, messages);""",
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
_RESTART = """update stream set state = 'open', head = ?2, first_seq = ?1,
  earlier = case when first_seq < ?1 then ltrim(earlier || ' ' || first_seq) else earlier end where id = ?3"""
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
_DROP_CHECKPOINTS = "delete from checkpoint where stream = ?"
_DROP_EARLIER = "delete from checkpoint where stream = ? and kind = ? and seq < ?"
# One that is there already stays as it is, unless it is damaged, or of another format.
_KEEP_CHECKPOINT = """insert into checkpoint (stream, kind, format, first_seq, seq, sequence, messages, body)
  select id, ?2, ?3, ?4, ?5, ?6, ?7, ?8 from stream where id = ?1 and state <> 'deleted' and head >= ?5
  on conflict (stream, kind, first_seq, seq) do update
    set format = excluded.format, sequence = excluded.sequence, messages = excluded.messages, body = excluded.body
    where checkpoint.format <> excluded.format or checkpoint.body <> excluded.body"""
_CHECKPOINT = """select checkpoint.seq, checkpoint.body, checkpoint.sequence, checkpoint.messages
  from checkpoint join stream on stream.id = checkpoint.stream
  where stream.name = ? and checkpoint.kind = ? and checkpoint.format = ? and checkpoint.first_seq = ?
    and checkpoint.seq <= ? and checkpoint.{number} <= ?
  order by checkpoint.{number} desc, checkpoint.seq desc limit 1"""
_CHECKPOINT_BY = {
    False: _CHECKPOINT.format(number="sequence"),
    True: _CHECKPOINT.format(number="messages"),
}
_BURY = """update stream set state = 'deleted', meta = x'7b7d', earlier = '', agent = null, cwd = null, place = null,
  used = 0, flags = 0 where id = ?"""
_SET_META = """update stream set meta = ?, agent = ?, cwd = ?, place = ?, used = ?, flags = ?
  where id = ? and state <> 'deleted'"""
_SET_ENTRY = "update stream set agent = ?, cwd = ?, place = ?, used = ?, flags = ? where id = ?"
_METAS = "select id, meta from stream where state <> 'deleted' and id > ? order by id limit ?"
_READ = """select page.body from page join stream on stream.id = page.stream
  where stream.name = ? and page.last_seq > ? order by page.last_seq"""


Page = tuple[int, int, bytes]


class SqliteBackend:
    durable = True
    keeps_parts = True
    names_files = False

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
        connection.execute("pragma temp_store = memory")  # what a statement may take back, in no file
        self._connections.append(connection)
        return connection

    def _migrate(self) -> None:
        (version,) = self._writer.execute("pragma user_version").fetchone()
        if version > VERSION:
            raise StorageFailed(
                f"cannot open {self._path}: it is of format {version}, newer than {VERSION}; update Legation"
            )
        if version == 0:
            indexes = "".join(f"{each};" for each in _INDEXES)
            self._writer.executescript(
                f"begin immediate; {_SCHEMA} {indexes} pragma user_version = {VERSION}; commit;"
            )
            return
        for number in range(version + 1, VERSION + 1):
            self._writer.executescript(f"begin immediate; {_MIGRATIONS[number]}")
            if number == WITH_ENTRIES:
                self._enter_all()
            self._writer.execute(f"pragma user_version = {number}")
            self._writer.execute("commit")

    def _enter_all(self) -> None:
        """Every stream is looked at once, and indexed then: that is what takes long, so it is done in the order of the file."""
        run, last = self._writer.execute, 0
        while rows := run(_METAS, (last, ENTERED_AT_ONCE)).fetchall():
            self._writer.executemany(
                _SET_ENTRY, [(*_columns(meta), stream_id) for stream_id, meta in rows if entry_of(meta)]
            )
            last = rows[-1][0]
        for index in _INDEXES:
            run(index)

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
                self._insert(
                    pages
                )  # one statement, a transaction by itself, of which nothing need be taken back
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
            case Replace():
                if op.events and op.events[-1].seq <= head:
                    return
                if op.events:
                    self._insert(self._pages(op))
                    run(_RESTART, (op.events[0].seq, op.events[-1].seq, stream_id))
                else:
                    run(_SET_STATE, ("open", stream_id))
                if op.meta is not None:
                    self._set_meta(stream_id, op.meta)
            case SetState():
                if op.state == "deleted":  # of a stream that is gone its name is left, and no word of it
                    run(_DROP_CHECKPOINTS, (stream_id,))
                    run(_BURY, (stream_id,))
                    self._drop_some(stream_id)
                    run(_LEAVE, (stream_id,))
                else:
                    run(_SET_STATE, (op.state, stream_id))
            case SetMeta():
                self._set_meta(stream_id, op.meta)
            case Sweep():
                if run(_IS_DELETED, (stream_id,)).fetchone():
                    self._drop_some(stream_id)
                    run(_SWEPT, (stream_id,))
                (unit,) = run("pragma page_size").fetchone()
                for _ in range(GIVE_BACK // unit):
                    # One by one: Python ends the statement after the first, whatever number is given.
                    run("pragma incremental_vacuum(1)")
            case Part():
                run(_INSERT_PART, (op.blob, op.number, op.body, stream_id))
            case KeepCheckpoint():
                numbers = op.first_seq, op.seq, op.sequence, op.messages
                run(_KEEP_CHECKPOINT, (stream_id, op.kind, op.format, *numbers, op.body))
                if op.only:
                    run(_DROP_EARLIER, (stream_id, op.kind, op.seq))

    def _set_meta(self, stream_id: int, meta: bytes) -> None:
        self._writer.execute(_SET_META, (meta, *_columns(meta), stream_id))

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

    def page(self, query: StreamQuery, limit: int) -> list[StreamInfo]:
        parts = [self._infos(sql, (*given, limit)) for sql, given in _selects(query)]
        if not isinstance(query, ByName):
            return parts[0]
        # One for each state.
        found = query.found((info, None) for part in parts for info in part)
        return [info for _, info in found[:limit]]

    def _infos(self, query: str, given: Sequence[object] = ()) -> list[StreamInfo]:
        with self._reading():
            rows = self._reader.execute(query, given).fetchall()
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

    def checkpoint(self, stream: str, wanted: WantedCheckpoint) -> KeepCheckpoint | None:
        query = _CHECKPOINT_BY[wanted.messages]
        kind, format_, first_seq, upto, number, _ = wanted
        with self._reading():
            row = self._reader.execute(query, (stream, kind, format_, first_seq, upto, number)).fetchone()
        return KeepCheckpoint(stream, kind, format_, first_seq, *row) if row else None

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


def _columns(meta: bytes) -> tuple[str | None, str | None, int | None, int, int]:
    """The entry of that metadata, as it is stored beside it."""
    entry = entry_of(meta)
    if entry is None:
        return None, None, None, 0, 0
    return entry.agent, entry.cwd, None if entry.began is None else -entry.began, entry.used, entry.flags


# Lists, each by its index: `indexed by` fails where a list would have to walk through more than it shows.

_BY_NAME = f"{_INFOS} indexed by stream_by_name where workspace = ? and state = ?"
_IN_NAMES = "order by name limit ?"
_NEWEST = f"{_INFOS} indexed by stream_by_age where workspace = ? and {_LISTED} and (place, name) > (?, ?)"
_FAILURES = f"""{_INFOS} indexed by stream_failed
  where workspace = ? and agent = ? and {_FAILED} and (place, name) > (?, ?)"""
_IN_PLACE = "order by place, name limit ?"
_BY_USE = f"{_INFOS} indexed by stream_by_use where workspace = ? and agent = ? and {_LISTED} and {_LOADS}"
_IN_FOLDER = f"""{_INFOS} indexed by stream_by_folder
  where workspace = ? and agent = ? and {_LISTED} and {_LOADS} = 1 and cwd = ?"""
_IN_USE = "and (used, name) < (?, ?) order by used desc, name desc limit ?"
_IDS = "select id from stream indexed by"
_WORKING_IN = f"""{_INFOS} where name > ?4 and id in (
    {_IDS} stream_by_folder where workspace = ?1 and {_LISTED} and cwd = ?2
    union {_IDS} stream_by_folder where workspace = ?1 and {_LISTED} and cwd > ?2 || '/' and cwd < ?3
    union {_IDS} stream_in_several where workspace = ?1 and {_SEVERAL}
  ) order by name limit ?5"""
_LEFT = f"{_INFOS} indexed by stream_due where workspace = ? and {_DUE} and name > ? order by name limit ?"
_LAST_CHARACTER: Final = 0x10FFFF
_HALVES, _BEHIND_HALVES = 0xD800, 0xE000  # no characters: halves of them
_Bound: TypeAlias = str | bytes
_FIRST: Final[tuple[int, _Bound]] = (-(1 << 63), "")
_LAST: Final[tuple[int, _Bound]] = ((1 << 63) - 1, b"")  # bytes are behind every text


def _selects(query: StreamQuery) -> list[tuple[str, tuple[object, ...]]]:
    """The statements of a list, with their values but for the number of rows."""
    workspace = query.workspace
    number, key = _LAST if query.backwards else _FIRST
    if query.after is not None:
        number, key = query.after[0], _bound(key_of(query.after[1], workspace))
    match query:
        case ByName():
            # One begin, not two, of which only one would be looked for.
            from_first = query.after is None or query.after[1] < query.prefix
            begin = _bound(key_of(query.prefix, workspace)) if from_first else key
            sql, end = f"{_BY_NAME} and name {'>=' if from_first else '>'} ?", _end_of(query.prefix)
            ends = () if end is None else (_bound(key_of(end, workspace)),)
            sql = f"{sql} {'and name < ?' if ends else ''} {_IN_NAMES}"
            return [(sql, (workspace, state, begin, *ends)) for state in query.states]
        case Newest():
            return [(f"{_NEWEST} {_IN_PLACE}", (workspace, number, key))]
        case LastFailed():
            return [(f"{_FAILURES} {_IN_PLACE}", (workspace, query.agent, number, key))]
        case LastUsed(cwd=None):
            return [(f"{_BY_USE} {_IN_USE}", (workspace, query.agent, number, key))]
        case LastUsed(cwd=str(cwd)):
            return [(f"{_IN_FOLDER} {_IN_USE}", (workspace, query.agent, _bound(cwd), number, key))]
        case WorkingIn():
            # `0` stands behind `/`, with nothing between: what is below the folder.
            folder = _bound(query.folder), _bound(f"{query.folder}0")
            return [(_WORKING_IN, (workspace, *folder, key))]
        case Due():
            return [(_LEFT, (workspace, key))]
    raise TypeError(f"no list of {type(query).__name__}")


def _end_of(prefix: str) -> str | None:
    """The first text behind all that begin so; None where there is none."""
    for number in range(len(prefix) - 1, -1, -1):
        after = ord(prefix[number]) + 1
        if after <= _LAST_CHARACTER:
            return prefix[:number] + chr(_BEHIND_HALVES if after == _HALVES else after)
    return None


def _bound(text: str) -> _Bound:
    """As SQLite takes it: half a character, which JSON may have, is in no text that is stored, and bytes are no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text
