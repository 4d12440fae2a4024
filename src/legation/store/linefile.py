"""A file of event lines whose numbers rise: found by bisection, read in whole lines, written durably."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from legation.store import codec
from legation.wire.events import Event

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
