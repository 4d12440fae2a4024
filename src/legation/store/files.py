"""Files that outlive a crash: written durably or replaced as a whole, locked by one process, believed only if they are their owner's."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from legation.errors import ConfigInvalid, Conflict, StorageFailed
from legation.store import codec
from legation.store.datafolder import make_folder
from legation.wire.events import Event

# A file of event lines whose numbers rise: found by bisection, read in whole lines, written durably.

_CHUNK = 64 * 1024


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


def first_event(path: Path) -> Event | None:
    events = read_events(path, 0, _CHUNK, lambda _: None)
    return events[0] if events else None


def last_event(path: Path) -> Event | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        end = end_of_last_line(fd, os.fstat(fd).st_size)
        while end > 0:
            start = end_of_last_line(fd, end - 1)
            event = _try_decode(os.pread(fd, end - 1 - start, start))
            if event:
                return event
            end = start
        return None
    finally:
        os.close(fd)


def end_of_last_line(fd: int, size: int) -> int:
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


def write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def write_atomically(path: Path, data: bytes) -> None:
    with written_beside(path, data):
        pass


@contextmanager
def written_beside(path: Path, data: bytes) -> Iterator[None]:
    """The data are durable beside the file; at the end they take its place, unless there was an error."""
    temporary = path.with_name(path.name + ".new")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            write_all(fd, data, 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        yield
        temporary.replace(path)
    except OSError:
        with suppress(OSError):  # it would only take up room
            temporary.unlink()
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# One owner per folder: an advisory lock that dies with its process, and the owner's pid for the message.

# A reader that looks whether the owner lives holds the lock for the length of that look: its time.
LOOK_LIMIT = 0.25
_LOOK_PAUSE = 0.005


class FolderLock:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def acquire(self) -> None:
        make_folder(self._path.parent)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock(fd)
            _must_be_the_one_there(fd, self._path)
        except BlockingIOError:
            owner = os.read(fd, 32).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise Conflict(
                f"cannot open {self._path.parent}: process {owner} owns it; stop that one first (`legation stop` stops a server)",
                {"owner": owner},
            ) from None
        self._fd = fd
        with suppress(OSError):  # a full disk: the lock holds all the same
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _lock(fd: int) -> None:
    deadline = time.monotonic() + LOOK_LIMIT
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_PAUSE)


def _must_be_the_one_there(fd: int, path: Path) -> None:
    """While we waited, the folder may have been moved away and made anew, by a restore."""
    try:
        there = os.path.samestat(os.fstat(fd), path.stat())
    except OSError:
        there = False
    if not there:
        os.close(fd)
        raise Conflict(f"cannot open {path.parent}: it was moved while it was opened; try again")


def owner_alive(path: Path) -> bool:
    """Whether a process holds the lock; looks without taking it for longer than the look."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(fd)


# A small file in the data folder that is its owner's alone: read when asked, replaced as a whole, one writer at a time.

# Another process changes a file of the same folder: the time of a few small writes on a slow disk.
TURN_LIMIT: Final = 10.0
_TURN_PAUSE: Final = 0.01
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe must not hold us up
_MAKE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def read(path: Path, largest: int) -> bytes | None:
    """None where there is no such file. One that others may change is not believed: `ConfigInvalid`."""
    try:
        fd = os.open(path, _READ)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        reason = "it is a link" if path.is_symlink() else error.strerror
        raise ConfigInvalid(
            f"cannot use {path}: {reason}; make it a file that only its owner can read"
        ) from error
    try:
        _check(path, os.fstat(fd), largest)
        return os.read(fd, largest)
    finally:
        os.close(fd)


def _check(path: Path, status: os.stat_result, largest: int) -> None:
    """Of the open file, not of the path: that may be another one by now."""
    if not stat.S_ISREG(status.st_mode):
        raise ConfigInvalid(f"cannot use {path}: it is not a file; remove it")
    if status.st_uid != os.geteuid():
        raise ConfigInvalid(
            f"cannot use {path}: it belongs to user {status.st_uid}, not to {os.geteuid()}; run Legation as its owner"
        )
    if status.st_mode & 0o022:
        raise ConfigInvalid(
            f"cannot use {path}: others can change it; look at what it says, then run `chmod 600 {path}`"
        )
    if status.st_size > largest:
        raise ConfigInvalid(f"cannot use {path}: it is longer than {largest} bytes; correct or remove it")


def replace(path: Path, content: bytes) -> None:
    """Durably, and in one step. Only while `alone`: a file of the temporary name is what a crash left."""
    temporary = path.with_name(path.name + ".new")
    with _told_as_storage(path):
        with suppress(FileNotFoundError):
            temporary.unlink()
        fd = os.open(temporary, _MAKE, 0o600)
        try:
            os.fchmod(fd, 0o600)  # whatever the umask took or a folder's default gave
            write_all(fd, content, 0)
            os.fsync(fd)
            temporary.replace(path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise
        finally:
            os.close(fd)
        sync_folder(path.parent)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """One at a time changes files of that folder; the lock is on the folder and dies with its process. Blocks."""
    with _told_as_storage(path):
        make_folder(path.parent)
        fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _take_turn(fd, path)
        yield
    finally:
        os.close(fd)


def _take_turn(fd: int, path: Path) -> None:
    deadline = time.monotonic() + TURN_LIMIT
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise StorageFailed(
                    f"cannot change {path}: another process is doing so; try again when it is done"
                ) from None
            time.sleep(_TURN_PAUSE)


@contextmanager
def _told_as_storage(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageFailed(
            f"cannot write {path}: {error.strerror}; check the folder and its disk"
        ) from error
