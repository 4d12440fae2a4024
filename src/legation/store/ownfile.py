"""A small file in the data folder that is its owner's alone: read when asked, replaced as a whole, one writer at a time."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from legation.errors import ConfigInvalid, StorageFailed
from legation.store.datafolder import make_folder
from legation.store.linefile import sync_folder, write_all

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
