"""Events in a folder of text files: `<stream>.jsonl`, one event a line, and `<stream>.json` for its state.

Nothing is indexed: numbers rise along the file, so a reader finds its place by bisection, and the head is in
the last line. A torn last line is what a crash leaves; it was never acknowledged and is cut off.

A new generation is events and metadata in one commit, which are two files: first `<stream>.load` says what is to come,
then the events are appended. It is there as soon as the last of them is; if not, they are cut off again.

`<stream>.checkpoints` has checkpoints of readings, one a line. What a crash left of the last is skipped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote

import msgspec

from legation.errors import NotFound, StorageFailed
from legation.store import codec, files
from legation.store.codec import (
    Append,
    Create,
    KeepCheckpoint,
    Op,
    Replace,
    Report,
    SetMeta,
    SetState,
    State,
    StorageTrouble,
    StoreSize,
    StreamInfo,
    WantedCheckpoint,
    merge_appends,
)
from legation.store.entries import StreamQuery, entry_of
from legation.store.files import FolderLock, owner_alive
from legation.wire.events import Event

OPEN_FILES = 128  # streams of which the file is kept open: a share of what a process may have
READ_BYTES = 512 * 1024
POLL = 0.1  # seconds between looks at a file that somebody else writes
_CHUNK = 64 * 1024
_T = TypeVar("_T")


class _Side(msgspec.Struct, frozen=True):
    """The state file beside a stream's events."""

    workspace: str = "local"
    state: State = "open"
    head: int = 0  # only kept where no event is left to tell it: after a deletion
    meta: msgspec.Raw = msgspec.Raw(b"{}")
    first_seq: int = 0  # of the newest generation; 0: the first event that there is
    earlier: tuple[int, ...] = ()


class _Load(msgspec.Struct, frozen=True):
    """A generation that begins: its numbers, the size of the file before it, and what is beside it then."""

    first: int
    last: int
    size: int
    side: _Side


class _Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    kind: str
    format: int
    first_seq: int
    seq: int
    body: bytes
    sequence: int
    messages: int


class _OpenFile:
    """A stream's events, open for appending; `size` and `head` are what is known to be durable."""

    def __init__(self, path: Path, head: int) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.size = os.fstat(self.fd).st_size
        self.head = head
        self.torn = False  # an attempt failed; what it left must be cut off here, where the size is known

    def append(self, events: Sequence[Event]) -> None:
        fresh = [event for event in events if event.seq > self.head]
        if not fresh:
            return
        self.torn = True
        os.ftruncate(self.fd, self.size)  # what an earlier attempt left behind
        data = codec.encode(fresh)
        files.write_all(self.fd, data, self.size)
        os.fdatasync(self.fd)
        self.size += len(data)
        self.head = fresh[-1].seq
        self.torn = False

    def close(self) -> None:
        os.close(self.fd)


class JsonlBackend:
    durable = True
    keeps_parts = False
    names_files = True

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)
        self._lock = FolderLock(self._folder / "lock")
        self._files: dict[str, _OpenFile] = {}
        # Loads that could not be ended yet: whether they are there, or were refused.
        self._loads: dict[str, bool] = {}
        self._report: Report = lambda _: None

    def open(self, report: Report) -> None:
        self._report = report
        try:
            self._lock.acquire()
        except OSError as error:
            raise StorageFailed(f"cannot open {self._folder}: {error.strerror}; check the folder") from error
        try:
            for path in self._folder.glob("*.jsonl"):
                self._mend(path)
            for path in self._folder.glob("*.load"):
                stream = _stream_of(path)
                load = read_load(self._folder, stream)
                self._end_load(
                    stream, there=load is not None and _has(events_path(self._folder, stream), load)
                )
        except OSError as error:
            self._lock.release()
            reason = f"{error.filename or self._folder}: {error.strerror}"
            raise StorageFailed(f"cannot mend {reason}; check the file") from error

    def _mend(self, path: Path) -> None:
        if self._is_deleted(_stream_of(path)):  # whoever deleted it was killed half-way
            checkpoints_path(self._folder, _stream_of(path)).unlink(missing_ok=True)
            path.unlink()
            files.sync_folder(self._folder)
            return
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            whole = _end_of_last_line(fd, size)
            if whole < size:
                os.ftruncate(fd, whole)
                os.fsync(fd)
                torn = f"cut off {size - whole} bytes of a line that was never acknowledged"
                self._report(StorageTrouble("storage/recovered", torn, _stream_of(path)))
        finally:
            os.close(fd)

    def commit(self, ops: Sequence[Op]) -> None:
        try:
            for op in merge_appends(ops):
                self._apply(op)
        except OSError as error:
            remedy = "free some space" if error.errno in files.NO_ROOM else "check the folder"
            raise StorageFailed(f"cannot write to {self._folder}: {error.strerror}; {remedy}") from error

    def _apply(self, op: Op) -> None:
        if op.stream in self._loads:
            self._end_load(op.stream, there=self._loads[op.stream])
        match op:
            case Create():
                if not side_path(self._folder, op.stream).exists():
                    self._write_side(op.stream, _Side(workspace=op.workspace))
            case Append():
                self._file(op.stream).append(op.events)
            case Replace():
                self._replace(op)
            case SetState():
                self._set_state(op)
            case SetMeta():
                side = read_side(self._folder, op.stream)
                if side.state != "deleted":
                    self._write_side(op.stream, msgspec.structs.replace(side, meta=msgspec.Raw(op.meta)))
            case KeepCheckpoint():
                with suppress(OSError):  # it is no reason to refuse an event
                    self._keep_checkpoint(op)

    def _file(self, stream: str) -> _OpenFile:
        file = self._files.pop(stream, None) or self._open(stream)
        self._files[stream] = file  # the one used last is the last
        if len(self._files) > OPEN_FILES:
            oldest = next((name for name, each in self._files.items() if not each.torn), stream)
            if oldest != stream:
                self._forget(oldest)
        return file

    def _open(self, stream: str) -> _OpenFile:
        path = events_path(self._folder, stream)
        new = not path.exists()
        file = _OpenFile(path, stream_info(self._folder, stream).head)
        if new:
            files.sync_folder(self._folder)
        return file

    def _replace(self, op: Replace) -> None:
        info = stream_info(self._folder, op.stream)
        side = read_side(self._folder, op.stream)
        meta = side.meta if op.meta is None else msgspec.Raw(op.meta)
        side = msgspec.structs.replace(side, state="open", meta=meta)
        if not op.events:
            self._write_side(op.stream, side)
            return
        file, first, last = self._file(op.stream), op.events[0].seq, op.events[-1].seq
        if last <= file.head:
            return
        side = msgspec.structs.replace(side, first_seq=first, earlier=info.begun_at(first))
        load = _Load(first, last, file.size, side)
        self._loads[op.stream] = False
        try:
            files.write_atomically(load_path(self._folder, op.stream), msgspec.json.encode(load))
            file.append(op.events)  # this is the commit
            self._loads[op.stream] = True
        finally:
            with suppress(OSError):  # else before the next change; until then the file tells
                self._end_load(op.stream, there=self._loads[op.stream])

    def _end_load(self, stream: str, *, there: bool) -> None:
        """All of it is there, or nothing: who was told that it failed finds it so."""
        load, path = read_load(self._folder, stream), events_path(self._folder, stream)
        if load is not None and there:
            self._write_side(stream, load.side)
        elif load is not None and path.exists():
            os.truncate(path, load.size)
        load_path(self._folder, stream).unlink(missing_ok=True)
        files.sync_folder(self._folder)
        self._loads.pop(stream, None)

    def _set_state(self, op: SetState) -> None:
        side = msgspec.structs.replace(
            read_side(self._folder, op.stream), state=op.state, head=stream_info(self._folder, op.stream).head
        )
        if op.state == "deleted":  # its name is left, and no word of it
            side = msgspec.structs.replace(side, meta=_Side().meta, first_seq=0, earlier=())
        self._write_side(op.stream, side)
        if op.state != "open":
            self._forget(op.stream)
        if op.state == "deleted":
            checkpoints_path(self._folder, op.stream).unlink(missing_ok=True)
            events_path(self._folder, op.stream).unlink(missing_ok=True)
            files.sync_folder(self._folder)

    def _keep_checkpoint(self, op: KeepCheckpoint) -> None:
        kept = _Checkpoint(op.kind, op.format, op.first_seq, op.seq, op.body, op.sequence, op.messages)
        path, line = checkpoints_path(self._folder, op.stream), msgspec.json.encode(kept) + b"\n"
        if self._is_deleted(op.stream):
            return
        if op.only:
            line += b"".join([each + b"\n" for each, found in _checkpoints(path) if found.kind != op.kind])
            files.write_atomically(path, line)
        else:
            with path.open("ab") as file:
                file.write(line)

    def checkpoint(self, stream: str, wanted: WantedCheckpoint) -> KeepCheckpoint | None:
        with self._reading():
            lines = list(_checkpoints(checkpoints_path(self._folder, stream)))
        kept = [KeepCheckpoint(stream, *msgspec.structs.astuple(each)) for _, each in lines]
        return max(filter(wanted.fits, kept), key=lambda each: each.seq, default=None)

    def _forget(self, stream: str) -> None:
        file = self._files.pop(stream, None)
        if file:
            file.close()

    def lookup(self, stream: str) -> StreamInfo | None:
        with self._reading():
            return stream_info(self._folder, stream) if side_path(self._folder, stream).exists() else None

    def streams(self) -> list[StreamInfo]:
        return [info for info in self._infos() if info.state != "deleted"]

    def page(self, query: StreamQuery, limit: int) -> list[StreamInfo]:
        # Nothing is indexed: such a folder has the few sessions that somebody wants to look at.
        found = query.found((info, entry_of(info.meta)) for info in self._infos())
        return [info for _, info in found[:limit]]

    def deleted(self) -> list[StreamInfo]:
        return [info for info in self._infos() if info.state == "deleted"]

    def _infos(self) -> list[StreamInfo]:
        infos = [self.lookup(_stream_of(path)) for path in sorted(self._folder.glob("*.json"))]
        return [info for info in infos if info]

    def read(self, stream: str, after: int, up_to_bytes: int) -> list[Event]:
        with self._reading():
            return read_events(
                events_path(self._folder, stream),
                after,
                up_to_bytes,
                lambda line: self._malformed(stream, line),
            )

    def unswept(self) -> list[StreamInfo]:
        return []  # a file goes as one

    def size(self, stream: str | None = None) -> StoreSize:
        with self._reading():
            names = [stream] if stream is not None else [info.name for info in self._infos()]
            paths = [events_path(self._folder, name) for name in names]
            return StoreSize(sum(path.stat().st_size for path in paths if path.exists()))

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = f"{error.filename or self._folder}: {error.strerror}"
            raise StorageFailed(f"cannot read {reason}; check the folder") from error

    def _malformed(self, stream: str, line: bytes) -> None:
        self._report(StorageTrouble("storage/malformed-line", f"skipped a line of {len(line)} bytes", stream))

    def close(self) -> None:
        for stream in list(self._files):
            self._forget(stream)
        self._lock.release()

    def _is_deleted(self, stream: str) -> bool:
        try:
            return read_side(self._folder, stream).state == "deleted"
        except StorageFailed:  # whoever wants that stream is told
            return False

    def _write_side(self, stream: str, side: _Side) -> None:
        files.write_atomically(side_path(self._folder, stream), msgspec.json.encode(side) + b"\n")


def events_path(folder: Path, stream: str) -> Path:
    return folder / f"{quote(stream, safe='')}.jsonl"


def side_path(folder: Path, stream: str) -> Path:
    return folder / f"{quote(stream, safe='')}.json"


def load_path(folder: Path, stream: str) -> Path:
    return folder / f"{quote(stream, safe='')}.load"


def checkpoints_path(folder: Path, stream: str) -> Path:
    return folder / f"{quote(stream, safe='')}.checkpoints"


def _checkpoints(path: Path) -> Iterator[tuple[bytes, _Checkpoint]]:
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with suppress(msgspec.MsgspecError):
            yield line, msgspec.json.decode(line, type=_Checkpoint)


def stream_info(folder: Path, stream: str) -> StreamInfo:
    side, path = read_side(folder, stream), events_path(folder, stream)
    load = read_load(folder, stream)
    last = _last_event(path)
    head = max(last.seq if last else 0, side.head)
    if load is not None and head >= load.last:
        side = load.side
    elif load is not None:
        head = min(head, load.first - 1)
    first_seq = side.first_seq
    if not first_seq:
        first = _first_event(path)
        first_seq = first.seq if first else 1
    return StreamInfo(stream, side.workspace, side.state, first_seq, head, bytes(side.meta), side.earlier)


def read_load(folder: Path, stream: str) -> _Load | None:
    """None where no load is under way, or was when its writer ended."""
    return _read(load_path(folder, stream), _Load)


def read_side(folder: Path, stream: str) -> _Side:
    return _read(side_path(folder, stream), _Side) or _Side()


def _read(path: Path, kind: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise StorageFailed(f"cannot read {path}: {error}; restore it or delete it") from error


def _has(path: Path, load: _Load) -> bool:
    last = _last_event(path)
    return last is not None and last.seq >= load.last


def _stream_of(path: Path) -> str:
    return unquote(path.stem)


# A file of event lines whose numbers rise: found by bisection, read in whole lines.


def read_events(
    path: Path, after: int, up_to_bytes: int, on_malformed: Callable[[bytes], None]
) -> list[Event]:
    """The next events above `after` from whole lines only, about `up_to_bytes` of them."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    try:
        offset = _seek_seq(fd, os.fstat(fd).st_size, after)
        events: list[Event] = []
        want = up_to_bytes
        while not events:
            block = os.pread(fd, want, offset)
            whole = block.rfind(b"\n") + 1
            if not whole:
                if len(block) < want:
                    break
                want *= 4  # one line longer than a block
                continue
            events = codec.decode(block[:whole], after, on_malformed)
            offset += whole
        return events
    finally:
        os.close(fd)


def _seek_seq(fd: int, size: int, after: int) -> int:
    """The offset of a line start at or shortly before the first event above `after`, by bisection."""
    low, high = 0, size
    while high - low > _CHUNK:
        middle = (low + high) // 2
        found = _next_event(fd, middle, high)
        if found is None or found[1] > after:
            high = middle
        else:
            low = found[0]
    return low


def _next_event(fd: int, offset: int, end: int) -> tuple[int, int] | None:
    """(offset, number) of the first well-formed line that starts after `offset`, before `end`."""
    start = _next_line(fd, offset)
    while start is not None and start < end:
        stop = _next_line(fd, start)
        if stop is None:
            return None
        event = _try_decode(os.pread(fd, stop - 1 - start, start))
        if event:
            return start, event.seq
        start = stop
    return None


def _next_line(fd: int, offset: int) -> int | None:
    """The offset just behind the next newline; a line of any length is only looked through."""
    while block := os.pread(fd, _CHUNK, offset):
        newline = block.find(b"\n")
        if newline >= 0:
            return offset + newline + 1
        offset += len(block)
    return None


def _first_event(path: Path) -> Event | None:
    events = read_events(path, 0, _CHUNK, lambda _: None)
    return events[0] if events else None


def _last_event(path: Path) -> Event | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        end = _end_of_last_line(fd, os.fstat(fd).st_size)
        while end > 0:
            start = _end_of_last_line(fd, end - 1)
            event = _try_decode(os.pread(fd, end - 1 - start, start))
            if event:
                return event
            end = start
        return None
    finally:
        os.close(fd)


def _end_of_last_line(fd: int, size: int) -> int:
    """The offset just behind the last newline before `size`; 0 when there is none."""
    while size > 0:
        start = max(0, size - _CHUNK)
        newline = os.pread(fd, size - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        size = start
    return 0


def _try_decode(line: bytes) -> Event | None:
    try:
        return codec.decode_line(line)
    except ValueError:
        return None


class JsonlReader:
    """A stream that another process may be writing: owns nothing, changes nothing."""

    def __init__(self, folder: Path, stream: str) -> None:
        self._folder = folder
        self._stream = stream

    def exists(self) -> bool:
        return side_path(self._folder, self._stream).exists()

    def info(self) -> StreamInfo:
        return stream_info(self._folder, self._stream)

    def being_written(self) -> bool:
        """Whether its owner lives and has not closed it."""
        state = read_side(self._folder, self._stream).state
        return state == "open" and owner_alive(self._folder / "lock")

    def range_of(self, generation: int | None) -> tuple[int, int | None]:
        """The first number of a generation, counted from 1, and the last; the newest has none, and is the default."""
        info = self.info()
        starts = (*info.earlier, info.first_seq)
        number = len(starts) if generation is None else generation
        if not 0 < number <= len(starts):
            raise NotFound(
                f"cannot find generation {number} of session {self._stream}: the last is {len(starts)}; give one of these"
            )
        return starts[number - 1], starts[number] - 1 if number < len(starts) else None

    def read(self, after: int, on_malformed: Callable[[bytes], None]) -> list[Event]:
        return read_events(events_path(self._folder, self._stream), after, READ_BYTES, on_malformed)

    def batches(
        self, after: int, on_malformed: Callable[[bytes], None], *, follow: bool = False
    ) -> Iterator[list[Event]]:
        """Events above `after`; with `follow`, also what comes until the stream is closed or its owner ends."""
        while True:
            more_to_come = follow and self.being_written()  # asked first: what is written before that is read
            events = self.read(after, on_malformed)
            if events:
                after = events[-1].seq
                yield events
            elif more_to_come:
                time.sleep(POLL)
            else:
                return
